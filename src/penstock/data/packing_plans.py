"""Plans of packed rows: which parts of documents are put into which row. Arithmetic on lengths alone.

Every part begins at a multiple of `align` in its row, and no row holds more than `max_segments` parts. A plan is a
function of the lengths and of these arguments, so it can be made again anywhere.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidArgumentError

Numbers = npt.NDArray[np.int64]

_HOW: Final = ("best_fit", "first_fit", "concat_split")
_TOO_LONG: Final = ("error", "split", "truncate", "drop")
_ROW_BITS: Final = 32
_ROW: Final = (1 << _ROW_BITS) - 1


@dataclass(frozen=True)
class Packing:
    """The arguments of `pack` that decide which tokens a row has.

    Attributes:
        length: of a row.
        how: one of `_HOW`.
        window: the number of documents that are planned together.
        too_long: one of `_TOO_LONG`.
        max_segments: the most parts of documents in a row; None for any number.
        align: the number of which the place of each part is a multiple.
    """

    length: int
    how: str = "best_fit"
    window: int = 4096
    too_long: str = "error"
    max_segments: int | None = None
    align: int = 1

    def __post_init__(self) -> None:
        for name, choices in (("how", _HOW), ("too_long", _TOO_LONG)):
            if getattr(self, name) not in choices:
                raise InvalidArgumentError(f"pack({name}=...) takes one of {choices}, got {getattr(self, name)!r:.200}")
        if self.length % self.align:
            raise InvalidArgumentError(
                f"pack(length={self.length}, align={self.align}): the length must be a multiple of align"
            )

    @property
    def splits(self) -> bool:
        """Return whether a document may be in several rows."""
        return self.how == "concat_split" or self.too_long == "split"

    def sizes(self, lengths: Numbers) -> Numbers:
        """Return the places that parts of these lengths take in a row."""
        return -(-lengths // self.align) * self.align

    def unfit(self, lengths: Numbers) -> Numbers:
        """Return the numbers of the documents that cannot be packed."""
        refused = self.too_long == "error" and self.how != "concat_split"
        return np.flatnonzero((lengths < 1) | (lengths > self.length) if refused else lengths < 1)

    def problem(self, length: int) -> str:
        """Return why a document of this length cannot be packed."""
        if length < 0:
            return "its leaves that are packed have several lengths: name those that are not packed by carry=[...]"
        if length == 0:
            return "it is empty: leave it out, by filter or select"
        return (
            f"it has {length:,} tokens, and a row {self.length:,}: pack(too_long=...) takes 'split', 'truncate' or "
            "'drop'"
        )


@dataclass(frozen=True)
class PackedParts:
    """Parts of documents in the order of the rows that hold them.

    Attributes:
        rows: the row of each part.
        documents: its document.
        starts: the first token of it.
        stops: the token after its last one.
    """

    rows: Numbers
    documents: Numbers
    starts: Numbers
    stops: Numbers

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.rows[-1]) + 1 if len(self.rows) else 0

    def of_rows(self, rows: Sequence[int] | Numbers) -> "PackedParts":
        """Return the parts of some rows, which are numbered anew."""
        begins, ends = np.searchsorted(self.rows, rows), np.searchsorted(self.rows, rows, side="right")
        counts = ends - begins
        numbers = np.repeat(np.arange(len(counts)), counts)
        picked = np.arange(len(numbers)) + np.repeat(begins - np.cumsum(counts) + counts, counts)
        return PackedParts(numbers, self.documents[picked], self.starts[picked], self.stops[picked])

    @staticmethod
    def joined(several: "Sequence[PackedParts]") -> "PackedParts":
        """Return the rows of several, one after the other."""
        firsts = np.cumsum([0, *(parts.count for parts in several)])
        moved = [
            (parts.rows + first, parts.documents, parts.starts, parts.stops)
            for parts, first in zip(several, firsts, strict=False)
        ]
        return PackedParts(*map(np.concatenate, zip(*moved, strict=True)))


def fitted(packing: Packing, lengths: Numbers) -> PackedParts:
    """Return the rows of one window of documents, each whole in a row where it is short enough.

    Rows come in the order of the first document in each, and the documents of a row in their order.
    """
    counts = np.ones(len(lengths), np.int64)
    if packing.too_long == "split":
        counts = -(-lengths // packing.length)
    elif packing.too_long == "drop":
        counts[lengths > packing.length] = 0
    documents = np.repeat(np.arange(len(lengths)), counts)
    within = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = within * packing.length
    stops = np.minimum(starts + packing.length, lengths[documents])
    if not len(documents):
        return PackedParts(documents, documents, starts, stops)
    fit = _best_fit if packing.how == "best_fit" else _first_fit
    row_of = fit(packing.sizes(stops - starts), packing.length, packing.max_segments or len(documents))
    firsts = np.empty(int(row_of.max()) + 1, np.int64)
    firsts[row_of[::-1]] = np.arange(len(row_of))[::-1]  # the first part of each row is written last
    ranks = np.argsort(np.argsort(firsts))[row_of]
    order = np.argsort(ranks, kind="stable")
    return PackedParts(ranks[order], documents[order], starts[order], stops[order])


def _best_fit(sizes: Numbers, length: int, most: int) -> Numbers:
    """Return the row of each part: the longest first, each in the fullest row that has room for it."""
    order = np.argsort(-sizes, kind="stable")
    ordered = sizes[order].tolist()
    least = ordered[-1] << _ROW_BITS
    open_rows: list[int] = []  # sorted: the room that is left, and below it the number of the row
    parts_in = [0] * len(ordered)
    begun, placed = 0, []
    for size in ordered:
        wanted = size << _ROW_BITS
        at = bisect_left(open_rows, wanted)
        if at < len(open_rows):
            left = open_rows.pop(at) - wanted
        else:
            left = ((length - size) << _ROW_BITS) + begun
            begun += 1
        placed.append(left)
        parts_in[left & _ROW] += 1
        if left >= least and parts_in[left & _ROW] < most:
            insort(open_rows, left)
    rows = np.empty(len(sizes), np.int64)
    rows[order] = np.array(placed) & _ROW
    return rows


def _first_fit(sizes: Numbers, length: int, most: int) -> Numbers:
    """Return the row of each part: one after the other, each in the first row that has room for it."""
    leaves = 1 << (len(sizes) - 1).bit_length()
    room = [length] * (2 * leaves)  # a tree: the room of each row, and above it the largest room below
    parts_in = [0] * leaves
    placed = []
    for size in sizes.tolist():
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < size:
                node += 1
        row = node - leaves
        placed.append(row)
        parts_in[row] += 1
        room[node] = room[node] - size if parts_in[row] < most else 0
        while node > 1:
            node //= 2
            largest = max(room[2 * node], room[2 * node + 1])
            if room[node] == largest:
                break
            room[node] = largest
    return np.array(placed, np.int64)


def cut(packing: Packing, lengths: Numbers, begin: int, first: int, stop: int) -> PackedParts:
    """Return the rows `first` to `stop - 1` of documents that follow each other, which are cut where a row ends.

    Args:
        packing: the arguments.
        lengths: of the documents that the rows need, or more of them.
        begin: the place of the first of these, counted from the beginning of row 0.
        first: the first row.
        stop: the row after the last.
    """
    edges = begin + np.append(0, np.cumsum(packing.sizes(lengths)))
    begins = np.arange(first, stop + 1) * packing.length
    within = edges[(edges > begins[0]) & (edges < begins[-1])]
    cuts = np.unique(np.concatenate([begins[begins < edges[-1]], within, [min(begins[-1], edges[-1])]]))
    documents = np.searchsorted(edges, cuts[:-1], side="right") - 1
    rows = cuts[:-1] // packing.length - first
    starts = edges[documents]
    return PackedParts(rows, documents, cuts[:-1] - starts, np.minimum(cuts[1:] - starts, lengths[documents]))
