"""Work that threads share is done once for every row, the earliest error is raised, and stopping waits for nothing."""

import gc
import threading

import pytest
from until import until

import penstock as ps
from penstock.runtime.channel import Closed
from penstock.runtime.threads import Threads


@pytest.mark.parametrize("parallelism", [1, 2, 5])
@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("rows", [0, 1, 17])
def test_every_row_is_worked_on_once(threads, rows, chunk, parallelism):
    done = []
    threads.share(lambda start, stop: done.extend(range(start, stop)), rows, parallelism, chunk)
    assert sorted(done) == list(range(rows))


def test_the_calling_thread_works_alone_if_nothing_is_to_be_shared(threads):
    seen = set()
    threads.share(lambda start, stop: seen.add(threading.current_thread()), 10, 1, 1)
    assert seen == {threading.current_thread()}


def test_the_error_of_the_earliest_chunk_is_raised(threads):
    meeting = threading.Barrier(2, timeout=60)

    def work(start, stop):
        meeting.wait()
        raise ValueError(f"chunk {start}")

    with pytest.raises(ValueError, match="chunk 0"):
        threads.share(work, 2, 2, 1)


def test_work_is_finished_by_the_caller_alone_once_the_threads_were_stopped(threads):
    done = []
    threads.share(lambda start, stop: done.append(start), 8, 3, 1)
    threads.stop()
    threads.join()
    threads.stop()
    threads.share(lambda start, stop: done.append(start), 8, 3, 1)
    assert sorted(done) == sorted([*range(8), *range(8)])
    with pytest.raises(Closed):
        threads.submit(lambda: None)


def test_tasks_that_wait_when_the_threads_are_stopped_are_still_called(threads):
    done = []
    for number in range(20):
        threads.submit(lambda number=number: done.append(number))
    threads.stop()
    threads.join()
    assert sorted(done) == list(range(20))


def test_stopping_waits_for_nothing(threads):
    release = threading.Event()
    threads.submit(release.wait)
    threads.stop()
    assert not release.is_set()  # the task still runs: stop came back all the same
    release.set()
    threads.join()


def test_a_thread_that_is_just_starting_can_be_waited_for(threads, monkeypatch):
    failures, ended = [], []

    def join():
        try:
            threads.join()
        except RuntimeError as error:
            failures.append(error)
        ended.append(release.is_set())

    release = threading.Event()
    joining = threading.Thread(target=join)
    start = threading.Thread.start

    def start_slowly(thread):
        monkeypatch.undo()
        joining.start()
        joining.join(0.1)  # as long as it takes to reach a thread that is not started, if it does
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_slowly)
    threads.start(release.wait, "slow")
    release.set()
    joining.join()
    assert (failures, ended) == ([], [True])


def test_garbage_collection_may_stop_threads_while_another_starts():
    # The collector may run inside of the very call that starts a thread: whatever it stops there must wait for nothing.
    stopped = threading.Event()

    class Forgotten:
        def __init__(self):
            self.threads = Threads()
            self.threads.share(lambda start, stop: None, 8, 3, 1)

        def __del__(self):
            self.threads.stop()
            stopped.set()

    starting = Threads()
    garbage = [Forgotten()]
    with starting._lock:
        garbage.clear()
        assert stopped.is_set()
    starting.share(lambda start, stop: None, 8, 3, 1)
    starting.stop()
    starting.join()


@pytest.mark.extended
def test_iterators_forgotten_in_cycles_end_while_others_start_threads():
    for _ in range(200):
        iterator = iter(ps.Dataset.range(64).map(lambda x: x, num_parallel_calls=3).batch(8).prefetch(1))
        next(iterator)
        cycle = [iterator]
        cycle.append(cycle)
    del iterator, cycle  # the last of them is held by this frame

    def ended() -> bool:
        gc.collect()  # which does nothing while another thread is in the middle of a collection
        return not any(thread.name.startswith("penstock-") for thread in threading.enumerate())

    until(ended)
