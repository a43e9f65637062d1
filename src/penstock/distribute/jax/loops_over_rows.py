"""Loops over rows with collectives inside: refused in a full step already, where a ragged step may come later."""

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.distribute.jax.arguments import struct
from penstock.distribute.jax.interface import SCAN, Jaxpr, ScanEquation, inner_traces
from penstock.distribute.jax.lockstep import needs_other_replicas, traced
from penstock.distribute.jax.lockstep_loops import times
from penstock.distribute.jax.program import Call, Static
from penstock.distribute.jax.stateful_program import StatefulProgram
from penstock.errors import InvalidArgumentError

RaggedRowCounts = Callable[[int], Collection[int]]


def check_loops(
    call: Call, program: Any, arguments: list[Any], ragged_row_counts: Sequence[RaggedRowCounts | None]
) -> None:
    """Refuse a step that would fail in the first ragged step.

    Args:
        call: the function of a full step, and how its arguments enter.
        program: that of the full step.
        arguments: what it takes.
        ragged_row_counts: for each leaf of the call, given the rows of a replica in this step, the numbers of rows that
            replicas may have in one ragged step; None where that is not known.

    Raises:
        InvalidArgumentError: with such rows, a loop with a collective inside has other numbers of iterations.
    """
    datasets = list(dict.fromkeys(filter(None, ragged_row_counts)))
    if call.replicas == 1 or not datasets or not _turns(program.trace(*arguments).jaxpr.jaxpr):
        return
    owners = [own for own, mode in zip(ragged_row_counts, call.modes, strict=True) if not isinstance(mode, Static)]
    slices = [
        # Only a number that all replicas get has no row for each.
        argument if np.ndim(argument) == 0 else struct(argument.shape[1:], argument.dtype)
        for argument in arguments
    ]
    values = [value for group in program.values() for value in group] if isinstance(program, StatefulProgram) else []
    for dataset in datasets:
        batch = [
            own is not None and own == dataset and own_slice.ndim > 0
            for own, own_slice in zip(owners, slices, strict=True)
        ]
        _check_dataset(call, values, slices, batch, dataset)


def _check_dataset(
    call: Call, values: list[Any], slices: list[Any], batch: list[bool], ragged_row_counts: RaggedRowCounts
) -> None:
    """As `check_loops`, for the ragged steps of one dataset; `batch` says which of the slices are of it."""
    if not any(batch):
        return
    full = slices[batch.index(True)].shape[0]

    def turns(rows: int) -> list[int]:
        leaves = [
            struct((rows, *own_slice.shape[1:]), own_slice.dtype) if own else own_slice
            for own_slice, own in zip(slices, batch, strict=True)
        ]
        return _turns(traced(call, values, leaves)[0].jaxpr)

    rows_of_some = sorted(ragged_row_counts(full), reverse=True)
    try:
        found = {rows: turns(rows) for rows in rows_of_some}
    except Exception:  # the function takes no other number of rows, and says so itself if such a step comes
        return
    for more, fewer in pairwise(found):
        unequal = next((pair for pair in zip(found[more], found[fewer]) if pair[0] != pair[1]), None)
        if unequal is not None:
            raise InvalidArgumentError(
                "the function of strategy.run has a loop with all_reduce in it, or another collective, which turns "
                f"{times(unequal[0])} where a replica's number of rows is {more} and {times(unequal[1])} where it is "
                f"{fewer}; but in a later step of this dataset the replicas may differ in their rows: call all_reduce "
                'outside of loops over rows, or give every replica equally many by ps.InputOptions(partial_batch="pad")'
                ' or "drop", or batch(..., drop_remainder=True)'
            )


def _turns(trace: Jaxpr) -> list[int]:
    """The number of iterations of each loop with a collective inside, in order."""
    found = []
    for equation in trace.eqns:
        if equation.primitive is SCAN and needs_other_replicas(equation):
            found.append(ScanEquation.of(equation).length)
        for inner in inner_traces(equation):
            found += _turns(inner)
    return found
