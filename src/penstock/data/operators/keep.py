"""Operators that keep what was read: prefetch, cache, and the rows of `save`."""

import weakref
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock import formats
from penstock.data.block import Block, Column, Indices, is_ragged
from penstock.data.node import DependsOn, Node, Run, SameElements
from penstock.data.node_class import node_class
from penstock.data.streams.ahead import Ahead
from penstock.data.streams.reading import Load, Reading
from penstock.data.streams.stream import State, Stream
from penstock.errors import StorageError
from penstock.options import AUTOTUNE
from penstock.paths import link_of_others
from penstock.rng import as_positions, mix
from penstock.runtime.copying import Copiers
from penstock.runtime.pacing import Pace
from penstock.runtime.threads import failures

_PIECE_BYTES = 1 << 22


@node_class
class Prefetch(SameElements):
    """The elements of the input, of which a thread makes up to `buffer_size` in advance."""

    name: ClassVar[str] = "prefetch"
    depends_on = DependsOn.ANY
    reads_once = True
    by_position = True
    only_orders = True
    gives_all = True
    keeps_batches = True
    changes_nothing = True
    reads_ahead = True
    indexable = False
    drops_alike = True
    buffer_size: int

    @property
    def mode(self) -> str:
        return "thread"

    @property
    def memory(self) -> str:
        return "holds two blocks" if self.buffer_size == AUTOTUNE else f"holds up to {self.buffer_size:,} elements"

    @property
    def identity(self) -> None:
        """None: it changes no elements."""
        return None

    def stream(self, run: Run, epoch: int) -> Stream:
        if self.buffer_size == 0:
            return self.input.open(run, epoch)
        own, skips = run.ahead()
        rows = None if self.buffer_size == AUTOTUNE else self.buffer_size
        return Ahead(self.input.open(own, epoch), rows, run.threads, skips)


@node_class
class Saved(Node):
    """The rows that `Dataset.save` wrote."""

    name: ClassVar[str] = "load"
    indexable = True
    fails = False
    path: str
    store: "formats.row_store.RowStore" = field(repr=False)

    @property
    def identity(self) -> dict[str, Any]:
        """Without the path where they are stored."""
        return {"rows": self.store.rows}

    @property
    def cardinality(self) -> int:
        return self.store.rows

    @cached_property
    def spec(self) -> Any:  # cached, because it looks at every batch of rows
        return self.store.structure.unflatten(self.store.specs()) if self.store.structure else None

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        return read_store(self.store, indices, run.copiers)


def read_store(store: "formats.row_store.RowStore", indices: Indices, copiers: Copiers | None = None) -> Block:
    """The rows at these positions of a store, as one block."""
    assert store.structure is not None
    parts = []
    for where, columns, rows in store.pieces(indices):
        block = Block(columns, store.structure, len(columns[0]) if columns else len(rows))
        parts.append((where, block.take(rows, copiers)))
    return Block.scattered(parts, copiers)


@node_class
class Cache(SameElements):
    """The elements of the input's first epoch, kept once they were read: in memory, or in a directory (`filename`).

    Over an indexable input each row is kept when it is first read, in whatever order; over a stream, all rows are kept
    when a pass reaches the end. Every epoch gives the rows of epoch 0, so a shuffle below a cache is frozen.
    """

    name: ClassVar[str] = "cache"
    gives_all = True
    keeps_batches = True
    varies = False
    filename: str = ""
    kept: "Kept" = field(repr=False, kw_only=True)

    @property
    def depends_on(self) -> DependsOn:
        # A directory holds what one process has read.
        return DependsOn.ALL if self.filename else DependsOn.ANY

    @property
    def memory(self) -> str:
        return f"keeps every row in {self.filename or 'memory'}"

    @property
    def identity(self) -> dict[str, Any] | None:
        """In memory it changes elements only where they would differ from epoch to epoch."""
        return {} if self.filename or self.input.varies else None

    @property
    def indexable(self) -> bool:
        return self.input.indexable and self.input.cardinality >= 0

    @property
    def drops_alike(self) -> bool:
        # A pass with missing rows is not kept, and a directory appears only when it is complete.
        return self.indexable and not self.filename

    @property
    def one_writer(self) -> bool:
        return bool(self.filename)

    def forgetful(self) -> "Cache":
        return replace(self, kept=Kept())

    def seed(self, run: Run) -> int:
        """The run's seed if something below has no seed of its own, because the kept rows then depend on it; else 0."""
        return mix(run.seed, *run.drawn_below(self.input)) if self.input.unseeded else 0

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        rows = self.kept.rows(self.seed(run), self.filename, self.cardinality)
        loads = run.loads.setdefault(id(self), [])
        return rows.reading(indices, lambda missing: self.input.reading(run, 0, missing), run.copiers, loads)

    def stream(self, run: Run, epoch: int) -> "CacheStream":
        return CacheStream(self, run)


class CacheStream(Stream):
    """Over a stream: the rows of a complete pass by position, or a pass that is being recorded.

    A state counts the rows from the beginning, because a complete cache does not read the input, nor know its states.
    """

    same_rows = True

    def __init__(self, node: Cache, run: Run) -> None:
        self._node = node
        self._seed = node.seed(run)
        self._complete = node.kept.complete(self._seed, node.filename)
        self._input = None if self._complete else node.input.cursor(run, 0)
        self._recorder: _Recorder | None = None
        self._position = 0

    def pull(self, need: int, allow: int) -> Block | None:
        if self._complete is None and self._recorder is None and self._position == 0:
            self._begin()
        if self._complete is not None:
            rows = min(allow, self._complete.length - self._position)
            if rows <= 0:
                return None
            kept = self._complete.read(self._position, rows)
            self._position += len(kept)
            return kept
        assert self._input is not None
        try:
            block = self._input.pull(need, allow)
        except failures():
            self._discard()  # a pass with missing rows must not be kept
            self._position += 1
            raise
        if block is not None:
            self._position += len(block)
            if self._recorder is not None:
                block = self._recorder.add(block)
        elif self._recorder is not None:
            self._node.kept.completed(self._seed, self._recorder.finish())
            self._recorder = None
        return block

    def _begin(self) -> None:
        """Record the rows, unless another iteration does or has done so since this one was opened."""
        if self._reads_complete_pass() or not self._node.kept.begin():
            return
        try:
            self._recorder = _Recorder(self._node.filename)
        except BaseException as error:
            self._node.kept.given_up()
            if isinstance(error, StorageError) and self._reads_complete_pass():
                return
            raise

    def _reads_complete_pass(self) -> bool:
        """Read what another iteration has kept by now in place of the input; returns whether there is anything."""
        self._complete = self._node.kept.complete(self._seed, self._node.filename)
        if self._complete is not None and self._input is not None:
            self._input.close()
            self._input = None
        return self._complete is not None

    def _discard(self) -> None:
        if self._recorder is not None:
            self._recorder.discard()
            self._recorder = None
            self._node.kept.given_up()

    def state(self) -> State:
        return [None, self._position, self._position]

    def restore(self, state: State) -> None:
        *_, met = state
        if self._complete is not None:
            self._position = met
        pace = Pace()
        while self._position < met:
            rows = min(met - self._position, pace.start())
            try:
                passed = self.pull(rows, rows)
            except failures() as error:
                error.add_note("penstock: passed over while restoring")
                continue
            if passed is None:  # the input has become shorter
                return
            pace.stop(passed.nbytes, len(passed))

    def close(self) -> None:
        self._discard()
        if self._input is not None:
            self._input.close()


class Kept:
    """What a cache keeps, shared by all iterations of datasets that contain it; for another seed it is dropped."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seed: int | None = None
        self._rows: _MemoryRows | _FileRows | None = None
        self._pass: _MemoryPass | _FilePass | None = None
        self._recording = False

    def __reduce__(self) -> tuple[type["Kept"], tuple[()]]:
        """Another process begins with nothing kept."""
        return Kept, ()

    def begin(self) -> bool:
        """Whether to record this pass over a stream: only one is recorded at a time."""
        with self._lock:
            recording, self._recording = self._recording, True
            return not recording

    def given_up(self) -> None:
        """The pass that was being recorded did not reach the end."""
        with self._lock:
            self._recording = False

    def rows(self, seed: int, filename: str, length: int) -> "_MemoryRows | _FileRows":
        """The rows kept of an indexable input."""
        with self._lock:
            if self._rows is None or self._seed != seed:
                self._seed = seed
                self._rows = _FileRows(filename, length) if filename else _MemoryRows(length)
            return self._rows

    def complete(self, seed: int, filename: str) -> "_MemoryPass | _FilePass | None":
        """The complete pass over a stream, if there is one."""
        with self._lock:
            if self._pass is not None and self._seed == seed:
                return self._pass
            store = _found(filename) if filename else None
            if store is None:
                return None
            self._seed, self._pass = seed, _FilePass(store)  # checksums are verified once, not in every epoch
            return self._pass

    def completed(self, seed: int, rows: "_MemoryPass | _FilePass") -> None:
        """Keep a complete pass over a stream."""
        with self._lock:
            self._seed, self._pass, self._recording = seed, rows, False


class _MemoryPass:
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


def _found(filename: str) -> "formats.row_store.RowStore | None":
    """A complete cache, from an earlier pass or another process."""
    if link := link_of_others(filename):
        raise StorageError(f"cache({filename!r}) is not read: {link}")
    return formats.row_store.RowStore(filename) if Path(filename).exists() else None


class _FilePass:
    def __init__(self, store: "formats.row_store.RowStore") -> None:
        self._store = store
        self.length = store.rows

    def read(self, start: int, rows: int) -> Block:
        """The rows from `start`, `rows` of them."""
        return read_store(self._store, range(start, start + rows))


class _Recorder:
    """The rows of a pass that has not ended yet; in memory, copies in pieces of some megabytes."""

    def __init__(self, filename: str) -> None:
        self._filename = filename
        self._writer = formats.row_store.RowStoreWriter(filename) if filename else None
        self._pieces: list[Block] = []
        self._blocks: list[Block] = []
        self._nbytes = 0

    def add(self, block: Block) -> Block:
        """Record rows; gives them as they may be handed out: those that are kept cannot be written."""
        if self._writer is not None:
            self._writer.write(block.columns, block.structure, len(block))
            return block
        block = block.read_only()
        self._blocks.append(block)
        self._nbytes += block.nbytes
        if self._nbytes >= _PIECE_BYTES:
            self._join()
        return block

    def _join(self) -> None:
        rows = Block.concatenate(self._blocks)
        if len(self._blocks) == 1:
            rows = rows.take(np.arange(len(rows)))  # it may be a view of more rows than are kept
        self._pieces.append(rows.read_only())
        self._blocks, self._nbytes = [], 0

    def finish(self) -> _MemoryPass | _FilePass:
        if self._writer is None:
            if self._blocks:
                self._join()
            return _MemoryPass(self._pieces)
        self._writer.finish()
        return _FilePass(formats.row_store.RowStore(self._filename))

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()


class _MemoryRows:
    """Rows of an indexable input in memory, each kept when it is first read."""

    def __init__(self, length: int) -> None:
        self._lock = Lock()
        self._length = length
        self._has = np.zeros(length, dtype=bool)
        self._kept: Block | None = None

    def reading(
        self, indices: Indices, load: Callable[[Indices], Reading], copiers: Copiers, loads: list[Load]
    ) -> Reading:
        positions = as_positions(indices)
        while (missing := np.unique(positions[~self._has[positions]])).size:
            other = next((other for other in loads if np.isin(missing, other.positions).any()), None)
            if other is not None:
                yield other
                continue
            own = Load(missing)
            loads.append(own)
            try:
                self._put(missing, (yield from load(missing)))
            finally:
                loads.remove(own)
                own.done = True
        assert self._kept is not None
        return self._kept.take(indices, copiers).read_only()

    def _put(self, positions: npt.NDArray[np.int64], block: Block) -> None:
        with self._lock:
            if self._kept is None:
                columns = tuple(np.empty((self._length, *column.shape[1:]), column.dtype) for column in block.columns)
                self._kept = Block(columns, block.structure, self._length)
            columns = tuple(
                _placed(kept, self._has, positions, column)
                for kept, column in zip(self._kept.columns, block.columns, strict=True)
            )
            self._kept = Block(columns, block.structure, self._length)
            self._has[positions] = True


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


class _FileRows:
    """Rows of an indexable input in a row store, written when they are first read, in the order they come.

    Until all are written the store is not visible, and missing rows are read from the input.
    """

    def __init__(self, filename: str, length: int) -> None:
        self._lock = Lock()
        self._filename = filename
        self._store = _found(filename)
        if self._store is not None and self._store.rows != length:
            raise StorageError(
                f"cache({filename!r}) holds {self._store.rows} rows of another dataset, expected {length}"
            )
        self._writer: formats.row_store.RowStoreWriter | None = None
        self._left = length
        self._has = np.zeros(length, dtype=bool)
        self._order: list[npt.NDArray[np.int64]] = []

    def reading(
        self, indices: Indices, load: Callable[[Indices], Reading], copiers: Copiers, loads: list[Load]
    ) -> Reading:
        if self._store is not None:
            return read_store(self._store, indices, copiers)
        block = yield from load(indices)
        with self._lock:
            if self._store is None:
                self._write(as_positions(indices), block)
        return block

    def _write(self, positions: npt.NDArray[np.int64], block: Block) -> None:
        if self._writer is None:
            self._writer = formats.row_store.RowStoreWriter(self._filename)
            # A cache that is given up before it is full leaves nothing behind.
            weakref.finalize(self, self._writer.discard)
        fresh, first = np.unique(positions, return_index=True)
        new = ~self._has[fresh]
        fresh, first = fresh[new], first[new]
        if fresh.size == 0:
            return
        rows = block if len(fresh) == len(block) and np.array_equal(first, np.arange(len(block))) else block.take(first)
        self._writer.write(rows.columns, rows.structure, len(rows))
        self._has[fresh] = True
        self._order.append(fresh)
        self._left -= len(fresh)
        if self._left == 0:
            self._writer.finish(np.concatenate(self._order))
            self._store = formats.row_store.RowStore(self._filename)
