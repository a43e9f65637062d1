"""The dispatcher is killed and started again: readers and workers ride over it, and get exactly what they should."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from forked import Forked
from service_status import status
from until import until

import penstock as ps
from penstock.errors import LostLeaseError

pytestmark = pytest.mark.slow


@contextmanager
def workers(address: str, count: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=address)))
        yield


def slowly(x: int) -> int:
    time.sleep(0.001)
    return x


def alive(address: str) -> set[int]:
    return {worker.info.worker_id for worker in status(address, patience=60).workers if worker.alive}


class Readers:
    """Readers of one job in threads of their own, each with what it has got."""

    def __init__(self, datasets: list[ps.Dataset], limit: int | None = None) -> None:
        self.given: list[list[int]] = [[] for _ in datasets]
        self.errors: list[Exception] = []
        self._changed = threading.Condition()
        self._limit = limit
        self._threads = [
            threading.Thread(target=self._read, args=(dataset, given)) for dataset, given in zip(datasets, self.given)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, dataset: ps.Dataset, given: list[int]) -> None:
        try:
            with iter(dataset) as iterator:
                for element in islice(iterator, self._limit):
                    with self._changed:
                        given.append(int(element))
                        self._changed.notify_all()
        except ps.PenstockError as error:
            self.errors.append(error)

    def await_elements(self, count: int) -> None:
        """Wait until they have got so many, all together."""
        with self._changed:
            assert self._changed.wait_for(lambda: sum(map(len, self.given)) >= count, 60)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.extended
@pytest.mark.parametrize(
    ("mode", "journal"),
    [
        ("distributed_epoch", True),
        ("parallel_epochs", False),
        pytest.param("distributed_epoch", False, marks=pytest.mark.long),
        pytest.param("parallel_epochs", True, marks=pytest.mark.long),
    ],
)
def test_a_reader_that_reads_alone_notices_nothing(
    start_dispatcher: Callable[..., Any], tmp_path: Path, mode: str, journal: bool
) -> None:
    dispatcher = start_dispatcher(*(["--work-dir", str(tmp_path)] if journal else []))
    with workers(dispatcher.address, 2):
        before = alive(dispatcher.address)
        dataset = ps.Dataset.range(1500).map(slowly).apply(ps.service.distribute(mode, dispatcher.address))
        readers = Readers([dataset])
        readers.await_elements(200)
        dispatcher.kill()
        readers.await_elements(400)
        dispatcher.start()
        readers.join()
        assert readers.errors == []
        (given,) = readers.given
        if mode == "distributed_epoch":
            assert given == list(range(1500))
        else:
            assert sorted(given) == sorted([*range(1500), *range(1500)])
        if journal:
            assert alive(dispatcher.address) == before


def test_readers_of_a_shared_job_ride_over_it_with_exact_contents(
    start_dispatcher: Callable[..., Any], tmp_path: Path
) -> None:
    dispatcher = start_dispatcher("--work-dir", str(tmp_path))
    with workers(dispatcher.address, 2):
        dataset = ps.Dataset.range(3000).map(slowly)
        shared = ps.service.distribute("distributed_epoch", dispatcher.address, job_name="shared")
        readers = Readers([dataset.apply(shared), dataset.apply(shared)])
        for count in (300, 900, 1500):
            readers.await_elements(count)
            dispatcher.kill()
            dispatcher.start()
            readers.await_elements(min(3000, sum(map(len, readers.given)) + 500))
        readers.join()
        assert readers.errors == []
        assert sorted([*readers.given[0], *readers.given[1]]) == list(range(3000))
        assert min(map(len, readers.given)) > 0


@pytest.mark.extended
def test_sigterm_to_a_dispatcher_with_a_journal_ends_no_training(
    start_dispatcher: Callable[..., Any], tmp_path: Path
) -> None:
    dispatcher = start_dispatcher("--work-dir", str(tmp_path))
    with workers(dispatcher.address, 1):
        shared = ps.service.distribute("distributed_epoch", dispatcher.address, job_name="shared")
        epochs = ps.Dataset.range(400).map(slowly).apply(shared).repeat(3)  # each epoch is opened anew
        readers = Readers([epochs])
        for count in (100, 500, 900):
            readers.await_elements(count)
            assert dispatcher.terminate() == 0
            dispatcher.start()
        readers.join()
        assert readers.errors == []
        assert sorted(readers.given[0]) == sorted(list(range(400)) * 3)


@pytest.mark.extended
def test_a_reader_waits_for_its_dispatcher_as_long_as_it_was_told_to(
    start_dispatcher: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = start_dispatcher("--work-dir", str(tmp_path))
    with workers(dispatcher.address, 1):
        shared = ps.service.distribute(
            "distributed_epoch", dispatcher.address, job_name="shared", dispatcher_timeout_seconds=2.0
        )
        readers = Readers([ps.Dataset.range(1 << 40).map(slowly).apply(shared)])
        readers.await_elements(10)
        dispatcher.kill()
        readers.join()
        (error,) = readers.errors
        assert "cannot be reached" in str(error) and "tried for 2." in str(error)
        assert "waiting for the dispatcher, for 2 s at most: the dispatcher at localhost:" in caplog.text


@pytest.mark.extended
def test_no_peer_is_lost_because_the_dispatcher_was_stopped(
    start_dispatcher: Callable[..., Any],
) -> None:
    dispatcher = start_dispatcher("--lease-seconds", "1.5")
    with workers(dispatcher.address, 2):
        before = alive(dispatcher.address)
        dataset = ps.Dataset.range(3000).map(slowly)
        shared = ps.service.distribute("distributed_epoch", dispatcher.address, job_name="shared")
        readers = Readers([dataset.apply(shared), dataset.apply(shared)])
        readers.await_elements(300)
        dispatcher.stop_for(2.5)
        readers.join()
        assert readers.errors == []
        assert sorted([*readers.given[0], *readers.given[1]]) == list(range(3000))
        assert alive(dispatcher.address) == before


def test_rows_that_make_any_number_of_elements_come_once_too(
    start_dispatcher: Callable[..., Any], tmp_path: Path
) -> None:
    dispatcher = start_dispatcher("--work-dir", str(tmp_path))
    with workers(dispatcher.address, 2):
        dataset = ps.Dataset.range(3000).map(slowly).filter(lambda x: x % 3 == 0)
        shared = ps.service.distribute("distributed_epoch", dispatcher.address, job_name="filtered")
        readers = Readers([dataset.apply(shared), dataset.apply(shared)])
        readers.await_elements(150)
        dispatcher.kill()
        dispatcher.start()
        readers.join()
        assert readers.errors == []
        assert sorted([*readers.given[0], *readers.given[1]]) == list(range(0, 3000, 3))


@pytest.mark.parametrize("journal", [pytest.param(True, marks=pytest.mark.long), False], ids=["journal", "no journal"])
def test_coordinated_readers_stay_in_step(start_dispatcher: Callable[..., Any], tmp_path: Path, journal: bool) -> None:
    dispatcher = start_dispatcher(*(["--work-dir", str(tmp_path)] if journal else []))
    with workers(dispatcher.address, 2):
        dataset = ps.Dataset.range(2000).map(slowly)
        readers = Readers(
            [
                dataset.apply(
                    ps.service.distribute(
                        "distributed_epoch", dispatcher.address, job_name="step", consumer_index=i, num_consumers=2
                    )
                )
                for i in range(2)
            ]
        )
        readers.await_elements(200)
        dispatcher.kill()
        readers.await_elements(400)
        dispatcher.start()
        readers.join()
        assert readers.errors == []
        first, second = readers.given
        # Of two workers the first has the even rows, the second the odd ones; in a round both are of one worker.
        assert [(a, b) for a, b in zip(first, second) if b != a + 2] == []
        assert sorted([*first, *second]) == list(range(2000))


@pytest.mark.extended
def test_trainers_with_a_cache_see_no_element_twice(start_dispatcher: Callable[..., Any], tmp_path: Path) -> None:
    dispatcher = start_dispatcher("--work-dir", str(tmp_path))
    with workers(dispatcher.address, 1):
        cache = ps.service.CrossTrainerCache("one")
        dataset = ps.Dataset.range(1 << 40).map(slowly).repeat()
        dataset = dataset.apply(
            ps.service.distribute("distributed_epoch", dispatcher.address, job_name="c", cross_trainer_cache=cache)
        )
        readers = Readers([dataset], limit=1500)
        readers.await_elements(200)
        dispatcher.kill()
        dispatcher.start()
        readers.join()
        assert readers.errors == []
        assert readers.given == [list(range(1500))]


def test_without_a_journal_readers_of_a_shared_job_are_told(start_dispatcher: Callable[..., Any]) -> None:
    dispatcher = start_dispatcher()
    with workers(dispatcher.address, 1):
        dataset = ps.Dataset.range(1 << 40).map(slowly)
        shared = ps.service.distribute("distributed_epoch", dispatcher.address, job_name="shared")
        readers = Readers([dataset.apply(shared)])
        readers.await_elements(100)
        dispatcher.kill()
        dispatcher.start()
        readers.join()
        (error,) = readers.errors
        assert isinstance(error, LostLeaseError)
        assert "was restarted without a journal (`penstock dispatcher --work-dir`)" in str(error)


def test_named_datasets_and_jobs_that_nobody_reads_are_kept(
    start_dispatcher: Callable[..., Any], tmp_path: Path
) -> None:
    dispatcher = start_dispatcher("--work-dir", str(tmp_path))
    name = ps.service.register_dataset(dispatcher.address, ps.Dataset.range(300), dataset_id="numbers")
    with workers(dispatcher.address, 1):
        with iter(
            ps.service.from_dataset_id("distributed_epoch", dispatcher.address, name, job_name="job")
        ) as iterator:
            first = [int(next(iterator)) for _ in range(100)]
        while any(epoch.consumers for epoch in status(dispatcher.address, patience=60).epochs):
            time.sleep(0.01)
        dispatcher.kill()
        dispatcher.start()
        rest = ps.service.from_dataset_id("distributed_epoch", dispatcher.address, name, job_name="job")
        assert sorted([*first, *(int(x) for x in rest)]) == list(range(300))


@pytest.mark.extended
def test_closing_an_iterator_waited_minutes_for_a_dispatcher_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = ps.service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    worker = Forked("-m", "penstock", "worker", "--dispatcher", address, "--log-level", "warning")
    try:
        iterator = iter(ps.Dataset.range(1 << 40).apply(ps.service.distribute("distributed_epoch", address)))
        next(iterator)
        dispatcher.stop()
        until(lambda: "waiting for the dispatcher, for 300 s at most" in caplog.text)  # its next heartbeat
        closing = threading.Thread(target=iterator.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
    finally:
        worker.kill()
        worker.wait()
