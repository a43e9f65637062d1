"""Four CPU devices for these tests, and the strategies that most of them run on."""

import gc
import threading
from collections.abc import Callable, Iterator

import jax
import pytest

import penstock as ps

# Before anything starts JAX's backend: afterwards the number of devices is fixed.
jax.config.update("jax_num_cpu_devices", 4)


def mirrored(replicas: int) -> ps.MirroredStrategy:
    return ps.MirroredStrategy([f"cpu:{number}" for number in range(replicas)])


@pytest.fixture(params=["host", "mirrored"])
def strategy_of(request: pytest.FixtureRequest) -> Callable[[int], ps.HostStrategy | ps.MirroredStrategy]:
    """A function that gives a strategy of as many replicas as asked for, at most four."""
    return ps.HostStrategy if request.param == "host" else mirrored


@pytest.fixture
def four() -> ps.MirroredStrategy:
    """Four replicas on four devices."""
    return mirrored(4)


@pytest.fixture(autouse=True)
def forgotten_iterators_end() -> Iterator[None]:
    """Wait for the threads of iterators that a test has forgotten: they end by themselves, but not at once."""
    yield
    for thread in threading.enumerate():
        if thread.name == "penstock-distribute":
            gc.collect()
            thread.join(timeout=60)
