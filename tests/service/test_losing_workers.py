"""Workers that are killed, stopped or come late, as processes of their own: nothing is lost and nothing comes twice."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from forked import Forked

import penstock as ps
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import GetStatus

pytestmark = pytest.mark.slow


class Fleet:
    """A dispatcher in this process, and workers in processes of their own."""

    def __init__(self) -> None:
        self.dispatcher = ps.service.DispatchServer(ps.service.DispatcherConfig(heartbeat_seconds=0.2))
        self.target = self.dispatcher.target
        self._workers: list[Forked] = []

    def add(self) -> Forked:
        """Start a worker; it comes when it comes."""
        address = self.target.split("://")[1]
        worker = Forked("-m", "penstock", "worker", "--dispatcher", address)
        self._workers.append(worker)
        return worker

    def await_workers(self, count: int) -> None:
        """Wait until so many are there."""
        client = DispatcherClient(self.target)
        while len(client.ask(GetStatus()).workers) < count:
            time.sleep(0.01)
        client.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self.dispatcher.stop()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.close()


def slowly(x: int) -> np.ndarray:
    time.sleep(0.002)
    return np.full(100, x)


def numbers(dataset: ps.Dataset) -> Iterator[int]:
    for element in dataset:
        yield int(element[0])


def through(dataset: ps.Dataset, fleet: Fleet, mode: str = "distributed_epoch", **arguments: object) -> ps.Dataset:
    return dataset.apply(ps.service.distribute(mode, fleet.target, **arguments))


@pytest.mark.parametrize(
    ("ordered", "killed"),
    [
        (True, True),
        (False, False),
        pytest.param(False, True, marks=pytest.mark.long),
        pytest.param(True, False, marks=pytest.mark.long),
    ],
)
def test_a_worker_that_is_lost_costs_no_element(fleet: Fleet, ordered: bool, killed: bool) -> None:
    lost, _ = fleet.add(), fleet.add()
    dataset = through(ps.Dataset.range(600).map(slowly), fleet, ordered=ordered)
    given = []
    for number in numbers(dataset):
        given.append(number)
        if len(given) == 100:
            lost.kill() if killed else lost.pause()
    assert (given if ordered else sorted(given)) == list(range(600))


@pytest.mark.extended
def test_a_worker_that_goes_on_after_it_was_given_up_delivers_nothing_twice(fleet: Fleet) -> None:
    slow, _ = fleet.add(), fleet.add()
    given = []
    for number in numbers(through(ps.Dataset.range(1500).map(slowly), fleet, ordered=False)):
        given.append(number)
        if len(given) == 50:
            slow.pause()
        if len(given) == 900:
            os.kill(slow.pid, signal.SIGCONT)
    assert sorted(given) == list(range(1500))


@pytest.mark.extended
def test_a_stream_goes_on_elsewhere_where_it_was(fleet: Fleet) -> None:
    lost = fleet.add()
    dataset = through(ps.Dataset.range(4000).filter(lambda x: x % 2 == 0).map(slowly).scan(0, running), fleet)
    given = []
    for number in numbers(dataset):
        given.append(number)
        if len(given) == 200:
            fleet.add()
            os.kill(lost.pid, signal.SIGKILL)
        if len(given) == 400:
            break
    expected = np.cumsum(np.arange(0, 800, 2))
    assert given == expected.tolist()


def running(total: int, x: np.ndarray) -> tuple[int, np.ndarray]:
    total = total + int(x[0])
    return total, np.full(1, total)


def test_a_pass_of_parallel_epochs_goes_on_elsewhere_where_it_was(fleet: Fleet) -> None:
    lost, _ = fleet.add(), fleet.add()
    fleet.await_workers(2)
    given = []
    for number in numbers(through(ps.Dataset.range(300).map(slowly), fleet, "parallel_epochs")):
        given.append(number)
        if len(given) == 100:
            os.kill(lost.pid, signal.SIGKILL)
    assert sorted(given) == sorted([*range(300), *range(300)])


@pytest.mark.extended
def test_a_restored_reader_of_parallel_epochs_finds_passes_of_lost_workers(fleet: Fleet) -> None:
    lost, _ = fleet.add(), fleet.add()
    fleet.await_workers(2)
    dataset = through(ps.Dataset.range(300).map(slowly), fleet, "parallel_epochs")
    with iter(dataset) as iterator:
        given = [int(next(iterator)[0]) for _ in range(100)]
        state = iterator.state_dict()
    lost.kill()
    client = DispatcherClient(fleet.target)
    while sum(worker.alive for worker in client.ask(GetStatus()).workers) > 1:
        time.sleep(0.01)
    client.close()
    with iter(dataset) as iterator:
        iterator.load_state_dict(state)
        given += numbers(iterator)  # type: ignore[arg-type]  # it gives elements as the dataset does
    assert sorted(given) == sorted([*range(300), *range(300)])


@pytest.mark.extended
def test_readers_wait_for_the_first_worker_and_say_so(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    with iter(through(ps.Dataset.range(3), fleet)) as iterator:
        starting = iter([fleet.add])

        class Starter:
            def filter(self, record: object) -> bool:
                for start in starting:
                    start()
                return True

        caplog.handler.addFilter(Starter())  # type: ignore[arg-type]  # anything with `filter` will do
        assert [int(x) for x in iterator] == [0, 1, 2]
    assert "no data worker" in caplog.text


@pytest.mark.extended
def test_addresses_that_nobody_can_reach_are_said_and_no_element_is_blamed(caplog: pytest.LogCaptureFixture) -> None:
    """However many workers there are: what was never asked of them cannot be the reason."""
    with ExitStack() as stack:
        dispatcher = stack.enter_context(ps.service.DispatchServer())
        for port in range(1, 7):
            config = ps.service.WorkerConfig(
                dispatcher_address=dispatcher.target.split("://")[1], worker_address=f"localhost:{port}"
            )
            stack.enter_context(ps.service.WorkerServer(config))
        flight = ps.service.distribute("distributed_epoch", dispatcher.target, data_transfer_protocol="grpc")
        iterator = stack.enter_context(iter(ps.Dataset.range(1).apply(flight)))
        raised = []

        def read() -> None:
            try:
                next(iterator)
            except ps.PenstockError as error:
                raised.append(error)

        reading = threading.Thread(target=read)
        reading.start()
        while "at the address it advertises: localhost:1" not in caplog.text:
            assert raised == []  # and so until the test's time limit
            time.sleep(0.05)
        iterator.close()
        reading.join()
        assert [type(error) for error in raised] == [ps.errors.ClosedError]


@pytest.mark.extended
def test_a_worker_that_comes_late_helps(fleet: Fleet) -> None:
    fleet.add()
    dataset = through(ps.Dataset.range(1 << 40).map(of_process), fleet, ordered=False)  # no end before it comes
    with iter(dataset) as iterator:
        first = int(next(iterator))
        fleet.add()
        assert any(int(process) != first for process in iterator)


def of_process(x: int) -> int:
    time.sleep(0.003)
    return os.getpid()


def saved_rows(folder: str) -> ps.Dataset:
    def row(x: int) -> dict[str, np.ndarray]:
        if int(x) == 33:
            try:
                os.close(os.open(f"{folder}/killed", os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        time.sleep(0.001)
        return {"id": x, "worker": np.int64(os.getpid())}

    return ps.Dataset.range(120).shuffle().map(row)


def test_workers_save_every_element_once_though_one_dies(fleet: Fleet, tmp_path: Path) -> None:
    workers = [fleet.add() for _ in range(3)]
    fleet.await_workers(3)
    dataset = saved_rows(str(tmp_path))
    ps.service.distributed_save(dataset, tmp_path / "saved", fleet.target, "parquet", shards=12)
    assert (tmp_path / "killed").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "saved"]
    rows = list(ps.Dataset.load(tmp_path / "saved"))
    assert sorted(int(row["id"]) for row in rows) == list(range(120))  # each once, of a shuffle without a seed
    assert {int(row["worker"]) for row in rows} <= {worker.pid for worker in workers}
    assert len({int(row["worker"]) for row in rows}) > 1
    files = sorted(path.name for path in (tmp_path / "saved").iterdir())
    assert files == ["_dataset.json", *(f"part-{number:05d}.parquet" for number in range(12))]


@pytest.mark.extended
def test_a_stream_is_made_by_workers_and_saved_by_the_process_that_asks(fleet: Fleet, tmp_path: Path) -> None:
    fleet.add()
    dataset = ps.Dataset.range(50).filter(lambda x: x % 2 == 0).map(lambda x: (x, os.getpid()))
    ps.service.distributed_save(dataset, tmp_path / "saved", fleet.target, rows_per_shard=10)
    found = [(int(number), int(process)) for number, process in ps.Dataset.load(tmp_path / "saved")]
    assert [number for number, _ in found] == list(range(0, 50, 2))
    assert os.getpid() not in {process for _, process in found}


@pytest.mark.extended
def test_a_row_a_worker_cannot_write_is_an_error_and_shards_stay(fleet: Fleet, tmp_path: Path) -> None:
    fleet.add()

    def row(x: int) -> dict[str, object]:
        return {"x": np.zeros((1,) * (1 + int(x) // 35))}

    with pytest.raises(ps.ElementError, match=r"shape=\(1,\).*shape=\(1, 1\).*nothing in common"):
        ps.service.distributed_save(
            ps.Dataset.range(40).map(row), tmp_path / "saved", fleet.target, "parquet", shards=4
        )
    assert [path.name for path in tmp_path.iterdir()] == ["saved.unfinished"]
