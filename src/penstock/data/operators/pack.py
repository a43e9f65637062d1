"""pack: documents of tokens in rows of one length, by index where lengths are known, and over a stream."""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np

from penstock.data.block import Block, Indices
from penstock.data.fingerprint import fingerprint_of
from penstock.data.functions.apply import note
from penstock.data.node import DependsOn, OneInput, Origins, Run, derived, scaled
from penstock.data.operator_streams import OperatorStream
from penstock.data.origins import source_row
from penstock.data.packed_rows import PackedRows
from penstock.data.packing_plans import Numbers, PackedParts, cut, fitted
from penstock.data.streams.index_reading import Reading
from penstock.data.streams.stream import Cursor, OneInputStream, State
from penstock.errors import ElementError, InvalidTypeError
from penstock.formats import records
from penstock.formats.dataset_cache import DatasetCache, ProcessBound
from penstock.options import UNKNOWN_CARDINALITY, Options
from penstock.positions import as_positions, by_part, compact
from penstock.runtime.pacing import Pace
from penstock.runtime.threads import Threads, failures

_KEPT_FROM: Final = 1024
"""From this number of windows on, which take seconds, the number of rows in each is kept for later processes."""
_PLANS_BYTES: Final = 256 << 20
"""The most memory for the plans of windows that are kept: of about eight million documents."""


class _Plans(DatasetCache[int, PackedParts]):
    """The plans of windows, by their numbers."""

    bound = ProcessBound(lambda: _PLANS_BYTES, 0)


class Pack(OneInput, name="pack"):
    """Rows of `rows.packing.length` tokens, each with parts of one document or several.

    Where the lengths of the documents are known and their order is the same in every epoch, a row is found by its
    number: the plan of a window is a function of the lengths in it, and the number of rows of each window is counted
    once. Otherwise windows are planned as they are read.
    """

    depends_on = DependsOn.ANY
    rows: PackedRows = field(repr=False)

    @derived
    def indexable(self) -> bool:
        node = self.input
        return node.has_lengths and node.cardinality >= 0 and not (node.varies or node.unseeded)

    @derived
    def cardinality(self) -> int:
        if not self.indexable:
            return scaled(self.input.cardinality, lambda n: UNKNOWN_CARDINALITY if n else 0)
        last = int(self._ends[-1]) if len(self._ends) else 0
        return -(-last // self.rows.packing.length) if self.cuts else last

    @property
    def cuts(self) -> bool:
        """Return whether documents follow each other, and are cut where a row ends."""
        return self.rows.packing.how == "concat_split"

    @property
    def identity(self) -> dict[str, Any]:
        plan = hashlib.blake2b(self._ends.tobytes(), digest_size=8).hexdigest() if self.indexable else ""
        return {"packing": repr(self.rows.packing), "plan": plan}

    def arguments(self) -> list[str]:
        packing = self.rows.packing
        given = [(item.name, getattr(packing, item.name)) for item in fields(packing) if item.name != "length"]
        default = type(packing)(packing.length)
        return [str(packing.length), *(f"{k}={v!r}" for k, v in given if v != getattr(default, k))]

    @property
    def memory(self) -> str:
        window = self.rows.packing.window
        if not self.indexable:
            return "holds the documents of a row" if self.cuts else f"holds up to {window:,} documents"
        return f"plans {window:,} documents at a time"

    @property
    def waste(self) -> str:
        if not self.indexable or not self.cardinality:
            return ""
        length, tokens = self.rows.packing.length, int(self._lengths(0).sum())
        rows = tokens / length if self.cuts else int(self._ends[0])
        return f"the first rows are {1 - tokens / (rows * length):.1%} padding"

    def spec_over(self, *inputs: Any) -> Any:
        return self.rows.spec(inputs[0])

    @cached_property
    def _run(self) -> Run:
        """A run for lengths, which are the same in all."""
        return Run(self.input, 0, Threads())

    @cached_property
    def _plans(self) -> _Plans:
        return _Plans()

    @cached_property
    def _ends(self) -> Numbers:
        """The number of rows, or for cuts of tokens, up to the end of each window.

        Raises:
            ElementError: a document cannot be packed.
        """
        windows = -(-self.input.cardinality // self.rows.packing.window)

        def counted() -> Numbers:
            return np.cumsum([0, *map(self._count, range(windows))], dtype=np.int64)

        if windows >= _KEPT_FROM:
            with suppress(InvalidTypeError):  # it uses something that exists in this process only
                whole = fingerprint_of(self.input, Options())
                return records.offsets.cached_edges(f"pack://{whole}", repr(self.rows.packing), whole, counted)[1:]
        return counted()[1:]

    def _count(self, window: int) -> int:
        """Return the number of rows, or for cuts of tokens, of a window."""
        return int(self.rows.packing.sizes(self._lengths(window)).sum()) if self.cuts else self._plan(window).count

    def _begin_of(self, window: int, stop: int, count: int) -> int:
        """Return the number of rows, or for cuts of tokens, before a window; those up to window `stop` have `count`.

        Raises:
            ElementError: another number was kept of these.
        """
        begin = int(self._ends[window - 1]) if window else 0
        if begin + count != self._ends[stop - 1]:
            raise ElementError(
                f"{self.where()}: documents from {window * self.rows.packing.window:,} on were planned before with "
                "other lengths, although their files seem the same: delete the kept plans in "
                f"{records.offsets.cache_directory()}"
            )
        return begin

    def _lengths(self, window: int, stop: int | None = None) -> Numbers:
        """Return the lengths of the documents of a window, or of those up to window `stop`, which are checked."""
        size = self.rows.packing.window
        last = (window + 1 if stop is None else stop) * size
        documents = range(window * size, min(last, self.input.cardinality))
        lengths = self.input.lengths_at(self._run, 0, documents)
        self.check(lengths, documents.start)
        return lengths

    def check(self, lengths: Numbers, first: int) -> None:
        """Refuse documents that cannot be packed. `first` is the number of the first.

        Raises:
            ElementError: there is one.
        """
        unfit = self.rows.packing.unfit(lengths)
        if len(unfit):
            at = int(unfit[0])
            raise self._error(first + at, self.rows.packing.problem(int(lengths[at])))

    def _error(self, document: int, problem: str) -> ElementError:
        source = source_row(self.input, self._run, 0, document) if self.input.indexable else ""
        return ElementError(f"{self.where()}: document {document:,}{f' ({source})' if source else ''}: {problem}")

    def _plan(self, window: int) -> PackedParts:
        plan = self._plans.get(window)
        if plan is None:
            plan = fitted(self.rows.packing, self._lengths(window))
            size = sum(each.nbytes for each in (plan.rows, plan.documents, plan.starts, plan.stops))
            self._plans.put({window: plan}, size)
        return plan

    def _parts(self, positions: Numbers) -> PackedParts:
        """Return the parts of these rows; documents have their numbers in the input."""
        rows, inverse = np.unique(positions, return_inverse=True)
        size = self.rows.packing.window
        several = []
        if self.cuts:
            breaks = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
            for begin, end in pairwise(breaks):
                first, stop = int(rows[begin]), int(rows[end - 1]) + 1
                several.append(self._cut(first, stop))
        else:
            for window, _, own in by_part(rows, np.searchsorted(self._ends, rows, side="right")):
                plan = self._plan(window)
                parts = plan.of_rows(own - self._begin_of(window, window + 1, plan.count))
                several.append(PackedParts(parts.rows, parts.documents + window * size, parts.starts, parts.stops))
        return PackedParts.joined(several).of_rows(inverse)

    def _cut(self, first: int, stop: int) -> PackedParts:
        packing = self.rows.packing
        places = np.array([first * packing.length, min(stop * packing.length, int(self._ends[-1])) - 1])
        windows = np.searchsorted(self._ends, places, side="right").tolist()
        lengths = self._lengths(windows[0], windows[1] + 1)
        begin = self._begin_of(windows[0], windows[1] + 1, int(packing.sizes(lengths).sum()))
        parts = cut(packing, lengths, begin, first, stop)
        return PackedParts(parts.rows, parts.documents + windows[0] * packing.window, parts.starts, parts.stops)

    def origins(self, run: Run, epoch: int, positions: Numbers) -> Iterator[Origins]:
        parts = self._parts(positions)
        yield self.input, epoch, parts.rows, parts.documents

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        if not len(indices):
            if not self.cardinality:
                return (yield from self.input.reading(run, epoch, range(0)))
            return (yield from self.reading(run, epoch, range(1))).slice(0, 0)
        parts = self._parts(as_positions(indices))
        wanted, which = np.unique(parts.documents, return_inverse=True)
        asked = compact(wanted)
        documents = yield from self.input.reading(run, epoch, asked)
        found, known = self.rows.lengths(documents), self.input.lengths_at(self._run, 0, asked)
        unlike = np.flatnonzero(found != known)
        if len(unlike):
            at = int(unlike[0])
            other = "other leaves than one length" if found[at] < 0 else f"{found[at]:,} tokens"
            raise self._error(
                int(wanted[at]),
                f"it has {other}, and its length is known as {known[at]:,}: have with_lengths find the lengths again",
            )
        try:
            return self.rows.block(parts, documents, which)
        except ElementError as error:
            note(error, self, int(indices[0]))
            raise


class _Checked(OperatorStream[Pack]):
    """Documents that can be packed; one that cannot fails alone."""

    same_rows = True

    def pull(self, need: int, allow: int) -> Block | None:
        block = self._input.pull(need, allow)
        if block is None:
            return None
        first = self._input.met - len(block)

        def checked(documents: Block) -> Block:
            self._node.check(self._node.rows.lengths(documents), first)
            return documents

        return self._input.made(block, checked)


class PackStream(OneInputStream, of=Pack):
    """Rows of the documents read so far: of one window after the other, or of as many as fill a row, which are cut.

    The state is that of the input before the first of these documents, and how many rows were given since; for cuts,
    how many tokens.
    """

    def __init__(self, node: Pack, run: Run, epoch: int) -> None:
        self._node = node
        self._input = Cursor(_Checked(node, run, epoch))
        self._pace = Pace()
        # The documents by blocks, with the position before each.
        self._blocks: list[tuple[State, Block]] = []
        self._documents: Block | None = None
        # The plan when enough was read, how many of its rows were given, and how many tokens precede them.
        self._plan: PackedParts | None = None
        self._given = self._used = 0

    def pull(self, need: int, allow: int) -> Block | None:
        while self._plan is None or self._documents is None or self._given >= self._plan.count:
            if not self._fill():
                return None
        while True:
            rows = range(self._given, min(self._given + allow, self._plan.count))
            parts = self._plan.of_rows(rows)
            try:
                block = self._node.rows.block(parts, self._documents, parts.documents)
            except failures() as error:  # a row that fails costs itself alone
                if len(rows) > 1:
                    allow = 1
                    continue
                self._given += 1
                note(error, self._node)
                raise
            self._given += len(rows)
            return block

    def _fill(self) -> bool:
        """Read and plan more documents; False at the end."""
        if self._plan is not None:
            self._drop(self._plan.count)
        rows, packing, ended = self._node.rows, self._node.rows.packing, False
        while not ended and (missing := self._missing()) > 0:
            before = self._input.state()
            asked = self._pace.start() if self._node.cuts else missing
            block = self._input.pull(1 if self._node.cuts else missing, asked)
            if block is None:
                ended = True
            else:
                self._pace.stop(block.nbytes, len(block))
                self._blocks.append((before, block))
        if not self._blocks:
            return False
        self._documents = Block.concatenate([block for _, block in self._blocks])
        lengths = rows.lengths(self._documents)
        if self._node.cuts:
            tokens = max(0, int(packing.sizes(lengths).sum()) - self._used)
            self._plan = cut(packing, lengths, -self._used, 0, tokens // packing.length or -(-tokens // packing.length))
        else:
            self._plan = fitted(packing, lengths)
        return bool(self._plan.count) or not ended

    def _missing(self) -> int:
        """Return how many documents are missing from a window, or for cuts how many tokens from a row."""
        if not self._node.cuts:
            return self._node.rows.packing.window - sum(len(block) for _, block in self._blocks)
        return self._node.rows.packing.length + self._used - sum(self._tokens(block) for _, block in self._blocks)

    def _tokens(self, block: Block) -> int:
        return int(self._node.rows.packing.sizes(self._node.rows.lengths(block)).sum())

    def _drop(self, rows: int) -> None:
        """Forget the documents of a plan whose rows were all given."""
        self._plan, self._documents, self._given = None, None, 0
        if not self._node.cuts:
            self._blocks.clear()
            return
        self._used += rows * self._node.rows.packing.length
        while self._blocks and (tokens := self._tokens(self._blocks[0][1])) <= self._used:
            self._used -= tokens
            self._blocks.pop(0)
        self._used = self._used if self._blocks else 0

    def state(self) -> State:
        finished = self._plan is not None and self._given >= self._plan.count and not self._node.cuts
        begin = self._blocks[0][0] if self._blocks and not finished else self._input.state()
        used = self._used + self._given * self._node.rows.packing.length if self._node.cuts else self._given
        return [begin, self._input.known, 0 if finished else used]

    def restore(self, state: State) -> None:
        begin, known, used = state
        self._used, self._given = (used, 0) if self._node.cuts else (0, used)
        self._input.restore_at(begin, known)
