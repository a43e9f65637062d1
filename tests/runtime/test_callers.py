"""Threads that call one function: how many, in which order, and whether they gain."""

import threading
import time

import pytest

from penstock.runtime.callers import Bell, Callers, Task
from penstock.runtime.channel import Closed
from penstock.runtime.threads import Threads
from penstock.runtime.tuning import TunedCallers


@pytest.fixture
def threads():
    threads = Threads()
    yield threads
    threads.stop()
    threads.join()


def wait_for(bell, condition):
    while True:
        rung = bell.rung
        if condition():
            return
        bell.wait(rung)


def test_no_more_calls_run_than_were_asked_for_and_all_are_made(threads):
    bell, lock = Bell(), threading.Lock()
    callers = Callers(threads, bell, 3)
    running, most, done = 0, 0, []

    def call(number):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001)
        with lock:
            running -= 1
            done.append(number)

    callers.add([Task(lambda number=number: call(number), 1) for number in range(40)])
    wait_for(bell, lambda: len(done) == 40)
    assert most == 3 and sorted(done) == list(range(40))


def test_callers_want_more_while_a_thread_is_without_work(threads):
    bell, held, done = Bell(), threading.Event(), []
    callers = Callers(threads, bell, 2)

    def call():
        held.wait(60)
        done.append(True)

    wanted = [callers.want_more]
    for _ in range(2):
        callers.add([Task(call, 1)])
        wanted.append(callers.want_more)
    held.set()
    wait_for(bell, lambda: len(done) == 2 and callers.want_more)
    assert wanted == [True, True, False]


def test_tasks_for_threads_that_were_stopped_are_refused(threads):
    callers = Callers(threads, Bell(), 2)
    threads.stop()
    with pytest.raises(Closed):
        callers.add([Task(lambda: None, 1)])


def test_a_cheap_function_is_called_serially(threads):
    tuned = TunedCallers(threads, Bell())
    for _ in range(50):
        tuned.call_serially(lambda: sum(range(1000)), 10_000)
    assert tuned.serial and not tuned.want_more


def test_a_function_that_waits_gets_threads(threads):
    tuned = TunedCallers(threads, Bell())
    assert tuned.call_serially(lambda: time.sleep(0.01) or "result", 1) == "result"
    assert not tuned.serial and tuned.want_more and tuned.count > 1
