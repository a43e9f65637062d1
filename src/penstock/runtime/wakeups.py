"""A wait of the main thread that no signal can miss.

Python calls its signal handlers in the main thread, between two instructions. If a signal comes after the last such
point, just before the thread begins to wait for a lock, the wait for a queue or an event continues. A descriptor to
which the system writes at every signal ends the wait, whenever the signal comes.
"""

import select
import signal
import socket
import threading
from contextlib import suppress
from typing import Self


class Wakeups:
    """A wait that other threads can end, and every signal that has a handler.

    A context manager. Signals take part where it is entered in the main thread.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before: int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.set_wakeup_fd(self._before)
        self._reader.close()
        self._writer.close()

    def wake(self) -> None:
        """End the current wait, or else the next one."""
        # A full buffer ends the wait as well, and after the end there is no wait.
        with suppress(BlockingIOError, OSError):
            self._writer.send(b"\0")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until woken, or for `timeout` seconds; return whether it was woken.

        Check the condition before and after the wait: one wait may end for several wakes.
        """
        if not select.select([self._reader], [], [], timeout)[0]:
            return False
        with suppress(BlockingIOError):
            self._reader.recv(1 << 16)
        return True
