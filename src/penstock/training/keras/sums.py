"""Checks that a step only adds to a variable: only then can the replicas' increments be summed."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from penstock.distribute.jax.traces import ClosedJaxpr, Jaxpr, Literal, called_function, inner_traces

Origin = int | str | None
"""How a value in a trace depends on watched inputs: not at all (None), as input n plus something (n), or _OTHER."""

_OTHER = "other"
_KEEPING = ("convert_element_type", "copy", "copy_p", "optimization_barrier", "reshape", "sharding_constraint")


def only_added_to(trace: ClosedJaxpr, watched: Sequence[int]) -> list[bool]:
    """For each watched input whether the step returns it plus something that depends on no watched input.

    Args:
        trace: gives new values at the end of its outputs, in the order of its first inputs.
        watched: the numbers of such inputs.
    """
    origins: list[Origin] = [number if number in watched else None for number in range(len(trace.jaxpr.invars))]
    outputs = _origins_of(trace.jaxpr, origins)
    return [number in outputs for number in watched]


def _origins_of(jaxpr: Jaxpr, inputs: Sequence[Origin]) -> list[Origin]:
    """The origins of the outputs of a trace."""
    origins: dict[Any, Origin] = dict(zip(jaxpr.invars, inputs, strict=True))

    def of(variables: Sequence[Any]) -> list[Origin]:
        return [None if isinstance(variable, Literal) else origins.get(variable) for variable in variables]

    for equation in jaxpr.eqns:
        given = of(equation.invars)
        if any(origin is not None for origin in given):
            origins.update(zip(equation.outvars, _after(equation, given), strict=True))
    return of(jaxpr.outvars)


def _after(equation: Any, given: list[Origin]) -> list[Origin]:
    """The origins of the outputs of one equation, given those of its inputs."""
    name = equation.primitive.name
    called = called_function(equation)
    if called is not None:
        return _origins_of(called.jaxpr, given)
    if name == "shard_map":
        return _origins_of(inner_traces(equation)[0].jaxpr, given)
    if name == "cond" and given[0] is None:
        branches = [_origins_of(branch.jaxpr, given[1:]) for branch in inner_traces(equation)]
        return [_same(column) for column in zip(*branches, strict=True)]
    if name in ("add", "add_any"):
        return [given[given[0] is None] if None in given and _keeps_shape(equation, given[0] is None) else _OTHER]
    if name == "sub" and given[0] == given[1] != _OTHER:
        return [None]
    if name in ("sub", "scatter-add", *_KEEPING) and all(origin is None for origin in given[1:]):
        return [given[0] if _keeps_shape(equation, 0) and _keeps_kind(equation) else _OTHER]
    if name == "select_n" and given[0] is None:
        return [_same(given[1:])]
    return [_OTHER] * len(equation.outvars)


def _same(origins: Sequence[Origin]) -> Origin:
    return origins[0] if all(origin == origins[0] for origin in origins) else _OTHER


def _keeps_shape(equation: Any, number: int) -> bool:
    return bool(equation.invars[number].aval.shape == equation.outvars[0].aval.shape)


def _keeps_kind(equation: Any) -> bool:
    """Return whether floating-point values stay so: a sum that is rounded to integers is not a sum."""
    before, after = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
    return bool(jnp.issubdtype(before, jnp.inexact) == jnp.issubdtype(after, jnp.inexact))
