"""Everything that penstock uses of JAX for which JAX has no public name.

These are the store by which the processes of `jax.distributed` meet, and the address at which their collectives reach
each other. `tests/distribute/test_jax_interface.py` checks both, and names the version of JAX that has changed one.
"""

from typing import Any

import jax
from jax._src import xla_bridge
from jax._src.distributed import global_state
from jax._src.lib import _jax  # type: ignore[attr-defined]


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
