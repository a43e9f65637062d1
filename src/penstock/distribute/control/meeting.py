"""Rendezvous of processes that are not connected yet, at the store by which they find each other."""

import time
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from penstock.distribute.control.channel import Control, call_seconds, did_not_come
from penstock.distribute.control.hub import Hub
from penstock.errors import WorkerError
from penstock.printing import text_of_error
from penstock.runtime.at_exit import end_before_libraries

_OUTCOME: Final = "outcome"
_ALL_CAME: Final = "all came"
_HUB: Final = "hub"
_SHORTEST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.25


class Store(Protocol):
    """Names and values that all processes see. Nothing here waits, so that Ctrl-C is heard."""

    def add(self, name: str) -> int:
        """Count one more; how many it makes."""

    def put(self, name: str, value: str) -> None:
        """Set a value, unless there is one."""

    def get(self, name: str) -> str | None:
        """The value, if there is one."""


@dataclass(frozen=True)
class Meeting:
    """A call that several processes make, each of them once.

    The first outcome counts, for all: that all came, that one of them failed before, or that one has waited too long.

    Attributes:
        store: used for this call alone.
        call: which one it is, for errors.
        own: the number of this process.
        count: the number of all.
        member: what users call one of them.
        failure_timeout_seconds: as of `Control`.
    """

    store: Store
    call: str
    own: int
    count: int
    member: str
    failure_timeout_seconds: float | None

    def join(self) -> None:
        """Wait until all have come.

        Raises:
            WorkerError: one did not come in time, or has failed; the same on all.
        """
        self.store.put(_came(self.own), "")
        if self.store.add("came") == self.count:
            self.store.put(_OUTCOME, _ALL_CAME)
        if self._waited_for(_OUTCOME) is None:
            self.store.put(_OUTCOME, self._not_all_came())
        outcome = self.store.get(_OUTCOME)
        if outcome != _ALL_CAME:
            raise WorkerError(outcome)

    def fail(self, error: Exception) -> None:
        """Tell those that wait for this one why it does not come."""
        reason = f"{self.call} failed on {self.member} {self.own} of {self.count}: {text_of_error(error)}"
        self.store.put(_OUTCOME, reason)

    @property
    def seconds(self) -> float:
        """Return how long one waits for the others."""
        return call_seconds(self.failure_timeout_seconds)

    def connect(self, host: str) -> Control:
        """This process's end of a new control channel between all, which have come.

        Args:
            host: by what the others reach process 0, which runs the hub.

        Raises:
            WorkerError: process 0 did not get as far.
        """
        if self.own == 0:
            hub = Hub(host, self.count)
            end_before_libraries(hub, Hub.finish)  # registered before the channel, and so called after it
            self.store.put(_HUB, msgspec.json.encode((hub.host, hub.port, hub.key.hex())).decode())
        answer = self._waited_for(_HUB)
        if answer is None:
            raise WorkerError(
                f"{self.member} 0 of {self.count} came to {self.call}, and was not heard of for {self.seconds:g} "
                f"seconds after that: it has probably ended"
            )
        host, port, key = msgspec.json.decode(answer, type=tuple[str, int, str])
        return Control(
            (host, port), bytes.fromhex(key), self.own, self.count, self.failure_timeout_seconds, self.member
        )

    def _waited_for(self, name: str) -> str | None:
        """The value of a name, once it has one; None after too long."""
        deadline, pause = time.monotonic() + self.seconds, _SHORTEST_PAUSE
        while (value := self.store.get(name)) is None and time.monotonic() < deadline:
            time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
            pause = min(1.2 * pause, _LONGEST_PAUSE)
        return value

    def _not_all_came(self) -> str:
        missing = [str(number) for number in range(self.count) if self.store.get(_came(number)) is None]
        who = f"{self.member}{'s' * (len(missing) > 1)} {', '.join(missing)} of {self.count}"
        return did_not_come(who, self.call, self.seconds, self.member)


def _came(number: int) -> str:
    return f"came {number}"
