"""Loops and branches with collectives in a ragged step: each runs once for all replicas, with their own shapes."""

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from penstock.distribute.jax.interface import BRANCH, LOOP, SCAN, ClosedJaxpr, LoopEquation, ScanEquation, branches_of
from penstock.errors import InvalidArgumentError

Lists = list[list[Any]]
RunInLockstep = Callable[[Sequence[ClosedJaxpr], Lists], Lists]
"""Takes each replica's trace and its inputs; gives each replica's outputs."""


def run_loop(equations: Sequence[Any], inputs: Lists, run: RunInLockstep) -> Lists | None:
    """The outputs of one loop or branch per replica; None where the equations are something else.

    Raises:
        InvalidArgumentError: the replicas' loops have different numbers of iterations.
    """
    kind = equations[0].primitive
    if kind is SCAN:
        return _scan([ScanEquation.of(equation) for equation in equations], inputs, run)
    if kind is LOOP:
        return _loop([LoopEquation.of(equation) for equation in equations], inputs, run)
    if kind is BRANCH:
        return _branch([branches_of(equation) for equation in equations], inputs, run)
    return None


def _scan(scans: list[ScanEquation], inputs: Lists, run: RunInLockstep) -> Lists:
    first = scans[0]
    for replica, scan in enumerate(scans):
        if scan.length != first.length:
            raise InvalidArgumentError(
                "a step whose slices differ in size has a loop with all_reduce in it, or another collective, which "
                f"turns {times(first.length)} on replica 0 and {times(scan.length)} on replica {replica}: call "
                "all_reduce outside of loops over rows, or give every replica equally many rows by "
                'ps.InputOptions(partial_batch="pad") or batch(..., drop_remainder=True)'
            )

    def body(carries: Lists, rows: Lists) -> tuple[Lists, Lists]:
        given = [[*own, *carry, *row] for own, carry, row in zip(constants, carries, rows, strict=True)]
        outputs = run([scan.body for scan in scans], given)
        return [output[: first.carried] for output in outputs], [output[first.carried :] for output in outputs]

    start = first.constants + first.carried
    constants = [given[: first.constants] for given in inputs]
    carries, stacked = lax.scan(
        body,
        [given[first.constants : start] for given in inputs],
        [given[start:] for given in inputs],
        length=first.length,
        reverse=first.reverse,
        unroll=first.unroll,
    )
    return [[*carry, *rows] for carry, rows in zip(carries, stacked, strict=True)]


def _loop(loops: list[LoopEquation], inputs: Lists, run: RunInLockstep) -> Lists:
    first = loops[0]
    start = first.of_condition + first.of_body

    def turns(carries: Lists) -> Any:
        given = [[*own[: first.of_condition], *carry] for own, carry in zip(inputs, carries, strict=True)]
        return run([loop.condition for loop in loops], given)[0][
            0
        ]  # replicas with a collective inside continue together

    def body(carries: Lists) -> Lists:
        given = [[*own[first.of_condition : start], *carry] for own, carry in zip(inputs, carries, strict=True)]
        return run([loop.body for loop in loops], given)

    result: Lists = lax.while_loop(turns, body, [given[start:] for given in inputs])
    return result


def _branch(branches: list[Sequence[ClosedJaxpr]], inputs: Lists, run: RunInLockstep) -> Lists:
    def taken(number: int) -> Callable[[Lists], Lists]:
        return lambda given: run([own[number] for own in branches], given)

    # Replicas with a collective inside a branch take the same branch.
    result: Lists = lax.switch(
        inputs[0][0], [taken(number) for number in range(len(branches[0]))], [given[1:] for given in inputs]
    )
    return result


def times(count: int) -> str:
    """A number of times in words: "once", "2 times"."""
    return "once" if count == 1 else f"{count} times"
