"""Variables of a framework such as Keras, which a step may read and write besides its arguments.

A framework finds the variables that a function uses, gives them other values while the function is traced, and merges
the replicas' new values into one. `run` keeps the values on the devices from step to step.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.distribute.contexts import ReplicaContext


@dataclass(frozen=True)
class Touched:
    """The variables that a function reads or writes.

    Attributes:
        written: those that get new values.
        read: the others.
    """

    written: list[Any]
    read: list[Any]

    def __bool__(self) -> bool:
        return bool(self.written or self.read)


NOTHING_TOUCHED = Touched([], [])


class Framework(ABC):
    """A kind of variables."""

    @abstractmethod
    def touched(self, trace: Callable[[], object]) -> Touched:
        """The variables that are touched while `trace` is called, none of which changes."""

    @abstractmethod
    def with_values(self, variables: Sequence[Any], values: Sequence[Any], replica: Any) -> AbstractContextManager[Any]:
        """A context in which the variables have these values, for one replica; it gives what `merged` needs."""

    @abstractmethod
    def merged(self, lent: Any, variables: Sequence[Any], values: Sequence[Any], context: ReplicaContext) -> list[Any]:
        """The variables' new values, the same on all replicas, after the function was called within `with_values`.

        Args:
            lent: what entering `with_values` gave.
            variables: those that were written.
            values: their old values.
            context: the replica's.
        """

    @abstractmethod
    def check(self, variables: Sequence[Any], trace: Callable[[], Any]) -> None:
        """Refuse a step in which the replicas' new values of a variable cannot become one.

        Args:
            variables: those that are written.
            trace: gives the trace of the step as JAX makes it: its first inputs are the variables' values, and merged
                new values are among its outputs.
        """

    @abstractmethod
    def replicated(self, variables: Sequence[Any]) -> list[int]:
        """The indices of the variables whose new values `merged` assumes to be equal on all replicas."""

    @abstractmethod
    def name(self, variable: Any) -> str:
        """Return what an error calls a variable."""

    @abstractmethod
    def values(self, variables: Sequence[Any]) -> list[Any]:
        """The current values of the variables."""

    @abstractmethod
    def assign(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Assign new values to the variables."""


_frameworks: list[Framework] = []
_open_scopes: set[object] = set()


def register(framework: Framework) -> None:
    """Let the variables of a framework take part in steps."""
    _frameworks.append(framework)


@contextmanager
def frameworks_scope() -> Iterator[None]:
    """A context in which variables that frameworks make, in any thread, belong to strategies."""
    scope = object()
    _open_scopes.add(scope)
    try:
        yield
    finally:
        _open_scopes.remove(scope)


def scope_is_open() -> bool:
    """Return whether a variable that is made now belongs to a strategy."""
    return bool(_open_scopes)


def active_framework() -> Framework | None:
    """The framework whose variables there may be."""
    return next(iter(_frameworks), None)
