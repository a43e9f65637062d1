"""Work shared between threads."""

import threading

import pytest

from penstock.runtime.workers import WorkerPool


@pytest.fixture
def pool():
    pool = WorkerPool()
    yield pool
    pool.close()


@pytest.mark.parametrize("parallelism", [1, 2, 5])
@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("rows", [0, 1, 17])
def test_every_row_is_worked_on_once(pool, rows, chunk, parallelism):
    done = []
    pool.share(lambda start, stop: done.extend(range(start, stop)), rows, parallelism, chunk)
    assert sorted(done) == list(range(rows))


def test_the_calling_thread_works_alone_if_nothing_is_to_be_shared(pool):
    threads = set()
    pool.share(lambda start, stop: threads.add(threading.current_thread()), 10, 1, 1)
    assert threads == {threading.current_thread()}


def test_the_error_of_the_earliest_chunk_is_raised(pool):
    meeting = threading.Barrier(2, timeout=10)

    def work(start, stop):
        meeting.wait()
        raise ValueError(f"chunk {start}")

    with pytest.raises(ValueError, match="chunk 0"):
        pool.share(work, 2, 2, 1)


def test_a_pool_can_be_closed_twice_and_used_again():
    pool = WorkerPool()
    pool.share(lambda start, stop: None, 8, 2, 1)
    pool.close()
    pool.close()
    pool.share(lambda start, stop: None, 8, 2, 1)
    pool.close()
    assert [t for t in threading.enumerate() if t.name.startswith("penstock-")] == []
