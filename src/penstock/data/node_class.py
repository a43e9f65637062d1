"""Classes of nodes, made frozen dataclasses when the first node of a class is made.

`dataclass` compiles methods for each class, half a millisecond each: for all operators a fifth of `import penstock`. A
program uses a few of them.
"""

from dataclasses import dataclass, field
from threading import RLock
from typing import Any, TypeVar, dataclass_transform

Class = TypeVar("Class", bound=type)

_lock = RLock()
_unfinished: dict[type, dict[str, Any] | None] = {}
"""With what each class had before it was begun to be made a dataclass; None where it was not."""


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def node_class(kind: Class) -> Class:
    """As `dataclass(frozen=True, eq=False)`, later. A class that is derived from one ends the delay: see `finish`."""
    _unfinished[kind] = None
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
                before = _unfinished[each]
                if before is None:
                    _unfinished[each] = dict(vars(each))
                else:
                    _restore(each, before)
                dataclass(frozen=True, eq=False)(each)
                each.__new__ = _make  # type: ignore[assignment]  # a new node needs no look at its class any more
                del _unfinished[each]


def _restore(kind: type, before: dict[str, Any]) -> None:
    """Undo what was done to a class before Ctrl-C came: `dataclass` does not take one that is half made."""
    for name in vars(kind).keys() - before.keys():
        delattr(kind, name)
    for name, value in before.items():
        if vars(kind).get(name) is not value:
            setattr(kind, name, value)
