"""Threads of an iteration, which end with the test."""

import pytest

from penstock.runtime.threads import Threads


@pytest.fixture
def threads():
    threads = Threads()
    yield threads
    threads.stop()
    threads.join()
