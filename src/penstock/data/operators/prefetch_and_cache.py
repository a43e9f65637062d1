"""Operators that keep elements: prefetch and cache."""

from collections.abc import Iterator
from dataclasses import field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Indices
from penstock.data.cache_directory import PassWriter
from penstock.data.cached_rows import CachedRows, PassRecorder
from penstock.data.node import DependsOn, Origins, Run, SameElements, derived
from penstock.data.streams.index_reading import Reading
from penstock.data.streams.prefetched import PrefetchedStream
from penstock.data.streams.stream import State, Stream
from penstock.options import AUTOTUNE
from penstock.rng import mix
from penstock.runtime.pacing import Pace
from penstock.runtime.progress import Progress
from penstock.runtime.threads import failures


class Prefetch(SameElements, name="prefetch"):
    """The elements of the input; a thread makes up to `buffer_size` of them in advance."""

    depends_on = DependsOn.ANY
    keeps_numbers = True
    indexable = False
    mode = "thread"
    identity = None  # it changes no elements
    buffer_size: int

    @property
    def memory(self) -> str:
        return "holds two blocks" if self.buffer_size == AUTOTUNE else f"holds up to {self.buffer_size:,} elements"

    @derived
    def leading_rows(self) -> tuple[int, int] | None:
        return self.input.leading_rows  # over an index the plan moves it above what reads rows

    def stream(self, run: Run, epoch: int) -> Stream:
        if self.buffer_size == 0:
            return self.input.open(run, epoch)
        own, skips = run.ahead()
        rows = None if self.buffer_size == AUTOTUNE else self.buffer_size
        return PrefetchedStream(self.input.open(own, epoch), rows, run.threads, skips)


class Cache(SameElements, name="cache"):
    """The elements of the input's first epoch, kept once they were read: in memory, or in a directory (`filename`).

    Over an indexable input each row is kept when it is first read, in any order, and several processes may fill a
    directory together. Over a stream, all rows are kept when a pass reaches the end, and one process fills a directory.
    Every epoch has the rows of epoch 0, so a shuffle below a cache is frozen.
    """

    varies = False
    filename: str = ""
    rows: CachedRows = field(repr=False, kw_only=True)

    @property
    def depends_on(self) -> DependsOn:
        # A directory holds the rows that one process has read.
        return DependsOn.ALL if self.filename else DependsOn.ANY

    @property
    def memory(self) -> str:
        return f"keeps every row in {self.filename or 'memory'}"

    @property
    def identity(self) -> dict[str, Any] | None:
        """The arguments that decide which elements come: in memory none, unless epochs of the input differ."""
        return {} if self.filename or self.input.varies else None

    @derived
    def indexable(self) -> bool:
        return self.input.indexable and self.input.cardinality >= 0

    @derived
    def has_lengths(self) -> bool:
        """Return whether lengths are known: of rows whose order no earlier run can have decided."""
        return self.indexable and self.input.has_lengths and not (self.input.varies or self.input.unseeded)

    @derived
    def leading_rows(self) -> tuple[int, int] | None:
        return self.input.leading_rows

    def forgetful(self) -> "Cache":
        return replace(self, rows=CachedRows(self.input))

    def seed(self, run: Run) -> int:
        """Return the run's seed if the kept rows depend on it, because something random below has no seed; else 0."""
        return mix(run.seed, *run.drawn_below(self.input)) if self.input.unseeded else 0

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        yield from super().origins(run, 0, positions)

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        rows = self.rows.by_index(self.seed(run), self.filename, self.cardinality)
        loads = run.loads.setdefault(id(self), [])
        return rows.reading(indices, lambda missing: self.input.reading(run, 0, missing), run.copiers, loads)

    def stream(self, run: Run, epoch: int) -> "CacheStream":
        return CacheStream(self, run)


class CacheStream(Stream):
    """Rows of a complete pass by position, or a pass over a stream that is being recorded.

    A state counts the rows from the beginning, because a complete cache neither reads the input nor knows its states.
    """

    same_rows = True

    def __init__(self, node: Cache, run: Run) -> None:
        self._node = node
        self._seed = node.seed(run)
        self._threads = run.threads
        self._complete = node.rows.complete(self._seed, node.filename)
        self._input = None if self._complete else node.input.cursor(run, 0)
        self._recorder: PassRecorder | PassWriter | None = None
        self._progress = Progress("filling a cache", max(node.cardinality, 0), bar=False)
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
                block = block.read_only()
                self._recorder.add(block)
                self._progress.add(len(block), block.nbytes)
        elif self._recorder is not None:
            self._node.rows.completed(self._seed, self._recorder.finish())
            self._recorder = None
        return block

    def _begin(self) -> None:
        """Record the rows, unless another iteration does so, or has done so since this one was opened."""
        if not self._reads_complete_pass():
            self._recorder = self._node.rows.recorder(self._node.filename, self._threads)
            if self._recorder is None:
                self._reads_complete_pass()

    def _reads_complete_pass(self) -> bool:
        """Read the rows that another iteration has kept instead of the input; returns whether there are any."""
        self._complete = self._node.rows.complete(self._seed, self._node.filename)
        if self._complete is not None and self._input is not None:
            self._input.close()
            self._input = None
        return self._complete is not None

    def _discard(self) -> None:
        if self._recorder is not None:
            self._recorder.discard()
            self._recorder = None
            self._node.rows.given_up()

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
