"""Collectives between replicas that run in threads: each brings a value, and all get the combined result."""

from collections.abc import Callable
from threading import Condition
from typing import Any

from penstock.errors import InvalidArgumentError


class Abandoned(Exception):
    """Another replica failed, so this one gives up; the caller gets the other one's error."""


class Rendezvous:
    """A rendezvous of a fixed number of replicas, which can be used again and again.

    If a replica ends while others wait, their wait ends with an error.
    """

    def __init__(self, replicas: int) -> None:
        self._changed = Condition()
        self._replicas = replicas
        self._brought: dict[int, Any] = {}
        self._meetings = 0
        self._results: list[Any] = []
        self._failed = False
        self._returned: int | None = None

    def meet(self, replica: int, value: Any, combine: Callable[[list[Any]], list[Any]]) -> Any:
        """Bring a value, wait for the other replicas, and get this one's entry of `combine(values in order)`.

        Raises:
            InvalidArgumentError: another replica returned without calling this.
            Abandoned: another replica raised.
        """
        with self._changed:
            self._brought[replica] = value
            meeting = self._meetings
            if len(self._brought) == self._replicas:
                self._results = combine([self._brought[number] for number in range(self._replicas)])
                self._brought = {}
                self._meetings += 1
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._meetings > meeting or self._failed or self._returned is not None)
            if self._meetings > meeting:
                return self._results[replica]
            if self._failed:
                raise Abandoned
            raise InvalidArgumentError(
                f"all_reduce must be called equally often on every replica, but replica {self._returned} returned "
                f"after {meeting} "
                f"call(s) and replica {replica} made call {meeting + 1}"
            )

    def leave(self, replica: int, failed: bool) -> None:
        """Note that a replica has ended, by returning or by an exception."""
        with self._changed:
            self._failed = self._failed or failed
            if self._returned is None and not failed:
                self._returned = replica
            self._changed.notify_all()
