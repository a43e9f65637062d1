"""Threads that call one function: how many, in which order, and whether they gain."""

import threading
import time

import pytest

from penstock.runtime.callers import Bell, Callers, Work
from penstock.runtime.channel import Closed
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


def test_the_thread_that_reads_makes_short_calls_for_single_rows(threads):
    bell = Bell()
    callers = Callers(threads, bell, 2)
    assert callers.rows_here(1) == 0  # nothing is known of the calls yet
    callers.note_here(1e-6, 1)
    assert (callers.rows_here(1), callers.rows_here(1000)) == (1, 0)
    callers.note_here(0.01, 1)
    assert callers.rows_here(1) == 0


def test_tasks_for_threads_that_were_stopped_are_refused(threads):
    callers = Callers(threads, Bell(), 2)
    threads.stop()
    with pytest.raises(Closed):
        callers.add(Work(lambda start, stop: None, 1))


def call_here(tuned, seconds, rows):
    """Have the reading thread make calls that are said to take so long."""
    assert tuned.rows_here(rows) > 0
    tuned.note_here(seconds, rows)


def test_a_cheap_function_is_called_serially(threads):
    tuned = TunedCallers(threads, Bell(), lambda: None)
    for _ in range(1000):
        call_here(tuned, 0.01, 10_000)
    assert tuned.serial and not tuned.want_more and tuned.because == ""


def test_calls_that_take_long_after_many_short_ones_get_threads(threads):
    tuned = TunedCallers(threads, Bell(), lambda: None)
    for _ in range(100):
        call_here(tuned, 1e-6, 1)
    for _ in range(20):
        if tuned.serial:
            call_here(tuned, 0.01, 1)
    assert not tuned.serial


def test_the_reading_thread_makes_few_calls_at_a_time_until_it_knows_them(threads):
    tuned = TunedCallers(threads, Bell(), lambda: None)
    assert tuned.rows_here(1000) == 1
    tuned.note_here(0.001, 1)
    assert tuned.rows_here(1000) == 20


def test_a_function_that_waits_gets_threads(threads):
    tuned = TunedCallers(threads, Bell(), lambda: None)
    call_here(tuned, 0.02, 1)
    assert tuned.serial  # the first call may be slow for another reason
    call_here(tuned, 0.02, 1)
    assert not tuned.serial and tuned.want_more and tuned.count > 1


def work_in_threads(tuned, bell, call, seconds):
    """Have tasks of about 10 ms done until so many seconds of work are over, or the threads are left."""
    begun = 0
    while begun * 0.01 < seconds and not tuned.serial:
        wait_for(bell, lambda: tuned.want_more or tuned.serial)
        tuned.add(Work(lambda start, stop: call(), 1))
        begun += 1
    wait_for(bell, lambda: tuned.running == 0)


def waiting(threads, function):
    """Callers that have found that threads gain."""
    bell = Bell()
    tuned = TunedCallers(threads, bell, function)
    call_here(tuned, 0.02, 1)
    call_here(tuned, 0.02, 1)
    work_in_threads(tuned, bell, lambda: time.sleep(0.01), 2.0)
    assert not tuned.serial and tuned.most > 1 and "times as many calls" in tuned.because
    return tuned


def test_what_gained_in_one_iteration_is_there_at_the_beginning_of_the_next(threads):
    def function():
        """Only its identity counts here."""

    first = waiting(threads, function)
    again = TunedCallers(threads, Bell(), function)
    assert not again.serial and again.count == first.count


def test_what_gained_is_known_for_a_function_that_is_made_anew(threads):
    def make():
        return lambda: "another object of the same code"

    first = waiting(threads, make())
    again = TunedCallers(threads, Bell(), make())
    assert not again.serial and again.count == first.count


def test_what_gained_for_large_elements_is_given_up_for_small_ones(threads):
    def function():
        """Only its identity counts here."""

    waiting(threads, function)
    bell = Bell()
    small = TunedCallers(threads, bell, function)
    assert not small.serial
    work_in_threads(small, bell, lambda: None, 60.0)
    assert small.serial


def test_threads_that_gain_nothing_are_left_again(threads):
    bell, lock = Bell(), threading.Lock()

    def alone():
        with lock:
            time.sleep(0.01)

    tuned = TunedCallers(threads, bell, lambda: None)
    call_here(tuned, 0.01, 1)
    call_here(tuned, 0.01, 1)
    assert not tuned.serial
    work_in_threads(tuned, bell, alone, 60.0)
    assert tuned.serial and not tuned.want_more
    call_here(tuned, 0.01, 1)
    assert tuned.serial  # not tried again at once
