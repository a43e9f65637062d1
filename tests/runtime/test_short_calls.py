"""Whether calls are short, decided by how long they took: the durations are given, no clock runs."""

import pytest

from penstock.runtime.short_calls import ReadingThread, ThreadTurns


def calls_by_threads(reader, seconds):
    """Threads make calls for rows that come one by one until the thread that reads does, or so many were made."""
    for count, each in enumerate(seconds):
        if reader.calls:
            return count
        reader.thread_called(each, 1, more=False)
    return None


def calls_by_reader(reader, seconds):
    """The thread that reads makes calls until threads do."""
    for count, each in enumerate(seconds):
        if not reader.calls:
            return count
        reader.called(each, 1)
    return None


def test_short_calls_of_which_few_are_interrupted_are_made_by_the_thread_that_reads():
    reader = ReadingThread(4)
    assert calls_by_threads(reader, [0.0002] * 15 + [0.004] + [0.0002] * 100) == 25
    assert calls_by_reader(reader, ([1e-6] * 15 + [0.001]) * 1000) is None


def test_a_reader_whose_calls_wait_leaves_them_to_threads_and_tries_again_less_often():
    reader = ReadingThread(2)
    tried = []
    for _ in range(3):
        tried.append(calls_by_threads(reader, [1e-6] * 10_000))
        assert calls_by_reader(reader, [1e-6] * 30 + [0.02]) is None and not reader.calls
    assert tried == [17, 129, 513]


def test_calls_that_are_slow_for_once_leave_the_reader_no_longer_than_for_once():
    reader = ReadingThread(2)
    for wanted in (17, 33, 33):
        assert calls_by_threads(reader, [1e-6] * 1000) == wanted
        assert calls_by_reader(reader, [1e-6] * 1000 + [0.02]) is None and not reader.calls


def test_calls_of_which_one_in_thirty_waits_are_hardly_made_by_the_thread_that_reads():
    reader, made = ReadingThread(8), 0
    waits = [0.02 if row % 30 == 29 else 1e-6 for row in range(30_000)]
    while made < len(waits):
        made += calls_by_threads(reader, waits[made:]) or len(waits)
        made += (by_reader := calls_by_reader(reader, waits[made:]) or 0)
        assert by_reader <= 30


def test_many_rows_at_once_are_for_threads():
    reader = ReadingThread(2)
    assert calls_by_threads(reader, [1e-6] * 100) is not None
    reader.thread_called(1e-5, 100, more=True)
    assert not reader.calls


def in_turn(turns, seconds, *, rows=100, tasks=1000, alone=True):
    """Tell of tasks that take so long, while threads take turns; gives how many they were."""
    for number in range(tasks):
        if not turns.taken:
            return number
        turns.task_done_in_turn(seconds, rows, alone=alone)
    return tasks


def beside_others(turns, seconds, *, rows=100, tasks=1000):
    """Tell of tasks that take so long, until threads take turns; gives how many they were."""
    for number in range(tasks):
        if turns.taken:
            return number
        turns.task_done(seconds, rows)
    return tasks


@pytest.mark.parametrize(("count", "most"), [(2, 1e-4), (8, 4e-4)])
def test_threads_take_turns_after_a_task_that_is_short_for_so_many_beside_each_other(count, most):
    assert beside_others(ThreadTurns(count), 100 * most * 1.01) == 1000
    assert beside_others(ThreadTurns(count), 100 * most * 0.99) == 1


def test_tasks_in_turn_are_compared_with_what_threads_could_gain():
    for seconds, tasks in ((100 * 19e-6, 1000), (100 * 21e-6, 1)):
        turns = ThreadTurns(2)
        beside_others(turns, 0.001)
        assert in_turn(turns, seconds) == tasks


def test_turns_go_on_over_a_task_that_was_interrupted_and_end_when_all_take_longer():
    turns = ThreadTurns(2)
    beside_others(turns, 0.001)
    assert in_turn(turns, 0.001, tasks=20) == 20
    turns.task_done_in_turn(0.005, 100, alone=True)
    assert in_turn(turns, 0.001, tasks=20) == 20
    assert in_turn(turns, 0.01) == 2


def test_tasks_beside_which_another_ran_say_nothing_about_turns():
    turns = ThreadTurns(2)
    beside_others(turns, 0.001)
    assert in_turn(turns, 0.1, alone=False) == 1000


def test_turns_in_vain_are_tried_ever_later_and_as_soon_as_at_first_after_others():
    turns = ThreadTurns(2)
    tried = []
    for in_between in (1, 1, 1, 500, 1):
        tried.append(beside_others(turns, 0.001))
        in_turn(turns, 0.001, tasks=in_between)
        turns.end()
    assert tried == [1, 4, 16, 64, 1]
