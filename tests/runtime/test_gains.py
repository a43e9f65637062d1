"""Who makes calls, decided by what they have cost: the durations are given, no clock runs."""

import pytest

from penstock.runtime.gains import Found, Gains


def in_this_thread(gains, seconds, *, rows=1, waited=0.0, calls=1000):
    """Tell of calls that take so long, until threads are to make them; gives how many calls that took."""
    for number in range(calls):
        if gains.count:
            return number
        gains.serial_calls(seconds, seconds - waited, waited, rows)
    return calls


def in_threads(gains, seconds, *, busy=None, computed=None, rows=1, tasks=10_000):
    """Tell of tasks of threads that take so long, as long as threads make them; gives for how long any was busy.

    Args:
        busy: the seconds from the end of one task to that of the next: by default as many as if no thread disturbed
            another.
    """
    begun = 0.0
    for _ in range(tasks):
        if not gains.count:
            break
        between = seconds / gains.count if busy is None else busy
        gains.thread_calls(between, seconds, seconds if computed is None else computed, rows)
        begun += between
    return begun


def test_short_calls_stay_in_the_reading_thread():
    gains = Gains(cores=4)
    assert in_this_thread(gains, 0.005, rows=10_000) == 1000
    assert gains.short and gains.count == 0 and gains.gain is None


def test_calls_that_wait_get_threads_after_the_first_as_many_as_keep_pythons_lock_busy():
    for waited, count in ((0.0199, 16), (0.018, 7), (0.011, 3)):
        gains = Gains(cores=2)
        assert in_this_thread(gains, 0.02, waited=waited) == 1
        assert gains.count == count


def test_a_busy_machine_does_not_make_calls_wait():
    gains = Gains(cores=2)
    gains.serial_calls(0.02, 0.007, 0.0, 1)  # 13 ms of these other processes had the processor
    assert gains.count == 0 and not gains.serial_costs.waiting


def test_calls_that_compute_are_tried_in_a_thread_for_each_core_after_fifty_milliseconds():
    gains = Gains(cores=4)
    assert in_this_thread(gains, 0.001) == 50
    assert gains.count == 4


def test_threads_that_gain_keep_the_calls_and_the_gain_is_told():
    gains = Gains(cores=2)
    in_this_thread(gains, 0.001)
    in_threads(gains, 0.002, rows=2, tasks=30)
    assert gains.count == 2
    assert gains.gain == pytest.approx(0.002 / (0.001 + 5e-5))


def test_threads_that_wait_for_each_other_are_left_after_a_tenth_of_a_second_and_tried_ever_later():
    gains = Gains(cores=2)
    waits = []
    for _ in range(4):
        waits.append(in_this_thread(gains, 0.001))
        assert in_threads(gains, 0.002, busy=0.001, computed=0.001) == pytest.approx(0.1, abs=0.01)
        assert gains.gain == pytest.approx(1 / 1.05)
    assert waits == [50, 250, 500, 1000]


def test_a_clear_loss_ends_a_trial_at_once():
    gains = Gains(cores=2)
    in_this_thread(gains, 0.001)
    assert in_threads(gains, 0.003, busy=0.0015) < 0.025
    assert gains.count == 0 and gains.gain < 0.75


def test_threads_are_compared_with_calls_of_the_reading_thread_now_and_then():
    gains = Gains(cores=2)
    in_this_thread(gains, 0.001)
    checks = []
    for _ in range(3):
        checks.append(in_threads(gains, 0.002, rows=2))
        assert in_this_thread(gains, 0.001) == 25
        assert gains.count == 2 and gains.gain > 1.5
    # With the 50 µs that it takes to hand a task out: after half a second, a second, and two.
    assert [seconds * 1.05 for seconds in checks] == pytest.approx([0.52, 1.0, 2.0], abs=0.01)


def test_calls_that_became_cheap_in_threads_go_back_to_the_reading_thread():
    gains = Gains(cores=2)
    in_this_thread(gains, 0.001)
    in_threads(gains, 0.002, rows=2, tasks=30)
    # They keep Python's lock now and take 2 µs each, so a task of 1,000 takes twice what it computes.
    assert in_threads(gains, 0.004, busy=0.002, computed=0.002, rows=1000) < 0.1
    in_this_thread(gains, 2e-6, calls=1)
    assert gains.count == 0 and gains.short


@pytest.mark.parametrize("busy", [0.001, 0.0005])
def test_rows_that_became_cheap_after_calls_that_waited_go_back_to_the_reading_thread_at_once(busy):
    gains = Gains(cores=2)
    in_this_thread(gains, 0.005, waited=0.0049)
    in_threads(gains, 0.005, computed=0.0001, tasks=100)
    assert gains.count == 16
    # One thread at a time has something to do, or two.
    assert in_threads(gains, 0.001, busy=busy, rows=1000) < 0.05
    in_this_thread(gains, 2e-6, calls=1)
    assert gains.short


def test_calls_that_became_slow_after_many_short_ones_get_threads():
    gains = Gains(cores=2)
    in_this_thread(gains, 0.002, rows=4000, calls=100)
    assert gains.short
    assert in_this_thread(gains, 0.005, waited=0.0049) == 1
    assert gains.count == 16


def test_threads_that_mostly_wait_are_never_stopped_to_compare():
    gains = Gains(cores=2)
    in_this_thread(gains, 0.02, waited=0.0199)
    in_threads(gains, 0.02, computed=0.0001)
    assert gains.count == 16


def test_nothing_is_concluded_while_the_consumer_wants_one_element_at_a_time():
    gains = Gains(cores=2)
    in_this_thread(gains, 0.001)
    in_threads(gains, 0.001, busy=0.001, tasks=5000)
    assert gains.count == 2 and gains.gain is None


def test_what_was_found_before_is_used_from_the_first_call_if_calls_are_alike():
    alike = Gains(2, Found(0.001, 2))
    assert in_this_thread(alike, 0.002) == 1
    assert alike.count == 2
    other = Gains(2, Found(0.001, 2))
    assert in_this_thread(other, 0.005) > 1
    assert Gains(2, Found(0.02, 16)).count == 16


def test_one_processor_gets_threads_only_for_calls_that_wait():
    gains = Gains(cores=1)
    assert in_this_thread(gains, 0.001) == 1000
    assert in_this_thread(gains, 0.02, waited=0.019, calls=100) < 100


def cold_first_call():
    """Gains after a call that waited for 2 ms and computed for 1.8 ms, where the others compute for 0.2 ms."""
    gains = Gains(cores=2)
    in_this_thread(gains, 0.0038, waited=0.002)
    assert gains.count == 3
    return gains


def test_threads_that_wait_become_more_while_the_processors_are_idle_and_more_gain():
    gains = cold_first_call()
    in_threads(gains, 0.0022, computed=0.0002, tasks=200)
    assert gains.count == gains.found.count == 16


def test_more_threads_that_gain_nothing_are_left_for_as_many_as_gained():
    gains = cold_first_call()
    assert in_threads(gains, 0.0022, computed=0.0002, tasks=26) > 0.019
    assert gains.count == 6
    in_threads(gains, 0.0044, busy=0.0022 / 3, computed=0.0002, tasks=200)  # a server that answers three at a time
    assert gains.count == 3


def test_more_threads_that_gained_nothing_are_not_tried_in_the_next_fifteen_iterations():
    gains = cold_first_call()
    most = []
    for _ in range(18):
        in_threads(gains, 0.0022, computed=0.0002, tasks=26)
        most.append(gains.count)
        in_threads(gains, 0.0044, busy=0.0022 / 3, computed=0.0002, tasks=200)  # a server that answers three at a time
        assert gains.count == gains.found.count == 3
        gains = Gains(2, gains.found)
    assert most == [6] + 15 * [3] + [6, 3]


def test_a_comparison_leaves_as_many_threads_as_had_gained():
    gains = cold_first_call()
    in_threads(gains, 0.0022, computed=0.0002, tasks=400)
    assert gains.count == 16
    in_threads(gains, 0.003, computed=0.001, tasks=5000)  # they keep processors busy now, and are compared
    assert in_this_thread(gains, 0.003, waited=0.002) > 1
    assert gains.count == 16


def test_threads_that_keep_the_processors_busy_stay_as_many_as_they_are():
    gains = cold_first_call()
    in_threads(gains, 0.0038, computed=0.0025, tasks=200)
    assert gains.count == 3


def test_threads_that_gained_nothing_are_tried_later_in_the_next_iteration_and_sooner_in_each_after_it():
    before = Gains(cores=2)
    for _ in range(3):
        in_this_thread(before, 0.001)
        in_threads(before, 0.002, busy=0.001, computed=0.001)
    assert before.found == Found(pytest.approx(0.001), 0, 1.0)
    found, waits = before.found, []
    for _ in range(6):
        waits.append(in_this_thread(Gains(2, found), 0.001))
        found = found.grown_old
    assert waits == [1000, 500, 250, 125, 63, 50]
