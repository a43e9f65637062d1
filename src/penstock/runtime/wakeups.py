"""A wait of the main thread that no signal can slip past.

Python calls its signal handlers in the main thread, between two of its instructions. A signal that comes after the last
such place, just before the thread begins to wait for a lock, wakes nobody: a queue or an event is waited for as long as
before. A descriptor to which the system itself writes at every signal ends the wait, whenever the signal has come.
"""

import select
import signal
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Wakeups:
    """Something to wait for that other threads wake, and every signal that has a handler.

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.set_wakeup_fd(self._before)
        self._reader.close()
        self._writer.close()

    def wake(self) -> None:
        """End the current wait, or else the next one."""
        # A full buffer wakes as well; after the end nobody waits.
        with suppress(BlockingIOError, OSError):
            self._writer.send(b"\0")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until woken, or as many seconds as `timeout`; whether it was woken.

        What the wait was for is to be looked at before it and after it: one wait may end for several wakes.
        """
        if not select.select([self._reader], [], [], timeout)[0]:
            return False
        with suppress(BlockingIOError):
            self._reader.recv(1 << 16)
        return True
