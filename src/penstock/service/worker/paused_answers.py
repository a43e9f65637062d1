"""Answers that readers take a piece at a time, because they ask many workers in turn.

A thread of its own makes each answer, and continues while the reader asks others. Any of them may be dropped at any
time: its pieces can be made again.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Lock, Thread

from penstock.errors import LostDataWorkerError
from penstock.service.wire.interfaces import Answer, Answers
from penstock.service.wire.subjects import PassOffset
from penstock.service.wire.worker_messages import Chunk, Fetch, Pause
from penstock.service.worker.open_pass import PassKey
from penstock.service.worker.spans import STOPPED

IDLE_SECONDS = 30.0
"""How long an answer is kept without requests: readers that are alive report more often."""

_Key = tuple[PassKey, str, str, int, int, PassOffset]


class PausedAnswers:
    """The paused answers of one worker.

    Args:
        answer: returns the whole answer to a request.
    """

    def __init__(self, answer: Callable[[Fetch], Answers]) -> None:
        self._answer = answer
        self._lock = Lock()
        self._idle: dict[_Key, _PausedAnswer] = {}  # those from which no piece is being taken now
        self._closed = False

    def turn(self, request: Fetch) -> Answers:
        """The next piece of an answer if it is ready in time, and a `Pause` if more may follow.

        Raises:
            PenstockError: as the whole answer does.
        """
        key = _key(request, request.span.first)
        paused = self._take_idle(key)
        piece = None
        if not request.looks_in:
            paused = paused or _PausedAnswer(self._answer(request), ahead=not request.trainer)
            piece = paused.take(request.wait_seconds)
        if isinstance(piece, tuple):
            key = _key(request, _offset_after(piece[0], request.stride))
        goes_on = piece is None or isinstance(piece, tuple)
        if paused is not None and goes_on:
            self._keep(key, paused)
        if piece is not None:
            yield piece
        if goes_on:
            yield Pause()

    def _take_idle(self, key: _Key) -> "_PausedAnswer | None":
        """The paused answer that continues there, removed so that no other request takes it."""
        with self._lock:
            if self._closed:
                raise LostDataWorkerError(STOPPED)
            return self._idle.pop(key, None)

    def _keep(self, key: _Key, paused: "_PausedAnswer") -> None:
        paused.idle_since = time.monotonic()
        with self._lock:
            replaced = paused if self._closed else self._idle.pop(key, None)
            if not self._closed:
                self._idle[key] = paused
        if replaced is not None:
            replaced.close()

    def close_idle(self) -> None:
        """Drop answers that were not requested lately."""
        limit = time.monotonic() - IDLE_SECONDS
        with self._lock:
            old = [key for key, paused in self._idle.items() if paused.idle_since < limit]
            gone = [self._idle.pop(key) for key in old]
        for paused in gone:
            paused.close()

    def close(self) -> None:
        """Drop all; requests that wait for one raise `LostDataWorkerError`."""
        with self._lock:
            self._closed = True
            gone = list(self._idle.values())
            self._idle.clear()
        for paused in gone:
            paused.close()


def _key(request: Fetch, offset: PassOffset) -> _Key:
    """The key of a request: another stop is another answer."""
    return PassKey.of(request), request.consumer, request.trainer, request.stride, request.span.stop, offset


def _offset_after(chunk: Chunk, stride: int) -> PassOffset:
    """Where the next request begins."""
    return chunk.position + chunk.rows * stride, 0


class _PausedAnswer:
    """One answer, and the thread that makes it.

    Args:
        answers: what it gives, in order.
        ahead: whether to make the next piece as soon as one was taken. What trainers share is made on request only.
    """

    def __init__(self, answers: Answers, *, ahead: bool) -> None:
        self._answers = answers
        self._ahead = ahead
        self._changed = Condition()
        self._wanted = True
        self._piece: Answer | None = None
        self._error: Exception | None = None
        self._closed = False
        self.idle_since = time.monotonic()
        Thread(target=self._make, name="penstock-answer", daemon=True).start()

    def take(self, seconds: float) -> Answer | None:
        """The next piece; None if it is not ready in time.

        Raises:
            Exception: what the answer raises.
        """
        with self._changed:
            self._wanted = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._piece is not None or self._error is not None, seconds)
            if self._error is not None:
                raise self._error
            piece, self._piece = self._piece, None
            if piece is not None:
                self._wanted = self._ahead
                self._closed = not isinstance(piece, tuple)
                self._changed.notify_all()
            return piece

    def _make(self) -> None:
        try:
            while self._is_wanted():
                piece = next(self._answers)
                with self._changed:
                    self._piece = piece
                    self._changed.notify_all()
        except Exception as error:  # raised where it is asked for
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            with suppress(LostDataWorkerError):
                self._answers.close()

    def _is_wanted(self) -> bool:
        """Wait until another piece is wanted; returns False if none will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._wanted and self._piece is None))
            return not self._closed

    def close(self) -> None:
        """No more of it is wanted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
