"""The events that a launcher waits for: ends of workers, signals, and complete checkpoints."""

import signal
import time
from collections import deque
from dataclasses import dataclass

from penstock.runtime.wakeups import Wakeups


@dataclass(frozen=True)
class WorkerEnded:
    """A worker has ended, with a status as `subprocess` gives it: minus n if signal n ended it."""

    number: int
    status: int

    @property
    def exit_status(self) -> int:
        return self.status if self.status >= 0 else 128 - self.status

    def __str__(self) -> str:
        how = f"exit status {self.status}" if self.status >= 0 else f"ended by {_name(-self.status)}"
        return f"worker {self.number} failed first: {how}"


@dataclass(frozen=True)
class Signalled:
    """The launcher has to end: it got a signal, or its output is no longer read, which counts as SIGPIPE."""

    signal_number: int

    @property
    def exit_status(self) -> int:
        return 128 + self.signal_number

    def __str__(self) -> str:
        if self.signal_number == signal.SIGPIPE:
            return "the output has no reader any longer"
        return "interrupted" if self.signal_number == signal.SIGINT else f"ended by {_name(self.signal_number)}"


@dataclass(frozen=True)
class CheckpointWritten:
    """A worker has announced a complete checkpoint."""

    path: str


Event = WorkerEnded | Signalled | CheckpointWritten


class Events:
    """A queue of events, into which threads and signal handlers may put."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._heard: deque[Event] = deque()
        self._wakeups = wakeups

    def put(self, event: Event) -> None:
        self._heard.append(event)
        self._wakeups.wake()

    def get(self, timeout: float | None) -> Event | None:
        """The next one; None if none comes within `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._heard:
            if not self._wakeups.wait(None if until is None else max(0.0, until - time.monotonic())):
                return None
        return self._heard.popleft()


def _name(signal_number: int) -> str:
    try:
        return signal.Signals(signal_number).name
    except ValueError:  # a real-time signal
        return f"signal {signal_number}"
