"""Everything that penstock uses of JAX beyond its stable interface.

These are equations of traces, the fast `flatten`, arrays made of parts on several devices, the store by which the
processes of `jax.distributed` meet, and the address at which their collectives reach each other.

`tests/distribute/test_jax_interface.py` checks each of these, and names the version of JAX that has changed one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax._src import core, xla_bridge
from jax._src.distributed import global_state
from jax._src.interpreters.pxla import batched_device_put
from jax._src.lib import _jax  # type: ignore[attr-defined]
from jax.extend.core import ClosedJaxpr as ClosedJaxpr
from jax.extend.core import Jaxpr as Jaxpr
from jax.extend.core import Literal as Literal
from jax.extend.core import jaxpr_as_fun, primitives

flatten = jax.tree_util.default_registry.flatten
"""`jax.tree.flatten` without its Python wrapper, whose cost shows in the steps of small models."""

placed_on_devices: Callable[[Any, Any, list[Any], list[Any]], jax.Array] = batched_device_put
"""`jax.make_array_from_callback` without finding out what is the same for all arrays of a shape: half of its cost.

Takes what `aval_of` gives, the sharding, the parts of the devices of this process, and these devices.
"""


def aval_of(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    """What `placed_on_devices` is told of the global array, its shape and dtype."""
    return core.update_aval_with_sharding(core.ShapedArray(shape, dtype), sharding)


COMBINING: dict[Any, Callable[[Any, Any], Any]] = {
    primitives.psum_p: lax.add,
    primitives.pmax_p: lax.max,
    primitives.pmin_p: lax.min,
}
"""The primitives that combine the replicas' values, each with the function that combines two values."""
REPLICA_NUMBER = primitives.axis_index_p
SCAN, LOOP, BRANCH = primitives.scan_p, primitives.while_p, primitives.cond_p
_CALLS = (primitives.jit_p, primitives.remat_p, primitives.custom_jvp_call_p, primitives.custom_vjp_call_p)


class ProcessesStore:
    """The store of `jax.distributed`, for one meeting of its processes; see `Store` of `control/meeting.py`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._client: Any = global_state.client

    def add(self, name: str) -> int:
        return int(self._client.key_value_increment(self._prefix + name, 1))

    def put(self, name: str, value: str) -> None:
        try:
            self._client.key_value_set(self._prefix + name, value)
        except jax.errors.JaxRuntimeError as error:
            if not str(error).startswith("ALREADY_EXISTS"):
                raise

    def get(self, name: str) -> str | None:
        try:
            return str(self._client.key_value_try_get(self._prefix + name))
        except jax.errors.JaxRuntimeError as error:
            if not str(error).startswith("NOT_FOUND"):
                raise
            return None


def coordinator_address() -> str:
    """HOST:PORT of process 0 of `jax.distributed`; "" if it is not initialised."""
    return global_state.coordinator_address or ""


def reach_collectives_at(address: str) -> None:
    """Let processes on other machines reach the collectives of this one's processor at this address.

    Gloo, which computes them, takes the machine's name otherwise. That may have no address, and on Debian it has one
    that only the machine itself can reach. Call it after `jax.distributed.initialize`, before devices are there.
    """
    if jax.config.jax_cpu_collectives_implementation != "gloo":  # type: ignore[attr-defined]
        return

    def make() -> Any:
        gloo = _jax.make_gloo_tcp_collectives(distributed_client=global_state.client, hostname=address)
        return xla_bridge.make_cpu_client(gloo)

    xla_bridge.register_backend_factory("cpu", make, priority=0, fail_quietly=False)


def axes_of(equation: Any) -> tuple[Any, ...]:
    """The mesh axes that an equation concerns."""
    axes = equation.params.get("axes", equation.params.get("axis_name", ()))
    return tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)


def combines_all(equation: Any) -> bool:
    """Whether an equation combines the values of all replicas, rather than of groups of them."""
    return equation.primitive in COMBINING and equation.params["axis_index_groups"] is None


def stands_under(name: str, equation: Any) -> bool:
    """Whether an equation was traced within `jax.named_scope(name)`."""
    return name in str(equation.source_info.name_stack)


def inner_traces(equation: Any) -> list[Jaxpr]:
    """The traces inside an equation: bodies of loops, branches, called functions."""
    found = []
    for parameter in equation.params.values():
        for item in parameter if isinstance(parameter, (tuple, list)) else (parameter,):
            if isinstance(item, ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, Jaxpr):
                found.append(item)
    return found


def called_function(equation: Any) -> ClosedJaxpr | None:
    """The trace of the function that an equation calls once; None where it does something else."""
    if equation.primitive not in _CALLS:
        return None
    called = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
    return called if isinstance(called, ClosedJaxpr) else ClosedJaxpr(called, ())


@dataclass(frozen=True)
class ScanEquation:
    """A loop over rows, or with a fixed number of iterations: its inputs are constants, the carry, and rows."""

    body: ClosedJaxpr
    constants: int
    carried: int
    length: int
    reverse: bool
    unroll: Any

    @staticmethod
    def of(equation: Any) -> "ScanEquation":
        """The parameters of a scan's equation."""
        of = equation.params
        return ScanEquation(of["jaxpr"], of["num_consts"], of["num_carry"], of["length"], of["reverse"], of["unroll"])


@dataclass(frozen=True)
class LoopEquation:
    """A loop with a condition: its inputs are constants of the condition, constants of the body, and the carry."""

    condition: ClosedJaxpr
    of_condition: int
    body: ClosedJaxpr
    of_body: int

    @staticmethod
    def of(equation: Any) -> "LoopEquation":
        """The parameters of a loop's equation."""
        of = equation.params
        return LoopEquation(of["cond_jaxpr"], of["cond_nconsts"], of["body_jaxpr"], of["body_nconsts"])


def branches_of(equation: Any) -> Sequence[ClosedJaxpr]:
    """The branches of an equation whose first input is the number of the branch to take."""
    branches: Sequence[ClosedJaxpr] = equation.params["branches"]
    return branches


def applied(jaxpr: Jaxpr, equation: Any, values: dict[Any, Any]) -> list[Any]:
    """The outputs of one equation of a trace, given the values of its variables."""
    invars = list(dict.fromkeys(variable for variable in equation.invars if not isinstance(variable, Literal)))
    alone = Jaxpr((), invars, equation.outvars, [equation], equation.effects, jaxpr.debug_info)
    return list(jaxpr_as_fun(ClosedJaxpr(alone, ()))(*(values[variable] for variable in invars)))
