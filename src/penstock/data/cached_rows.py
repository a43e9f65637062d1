"""Rows that caches keep: in memory or in a directory, by their numbers or in the order of a pass."""

import os
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from threading import Lock
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Indices, placed
from penstock.data.cache_directory import CacheDirectory, DirectoryPass, PassWriter
from penstock.data.node import Node
from penstock.data.streams.index_reading import Load, Reading
from penstock.formats import writing
from penstock.formats.writing.work_directory import writing_at
from penstock.positions import as_positions
from penstock.runtime.copying import Copiers
from penstock.runtime.progress import Progress
from penstock.runtime.threads import Threads

_PIECE_BYTES: Final = 1 << 22
_LOOK_SECONDS: Final = 1.0
"""The least time between two searches for rows that others have kept."""


class CachedRows:
    """The rows of a cache, shared by all iterations of datasets that contain it; for another seed they are dropped.

    Args:
        made_of: the input of the cache, as the user made it: plans replace it by nodes that give the same rows.
    """

    def __init__(self, made_of: Node) -> None:
        self._made_of = made_of
        self._lock = Lock()
        self._seed: int | None = None
        self._rows: _MemoryRows | _DirectoryRows | None = None
        self._pass: MemoryPass | DirectoryPass | None = None
        self._directory: CacheDirectory | None = None
        self._recording = False

    def __reduce__(self) -> tuple[Callable[[list[Node]], "CachedRows"], tuple[list[Node]]]:
        """Another process begins with nothing."""
        return _nothing_of, ([*self._made_of.walk_all()],)

    def _directory_at(self, filename: str) -> CacheDirectory:
        if self._directory is None:
            self._directory = CacheDirectory(filename, self._made_of)
        return self._directory

    def by_index(self, seed: int, filename: str, length: int) -> "_MemoryRows | _DirectoryRows":
        """The rows of an indexable input."""
        with self._lock:
            if self._rows is None or self._seed != seed:
                directory = self._directory_at(filename) if filename else None
                self._rows = _MemoryRows(length) if directory is None else _DirectoryRows(directory, seed, length)
                self._seed = seed
            return self._rows

    def complete(self, seed: int, filename: str) -> "MemoryPass | DirectoryPass | None":
        """The complete pass over a stream, if there is one."""
        with self._lock:
            if self._pass is None or self._seed != seed:
                self._seed, self._pass = seed, self._directory_at(filename).complete_pass() if filename else None
            return self._pass

    def recorder(self, filename: str, threads: Threads) -> "PassRecorder | PassWriter | None":
        """Return a recorder for a pass over a stream; None if another iteration is recording one, or has done so."""
        with self._lock:
            if self._recording:
                return None
            self._recording = True
        found = None
        try:
            found = self._directory_at(filename).new_pass(threads) if filename else PassRecorder()
            return found
        finally:
            self._recording = found is not None

    def completed(self, seed: int, rows: "MemoryPass | DirectoryPass") -> None:
        """Keep a pass that was being recorded."""
        with self._lock:
            self._seed, self._pass, self._recording = seed, rows, False

    def given_up(self) -> None:
        """Note that the pass being recorded did not reach the end."""
        with self._lock:
            self._recording = False


def _nothing_of(nodes: list[Node]) -> CachedRows:
    """Return the empty rows of a cache of the last of these nodes."""
    return CachedRows(nodes[-1])


class MemoryPass:
    """The rows of a complete pass, in pieces: joining them would need their memory twice."""

    def __init__(self, pieces: list[Block]) -> None:
        self._pieces = pieces
        self._ends = list(accumulate(map(len, pieces)))
        self.length = self._ends[-1] if pieces else 0

    def read(self, start: int, rows: int) -> Block:
        """The rows from `start`, at most `rows` of them and at least one."""
        number = bisect_right(self._ends, start)
        piece = self._pieces[number]
        start -= self._ends[number] - len(piece)
        return piece.slice(start, start + rows)


class PassRecorder:
    """Copies of the rows of a pass that has not ended yet, in pieces of some megabytes."""

    def __init__(self) -> None:
        self._pieces: list[Block] = []
        self._blocks: list[Block] = []
        self._nbytes = 0

    def add(self, block: Block) -> None:
        """Keep rows."""
        self._blocks.append(block)
        self._nbytes += block.nbytes
        if self._nbytes >= _PIECE_BYTES:
            self._join()

    def _join(self) -> None:
        rows = Block.concatenate(self._blocks)
        if len(self._blocks) == 1:
            rows = rows.take(np.arange(len(rows)))  # it may be a view of more rows than are kept
        self._pieces.append(rows.read_only())
        self._blocks, self._nbytes = [], 0

    def finish(self) -> MemoryPass:
        """The complete pass."""
        if self._blocks:
            self._join()
        return MemoryPass(self._pieces)

    def discard(self) -> None:
        """Keep nothing."""


class _IndexRows(ABC):
    """Rows of an indexable input, each kept when it is first read.

    Attributes:
        has: which rows are kept.
    """

    def __init__(self, length: int) -> None:
        self._lock = Lock()
        self._length = length
        self._progress = Progress("filling a cache", length, bar=False)
        self.has = np.zeros(length, dtype=bool)

    def reading(
        self, indices: Indices, load: Callable[[Indices], Reading], copiers: Copiers, loads: list[Load]
    ) -> Reading:
        positions = as_positions(indices)
        while (missing := self._missing(positions)).size:
            other = next((other for other in loads if np.isin(missing, other.positions).any()), None)
            if other is not None:
                yield other
                continue
            own = Load(missing)
            loads.append(own)
            try:
                block = yield from load(missing)
                with self._lock:
                    new = ~self.has[missing]  # another iteration may have been faster
                    self._put(missing[new], block if new.all() else block.take(np.flatnonzero(new)))
                    self.has[missing] = True
                self._progress.add(int(new.sum()), block.nbytes)
            finally:
                loads.remove(own)
                own.done = True
            if len(missing) == len(positions):
                order = np.searchsorted(missing, positions)
                in_order = np.array_equal(order, np.arange(len(order)))
                return (block if in_order else block.take(order, copiers)).read_only()
        return self._take(indices, copiers).read_only()

    def _missing(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.unique(positions[~self.has[positions]])

    @abstractmethod
    def _put(self, positions: npt.NDArray[np.int64], block: Block) -> None:
        """Keep rows that are not kept."""

    @abstractmethod
    def _take(self, indices: Indices, copiers: Copiers) -> Block:
        """The rows at these positions, which are all kept."""


class _MemoryRows(_IndexRows):
    """Rows in memory, all columns in one piece."""

    _kept: Block | None = None

    def _put(self, positions: npt.NDArray[np.int64], block: Block) -> None:
        if self._kept is None:
            columns = tuple(np.empty((self._length, *column.shape[1:]), column.dtype) for column in block.columns)
            self._kept = Block(columns, block.structure, self._length)
        columns = tuple(
            placed(kept, positions, column, np.flatnonzero(self.has))
            for kept, column in zip(self._kept.columns, block.columns, strict=True)
        )
        self._kept = Block(columns, block.structure, self._length)

    def _take(self, indices: Indices, copiers: Copiers) -> Block:
        assert self._kept is not None
        return self._kept.take(indices, copiers)


class _DirectoryRows(_IndexRows):
    """Rows in a directory: in a file of this process, and in those of others."""

    def __init__(self, directory: CacheDirectory, seed: int, length: int) -> None:
        super().__init__(length)
        self._directory = directory
        self._seed = seed
        self._stored = directory.rows(seed, length)
        self.has = self._stored.has
        self._looked = time.monotonic()
        self._writer: writing.row_files.RowFileWriter | None = None

    def _missing(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        missing = super()._missing(positions)
        if missing.size and time.monotonic() - self._looked > _LOOK_SECONDS:
            self._stored.refresh()
            self._looked = time.monotonic()
            missing = super()._missing(positions)
        return missing

    def _put(self, positions: npt.NDArray[np.int64], block: Block) -> None:
        if not len(positions):
            return
        if self._writer is None or self._writer.process != os.getpid():
            self._writer = self._directory.new_rows(self._seed)
        with writing_at(self._directory.path):
            self._writer.append(block.columns, block.structure, positions)

    def _take(self, indices: Indices, copiers: Copiers) -> Block:
        parts = [
            (which, Block(columns, structure, len(columns[0])).take(rows, copiers))
            for which, (columns, structure), rows in self._stored.pieces(as_positions(indices))
        ]
        return Block.in_places(parts, copiers)
