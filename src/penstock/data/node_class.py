"""Classes of nodes, made frozen dataclasses when the first node of a class is made.

`dataclass` compiles methods for each class, half a millisecond each: for all operators a fifth of `import penstock`. A
program uses a few of them.
"""

from dataclasses import dataclass, field
from threading import RLock
from typing import Any, TypeVar, dataclass_transform

Class = TypeVar("Class", bound=type)

_lock = RLock()
_unfinished: set[type] = set()


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def node_class(kind: Class) -> Class:
    """As `dataclass(frozen=True, eq=False)`, later. A class that is derived from one ends the delay: see `finish`."""
    _unfinished.add(kind)
    kind.__new__ = _finish_and_make  # type: ignore[assignment]  # also what unpickles and copies begins with it
    return kind


def _finish_and_make(cls: type, *arguments: Any, **named: Any) -> Any:
    finish(cls)
    return object.__new__(cls)


def _make(cls: type, *arguments: Any, **named: Any) -> Any:
    return object.__new__(cls)


def finish(kind: type) -> None:
    """Make a class, and those that it is derived from, the dataclasses that they are."""
    with _lock:
        for each in reversed(kind.__mro__):
            if each in _unfinished:
                dataclass(frozen=True, eq=False)(each)
                each.__new__ = _make  # type: ignore[assignment]  # a new node needs no look at its class any more
                _unfinished.discard(each)
