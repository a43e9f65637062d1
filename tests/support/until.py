"""Waiting for what another thread or process brings about."""

import time
from collections.abc import Callable

SECONDS = 60


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; fail where it does not within a minute."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"it never came: waited {SECONDS} s"
        time.sleep(0.005)
