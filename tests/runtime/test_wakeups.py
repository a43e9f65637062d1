"""Signals and other threads end a wait, whenever they come."""

import os
import signal
import threading

import pytest

from penstock.runtime.wakeups import Wakeups


@pytest.fixture
def heard():
    """The signals that a handler was told of."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_comes_before_the_wait_ends_it(heard) -> None:
    with Wakeups() as wakeups:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert wakeups.wait(60)
        assert heard == [signal.SIGUSR1]
        assert not wakeups.wait(0)


def test_a_thread_wakes_and_a_wait_may_end_by_itself() -> None:
    with Wakeups() as wakeups:
        thread = threading.Thread(target=wakeups.wake)
        thread.start()
        assert wakeups.wait(60)
        thread.join()
        assert not wakeups.wait(0.01)
    wakeups.wake()  # when nobody waits any longer


def test_the_descriptor_of_somebody_else_is_put_back() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        with Wakeups():
            pass
        assert signal.set_wakeup_fd(before) == writer
    finally:
        os.close(reader)
        os.close(writer)


def test_another_thread_waits_without_signals() -> None:
    found: list[bool] = []

    def wait() -> None:
        with Wakeups() as wakeups:
            wakeups.wake()
            found.append(wakeups.wait(60))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert found == [True]
