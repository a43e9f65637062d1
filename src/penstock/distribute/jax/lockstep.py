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
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives

from penstock.distribute.jax.program import AXIS, GATHERING, Call
from penstock.distribute.jax.traces import ClosedJaxpr, Literal, applied, called_function, concerns
from penstock.distribute.values import PerReplica, StackedPerReplica, check_agreement
from penstock.errors import InvalidArgumentError

_COMBINING: dict[Any, Callable[[Any, Any], Any]] = {
    primitives.psum_p: lax.add,
    primitives.pmax_p: lax.max,
    primitives.pmin_p: lax.min,
}
"""The primitives that combine the replicas' values, each with the function that combines two values."""
Lists = list[list[Any]]
"""A list of values for each replica."""


class ReplicasDifferError(InvalidArgumentError):
    """Replicas reach different collectives."""


@dataclass(frozen=True)
class _Reached:
    """Place at which a replica waits for the others.

    Attributes:
        equation: the collective, or the loop or branch with one inside; None at the end of the function.
        values: its inputs; at the end, the outputs of the function.
    """

    equation: Any
    values: list[Any]

    @property
    def gathers(self) -> bool:
        """Return whether the user has called `all_gather`."""
        return self.equation is not None and GATHERING in str(self.equation.source_info.name_stack)

    def __str__(self) -> str:
        if self.equation is None:
            return "the end of the function"
        if self.equation.primitive is primitives.scan_p:
            return f"a loop of length {self.equation.params['length']} with a collective in it"
        if self.equation.primitive is not primitives.psum_p:
            return str(self.equation.primitive)
        # The user's values; those of all_gather were padded with zeros for the other replicas.
        shapes = ", ".join(str(value.shape[1:] if self.gathers else value.shape) for value in self.values)
        return f"{'all_gather' if self.gathers else 'all_reduce'} of {shapes}"


Evaluation = Generator[_Reached, list[Any], list[Any]]


def lockstep_program(calls: list[Call]) -> Callable[..., Any]:
    """The compiled program of one step with slices that differ in size.

    Args:
        calls: per replica, the function and how its arguments enter.

    Returns:
        A function of one list of leaves per replica, those that are not static, which gives the result with a
        `PerReplica` at each leaf, in the stacked form where the replicas' outputs are equal in shape. Of calls that
        touch variables, a function as `spmd_program` describes it.
    """

    def step(written: list[Any], read: list[Any], *slices: list[Any]) -> Any:
        values = [*written, *read]
        known: dict[Any, tuple[ClosedJaxpr, Any]] = {}
        traces, structures = [], []
        for call, leaves in zip(calls, slices, strict=True):
            # Replicas with equal shapes have equal traces.
            key = (call.tree, call.modes, tuple(map(jax.typeof, leaves)))
            if key not in known:
                known[key] = _traced(call, values, leaves)
            traces.append(known[key][0])
            structures.append(known[key][1])
        check_agreement("the function of strategy.run", structures)
        outputs = run_in_lockstep(traces, [[*values, *leaves] for leaves in slices])
        results = structures[0].num_leaves
        columns = zip(*(output[:results] for output in outputs), strict=True)
        new_values, differences = outputs[0][results : results + len(written)], outputs[0][results + len(written) :]
        result = structures[0].unflatten([_joined(column) for column in columns])
        return result, new_values, differences[0] if differences else None

    return jax.jit(step if calls[0].framework else lambda *slices: step([], [], *slices)[0])


def _traced(call: Call, values: list[Any], leaves: list[Any]) -> tuple[ClosedJaxpr, Any]:
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


def run_in_lockstep(traces: Sequence[ClosedJaxpr], inputs: Lists) -> Lists:
    """The outputs of each replica's trace: all are run from one collective to the next.

    Raises:
        InvalidArgumentError: the replicas reach different collectives, or one that concerns not all of them.
    """
    evaluations = [
        _to_the_end(_evaluate(trace, own, replica))
        for replica, (trace, own) in enumerate(zip(traces, inputs, strict=True))
    ]
    reached = list(map(next, evaluations))
    while True:
        _check_alike(reached)
        if reached[0].equation is None:
            return [own.values for own in reached]
        outputs = _run_together([own.equation for own in reached], [own.values for own in reached])
        reached = [evaluation.send(own) for evaluation, own in zip(evaluations, outputs, strict=True)]


def _to_the_end(evaluation: Evaluation) -> Evaluation:
    outputs = yield from evaluation
    yield _Reached(None, outputs)
    return outputs


def _evaluate(trace: ClosedJaxpr, arguments: list[Any], replica: int) -> Evaluation:
    """Evaluate a trace for one replica; yields each collective that it reaches, and is sent the result."""
    values = dict(zip([*trace.jaxpr.constvars, *trace.jaxpr.invars], [*trace.consts, *arguments], strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in trace.jaxpr.eqns:
        inputs = [read(variable) for variable in equation.invars]
        if not concerns(AXIS, equation):
            outputs = applied(trace.jaxpr, equation, values)
        elif equation.primitive is primitives.axis_index_p:
            outputs = [jnp.asarray(replica, equation.outvars[0].aval.dtype)]
        elif (called := called_function(equation)) is not None:
            outputs = yield from _evaluate(called, inputs, replica)
        else:
            outputs = yield _Reached(equation, list(map(jnp.asarray, inputs)))
        values.update(zip(equation.outvars, outputs, strict=True))
    # Constants are bare numbers in a trace.
    return [jnp.asarray(read(variable), variable.aval.dtype) for variable in trace.jaxpr.outvars]


def _check_alike(reached: list[_Reached]) -> None:
    """Refuse replicas that wait for each other at different places."""
    first = reached[0]
    for replica, other in enumerate(reached):
        if str(other) != str(first):
            call = "all_gather" if first.gathers or other.gathers else "all_reduce"
            raise ReplicasDifferError(
                f"{call} must be called equally often on every replica, with the same shapes and in the same order, "
                f"got {first} on replica 0 and {other} on replica {replica}, whose slices differ in size: call it "
                "outside of branches and loops that depend on the number of rows; return values with a row for each "
                "row of the slice, and join them by strategy.gather; or give every replica equally many rows by "
                'ps.InputOptions(partial_batch="pad") or batch(..., drop_remainder=True)'
            )


def _run_together(equations: list[Any], inputs: Lists) -> Lists:
    """The outputs for each replica of an equation that all have reached."""
    kind, parameters = equations[0].primitive, equations[0].params
    if kind in _COMBINING and parameters["axis_index_groups"] is None:
        return [[reduce(_COMBINING[kind], column) for column in zip(*inputs, strict=True)]] * len(inputs)
    if kind is primitives.scan_p:
        return _scan(equations, inputs)
    if kind is primitives.while_p:
        return _while(equations, inputs)
    if kind is primitives.cond_p:
        # Replicas with a collective inside a branch take the same branch.
        branches = zip(*(equation.params["branches"] for equation in equations), strict=True)
        taken: Lists = lax.switch(
            inputs[0][0], [partial(run_in_lockstep, each) for each in branches], [own[1:] for own in inputs]
        )
        return taken
    raise InvalidArgumentError(
        "a step whose slices differ in size cannot use get_replica_context() or a collective inside "
        f"{kind}, nor collectives other than sums, means and extremes over all replicas: call all_reduce "
        "outside of it, or give every replica equally many rows by batch(..., drop_remainder=True)"
    )


def _scan(equations: list[Any], inputs: Lists) -> Lists:
    """A loop with a fixed number of turns: its inputs are constants, carried values, and a row for each turn."""
    bodies = [equation.params["jaxpr"] for equation in equations]
    outer, inner = equations[0], bodies[0].jaxpr
    # Rows have an axis more outside of the body than inside.
    rows = sum(one.aval.ndim > two.aval.ndim for one, two in zip(outer.invars, inner.invars, strict=True))
    carried = sum(one.aval.ndim == two.aval.ndim for one, two in zip(outer.outvars, inner.outvars, strict=True))
    start = len(outer.invars) - rows
    constants = start - carried

    def turn(carries: Lists, rows: Lists) -> tuple[Lists, Lists]:
        given = [[*own[:constants], *carry, *row] for own, carry, row in zip(inputs, carries, rows, strict=True)]
        outputs = run_in_lockstep(bodies, given)
        return [output[:carried] for output in outputs], [output[carried:] for output in outputs]

    carries, stacked = lax.scan(
        turn,
        [own[constants:start] for own in inputs],
        [own[start:] for own in inputs],
        length=outer.params["length"],
        reverse=outer.params["reverse"],
    )
    return [[*carry, *rows] for carry, rows in zip(carries, stacked, strict=True)]


def _while(equations: list[Any], inputs: Lists) -> Lists:
    """A loop with a condition: its inputs are constants of the condition, those of the body, and carried values."""
    conditions = [equation.params["cond_jaxpr"] for equation in equations]
    bodies = [equation.params["body_jaxpr"] for equation in equations]
    carried = len(equations[0].outvars)
    start = len(equations[0].invars) - carried
    of_condition = len(conditions[0].jaxpr.invars) - carried

    def turns(carries: Lists) -> Any:
        given = [[*own[:of_condition], *carry] for own, carry in zip(inputs, carries, strict=True)]
        return run_in_lockstep(conditions, given)[0][0]  # replicas with a collective inside continue together

    def body(carries: Lists) -> Lists:
        given = [[*own[of_condition:start], *carry] for own, carry in zip(inputs, carries, strict=True)]
        return run_in_lockstep(bodies, given)

    result: Lists = lax.while_loop(turns, body, [own[start:] for own in inputs])
    return result
