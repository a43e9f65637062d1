"""The progress of a save: a bar on a terminal, or a line in the log now and then."""

import logging
import sys
import time
from threading import Lock
from typing import Final

_logger = logging.getLogger(__name__)

_BAR_SECONDS: Final = 0.2
_LINE_SECONDS: Final = 30.0
_BAR_WIDTH: Final = 30


class SaveProgress:
    """The number of rows written, by several threads.

    Args:
        what: the action, for the user.
        total: the number of all rows; None if it is unknown.
        done: the number of rows written by an earlier call.
    """

    def __init__(self, what: str, total: int | None, done: int) -> None:
        self._what, self._total, self._done, self._before = what, total, done, done
        self._started = time.monotonic()
        self._on_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._seconds = _BAR_SECONDS if self._on_terminal else _LINE_SECONDS
        self._next = self._started + self._seconds
        self._shown = False
        self._lock = Lock()
        if done:
            _logger.info("%s: continues after %s rows that an earlier call has written", what, f"{done:,}")

    def add(self, rows: int) -> None:
        """Count rows that were written."""
        with self._lock:
            self._done += rows
            now = time.monotonic()
            if now >= self._next:
                self._next = now + self._seconds
                self._say(now)

    def end(self) -> None:
        """End the display."""
        with self._lock:
            if self._shown:
                self._say(time.monotonic())
                if self._on_terminal:
                    sys.stderr.write("\n")
                    sys.stderr.flush()

    def _say(self, now: float) -> None:
        self._shown = True
        line = self._line(now)
        if self._on_terminal:
            sys.stderr.write(f"\r{line}\x1b[K")
            sys.stderr.flush()
        else:
            _logger.info("%s", line)

    def _line(self, now: float) -> str:
        rate = (self._done - self._before) / max(now - self._started, 1e-9)
        if not self._total:
            return f"{self._what}: {self._done:,} rows, {rate:,.0f} rows/s"
        part = min(1.0, self._done / self._total)
        left = (self._total - self._done) / rate if rate else float("inf")
        rest = f", {left:,.0f} s left" if 0 < left < float("inf") else ""
        full = round(part * _BAR_WIDTH)
        bar = f" [{'#' * full}{'.' * (_BAR_WIDTH - full)}]" if self._on_terminal else ""
        return f"{self._what}:{bar} {part:.0%}, {self._done:,} of {self._total:,} rows, {rate:,.0f} rows/s{rest}"
