"""A reader asks all workers in turn, and a worker that was given up again only where there is no other."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.errors import LostDataWorkerError
from penstock.service.reader import worker_pool
from penstock.service.reader.worker_pool import WorkerPool
from penstock.service.wire.interfaces import UnreachedDataWorkerError
from penstock.service.wire.subjects import Endpoint, WorkerInfo


def workers(count: int) -> list[WorkerInfo]:
    return [
        WorkerInfo(worker_id=number, endpoint=Endpoint(address=f"a:{number}"), place=number) for number in range(count)
    ]


def pool_of(count: int) -> WorkerPool:
    pool = WorkerPool(lambda worker: True, lambda worker: None)  # type: ignore[arg-type,return-value]  # nothing is fetched
    pool.update(workers(count))
    return pool


def chosen(pool: WorkerPool, preferred: int = -1) -> int:
    worker = pool.choose(preferred, lambda: False)
    assert worker is not None
    return worker.worker_id


def test_a_worker_given_up_late_is_asked_again_if_it_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or what was asked of it would wait as long again, beside others that are well."""
    monkeypatch.setattr(worker_pool, "_SUSPECT_SECONDS", -1.0)  # for which no worker is asked that was lost
    first, _ = workers(2)
    pool = pool_of(2)
    pool.lost(first, UnreachedDataWorkerError("silent"), asked=time.monotonic() - 10)
    assert [chosen(pool, preferred=0) for _ in range(3)] == [1, 1, 1]
    pool.update([], gone=[1])
    assert chosen(pool) == 0


def test_a_worker_that_the_dispatcher_has_given_up_is_said_to_be_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader then closes the connection itself, which is no reason that helps anybody."""
    monkeypatch.setattr(worker_pool, "_logged", set())
    first, second = workers(2)
    pool = pool_of(2)
    pool.update([], gone=[first.worker_id])
    for worker in (first, second):
        pool.log_loss(
            worker, LostDataWorkerError(f"the connection to {worker.endpoint.address} was closed"), left=False
        )
    assert [record.message for record in caplog.records] == [
        "data worker 0 at a:0 is lost: the dispatcher does not hear it any more; others take over",
        "data worker 1 at a:1 is lost: the connection to a:1 was closed; others take over",
    ]


def test_a_reader_with_few_threads_asks_all_workers_in_turn() -> None:
    pool = pool_of(50)
    asked = []
    for _ in range(100):
        worker = pool.choose(-1, lambda: False)
        assert worker is not None
        asked.append(worker.worker_id)
        pool.release(worker)
    assert sorted(asked[:50]) == list(range(50)) != asked[:50]
    assert asked[:50] == asked[50:]


class Line:
    closed = False

    def close(self) -> None:
        self.closed = True


class SlowWorkers:
    """Workers that take a connection only when they are told to."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.answers = threading.Event()
        self.lines: list[Line] = []
        self.pool = WorkerPool(lambda worker: True, self._connect)
        self.pool.update(workers(1))

    def _connect(self, worker: WorkerInfo) -> Any:
        self.asked.release()
        assert self.answers.wait(60)
        self.lines.append(Line())
        return self.lines[-1]


def test_heartbeats_waited_until_a_stopped_worker_took_a_connection() -> None:
    slow = SlowWorkers()
    with ThreadPoolExecutor(3) as threads:
        lines = [threads.submit(slow.pool.connection, *workers(1)) for _ in range(2)]
        assert slow.asked.acquire(timeout=60) and slow.asked.acquire(timeout=60)
        try:  # what a heartbeat tells
            assert threads.submit(slow.pool.suspects).result(timeout=30) == []
        finally:
            slow.answers.set()
        first, second = (line.result(timeout=60) for line in lines)
    assert first is second
    assert sorted(line.closed for line in slow.lines) == [False, True]


def test_a_connection_that_comes_after_the_end_is_closed() -> None:
    slow = SlowWorkers()
    with ThreadPoolExecutor(1) as threads:
        line = threads.submit(slow.pool.connection, *workers(1))
        assert slow.asked.acquire(timeout=60)
        slow.pool.close()
        slow.answers.set()
        with pytest.raises(LostDataWorkerError, match="this reader was closed"):
            line.result(timeout=60)
    assert [line.closed for line in slow.lines] == [True]
