"""Whether JAX still has what penstock takes from it beyond its promises: where this fails, JAX has changed."""

import forked
import jax
import pytest

from penstock.runtime.ports import free_port

CHANGED = f"JAX {jax.__version__} has changed what penstock.distribute.jax.interface takes from it: "


@pytest.mark.extended
def test_the_store_of_processes_keeps_what_was_put_first(tmp_path) -> None:
    """In a process of its own, because JAX is connected once."""
    program = """
import sys
import jax
from penstock.distribute.jax.interface import ProcessesStore
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 1, 0)
store = ProcessesStore("meeting/")
before = store.get("name")
store.put("name", "first")
store.put("name", "second")
print(before, store.get("name"), store.add("count"), store.add("count"))
"""
    ran = forked.run("-c", program, str(free_port()), training=True)
    assert ran.stdout == "None first 1 2\n", CHANGED + "the store of jax.distributed: " + ran.stderr


@pytest.mark.slow
def test_collectives_are_reached_at_the_address_that_they_are_given() -> None:
    program = """
import sys
import jax
from penstock.distribute.jax.interface import coordinator_address, reach_collectives_at
address = f"localhost:{sys.argv[1]}"
jax.distributed.initialize(address, 1, 0)
assert coordinator_address() == address
reach_collectives_at("no-machine.invalid")
try:
    jax.devices()
except RuntimeError as error:
    print("gloo" in str(error))
reach_collectives_at("127.0.0.1")
print(len(jax.devices()))
"""
    ran = forked.run("-c", program, str(free_port()), training=True)
    assert ran.stdout == "True\n1\n", CHANGED + "how collectives are made: " + ran.stderr
