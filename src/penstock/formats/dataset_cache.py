"""Caches of datasets, such as decoded rows and open files, up to a bound for all datasets of a process.

The bound is one for all datasets, because a process may have many: a data worker reads those of one job after the
other, and each pass of an analysis reads another one. A dataset's cache ends with the dataset.
"""

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class DatasetCache(Generic[Key, Value]):
    """The values that one dataset keeps.

    Attributes:
        bound: of the values of all datasets.
    """

    bound: ClassVar["ProcessBound"]

    def __init__(self) -> None:
        self._found: dict[Key, tuple[_Entry, Value]] = {}
        self._parts: set[_Entry] = set()
        self._newest: _Entry | None = None

    def get(self, key: Key) -> Value | None:
        """The value of a key; None if it is not kept."""
        found = self._found.get(key)
        if found is None:
            return None
        self._newest = found[0]
        self.bound.use(found[0])
        return found[1]

    def __reduce__(self) -> Any:
        """In another process nothing is kept."""
        return type(self), ()

    def put(self, values: Mapping[Key, Value], size: int) -> None:
        """Keep values that share memory or another scarce resource: they have one size, and are dropped together."""
        if self._newest is None:
            weakref.finalize(self, self.bound.forget, self._parts).atexit = False
        entry = self._newest = _Entry(self, values, size)
        self._parts.add(entry)
        self._found.update((key, (entry, value)) for key, value in values.items())
        self.bound.add(entry)

    def discard(self, key: Key) -> None:
        """Drop the value of a key, with the values of its entry."""
        found = self._found.get(key)
        if found is not None:
            self.bound.remove(found[0])
            self.drop(found[0])

    def values(self) -> list[Value]:
        """All values that are kept."""
        return [value for _, value in list(self._found.values())]

    def in_use(self, entry: "_Entry") -> bool:
        """True if this entry was used last."""
        return self._newest is entry

    def drop(self, entry: "_Entry") -> None:
        """Drop the values of an entry."""
        self._parts.discard(entry)
        for key in entry.keys:
            found = self._found.get(key)
            if found is not None and found[0] is entry:  # not kept again by another thread
                self._found.pop(key, None)


class _Entry:
    """Keys whose values one dataset keeps together.

    Attributes:
        used: the number of the last use, among those of all datasets.
    """

    __slots__ = ("keys", "owner", "size", "used")

    def __init__(self, owner: DatasetCache[Any, Any], keys: Iterable[Any], size: int) -> None:
        self.owner = weakref.ref(owner)
        self.keys = tuple(keys)
        self.size = size
        self.used = 0


class ProcessBound:
    """Decides which values the datasets of this process keep. It holds none of them, so that they end with theirs.

    Args:
        most: the largest sum of the sizes.
        in_use: the values that a dataset has used last are kept whatever their size, as long as they were among this
            number of the last uses by all datasets.
    """

    def __init__(self, most: Callable[[], int], in_use: int) -> None:
        self._most = most
        self._in_use = in_use
        self._lock = threading.Lock()
        self._order: OrderedDict[_Entry, None] = OrderedDict()  # those used last come last
        self._size = 0
        self._uses = 0
        self._forgotten: deque[set[_Entry]] = deque()
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )

    def use(self, entry: _Entry) -> None:
        """Note a use."""
        with self._lock:
            if entry in self._order:  # not dropped by another thread
                self._order.move_to_end(entry)
                self._count(entry)

    def add(self, entry: _Entry) -> None:
        """Note a new entry; those used least recently are dropped if the sum of the sizes is too large."""
        with self._lock:
            while self._forgotten:
                for one in self._forgotten.popleft():
                    self._remove(one)
            self._order[entry] = None
            self._size += entry.size
            self._count(entry)
            dropped = self._least_used()
            for old in dropped:
                self._remove(old)
        for old in dropped:  # without the lock: closing a file may take long
            owner = old.owner()
            if owner is not None:
                owner.drop(old)

    def remove(self, entry: _Entry) -> None:
        """Note that an entry is kept no longer."""
        with self._lock:
            self._remove(entry)

    def forget(self, parts: set[_Entry]) -> None:
        """Note that a dataset is gone. It may be called inside of any other method, so it takes no lock."""
        self._forgotten.append(parts)

    def _count(self, entry: _Entry) -> None:
        self._uses += 1
        entry.used = self._uses

    def _remove(self, entry: _Entry) -> None:
        if entry in self._order:
            del self._order[entry]
            self._size -= entry.size

    def _least_used(self) -> list[_Entry]:
        """The entries used least recently, without which the sum of the sizes is within the bound."""
        found, excess = [], self._size - self._most()
        for entry in self._order:
            if excess <= 0:
                break
            owner = entry.owner()
            if owner is None or entry.used <= self._uses - self._in_use or not owner.in_use(entry):
                found.append(entry)
                excess -= entry.size
        return found
