"""A reader asks all workers in turn, and a worker that was given up again only where there is no other."""

import time

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


def test_a_worker_that_took_long_to_be_given_up_is_asked_again_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or what was asked of it would wait as long again, beside others that are well."""
    monkeypatch.setattr(worker_pool, "_SUSPECT_SECONDS", -1.0)  # for which no worker is asked that was lost
    first, _ = workers(2)
    pool = pool_of(2)
    assert not pool.lost(first, UnreachedDataWorkerError("silent"), asked=time.monotonic() - 10)
    assert [chosen(pool, preferred=0) for _ in range(3)] == [1, 1, 1]
    pool.update([], gone=[1])
    assert chosen(pool) == 0


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


def test_each_thing_that_a_worker_was_asked_for_may_be_the_reason_that_it_is_lost() -> None:
    first, second = workers(2)
    pool = pool_of(2)
    asked = time.monotonic()
    assert [pool.lost(first, LostDataWorkerError("x"), asked) for _ in range(2)] == [True, True]
    assert not pool.lost(first, LostDataWorkerError("x"), time.monotonic())  # it was known
    assert not pool.lost(second, UnreachedDataWorkerError("x"), asked)
    pool.update([], whole=True)
    assert not pool.lost(workers(3)[2], LostDataWorkerError("x"), asked)  # the dispatcher knew


def test_a_worker_is_left_alone_until_the_element_that_may_end_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of what it did before let a second such element begin, and the worker refused that."""
    monkeypatch.setattr(worker_pool, "_ALONE_SECONDS", 0.0)
    (worker,) = workers(1)
    pool = pool_of(1)
    assert chosen(pool) == 0
    assert pool.choose(0, lambda: False, alone=True) == worker
    pool.release(worker)
    looked = iter([False, True])
    assert pool.choose(0, lambda: next(looked)) is None
    pool.release(worker, alone=True)
    assert chosen(pool) == 0


def test_what_may_end_a_worker_goes_to_one_that_makes_no_such_thing_for_another_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_pool, "_OCCUPIED_SECONDS", 1000.0)
    first, second = workers(2)
    pool = pool_of(2)
    pool.occupied(first)
    assert chosen(pool, preferred=0) == 0
    assert pool.choose(0, lambda: False, alone=True) == second
    pool.occupied(second)
    assert pool.suspects() == []
    assert pool.why_silent() == (
        "the next element may be one that ends its data worker, and waits for such an element of another reader "
        "(a:0, a:1)"
    )
