"""Ragged steps: replicas whose slices differ in size, run side by side in one compiled program on one device.

An SPMD program has one shape for all replicas, so it cannot run such a step. Instead the user's function is traced once
per replica with that replica's own shapes, as if it ran on the mesh: a collective, such as a sum over replicas, is one
equation of the trace. Each trace is evaluated on its own, equation by equation, up to its next collective. When all
have reached it, their values are combined, and the evaluation continues. The results are those of the SPMD program;
the time is that of one device doing the work of all.

A loop or a branch with a collective inside is run once, for all replicas together.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from penstock.distribute.jax.interface import (
    COMBINING,
    REPLICA_NUMBER,
    ClosedJaxpr,
    Literal,
    applied,
    axes_of,
    called_function,
    combines_all,
    inner_traces,
    stands_under,
)
from penstock.distribute.jax.lockstep_loops import run_loop
from penstock.distribute.jax.program import AXIS, GATHERING, Call
from penstock.distribute.values import PerReplica, StackedPerReplica, check_agreement
from penstock.errors import InvalidArgumentError


@dataclass(frozen=True)
class CollectiveCall:
    """A collective that one replica has reached, with that replica's values."""

    equation: Any
    values: list[Any]

    @property
    def call(self) -> str:
        """The method that the user has called."""
        return "all_gather" if stands_under(GATHERING, self.equation) else "all_reduce"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the values that the user has given."""
        gathered = self.call == "all_gather"  # whose values are padded with zeros for the other replicas
        return [value.shape[1:] if gathered else value.shape for value in self.values]

    def __str__(self) -> str:
        if not combines_all(self.equation):
            return str(self.equation.primitive)
        return f"{self.call} of {', '.join(map(str, self.shapes))}"


_ROWS_APART = (
    ": in a step whose slices differ in size, return values with a row for each row of the slice and join them by "
    'strategy.gather, or give every replica equally many rows by ps.InputOptions(partial_batch="pad") or '
    "batch(..., drop_remainder=True)"
)
Evaluation = Generator[CollectiveCall, list[Any], list[Any]]


def lockstep_program(calls: list[Call]) -> Callable[..., Any]:
    """The compiled program of one step with a slice of its own size for every replica.

    Args:
        calls: per replica, the function and how its arguments enter.

    Returns:
        A function of one list of leaves per replica, those that are not static, which gives the result with a
        `PerReplica` at each leaf, in the stacked form where the replicas' outputs are equal in shape. Of calls that
        touch variables, a function as `spmd_program` describes it.
    """

    def step(written: list[Any], read: list[Any], *slices: list[Any]) -> Any:
        values = [*written, *read]
        traces: dict[Any, tuple[ClosedJaxpr, Any]] = {}
        evaluations, structures = [], []
        for replica, (call, leaves) in enumerate(zip(calls, slices, strict=True)):
            # Replicas with equal shapes have equal traces.
            key = (call.tree, call.modes, tuple(map(jax.typeof, leaves)))
            if key not in traces:
                traces[key] = traced(call, values, leaves)
            trace, structure = traces[key]
            evaluations.append(_evaluate(trace, [*values, *leaves], replica))
            structures.append(structure)
        check_agreement("the function of strategy.run", structures)
        outputs = _run_in_lockstep(evaluations)
        results = structures[0].num_leaves
        columns = zip(*(output[:results] for output in outputs), strict=True)
        new_values, differences = outputs[0][results : results + len(written)], outputs[0][results + len(written) :]
        result = structures[0].unflatten([_joined(column) for column in columns])
        return result, new_values, differences[0] if differences else None

    return jax.jit(step if calls[0].framework else lambda *slices: step([], [], *slices)[0])


def traced(call: Call, values: list[Any], leaves: list[Any]) -> tuple[ClosedJaxpr, Any]:
    """The trace of one replica's call, and the structure of its result; new values and differences are outputs too."""

    def on_replica(*arguments: Any) -> Any:
        return call.on_replica(list(arguments[: len(values)]), list(arguments[len(values) :]))

    try:
        trace, (result, *_) = jax.make_jaxpr(on_replica, axis_env=[(AXIS, call.replicas)], return_shape=True)(
            *values, *leaves
        )
    except Exception as error:
        shapes = ", ".join(str(jnp.shape(leaf)) for leaf in leaves)
        error.add_note(f"raised in a ragged step, on a replica with arguments of shapes {shapes}: a slice may be empty")
        raise
    return trace, jax.tree.structure(result)


def _joined(column: tuple[Any, ...]) -> PerReplica:
    """The replicas' outputs for one leaf of the result."""
    if len({(output.shape, output.dtype) for output in column}) > 1:
        return PerReplica(column)
    return StackedPerReplica(jnp.stack(column), len(column))


def _run_in_lockstep(evaluations: list[Evaluation]) -> list[list[Any]]:
    """Run all evaluations to their ends, from one collective to the next; the outputs of each."""
    outputs: dict[int, list[Any]] = {}
    received: list[Any] = [None] * len(evaluations)
    while True:
        brought: dict[int, CollectiveCall] = {}
        for replica, evaluation in enumerate(evaluations):
            try:
                brought[replica] = evaluation.send(received[replica])
            except StopIteration as end:
                outputs[replica] = end.value
        if not brought:
            return [outputs[replica] for replica in range(len(evaluations))]
        if outputs:
            more = min(brought)
            raise InvalidArgumentError(
                f"{brought[more].call} must be called equally often on every replica, but replica {min(outputs)} "
                f"returned while replica {more} called it once more; their slices differ in size: does a branch depend "
                "on that?"
            )
        received = _combine_collective(list(brought.values()))


def _combine_collective(meetings: list[CollectiveCall]) -> list[list[Any]]:
    """The result of a collective for each replica."""
    first = meetings[0]
    kind = first.equation.primitive
    summed = combines_all(first.equation)
    for replica, other in enumerate(meetings):
        if other.equation.primitive is not kind or (summed and str(other) != str(first)):
            raise InvalidArgumentError(
                f"{first.call} must be called with the same shapes and in the same order on every replica, got {first} "
                f"on replica 0 and {other} on replica {replica}{_ROWS_APART if first.call == 'all_gather' else ''}"
            )
    if not summed:
        outputs = run_loop([one.equation for one in meetings], [one.values for one in meetings], _run_traces)
        if outputs is None:
            raise InvalidArgumentError(
                "a step whose slices differ in size cannot use get_replica_context() or a collective inside "
                f"{kind}, nor collectives other than sums, means and extremes over all replicas: call all_reduce "
                "outside of it, or give every replica equally many rows by batch(..., drop_remainder=True)"
            )
        return outputs
    combine = COMBINING[kind]
    totals = first.values
    for other in meetings[1:]:
        totals = [combine(total, value) for total, value in zip(totals, other.values, strict=True)]
    return [totals] * len(meetings)


def _run_traces(traces: Sequence[ClosedJaxpr], inputs: list[list[Any]]) -> list[list[Any]]:
    return _run_in_lockstep(
        [_evaluate(trace, own, replica) for replica, (trace, own) in enumerate(zip(traces, inputs, strict=True))]
    )


def _evaluate(trace: ClosedJaxpr, arguments: list[Any], replica: int) -> Evaluation:
    """Evaluate a trace for one replica; yields each collective that it reaches, and is sent the result."""
    values: dict[Any, Any] = {}
    values.update(zip(trace.jaxpr.constvars, trace.consts, strict=True))
    values.update(zip(trace.jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in trace.jaxpr.eqns:
        inputs = [read(variable) for variable in equation.invars]
        if not needs_other_replicas(equation):
            outputs = applied(trace.jaxpr, equation, values)
        elif equation.primitive is REPLICA_NUMBER:
            outputs = [jnp.asarray(replica, equation.outvars[0].aval.dtype)]
        elif (called := called_function(equation)) is not None:
            outputs = yield from _evaluate(called, inputs, replica)
        else:
            outputs = yield CollectiveCall(equation, list(map(jnp.asarray, inputs)))
        values.update(zip(equation.outvars, outputs, strict=True))
    # Constants are bare numbers in a trace.
    return [jnp.asarray(read(variable), variable.aval.dtype) for variable in trace.jaxpr.outvars]


def needs_other_replicas(equation: Any) -> bool:
    """Whether an equation, or one inside it, depends on the other replicas."""
    if AXIS in axes_of(equation):
        return True
    return any(needs_other_replicas(inner) for jaxpr in inner_traces(equation) for inner in jaxpr.eqns)
