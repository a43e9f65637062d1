"""Progress of whatever takes long: a bar on a terminal, or a line now and then."""

import logging
import sys
import time
from threading import Lock
from typing import Final, Self

from penstock.printing import in_bytes

_logger = logging.getLogger(__name__)

_BAR_SECONDS: Final = 0.2
_FIRST_LINE_SECONDS: Final = 10.0
_LINE_SECONDS: Final = 30.0
_BAR_WIDTH: Final = 30


def _in_notebook() -> bool:
    """Return whether stderr is shown below a cell of a notebook, where a line can be written anew as on a terminal."""
    return type(sys.stderr).__module__.startswith("ipykernel.")


class Progress:
    """The amount that is done of something, counted by several threads.

    Without a terminal, a line is written after ten seconds and then every half minute: to the log if it takes
    messages of level INFO, else to stderr.

    Args:
        what: the action, for the user.
        total: the amount of all; None if it is unknown.
        done: the amount that an earlier call has done.
        unit: of the amounts, "bytes" or the name of what is counted.
        bar: whether to draw a bar. Something that happens in the middle of the user's loop writes lines.
    """

    def __init__(
        self, what: str, total: int | None = None, done: int = 0, *, unit: str = "rows", bar: bool = True
    ) -> None:
        self._what, self._total, self._done, self._before, self._unit = what, total, done, done, unit
        self._nbytes = 0
        self._started = time.monotonic()
        self._bar = bar and sys.stderr is not None and (sys.stderr.isatty() or _in_notebook())
        self._next = self._started + (_BAR_SECONDS if self._bar else _FIRST_LINE_SECONDS)
        self._shown = False
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def add(self, amount: int, nbytes: int = 0) -> None:
        """Count what was done, and its bytes if they are known."""
        with self._lock:
            self._done += amount
            self._nbytes += nbytes
            now = time.monotonic()
            if now >= self._next:
                self._next = now + (_BAR_SECONDS if self._bar else _LINE_SECONDS)
                self._show(now)

    def end(self) -> None:
        """Show the last amount, if any was shown."""
        with self._lock:
            if self._shown:
                self._show(time.monotonic(), "\n")

    def _show(self, now: float, end: str = "") -> None:
        self._shown = True
        if self._bar:
            sys.stderr.write(f"\r{self._line(now)}\x1b[K{end}")
            sys.stderr.flush()
        elif _logger.isEnabledFor(logging.INFO):
            _logger.info("%s", self._line(now))
        elif sys.stderr is not None:
            sys.stderr.write(f"{self._line(now)}\n")

    def _line(self, now: float) -> str:
        rate = (self._done - self._before) / max(now - self._started, 1e-9)
        size = f", {in_bytes(self._nbytes)}" if self._nbytes else ""
        speed = f"{size}, {self._amount(rate)}/s"
        if not self._total:
            return f"{self._what}: {self._amount(self._done)}{speed}"
        part = min(1.0, self._done / self._total)
        left = (self._total - self._done) / rate if rate else float("inf")
        rest = f", {left:,.0f} s left" if 0 < left < float("inf") else ""
        full = round(part * _BAR_WIDTH)
        bar = f" [{'#' * full}{'.' * (_BAR_WIDTH - full)}]" if self._bar else ""
        done = in_bytes(self._done) if self._unit == "bytes" else f"{self._done:,}"
        return f"{self._what}:{bar} {part:.0%}, {done} of {self._amount(self._total)}{speed}{rest}"

    def _amount(self, amount: float) -> str:
        return in_bytes(int(amount)) if self._unit == "bytes" else f"{amount:,.0f} {self._unit}"
