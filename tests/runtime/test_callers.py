"""Threads that call one function: how many, in which order, and whether they gain."""

import threading
import time

import pytest

from penstock.runtime.callers import Bell, Callers, Work
from penstock.runtime.channel import Closed
from penstock.runtime.fixed import FixedCallers
from penstock.runtime.tuning import TunedCallers


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
    met = threading.Barrier(3)

    def call(number):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if (
            number < 3
        ):  # each is the first task of a thread, which a busy machine may not let begin before the others end
            met.wait(60)
        time.sleep(0.001)
        with lock:
            running -= 1
            done.append(number)

    callers.add(Work(lambda start, stop: [call(number) for number in range(start, stop)], 40))
    wait_for(bell, lambda: len(done) == 40)
    assert most == 3 and sorted(done) == list(range(40))


def test_callers_want_more_while_a_thread_is_without_work(threads):
    bell, held, done = Bell(), threading.Event(), []
    callers = Callers(threads, bell, 2)

    def call(start, stop):
        held.wait(60)
        done.append(True)

    wanted = [callers.want_more]
    for _ in range(2):
        callers.add(Work(call, 1))
        wanted.append(callers.want_more)
    held.set()
    wait_for(bell, lambda: len(done) == 2 and callers.want_more)
    assert wanted == [True, True, False]


def test_quick_calls_are_soon_made_many_at_a_time(threads):
    bell, tasks = Bell(), []
    callers = Callers(threads, bell, 2)
    callers.add(Work(lambda start, stop: tasks.append((start, stop)), 1000))
    wait_for(bell, lambda: callers.want_more and callers.running == 0)
    assert sorted(row for task in tasks for row in range(*task)) == list(range(1000))
    assert len(tasks) < 100


def test_those_who_wait_are_not_woken_by_each_of_many_calls(threads):
    bell = Bell()
    callers = Callers(threads, bell, 1, task_seconds=0)  # each call is a task, and takes longer than one should
    callers.add(Work(lambda start, stop: None, 100))
    wait_for(bell, lambda: callers.want_more and callers.running == 0)
    assert bell.rung == 1


def after_short_calls(threads, count):
    """Callers that have found out that calls are short."""
    bell = Bell()
    callers = FixedCallers(threads, bell, count)
    while "one thread at a time" not in callers.because:
        rung = bell.rung
        callers.add(Work(lambda start, stop: None, 100))
        bell.wait(rung)
    wait_for(bell, lambda: callers.want_more and callers.running == 0)
    return callers


def test_several_threads_wait_for_the_lock_of_python_in_each_short_call(threads, monkeypatch):
    monkeypatch.setattr("penstock.runtime.fixed._OVERDUE_SECONDS", 60)
    callers = after_short_calls(threads, 2)
    begun, both, beside = threading.Event(), threading.Event(), []

    def first(start, stop):
        begun.set()
        beside.append(both.wait(0.2))  # nothing else tells that no other thread begins

    callers.add(Work(first, 1))
    begun.wait(60)
    callers.add(Work(lambda start, stop: both.set(), 1))
    assert both.wait(60) and beside == [False]


def test_calls_that_begin_to_wait_after_short_ones_run_beside_each_other(threads):
    callers = after_short_calls(threads, 4)
    met, ended = threading.Barrier(5), threading.Event()

    def call(start, stop):
        met.wait(60)
        ended.wait(60)

    for _ in range(4):
        callers.add(Work(call, 1))
    met.wait(60)
    assert callers.because == "" and not ended.is_set()
    ended.set()
    wait_for(callers.bell, lambda: callers.want_more and callers.running == 0)


def test_threads_stop_taking_turns_when_calls_have_become_longer(threads, monkeypatch):
    monkeypatch.setattr("penstock.runtime.fixed._OVERDUE_SECONDS", 60)
    callers = after_short_calls(threads, 2)
    ended = threading.Event()
    callers.add(Work(lambda start, stop: ended.wait(0.1), 100, together=True))
    wait_for(callers.bell, lambda: callers.running == 0 and callers.want_more and callers.because == "")
    assert not ended.is_set()


def test_calls_by_the_thread_that_reads_that_take_long_and_raise_are_left_to_threads(threads):
    callers = FixedCallers(threads, Bell(), 2)
    rung = callers.bell.rung
    while not callers.serial:
        callers.add(Work(lambda start, stop: None, 1))
        callers.bell.wait(rung)
        rung = callers.bell.rung

    def times_out(row):
        time.sleep(0.01)
        raise TimeoutError(row)

    with pytest.raises(TimeoutError):
        next(callers.calls_here(times_out))(7)
    assert not callers.serial and list(callers.calls_here(times_out)) == []


def test_tasks_for_threads_that_were_stopped_are_refused(threads):
    callers = Callers(threads, Bell(), 2)
    threads.stop()
    with pytest.raises(Closed):
        callers.add(Work(lambda start, stop: None, 1))


def test_a_cheap_function_is_called_serially(threads):
    tuned = TunedCallers(threads, Bell(), lambda: None)
    for _ in range(50):
        tuned.call_serially(lambda: sum(range(1000)), 10_000)
    assert tuned.serial and not tuned.want_more


def test_short_calls_are_looked_at_now_and_then(threads, monkeypatch):
    looked, clock = [], time.thread_time
    monkeypatch.setattr(time, "thread_time", lambda: looked.append(True) or clock())
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)  # another process may have the processor for a while
    tuned = TunedCallers(threads, Bell(), lambda: None)
    for _ in range(320):
        tuned.call_serially(lambda: None, 1)
    assert tuned.serial and len(looked) == 20


def test_calls_that_take_long_after_many_short_ones_get_threads(threads):
    tuned = TunedCallers(threads, Bell(), lambda: None)
    for _ in range(100):
        tuned.call_serially(lambda: None, 1)
    for _ in range(20):
        if tuned.serial:
            tuned.call_serially(lambda: time.sleep(0.01), 1)
    assert not tuned.serial


def test_a_function_that_waits_gets_threads(threads):
    tuned = TunedCallers(threads, Bell(), lambda: None)
    assert tuned.call_serially(lambda: time.sleep(0.01) or "result", 1) == "result"
    assert not tuned.serial and tuned.want_more and tuned.count > 1


def work_in_threads(tuned, bell, call, seconds):
    """Have tasks of about 10 ms done until so many seconds of work are over, or the threads are left."""
    begun = 0
    while begun * 0.01 < seconds and not tuned.serial:
        wait_for(bell, lambda: tuned.want_more or tuned.serial)
        tuned.add(Work(lambda start, stop: call(), 1))
        begun += 1
    wait_for(bell, lambda: tuned.running == 0)


def test_what_gained_in_one_iteration_is_there_at_the_beginning_of_the_next(threads):
    def function():
        """Only its identity counts here."""

    bell = Bell()
    first = TunedCallers(threads, bell, function)
    first.call_serially(lambda: time.sleep(0.01), 1)
    work_in_threads(first, bell, lambda: time.sleep(0.01), 2.0)
    assert not first.serial and first.most > 1
    again = TunedCallers(threads, Bell(), function)
    assert not again.serial and again.count == first.count


def test_what_gained_is_known_for_a_function_that_is_made_anew(threads):
    def make():
        return lambda: "another object of the same code"

    bell = Bell()
    first = TunedCallers(threads, bell, make())
    first.call_serially(lambda: time.sleep(0.01), 1)
    work_in_threads(first, bell, lambda: time.sleep(0.01), 2.0)
    again = TunedCallers(threads, Bell(), make())
    assert not again.serial and again.count == first.count


def test_what_gained_for_large_elements_is_given_up_for_small_ones(threads):
    def function():
        """Only its identity counts here."""

    bell = Bell()
    large = TunedCallers(threads, bell, function)
    large.call_serially(lambda: time.sleep(0.01), 1)
    work_in_threads(large, bell, lambda: time.sleep(0.01), 2.0)
    small = TunedCallers(threads, bell, function)
    work_in_threads(small, bell, lambda: None, 60.0)
    assert small.serial


def test_threads_that_gain_nothing_are_left_again(threads):
    bell, lock = Bell(), threading.Lock()

    def alone():
        with lock:
            time.sleep(0.01)

    tuned = TunedCallers(threads, bell, lambda: None)
    tuned.call_serially(alone, 1)
    assert not tuned.serial
    work_in_threads(tuned, bell, alone, 60.0)
    assert tuned.serial and not tuned.want_more
