"""Rows of files that are read by number: one node for all such formats, and one for files of one row each."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Indices, locked_entries
from penstock.data.element_kinds import of_one_kind
from penstock.data.functions.apply import note
from penstock.data.node import ByIndex, ByMethod, DependsOn, OneInput, Origins, Run, derived
from penstock.errors import ElementError, StorageError
from penstock.formats.file_format import FileFormat, Rows
from penstock.formats.gathered_rows import GatheredRows
from penstock.formats.opening import size_of
from penstock.formats.remote.parts import ask_ahead, at_once
from penstock.paths import has_protocol, names_in_directory
from penstock.positions import as_positions, by_part, shifted
from penstock.runtime.threads import Threads, failures
from penstock.spec import TensorSpec
from penstock.structure import LEAF, flatten

_FILES_AHEAD: Final = 32
"""Half as many as formats keep open."""


class IndexedFiles(ByMethod, OneInput):
    """The rows of the files that the input names, one file after the other.

    An element of the input is a name, or (name, start, stop): then only rows start to stop - 1 of that file.
    """

    depends_on = DependsOn.ANY
    reads_files = True
    indexable = True
    format: FileFormat = field(repr=False)
    counts: Mapping[str, int] = field(repr=False)
    """The number of rows of each file when the dataset was made."""
    sizes: Mapping[str, int] = field(repr=False)
    """The size of each file in bytes at that time."""

    def arguments(self) -> list[str]:
        if self.format.version:
            return [self.format.version, f"{self.cardinality:,} rows"]
        return [self.format.name] if self.method == "FilesDataset" else []

    @property
    def memory(self) -> str:
        return self.format.memory

    @property
    def identity(self) -> dict[str, Any]:
        """The rows of each file, in order, with the file's name below the common directory."""
        names, starts, ends = self._pieces
        facts = [(self.counts[name], self.sizes[name]) for name in names]
        version = [self.format.version] if self.format.version else []
        return {"files": repr([names_in_directory(names), facts, starts.tolist(), ends.tolist(), *version])}

    def changed_since(self, label: str) -> str:
        found = re.fullmatch(rf"{self.name}\(\w+=(\d+), .* rows\)", label) if self.format.version else None
        if found is None:
            return ""
        try:
            own = int(self.format.version.partition("=")[2])
            before, now = (Counter(self.format.rows_of_version(version)) for version in (int(found[1]), own))
        except Exception:  # that version may be gone
            return ""
        return f"; {(now - before).total():,} rows were added between them, and {(before - now).total():,} removed"

    def counted(self) -> "IndexedFiles":
        """Return this node with the counts and sizes of all files that its input names.

        Raises:
            StorageError: a file cannot be read.
        """
        names = [str(one[0] if isinstance(one, tuple) else one) for one in self._given]
        counts = {name: self.counts[name] if name in self.counts else self.format.count(name) for name in names}
        return replace(self, counts=counts, sizes={name: size_of(name) for name in counts})

    @property
    def _given(self) -> list[Any]:
        """The elements of the input: names of files, or (name, start, stop)."""
        length = self.input.cardinality
        return list(self.input.read(Run(self.input, 0, Threads()), 0, range(length)).rows()) if length else []

    @cached_property
    def _pieces(self) -> tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The files, the first row of each that is read, and the number of rows up to the end of each."""
        ranges = [_range(one, self.counts) for one in self._given]
        names, starts, stops = zip(*ranges, strict=True) if ranges else ((), (), ())
        starts_, stops_ = np.array(starts, np.int64), np.array(stops, np.int64)
        return list(names), starts_, np.cumsum(stops_ - starts_)

    @cached_property
    def _shifts(self) -> npt.NDArray[np.int64]:
        """The difference between the number of a row in its file and its position here, for each file."""
        _, starts, ends = self._pieces
        shifts: npt.NDArray[np.int64] = starts - np.append(0, ends[:-1])
        return shifts

    @cached_property
    def _ahead(self) -> "_AheadFiles":
        return _AheadFiles(self._pieces[0], self.format)

    @cached_property
    def _gathered(self) -> GatheredRows:
        names, starts, ends = self._pieces
        sizes = np.array([self.sizes[name] for name in names], np.int64)
        return GatheredRows(self.format, names, starts, ends, sizes)

    @derived
    def cardinality(self) -> int:
        ends = self._pieces[2]
        return int(ends[-1]) if len(ends) else 0

    @derived
    def group_ends(self) -> npt.NDArray[np.int64]:
        found = [np.empty(0, np.int64)]
        for name, start, end, shift in zip(*self._pieces, self._shifts, strict=True):
            own = self.format.group_ends(name) - shift
            found += [own[(own > start - shift) & (own < end)], np.array([end])]
        return np.concatenate(found)

    @derived
    def spec(self) -> Any:
        names = self._pieces[0]
        return self.format.spec(names[0]) if names else None

    @property
    def spec_from_call(self) -> bool:
        return self.spec is None

    def records_in(self, file: str) -> int:
        return self.counts[file]

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        yield from ()  # it is a source: its input gives the names of files

    def rows_at(self, positions: npt.NDArray[np.int64]) -> tuple[list[str | None], npt.NDArray[np.int64]]:
        numbers = np.searchsorted(self._pieces[2], positions, side="right")
        return [self._pieces[0][number] for number in numbers.tolist()], positions + self._shifts[numbers]

    @property
    def row_files(self) -> list[str]:
        return self._pieces[0]

    @derived
    def has_lengths(self) -> bool:
        return self.format.has_lengths

    def lengths_at(self, run: Run, epoch: int, indices: Indices) -> npt.NDArray[np.int64]:
        names, _, ends = self._pieces
        found = np.empty(len(indices), np.int64)
        numbers = np.searchsorted(ends, as_positions(indices), side="right")
        for number, which, rows in by_part(indices, numbers):
            wanted, inverse = np.unique(as_positions(shifted(rows, int(self._shifts[number]))), return_inverse=True)
            found[which] = self.format.lengths(names[number], wanted)[inverse]
        return found

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        forward = isinstance(indices, range) and indices.step == 1
        if forward or len(indices) == 0:
            return self._read(run, indices)
        wanted, inverse = np.unique(np.asarray(indices, np.int64), return_inverse=True)
        block = self._read(run, wanted)
        return block if np.array_equal(inverse, np.arange(len(indices))) else block.take(inverse, run.copiers)

    def _read(self, run: Run, rows: Indices) -> Block:
        """Return rows in the order of the files."""
        try:
            names, _, ends = self._pieces
            numbers = np.searchsorted(ends, as_positions(rows), side="right")
            together = None
            if not isinstance(rows, range) and numbers[0] != numbers[-1] and not has_protocol(names[0]):
                together = self._gathered.read(rows, numbers)
            of_files = by_part(rows, numbers) if together is None else ()
            pieces = [(names[number], shifted(own, int(self._shifts[number]))) for number, _, own in of_files]
            remote = bool(pieces) and has_protocol(pieces[0][0])
            if remote and isinstance(rows, range):
                self._ahead.reach(int(numbers[-1]))
            if remote and len(pieces) > 1:  # requests to servers run in parallel
                parts = at_once(lambda piece: self._part(*piece), pieces)
            else:
                if len(pieces) > 1:
                    together = self.format.read_pieces(pieces)
                parts = []
                if together is not None:
                    parts, pieces = [Block(tuple(map(np.asarray, together[0])), together[1], len(rows))], []
                for name, own in pieces:
                    try:
                        parts.append(self._part(name, own))
                    except ElementError as error:
                        error.positions = tuple(row + sum(map(len, parts)) for row in error.positions)
                        raise
            block = Block.concatenate(parts, run.copiers) if parts else Block((np.empty(0, object),), flatten(0)[1], 0)
            if len(parts) == 1:
                block = block.read_only()
            else:  # numbers are copies
                block = Block(tuple(map(locked_entries, block.columns)), block.structure, len(block))
            block = of_one_kind(run, self, block, int(rows[0]) if len(rows) else 0)
        except failures() as error:
            if len(rows) == 1:  # reading the rows in halves finds the one that fails
                note(error, self, int(rows[0]))
            raise
        return block

    def _part(self, name: str, rows: Rows) -> Block:
        columns, structure = self.format.read_columns(name, rows)
        lengths = set(map(len, columns)) - {len(rows)}
        if lengths:
            raise ElementError(
                f"{type(self.format).__name__}.read must give {len(rows)} rows for {len(rows)} numbers, "
                f"got {lengths.pop()}"
            )
        return Block(tuple(map(np.asarray, columns)), structure, len(rows))


class FolderFiles(ByMethod, ByIndex):
    """The names of files: a dataset that is sharded by file is divided by them.

    An element of the input is a name, or (name, start, stop), which means its only record.
    """

    depends_on = DependsOn.ANY
    reads_files = True
    fails = False
    identity = None  # only the names matter
    spec = TensorSpec((), object)
    directory: str
    class_names: tuple[str, ...] | None = field(repr=False)

    def records_in(self, file: str) -> int:
        return 1

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        block = self.input.read(run, epoch, indices)
        return Block((block.columns[0],), LEAF, len(block))

    def arguments(self) -> list[Any]:
        return [f"directory={self.directory!r}"]


class _AheadFiles:
    """Remote files that are opened ahead of the one that is being read, to hide the latency of their servers."""

    def __init__(self, names: list[str], format: FileFormat) -> None:
        self._names = names
        self._format = format
        self._asked = range(0)

    def reach(self, number: int) -> None:
        """Open further files: the one with this number is being read."""
        asked = self._asked
        if number in asked and len(asked) > _FILES_AHEAD // 2 and asked.stop - number > _FILES_AHEAD // 2:
            return
        stop = min(number + _FILES_AHEAD, len(self._names))
        start = max(number + 1, asked.stop if number in asked else 0)
        self._asked = range(number, stop)
        for name in dict.fromkeys(self._names[start:stop]):
            ask_ahead(self._format.prepare, name)


def _range(element: Any, counts: Mapping[str, int]) -> tuple[str, int, int]:
    """Return a file's name and its first row to read and the end, from a name or (name, start, stop)."""
    name, start, stop = element if isinstance(element, tuple) else (element, 0, -1)
    if name not in counts:
        raise StorageError(f"{name!r} was not among the files when the dataset was made")
    count = counts[name]
    return str(name), min(int(start), count), count if stop < 0 else min(int(stop), count)
