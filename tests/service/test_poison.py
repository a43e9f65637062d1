"""Elements whose functions end the process that makes them: they cost a few workers, and no other element.

The first test runs in a service as users start it; the others in one whose workers are forked.
"""

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from forked import Forked
from memory_limit import memory_left

import penstock as ps
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import GetStatus

pytestmark = pytest.mark.slow


class Service:
    """A dispatcher in this process, and worker processes of which a lost one is replaced, as in `ps.service.local`."""

    def __init__(self, num_workers: int) -> None:
        self._dispatcher = ps.service.DispatchServer()
        self.target = self._dispatcher.target
        self._lock = threading.Lock()
        self._ended = False
        self._workers: dict[int, Forked] = {}
        self._threads = [threading.Thread(target=self._keep, args=(number,)) for number in range(num_workers)]

    def _keep(self, number: int) -> None:
        address = self.target.split("://")[1]
        while True:
            with self._lock:
                if self._ended:
                    return
                worker = self._workers[number] = Forked(
                    "-m", "penstock", "worker", "--dispatcher", address, "--log-level=warning"
                )
            worker.wait()

    def __enter__(self) -> "Service":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended = True
            for worker in self._workers.values():
                if worker.returncode is None:
                    with suppress(ProcessLookupError):  # it has just ended, and its thread has not heard of it
                        os.kill(worker.pid, signal.SIGKILL)
        for thread in self._threads:
            thread.join()
        self._dispatcher.stop()


def crash() -> None:
    ctypes.string_at(0)  # a segmentation fault


def run_out_of_memory() -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # what the system does with a process that has taken too much


def fatal_at(number: int, end: Callable[[], None] = lambda: os._exit(3)) -> object:
    def function(x: np.ndarray) -> np.ndarray:
        if x == number:
            end()
        return x

    return function


def fatal_and_noted(end: Callable[[], None], notes: Path, at: int = 57) -> Callable[[np.ndarray], np.ndarray]:
    """A function that ends its process at a number; the processes that it has ended are in a file."""

    def function(x: np.ndarray) -> np.ndarray:
        if x == at:
            with notes.open("a") as file:
                file.write(f"{os.getpid()}\n")
            end()
        return x

    return function


def through(dataset: ps.Dataset, service: object, **arguments: object) -> ps.Dataset:
    return dataset.apply(ps.service.distribute("distributed_epoch", service.target, **arguments))  # type: ignore[attr-defined]


def read_past_errors(dataset: ps.Dataset) -> list[object]:
    """The elements, with the positions of poison where it was met."""
    found: list[object] = []
    with iter(dataset) as iterator:
        while True:
            try:
                found.append(int(next(iterator)))
            except StopIteration:
                return found
            except ps.PoisonError as error:
                found.append(f"poison {error.position}")


@pytest.mark.parametrize("end", [crash, pytest.param(run_out_of_memory, marks=pytest.mark.long)])
def test_an_element_costs_five_workers_and_the_others_come(end: Callable[[], None], tmp_path: Path) -> None:
    notes = tmp_path / "ended"
    with ps.service.local(num_workers=2) as service:
        found = read_past_errors(through(ps.Dataset.range(200).map(fatal_and_noted(end, notes)), service))
    assert found == [*range(57), "poison 57", *range(58, 200)]
    assert len(set(notes.read_text().split())) == 5


def slowly(x: int) -> int:
    time.sleep(0.05)
    return x


@pytest.mark.extended
@pytest.mark.parametrize("drain", [False, True])
def test_a_worker_that_says_goodbye_costs_no_element(drain: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    with ps.service.DispatchServer() as dispatcher:
        config = ps.service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
        workers = [ps.service.WorkerServer(config) for _ in range(5)]
        mode = ps.service.distribute("parallel_epochs", dispatcher.target, max_outstanding_requests=1)
        with iter(ps.Dataset.range(8).map(slowly).apply(mode)) as iterator:
            given = [int(next(iterator))]
            for worker in workers[:4]:
                worker.stop(drain=drain)
                given.append(int(next(iterator)))
            given += map(int, iterator)
        workers[4].stop()
    assert sorted(given) == sorted([*range(8)] * 5)
    assert caplog.text.count("others take over") <= 4
    assert "is lost" not in caplog.text


@pytest.mark.extended
def test_a_failed_allocation_is_the_elements_error_and_costs_no_worker() -> None:
    """Where the function is told, its process goes on."""
    with Service(num_workers=1) as service:
        makers = ps.Dataset.range(20).map(lambda x: np.empty(1 << 50, np.uint8) if x == 7 else os.getpid())
        with iter(through(makers, service)) as iterator:
            before = [int(next(iterator)) for _ in range(7)]
            with pytest.raises(MemoryError, match="Unable to allocate 1.00 PiB"):
                next(iterator)
            after = [int(x) for x in iterator]
    assert len(before) == 7 and len(after) == 12 and len({*before, *after}) == 1


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="a process's limits can be set by others on Linux only")
def test_a_worker_that_runs_out_of_memory_says_so_and_goes_on() -> None:
    """Its function takes little, and its batch has no room. Native threads need the rest, and end a process without."""
    with Service(num_workers=1) as service:
        process = int(next(iter(through(ps.Dataset.range(1).map(lambda _: os.getpid()), service))))
        wide = ps.Dataset.range(100).map(lambda x: np.full(1_250_000, x, np.float32)).batch(100)
        with memory_left(process, 400):
            with pytest.raises(MemoryError) as caught:
                next(iter(through(wide, service)))
            assert "the data worker is out of memory: give it more, make batches" in caught.value.__notes__[-1]
            pids = {int(pid) for pid in through(ps.Dataset.range(10).map(lambda _: os.getpid()), service)}
            assert pids == {process}


@pytest.mark.extended
def test_a_poisonous_row_under_a_filter_is_met_at_its_row() -> None:
    with Service(num_workers=2) as service:
        dataset = ps.Dataset.range(300).filter(lambda x: x % 3 == 0).map(fatal_at(120))
        found = read_past_errors(through(dataset, service))
    assert found == [*range(0, 120, 3), "poison 120", *range(123, 300, 3)]


@pytest.mark.extended
@pytest.mark.parametrize("poison", [0, pytest.param(99, marks=pytest.mark.long)])
def test_poison_is_left_out_and_counted_where_that_is_asked_for(poison: int) -> None:
    with Service(num_workers=2) as service:
        dataset = ps.Dataset.range(100).map(fatal_at(poison, run_out_of_memory))
        with iter(through(dataset, service, skip_poison=True)) as iterator:
            found = [int(x) for x in islice(iterator, 99)]
            await_skipped(service, 1 if poison < 99 else 0)
            assert next(iterator, None) is None
    assert found == [x for x in range(100) if x != poison]


def await_skipped(service: "Service", count: int) -> None:
    """Wait until the status of the service says that its one reader has left out so many elements."""
    client = DispatcherClient(service.target.split("://")[1])
    try:
        while [one.skipped for epoch in client.ask(GetStatus()).epochs for one in epoch.consumers] != [count]:
            time.sleep(0.01)
    finally:
        client.close()


@pytest.mark.extended
@pytest.mark.parametrize("place", [0, 57])
def test_poison_in_a_stream_ends_it_with_its_place(place: int, tmp_path: Path) -> None:
    notes = tmp_path / "ended"
    with Service(num_workers=2) as service:
        numbers = ps.Dataset.from_generator(lambda: iter(range(100)), output_signature=ps.TensorSpec((), np.int64))
        iterator = iter(through(numbers.map(fatal_and_noted(run_out_of_memory, notes, place)), service))
        assert [int(next(iterator)) for _ in range(place)] == list(range(place))
        with (
            iterator,
            pytest.raises(
                ps.PoisonError,
                match=f"element {place} has cost 3 data workers that made nothing else.*cannot be made without it",
            ),
        ):
            next(iterator)
    ended = len(set(notes.read_text().split()))
    # Six that gave nothing. Before them one for each time that a worker came nearer; how near depends on its speed.
    assert ended == 6 if place == 0 else ended >= 6


@pytest.mark.long
def test_poison_ends_every_trainer_that_shares_a_window_at_its_place(tmp_path: Path) -> None:
    notes = tmp_path / "ended"

    def read(service: object, trainer: str) -> tuple[list[int], str]:
        cache = ps.service.CrossTrainerCache(trainer)
        dataset = ps.Dataset.range(100).repeat().map(fatal_and_noted(run_out_of_memory, notes))
        found: list[int] = []
        with iter(through(dataset, service, job_name="tuning", cross_trainer_cache=cache)) as iterator:
            with pytest.raises(ps.PoisonError, match="cannot be made without it") as raised:
                found.extend(int(x) for x in iterator)
            with pytest.raises(ps.PoisonError):  # for good
                next(iterator)
        return found, f"poison {raised.value.position}"

    with Service(num_workers=1) as service, ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read, service, trainer) for trainer in ("first", "second")]
        assert [reader.result() for reader in readers] == [(list(range(57)), "poison 57")] * 2
        healthy = through(ps.Dataset.range(20), service)
        assert [int(x) for x in healthy] == list(range(20))
    assert 6 <= len(set(notes.read_text().split())) <= 18  # of both trainers together


@pytest.mark.long
def test_poison_of_coordinated_rows_is_met_in_its_round(tmp_path: Path) -> None:
    notes, found = tmp_path / "ended", {}

    def read(service: object, index: int) -> None:
        in_step = {"job_name": "in step", "consumer_index": index, "num_consumers": 2}
        dataset = ps.Dataset.range(80).map(fatal_and_noted(run_out_of_memory, notes))
        found[index] = read_past_errors(through(dataset, service, **in_step))

    with Service(num_workers=1) as service, ThreadPoolExecutor(2) as pool:
        for reader in [pool.submit(read, service, index) for index in range(2)]:
            reader.result()
    assert found == {0: list(range(0, 80, 2)), 1: [*range(1, 57, 2), "poison 57", *range(59, 80, 2)]}
    assert 6 <= len(set(notes.read_text().split())) <= 14


@pytest.mark.extended
def test_poison_of_one_job_does_not_take_the_workers_from_another() -> None:
    with Service(num_workers=2) as service:
        healthy = iter(through(ps.Dataset.range(3000), service))
        assert int(next(healthy)) == 0
        assert "poison 7" in read_past_errors(through(ps.Dataset.range(20).map(fatal_at(7)), service))
        with healthy:
            assert [int(x) for x in healthy] == list(range(1, 3000))


def test_skipping_poison_in_step_with_others_is_refused() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="out of step"):
        ps.service.distribute(
            "distributed_epoch", "localhost:1", job_name="j", consumer_index=0, num_consumers=2, skip_poison=True
        )
