"""Memory of large arrays that were freed, kept for the next ones of about their size.

The system clears new pages, which takes longer than a batch is copied and a tenth of the time in which its images are
decoded. The C library keeps freed memory where `keep_freed_memory` asks for it, but nothing above 32 MiB, and little
of what other threads than the first allocate.
"""

from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

SMALLEST: Final = 4 << 20
"""The C library handles smaller pieces well in all threads."""
_LARGEST_SHARE: Final = 1.25
"""Memory that is larger than wanted by more than this is left for others."""
_LATEST: Final = 4
"""Number of sizes wanted last among which one must be found twice."""


def _fits(memory: Bytes, size: int) -> bool:
    return size <= memory.nbytes <= _LARGEST_SHARE * size


class _Freed:
    """Unused memory; compared by identity, because its bytes may be equal."""

    __slots__ = ("memory",)

    def __init__(self, memory: Bytes) -> None:
        self.memory = memory


class MemoryPool:
    """Keeps up to `most` bytes that were freed, of sizes that are wanted again and again, as those of batches are.

    Rows of varying sizes would find nothing that fits, and kept memory would add to theirs.

    Garbage collection may call `_give_back` inside of any other method, in any thread, so there is no lock: the
    method that has removed a piece from the list has it, and a list removes a piece once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pieces: list[_Freed] = []
        self._wanted: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Return how many bytes are kept."""
        return sum(piece.memory.nbytes for piece in list(self._pieces))

    def take(self, size: int) -> tuple[Bytes, Any]:
        """Return memory of at least `size` bytes, and a function to call when it is no longer used."""
        self._wanted = (*self._wanted[1 - _LATEST :], size)
        memory = self._taken(size)
        if memory is None:
            self._free(size)
            memory = np.empty(size, np.uint8)
        return memory, partial(self._give_back, memory)

    def _free(self, size: int) -> None:
        """Free this much, the oldest first: pieces of another size are wanted now, which must not add to those."""
        for oldest in list(self._pieces):
            if size <= 0:
                return
            if self._remove(oldest):
                size -= oldest.memory.nbytes

    def _taken(self, size: int) -> Bytes | None:
        for piece in reversed(list(self._pieces)):
            if _fits(piece.memory, size) and self._remove(piece):
                return piece.memory
        return None

    def _remove(self, piece: _Freed) -> bool:
        try:
            self._pieces.remove(piece)
        except ValueError:  # another thread has it
            return False
        return True

    def _give_back(self, memory: Bytes) -> None:
        if sum(_fits(memory, size) for size in self._wanted) < 2:
            return
        self._pieces.append(_Freed(memory))
        for oldest in list(self._pieces):
            if self.nbytes <= self._most:
                return
            self._remove(oldest)
