"""Traces of functions, as `jax.extend.core` shows them: their equations, and the traces inside these."""

from typing import Any

from jax.extend.core import ClosedJaxpr as ClosedJaxpr
from jax.extend.core import Jaxpr as Jaxpr
from jax.extend.core import Literal as Literal
from jax.extend.core import jaxpr_as_fun, primitives

_CALLS = (primitives.jit_p, primitives.remat_p, primitives.custom_jvp_call_p, primitives.custom_vjp_call_p)


def inner_traces(equation: Any) -> list[ClosedJaxpr]:
    """The traces inside an equation: bodies of loops, branches, called functions."""
    return [
        item if isinstance(item, ClosedJaxpr) else ClosedJaxpr(item, ())
        for parameter in equation.params.values()
        for item in (parameter if isinstance(parameter, (tuple, list)) else (parameter,))
        if isinstance(item, (ClosedJaxpr, Jaxpr))
    ]


def called_function(equation: Any) -> ClosedJaxpr | None:
    """The trace of the function that an equation calls once; None where it does something else."""
    return inner_traces(equation)[0] if equation.primitive in _CALLS else None


def concerns(axis: str, equation: Any) -> bool:
    """Return whether an equation, or one inside it, combines values along a mesh axis, or asks for the place on it."""
    axes = equation.params.get("axes", equation.params.get("axis_name", ()))
    if axis in (axes if isinstance(axes, (tuple, list)) else (axes,)):
        return True
    return any(concerns(axis, inner) for trace in inner_traces(equation) for inner in trace.jaxpr.eqns)


def applied(jaxpr: Jaxpr, equation: Any, values: dict[Any, Any]) -> list[Any]:
    """The outputs of one equation of a trace, given the values of its variables."""
    invars = list(dict.fromkeys(variable for variable in equation.invars if not isinstance(variable, Literal)))
    alone = Jaxpr((), invars, equation.outvars, [equation], equation.effects, jaxpr.debug_info)
    return list(jaxpr_as_fun(ClosedJaxpr(alone, ()))(*(values[variable] for variable in invars)))
