"""What datasets keep to be faster, such as decoded rows and open files, up to a bound for all of a process.

The bound is one for all datasets, because a process may have many: a data worker reads those of one job after the
other, and each pass of an analysis reads another one. What a dataset keeps ends with it.
"""

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class DatasetCache(Generic[Key, Value]):
    """What one dataset keeps.

    Args:
        bound: that of all datasets.
    """

    def __init__(self, bound: "ProcessBound") -> None:
        self._bound = bound
        self._found: dict[Key, tuple[_Together, Value]] = {}
        self._parts: set[_Together] = set()
        self._newest: _Together | None = None

    def get(self, key: Key) -> Value | None:
        """What is kept under a key; None if nothing is."""
        found = self._found.get(key)
        if found is None:
            return None
        self._newest = found[0]
        self._bound.use(found[0])
        return found[1]

    def put(self, values: Mapping[Key, Value], size: int) -> None:
        """Keep what shares memory, or something else of which there is little: it has one size, and goes together."""
        if self._newest is None:
            weakref.finalize(self, self._bound.forget, self._parts).atexit = False
        together = self._newest = _Together(self, values, size)
        self._parts.add(together)
        self._found.update((key, (together, value)) for key, value in values.items())
        self._bound.add(together)

    def discard(self, key: Key) -> None:
        """Keep no longer what is under a key, with all that is kept as one with it."""
        found = self._found.get(key)
        if found is not None:
            self._bound.remove(found[0])
            self.drop(found[0])

    def values(self) -> list[Value]:
        """All that is kept."""
        return [value for _, value in list(self._found.values())]

    def in_use(self, together: "_Together") -> bool:
        """Whether this was used last."""
        return self._newest is together

    def drop(self, together: "_Together") -> None:
        """Keep this no longer."""
        self._parts.discard(together)
        for key in together.keys:
            found = self._found.get(key)
            if found is not None and found[0] is together:  # not kept again by another thread
                self._found.pop(key, None)


class _Together:
    """What one dataset keeps as one.

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
    """Decides what the datasets of this process keep. It holds none of it itself, so that it ends with its dataset.

    Args:
        most: the sum of the sizes.
        in_use: what a dataset has used last is kept whatever its size, as long as it was among so many uses by all.
    """

    def __init__(self, most: Callable[[], int], in_use: int) -> None:
        self._most = most
        self._in_use = in_use
        self._lock = threading.Lock()
        self._order: OrderedDict[_Together, None] = OrderedDict()  # those used last come last
        self._size = 0
        self._uses = 0
        self._forgotten: deque[set[_Together]] = deque()
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )

    def use(self, together: _Together) -> None:
        """Note a use."""
        with self._lock:
            if together in self._order:  # not dropped by another thread
                self._order.move_to_end(together)
                self._count(together)

    def add(self, together: _Together) -> None:
        """Note what is kept now; what was used least recently is kept no longer, where it is too much."""
        with self._lock:
            while self._forgotten:
                for one in self._forgotten.popleft():
                    self._remove(one)
            self._order[together] = None
            self._size += together.size
            self._count(together)
            dropped = self._least_used()
            for old in dropped:
                self._remove(old)
        for old in dropped:  # without the lock: closing a file may take long
            owner = old.owner()
            if owner is not None:
                owner.drop(old)

    def remove(self, together: _Together) -> None:
        """Note that this is kept no longer."""
        with self._lock:
            self._remove(together)

    def forget(self, parts: set[_Together]) -> None:
        """Note that a dataset is gone. It may be called inside of any other method, so it takes no lock."""
        self._forgotten.append(parts)

    def _count(self, together: _Together) -> None:
        self._uses += 1
        together.used = self._uses

    def _remove(self, together: _Together) -> None:
        if together in self._order:
            del self._order[together]
            self._size -= together.size

    def _least_used(self) -> list[_Together]:
        """What has to go."""
        found, excess = [], self._size - self._most()
        for together in self._order:
            if excess <= 0:
                break
            owner = together.owner()
            if owner is None or together.used <= self._uses - self._in_use or not owner.in_use(together):
                found.append(together)
                excess -= together.size
        return found
