"""Loops over rows with collectives inside: refused in a full step already, where a ragged step may come later."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import primitives

from penstock.distribute.jax.arguments import struct
from penstock.distribute.jax.lockstep import ReplicasDifferError, lockstep_program
from penstock.distribute.jax.program import AXIS, Call, Static
from penstock.distribute.jax.stateful_program import StatefulProgram
from penstock.distribute.jax.traces import ClosedJaxpr, concerns, inner_traces
from penstock.errors import InvalidArgumentError

RaggedRowCounts = Callable[[int], Collection[int]]


def check_loops(
    call: Call, program: Any, arguments: list[Any], ragged_row_counts: Sequence[RaggedRowCounts | None]
) -> None:
    """Refuse a step that would fail in the first ragged step.

    Args:
        call: the function of a full step, and how its arguments enter.
        program: that of the full step.
        arguments: those of the program.
        ragged_row_counts: for each leaf of the call, given the rows of a replica in this step, the numbers of rows that
            replicas may have in one ragged step; None where that is not known.

    Raises:
        InvalidArgumentError: with such rows, a loop with a collective inside has other numbers of iterations.
    """
    datasets = list(dict.fromkeys(filter(None, ragged_row_counts)))
    if call.replicas == 1 or not datasets or not _has_loop(program.trace(*arguments).jaxpr):
        return
    owners = [own for own, mode in zip(ragged_row_counts, call.modes, strict=True) if not isinstance(mode, Static)]
    variables = program.values() if isinstance(program, StatefulProgram) else ()
    for dataset in datasets:
        has_rows = [owner == dataset and np.ndim(leaf) > 1 for leaf, owner in zip(arguments, owners, strict=True)]
        counts = sorted(dataset(arguments[has_rows.index(True)].shape[1]) if any(has_rows) else (), reverse=True)
        if not counts:
            continue
        slices = [[_slice(leaf, rows if own else None) for leaf, own in zip(arguments, has_rows)] for rows in counts]
        try:
            jax.eval_shape(lockstep_program([call] * len(counts)), *variables, *slices)
        except ReplicasDifferError as error:
            raise InvalidArgumentError(
                f"in a later step of this dataset replicas may have {' and '.join(map(str, counts))} rows, and the "
                f"function of strategy.run could not run then; with these rows: {error}"
            ) from None
        except Exception:  # the function takes no other number of rows, and raises an error of its own in such a step
            return


def _slice(argument: Any, rows: int | None) -> Any:
    """Return the shape of a replica's part of an argument, with `rows` rows; None: it is not divided by rows."""
    if np.ndim(argument) == 0:  # a number that all replicas get
        return argument
    return struct(argument.shape[1:] if rows is None else (rows, *argument.shape[2:]), argument.dtype)


def _has_loop(trace: ClosedJaxpr) -> bool:
    """Return whether there is a loop with a collective inside."""
    return any(
        (equation.primitive is primitives.scan_p and concerns(AXIS, equation))
        or any(map(_has_loop, inner_traces(equation)))
        for equation in trace.jaxpr.eqns
    )
