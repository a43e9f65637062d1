"""A signal handler takes the state of what reads from a data service, whatever it has interrupted."""

import itertools
import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest

import penstock as ps

pytestmark = pytest.mark.slow

ROWS = 60


def numbers(element: Any) -> list[int]:
    return [int(x) for x in np.ravel(element)]


def pass_on(x: Any) -> Any:
    return x


def read(iterator: Any, given: list[Any], *, own_states: bool) -> None:
    """Read to the end; each element is in the list as soon as it is given."""
    for element in iterator:
        given += (element,)  # not by a call, after which a signal could be handled
        if own_states:
            iterator.state_dict()


def wait_for(taken: list[Any]) -> None:
    while not taken:
        pass


def stuck(*_: Any) -> None:
    raise AssertionError("the handler waits for what it has interrupted")


@contextmanager
def interrupted(take: Callable[[], None], draw: random.Random) -> Iterator[None]:
    """Calls `take` in a signal handler at some moments, the first of them within 50 ms; each may last 20 s."""
    moments = (draw.random() ** 2 * 0.05 + 1e-6 for _ in range(draw.choice([1, 3, 10])))

    def handler(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGALRM, stuck)
        signal.setitimer(signal.ITIMER_REAL, 20)
        take()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, next(moments, 0))

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, next(moments))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


KINDS = {
    "in order": ({}, lambda shared: shared.shuffle(12, seed=1).batch(3)),
    "in any order": ({"ordered": False}, lambda shared: shared),
    "in any order, shuffled and in batches": ({"ordered": False}, lambda shared: shared.shuffle(12, seed=1).batch(3)),
    "shared": ({"job_name": "shared"}, lambda shared: shared.batch(4)),
    "all of each worker": ({"processing_mode": "parallel_epochs"}, lambda shared: shared.shuffle(12, seed=1)),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_state_that_a_signal_handler_takes_from_a_service_is_exact(address: str, name: str) -> None:
    arguments, above = KINDS[name]
    draw = random.Random(name)
    times = 2 if "processing_mode" in arguments else 1
    for trial in range(20):
        mode: dict[str, Any] = {"processing_mode": "distributed_epoch", "service": address, **arguments}
        if "job_name" in mode:
            mode["job_name"] = f"{name} {trial}"
        rows = ps.Dataset.range(ROWS).map(pass_on).flat_map(lambda x: ps.Dataset.from_tensor_slices([x, x + ROWS]))
        iterator = iter(above(rows.apply(ps.service.distribute(**mode))))
        given: list[Any] = []
        taken: list[tuple[int, str]] = []

        def take(iterator: Any = iterator, given: list[Any] = given, taken: list[Any] = taken) -> None:
            taken.append((len(given), json.dumps(iterator.state_dict())))

        with interrupted(take, draw):
            read(iterator, given, own_states=draw.random() < 0.5)
            wait_for(taken)
        count, state = taken[-1]
        iterator.load_state_dict(json.loads(state))
        found = Counter(number for element in itertools.chain(given[:count], iterator) for number in numbers(element))
        assert found == Counter(dict.fromkeys(range(2 * ROWS), times))
