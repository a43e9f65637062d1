"""A reader of many passes: each has a thread, and no worker that has nothing keeps others waiting."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
from until import until

import penstock as ps
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.transport.identity import this_process
from penstock.service.transport.in_process import InProcessServer
from penstock.service.wire.dispatcher_messages import GetDataset, WorkerHello
from penstock.service.wire.interfaces import Answers
from penstock.service.wire.subjects import Endpoint
from penstock.service.wire.worker_messages import Fetch
from penstock.service.worker.production import Production

ELEMENTS = 7


class Fleet:
    """Workers without processes or ports, at a dispatcher of their own.

    Attributes:
        silent: workers with these numbers give nothing before `speak` is set.
        block_bytes: how large blocks may be, of each request.
        answered: how many requests have had the first piece of their answer.
    """

    def __init__(self, dispatcher: ps.service.DispatchServer, **settings: Any) -> None:
        self.target = dispatcher.target
        self.silent: set[int] = set()
        self.speak = threading.Event()
        self.servers: list[InProcessServer] = []
        self.most_lanes = 0
        self.block_bytes: list[int] = []
        self.answered = 0
        self._counting = threading.Lock()
        self._settings = settings
        self._client = DispatcherClient(dispatcher.target)
        self._definitions: dict[str, bytes] = {}
        self._productions: list[Production] = []

    def join(self, count: int) -> None:
        for number in range(len(self.servers), len(self.servers) + count):
            production = Production(lambda name, number=number: self._definition(name, number), **self._settings)
            self._productions.append(production)
            self.servers.append(InProcessServer(self._counted(production), f"host{number}:1"))
            self._client.ask(WorkerHello(endpoint=Endpoint(address=f"host{number}:1", process=this_process())))

    def _definition(self, name: str, number: int) -> bytes:
        if number in self.silent:
            assert self.speak.wait(60)
        if name not in self._definitions:
            self._definitions[name] = bytes(self._client.ask(GetDataset(dataset_id=name)).definition)
        return self._definitions[name]

    def _counted(self, production: Production) -> Callable[[Fetch], Answers]:
        def produce(request: Fetch) -> Answers:
            self.most_lanes = max(self.most_lanes, lanes())
            self.block_bytes.append(request.block_bytes)
            for number, answer in enumerate(production.fetch(request)):
                if number == 0:
                    with self._counting:
                        self.answered += 1
                yield answer

        return produce

    def close(self) -> None:
        self.speak.set()
        for server in self.servers:
            server.stop()
        for production in self._productions:
            production.close()
        self._client.close()


def lanes() -> int:
    return sum(thread.name == "penstock-service-lane" for thread in threading.enumerate())


@contextmanager
def fleet_of(count: int, **settings: Any) -> Iterator[Fleet]:
    config = ps.service.DispatcherConfig(
        heartbeat_seconds=60, lease_seconds=600, worker_addresses=settings.pop("addresses", ())
    )
    with ps.service.DispatchServer(config) as dispatcher:
        fleet = Fleet(dispatcher, **settings)
        try:
            fleet.join(count)
            yield fleet
        finally:
            fleet.close()


def stream(count: int = ELEMENTS) -> ps.Dataset:
    return ps.Dataset.from_generator(lambda: iter(range(count)), output_signature=ps.TensorSpec((), "int64"))


def reading(fleet: Fleet, mode: str, **more: Any) -> ps.Dataset:
    if mode == "coordinated":
        return stream().apply(ps.service.distribute("parallel_epochs", fleet.target, job_name="step", **more))
    if mode == "trainer":
        cache = ps.service.CrossTrainerCache(more.pop("trainer", "a"), wait_for_slowest=True)
        shared = ps.service.distribute("parallel_epochs", fleet.target, job_name="shared", cross_trainer_cache=cache)
        return stream().repeat().apply(shared)
    return stream(more.pop("count", ELEMENTS)).apply(ps.service.distribute(mode, fleet.target, **more))


def numbers(dataset: Any) -> list[int]:
    return [int(x) for x in dataset]


def all_numbers(passes: int, elements: int = ELEMENTS) -> list[int]:
    return sorted([*range(elements)] * passes)


@pytest.mark.slow
def test_a_reader_of_many_workers_has_a_thread_for_each_and_ends_them() -> None:
    with fleet_of(150) as fleet:
        given = numbers(reading(fleet, "parallel_epochs"))
        until(lambda: lanes() == 0)
    assert sorted(given) == all_numbers(150)
    assert 0 < fleet.most_lanes <= 150
    assert min(fleet.block_bytes) == (1 << 29) // 150, "each thread may wait for room with a block in its hand"


@pytest.mark.slow
def test_parts_of_a_stream_under_a_static_policy_are_exact() -> None:
    with fleet_of(12, addresses=[f"host{number}:1" for number in range(12)]) as fleet:
        given = numbers(reading(fleet, "data", count=60))
    assert sorted(given) == [*range(60)]
    assert fleet.most_lanes <= 12


@pytest.mark.slow
def test_readers_in_step_have_a_thread_for_each_pass_and_stay_in_step() -> None:
    with fleet_of(12) as fleet, ThreadPoolExecutor(2) as threads:
        readers = [reading(fleet, "coordinated", consumer_index=index, num_consumers=2) for index in range(2)]
        first, second = threads.map(numbers, readers)
    assert first == [number for number in range(0, ELEMENTS - 1, 2) for _ in range(12)]
    assert second == [number + 1 for number in first]
    assert fleet.most_lanes <= 2 * 12


@pytest.mark.slow
def test_passes_of_known_length_come_to_their_end() -> None:
    with fleet_of(12) as fleet:
        scanned = ps.Dataset.range(9).scan(0, lambda total, x: (total + x, total + x))
        assert len(numbers(scanned.apply(ps.service.distribute("parallel_epochs", fleet.target)))) == 12 * 9
        rows = ps.service.distribute("distributed_epoch", fleet.target, job_name="r", consumer_index=0, num_consumers=1)
        assert sorted(numbers(ps.Dataset.range(90).apply(rows))) == [*range(90)]


@pytest.mark.slow
def test_readers_in_step_wait_for_the_worker_whose_round_it_is() -> None:
    """The others have far more than there is room for meanwhile."""
    with fleet_of(12) as fleet:
        fleet.silent = {1}
        limited = reading(fleet, "coordinated", consumer_index=0, num_consumers=1, max_outstanding_requests=2)
        with iter(limited) as elements:
            given = [int(next(elements))]
            threading.Timer(0.5, fleet.speak.set).start()
            given += numbers(elements)
    assert given == [number for number in range(ELEMENTS) for _ in range(12)]


@pytest.mark.extended
def test_trainers_that_wait_for_each_other_at_many_workers_miss_nothing() -> None:
    def first_of(fleet: Fleet, trainer: str) -> list[int]:
        with iter(reading(fleet, "trainer", trainer=trainer)) as elements:
            given = numbers(islice(elements, 1))
            until(lambda: fleet.answered >= 2 * 12)  # who begins later finds only what the windows hold
            given += numbers(islice(elements, 999))
            both.wait(60)  # so long it is waited for
            return given

    both = threading.Barrier(2)
    with fleet_of(12, window_bytes=1 << 10) as fleet, ThreadPoolExecutor(2) as threads:
        for given in threads.map(lambda name: first_of(fleet, name), "ab"):
            expected: Counter[int] = Counter()  # of each pass its next element
            for number in given:
                expected -= Counter({number: 1})
                expected[(number + 1) % ELEMENTS] += 1
            assert expected.total() <= 12  # who comes second goes on where a window begins by then
    assert fleet.most_lanes <= 2 * 12


@pytest.mark.slow
def test_workers_that_have_nothing_keep_others_waiting_for_nothing() -> None:
    with fleet_of(12) as fleet:
        fleet.silent = set(range(9))
        with iter(reading(fleet, "parallel_epochs")) as elements:
            given = numbers(islice(elements, 3 * ELEMENTS))
            assert sorted(given) == all_numbers(3)
            fleet.speak.set()
            given += numbers(elements)
    assert sorted(given) == all_numbers(12)


@pytest.mark.extended
def test_workers_that_join_are_asked_though_all_others_have_nothing() -> None:
    with fleet_of(4) as fleet:
        fleet.silent = set(range(4))
        with iter(reading(fleet, "parallel_epochs")) as elements:
            threading.Timer(0.3, fleet.join, [8]).start()
            given = numbers(islice(elements, 8 * ELEMENTS))
            assert sorted(given) == all_numbers(8)
            fleet.speak.set()
            given += numbers(elements)
    assert sorted(given) == all_numbers(12)
    assert fleet.most_lanes <= 12


@pytest.mark.slow
def test_workers_that_are_lost_cost_no_element_of_many_passes() -> None:
    with fleet_of(12) as fleet, iter(reading(fleet, "parallel_epochs", count=2000)) as elements:
        given = numbers(islice(elements, 100))
        for server in fleet.servers[:3]:
            server.stop()
        given += numbers(elements)
    assert sorted(given) == all_numbers(12, 2000)


@pytest.mark.slow
def test_a_state_of_many_passes_is_exact() -> None:
    with fleet_of(12) as fleet:
        dataset = reading(fleet, "parallel_epochs", count=50)
        with iter(dataset) as elements:
            given = numbers(islice(elements, 333))
            state = elements.state_dict()
        with iter(dataset) as restored:
            restored.load_state_dict(state)
            given += numbers(restored)
    assert sorted(given) == all_numbers(12, 50)


@pytest.mark.slow
def test_a_function_that_fails_is_met_at_its_elements() -> None:
    def fails_at_three(x: int) -> int:
        if x == 3:
            raise ValueError("no")
        return x

    with fleet_of(12) as fleet:
        failing = stream().map(fails_at_three).apply(ps.service.distribute("parallel_epochs", fleet.target))
        given, errors = [], 0
        with iter(failing) as elements:
            while True:
                try:
                    given.append(int(next(elements)))
                except StopIteration:
                    break
                except ValueError:
                    errors += 1
    assert errors == 12
    assert sorted(given) == sorted([0, 1, 2, 4, 5, 6] * 12)
