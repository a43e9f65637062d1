"""Where replicas that run in threads meet: each brings a value, all get what was made of all values."""

from collections.abc import Callable
from threading import Condition
from typing import Any

from penstock.errors import InvalidArgumentError


class Abandoned(Exception):
    """Another replica failed, so this one gives up; the error to show is the other one's."""


class Rendezvous:
    """A meeting place for a fixed number of replicas, used again and again.

    A replica that ends while others wait ends the wait of all of them: nobody is left hanging.
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
        """Bring a value; wait until all have; get this replica's part of `combine(values in the replicas' order)`.

        Raises:
            InvalidArgumentError: another replica returned without coming.
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
        """A replica has ended, by returning or by an exception."""
        with self._changed:
            self._failed = self._failed or failed
            if self._returned is None and not failed:
                self._returned = replica
            self._changed.notify_all()
