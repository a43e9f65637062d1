"""What holds for every test: nothing that it started is left running or open."""

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

# Threads and files that libraries open once and keep: JAX's and hypothesis's own pools, font and locale files, …
_OUR_THREADS = "penstock-"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail a test that leaves a thread of penstock's running, a child process alive, or files open in its wake."""
    before = _open_files()
    yield
    if _our_threads():
        gc.collect()  # an iterator that was forgotten ends its threads when it is collected
    for thread in _our_threads():
        thread.join(timeout=5)
    assert [thread.name for thread in _our_threads()] == [], "threads left running"
    left = {name for name in _open_files() - before if _is_data(name)}
    assert left == set(), "files left open"


def _our_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(_OUR_THREADS)]


def _open_files() -> set[str]:
    """What the file descriptors of this process point to, where the system tells."""
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        return set()
    names = set()
    for entry in descriptors.iterdir():
        try:
            names.add(os.readlink(entry))
        except FileNotFoundError:  # closed meanwhile
            continue
    return names


def _is_data(name: str) -> bool:
    return name.startswith(("/tmp", "/dev/shm")) and "pytest" in name
