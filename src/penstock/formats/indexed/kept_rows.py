"""Rows that were decoded together, of which all datasets of a process keep those that were used last.

The bound is one for all datasets, because a process may have many: a data worker reads those of one job after the
other, and each pass of an analysis reads another one. What a dataset keeps ends with it.
"""

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.runtime.memory import output

CACHE_BYTES: Final = 1 << 28
"""What was decoded last is kept up to this size, by all datasets of a process together."""
_IN_USE: Final = 256
"""What a dataset has used last is kept whatever its size, as long as it was among so many uses by all datasets. Those
that are read in turn would otherwise decode their groups anew for every block, where the groups are large."""

Key = tuple[str, int]
"""The name of a file, and the number of a group of rows in it."""
Kept = TypeVar("Kept")


class KeptRows(Generic[Kept]):
    """What became of groups of rows of one dataset."""

    def __init__(self) -> None:
        self._found: dict[Key, tuple[_Together, Kept]] = {}
        self._parts: set[_Together] = set()
        self._newest: _Together | None = None

    def get(self, key: Key) -> Kept | None:
        """What is kept of a group; None if nothing is."""
        found = self._found.get(key)
        if found is None:
            return None
        self._newest = found[0]
        _of_process.use(found[0])
        return found[1]

    def put(self, groups: Mapping[Key, Kept], size: int) -> None:
        """Keep groups that were decoded together: they share memory of this many bytes, and are dropped together."""
        if self._newest is None:
            weakref.finalize(self, _of_process.forget, self._parts).atexit = False
        together = self._newest = _Together(self, groups, size)
        self._parts.add(together)
        self._found.update((key, (together, value)) for key, value in groups.items())
        _of_process.add(together)

    def in_use(self, together: "_Together") -> bool:
        """Whether these groups were used last."""
        return self._newest is together

    def drop(self, together: "_Together") -> None:
        """Keep these groups no longer."""
        self._parts.discard(together)
        for key in together.keys:
            found = self._found.get(key)
            if found is not None and found[0] is together:  # not decoded again by another thread
                self._found.pop(key, None)


class _Together:
    """Groups of one dataset that share their memory.

    Attributes:
        used: the number of their last use, among those of all datasets.
    """

    __slots__ = ("keys", "owner", "size", "used")

    def __init__(self, owner: KeptRows[Any], keys: Iterable[Key], size: int) -> None:
        self.owner = weakref.ref(owner)
        self.keys = tuple(keys)
        self.size = size
        self.used = 0


class _OfProcess:
    """Decides what the datasets of this process keep. It holds none of it itself, so that it ends with its dataset."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order: OrderedDict[_Together, None] = OrderedDict()  # those used last come last
        self._bytes = 0
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
            self._bytes += together.size
            self._count(together)
            for old in self._least_used():
                self._remove(old)
                owner = old.owner()
                if owner is not None:
                    owner.drop(old)

    def forget(self, parts: set[_Together]) -> None:
        """Note that a dataset is gone. It may be called inside of any other method, so it takes no lock."""
        self._forgotten.append(parts)

    def _count(self, together: _Together) -> None:
        self._uses += 1
        together.used = self._uses

    def _remove(self, together: _Together) -> None:
        if together in self._order:
            del self._order[together]
            self._bytes -= together.size

    def _least_used(self) -> list[_Together]:
        """What has to go."""
        found, excess = [], self._bytes - CACHE_BYTES
        for together in self._order:
            if excess <= 0:
                break
            owner = together.owner()
            if owner is None or together.used <= self._uses - _IN_USE or not owner.in_use(together):
                found.append(together)
                excess -= together.size
        return found


_of_process: Final = _OfProcess()


def joined(columns: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The rows of several columns of one leaf, at least one; each may have rows of another length, or of several."""
    if len(columns) == 1:
        return columns[0]
    if len({column.shape[1:] for column in columns}) == 1:
        dtype = columns[0].dtype
        alike = all(column.dtype == dtype for column in columns)
        shape = (sum(map(len, columns)), *columns[0].shape[1:])
        return np.concatenate(columns, out=output(shape, dtype) if alike else None)
    return np.fromiter(chain.from_iterable(columns), object, sum(map(len, columns)))


def bytes_of(columns: Iterable[npt.NDArray[Any]]) -> int:
    """About how many bytes columns hold."""
    return sum(map(_bytes_of, columns))


def _bytes_of(column: npt.NDArray[Any]) -> int:
    if column.dtype.kind != "O":
        return column.nbytes
    entries = column[:: max(1, len(column) // 100)]  # a sample tells about how large they are
    sizes = [entry.nbytes if isinstance(entry, np.ndarray) else len(entry) + 50 for entry in entries]
    return column.nbytes + int(np.mean(sizes or [0]) * len(column))
