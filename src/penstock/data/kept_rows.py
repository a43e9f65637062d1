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

from penstock import formats
from penstock.data.block import Block, Column, Indices, is_ragged
from penstock.data.kept_directory import FilePass, KeptDirectory, PassLock, read_store
from penstock.data.node import Node
from penstock.data.streams.index_reading import Load, Reading
from penstock.positions import as_positions
from penstock.runtime.copying import Copiers
from penstock.runtime.threads import Threads

_PIECE_BYTES: Final = 1 << 22
_LOOK_SECONDS: Final = 1.0
"""So often it is looked what other processes have kept."""


class Kept:
    """What a cache keeps, shared by all iterations of datasets that contain it; for another seed it is dropped.

    Args:
        made_of: the input of the cache, as the user made it: plans put others in its place that give the same rows.
    """

    def __init__(self, made_of: Node) -> None:
        self._made_of = made_of
        self._lock = Lock()
        self._seed: int | None = None
        self._rows: _MemoryRows | _FileRows | None = None
        self._pass: MemoryPass | FilePass | None = None
        self._directory: KeptDirectory | None = None
        self._recording = False

    def __reduce__(self) -> tuple[type["Kept"], tuple[Node]]:
        """Another process begins with nothing kept."""
        return Kept, (self._made_of,)

    def begin(self) -> bool:
        """Whether to record this pass over a stream: only one is recorded at a time."""
        with self._lock:
            recording, self._recording = self._recording, True
            return not recording

    def given_up(self) -> None:
        """The pass that was being recorded did not reach the end."""
        with self._lock:
            self._recording = False

    def directory(self, filename: str) -> "KeptDirectory":
        """The directory of the cache, which was looked at."""
        if self._directory is None:
            self._directory = KeptDirectory(filename, self._made_of)
        return self._directory

    def locked_directory(self, filename: str, threads: Threads) -> tuple[KeptDirectory, PassLock] | None:
        """The directory for a pass that is being recorded, and its lock; None if another iteration records one."""
        directory = self.directory(filename)
        lock = directory.lock(threads)
        return None if lock is None else (directory, lock)

    def rows(self, seed: int, filename: str, length: int) -> "_MemoryRows | _FileRows":
        """The rows kept of an indexable input."""
        with self._lock:
            if self._rows is None or self._seed != seed:
                self._rows = _FileRows(self.directory(filename), seed, length) if filename else _MemoryRows(length)
                self._seed = seed
            return self._rows

    def complete(self, seed: int, filename: str) -> "MemoryPass | FilePass | None":
        """The complete pass over a stream, if there is one."""
        with self._lock:
            if self._pass is None or self._seed != seed:
                self._seed, self._pass = seed, self.directory(filename).complete() if filename else None
            return self._pass

    def completed(self, seed: int, rows: "MemoryPass | FilePass") -> None:
        """Keep a complete pass over a stream."""
        with self._lock:
            self._seed, self._pass, self._recording = seed, rows, False


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
    """The rows of a pass that has not ended yet; in memory, copies in pieces of some megabytes.

    Args:
        directory: where they are kept, with its lock; None for memory.
    """

    def __init__(self, directory: tuple[KeptDirectory, PassLock] | None) -> None:
        self._directory = directory
        self._writer: formats.kept_files.KeptFileWriter | None = None
        self._pieces: list[Block] = []
        self._blocks: list[Block] = []
        self._nbytes = self._rows = 0

    def add(self, block: Block) -> Block:
        """Record rows; gives them as they may be handed out: those that are kept cannot be written."""
        block = block.read_only()
        if self._directory is not None:
            first, self._rows = self._rows, self._rows + len(block)
            if len(block):
                writer = self._file(self._directory[0])
                writer.append(np.arange(first, self._rows), block.columns, block.structure)
            return block
        self._blocks.append(block)
        self._nbytes += block.nbytes
        if self._nbytes >= _PIECE_BYTES:
            self._join()
        return block

    def _file(self, directory: KeptDirectory) -> "formats.kept_files.KeptFileWriter":
        self._writer = self._writer or directory.new_pass()
        return self._writer

    def _join(self) -> None:
        rows = Block.concatenate(self._blocks)
        if len(self._blocks) == 1:
            rows = rows.take(np.arange(len(rows)))  # it may be a view of more rows than are kept
        self._pieces.append(rows.read_only())
        self._blocks, self._nbytes = [], 0

    def finish(self) -> MemoryPass | FilePass:
        """The complete pass."""
        if self._directory is None:
            if self._blocks:
                self._join()
            return MemoryPass(self._pieces)
        directory, lock = self._directory
        found = directory.finished(self._file(directory))
        lock.release()
        return found

    def discard(self) -> None:
        """Keep nothing."""
        if self._directory is not None:
            directory, lock = self._directory
            if self._writer is not None:
                self._writer.close()
                self._writer.path.unlink(missing_ok=True)
            directory.leave()
            lock.release()


class _IndexRows(ABC):
    """Rows of an indexable input, each kept when it is first read.

    Attributes:
        has: which rows are kept.
    """

    def __init__(self, length: int) -> None:
        self._lock = Lock()
        self._length = length
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
            _placed(kept, self.has, positions, column)
            for kept, column in zip(self._kept.columns, block.columns, strict=True)
        )
        self._kept = Block(columns, block.structure, self._length)

    def _take(self, indices: Indices, copiers: Copiers) -> Block:
        assert self._kept is not None
        return self._kept.take(indices, copiers)


def _placed(kept: Column, has: npt.NDArray[np.bool_], positions: npt.NDArray[np.int64], column: Column) -> Column:
    """`kept` with these rows in it; rows of another shape make it an object column."""
    if kept.dtype == column.dtype and kept.shape[1:] == column.shape[1:] and not is_ragged(column):
        kept[positions] = column
        return kept
    if kept.dtype != object or kept.ndim > 1:
        rows = np.empty(len(kept), dtype=object)
        for position in np.flatnonzero(has):
            rows[position] = kept[position]
        kept = rows
    for position, row in zip(positions, column, strict=True):
        kept[position] = row
    return kept


class _FileRows(_IndexRows):
    """Rows in a directory: in a file of this process, and in those of others."""

    def __init__(self, directory: KeptDirectory, seed: int, length: int) -> None:
        super().__init__(length)
        self._directory = directory
        self._seed = seed
        self._files = directory.rows(seed, length)
        self.has |= self._files.has
        self._looked = time.monotonic()
        self._writer: formats.kept_files.KeptFileWriter | None = None

    def _missing(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        missing = super()._missing(positions)
        if missing.size and time.monotonic() - self._looked > _LOOK_SECONDS:
            with self._lock:
                self._files.refresh()
                self.has |= self._files.has
            self._looked = time.monotonic()
            missing = super()._missing(positions)
        return missing

    def _put(self, positions: npt.NDArray[np.int64], block: Block) -> None:
        if not len(positions):
            return
        if self._writer is None or self._writer.process != os.getpid():
            self._writer = self._directory.new_rows(self._seed)
        self._writer.append(positions, block.columns, block.structure)

    def _take(self, indices: Indices, copiers: Copiers) -> Block:
        return read_store(self._files, indices, copiers)
