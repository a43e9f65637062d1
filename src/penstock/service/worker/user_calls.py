"""Calls of users' functions in a data worker: any number at a time, or one that may end the process, alone."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock, get_ident
from typing import Final

from penstock.data.block import Block
from penstock.data.streams.stream import Stream
from penstock.errors import InvalidTypeError, LostDataWorkerError, ServiceError
from penstock.runtime.channel import Closed
from penstock.runtime.threads import failures

STOPPED = "this data worker has stopped"
_PATIENCE_SECONDS: Final = 10.0
"""Time for which calls wait for each other: one that never returns must not keep all others."""


class UserCalls:
    """All streams of a worker are pulled through this object."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._changed = Condition()
        self._running = 0
        self._alone: int | None = None  # the thread that calls alone, or waits for that
        self._until = 0.0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for the calls that run, and let no others begin until the end of the block."""
        with self._turn:
            with self._changed:
                self._alone, self._until = get_ident(), time.monotonic() + _PATIENCE_SECONDS
                self._changed.wait_for(lambda: not self._running, _PATIENCE_SECONDS)
                self._until = time.monotonic() + _PATIENCE_SECONDS
            try:
                yield
            finally:
                with self._changed:
                    self._alone = None
                    self._changed.notify_all()

    @contextmanager
    def _among_others(self) -> Iterator[None]:
        own = get_ident()
        with self._changed:
            while self._alone not in (None, own) and (left := self._until - time.monotonic()) > 0:
                self._changed.wait(left)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                if self._alone is not None:
                    self._changed.notify_all()

    def pull(self, stream: Stream, rows: int) -> Block | Exception | None:
        """The next rows of a stream, or the exception that it raises.

        Raises:
            LostDataWorkerError: the stream was closed meanwhile.
        """
        try:
            with self._among_others():
                return stream.pull(rows, rows)
        except Closed:
            raise LostDataWorkerError(STOPPED) from None
        except StopIteration:  # it comes from a user function, and would end the loop silently
            return InvalidTypeError("a function of this dataset raised StopIteration: return a value instead")
        except failures() as error:
            return as_exception(error)


def as_exception(error: BaseException) -> Exception:
    """Return a function's exception as an `Exception`, so that it ends neither this process nor the trainer's."""
    if isinstance(error, Exception):
        return error
    kept = ServiceError(f"a function of this dataset raised {error!r}, which ends no process here: raise an exception")
    kept.__cause__ = error
    for note in getattr(error, "__notes__", ()):
        kept.add_note(note)
    return kept
