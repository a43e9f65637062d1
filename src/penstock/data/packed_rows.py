"""Packed rows: parts of documents copied into rows of one length, with segment ids, positions and masks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Column, column_of, dtype_of_rows, is_ragged, locked_entries, object_column
from penstock.data.packing_plans import Numbers, PackedParts, Packing
from penstock.errors import ElementError
from penstock.spec import TensorSpec, batched, ragged_rows, with_rows
from penstock.structure import Structure, flatten, map_structure

_ALONE: Final = "tokens"
"""The name of a leaf that is the whole element."""
_ROW_LEAVES: Final = {"segment_ids": np.int32, "positions": np.int32, "loss_mask": np.bool_}
_EDGES: Final = "cu_seqlens"


@dataclass(frozen=True)
class PackedRows:
    """The arguments of `pack` that decide how rows look.

    Attributes:
        packing: which tokens a row has.
        carry: the names of leaves that are not packed: a row has one for each part.
        padding_values: for all packed leaves, or by name.
        mask_borders: whether the last token of each part has no loss.
        cu_seqlens: whether a leaf says where parts begin.
    """

    packing: Packing
    carry: tuple[str, ...] = ()
    padding_values: Any = 0
    mask_borders: bool = False
    cu_seqlens: bool = False

    def lengths(self, documents: Block) -> Numbers:
        """Return the number of tokens of each document; -1 where leaves that are packed together differ in length."""
        _, packed = self._leaves(documents.structure, [_axes(column) for column in documents.columns])
        lengths, *others = (_lengths(documents.columns[number]) for number in packed)
        for other in others:
            lengths = np.where(lengths == other, lengths, -1)
        return lengths

    def block(self, parts: PackedParts, documents: Block, which: Numbers) -> Block:
        """Return rows.

        Args:
            parts: of the rows.
            documents: all that the rows need.
            which: the row of `documents` that each part is of.

        Raises:
            ElementError: a row has more parts than `max_segments`.
        """
        rows, length = parts.count, self.packing.length
        template, packed = self._leaves(documents.structure, [_axes(column) for column in documents.columns])
        sizes = parts.stops - parts.starts
        spaces = self.packing.sizes(sizes)
        firsts = np.searchsorted(parts.rows, np.arange(rows + 1))
        most, allowed = int(np.diff(firsts).max(initial=0)), self.packing.max_segments
        if allowed is not None and most > allowed:
            raise ElementError(
                f"a row holds parts of {most} documents, above max_segments={allowed}: allow more, or use "
                "how='best_fit', which begins another row"
            )
        ends = np.cumsum(spaces)
        within = ends - spaces - np.repeat(np.append(0, ends)[firsts[:-1]], np.diff(firsts))
        places = parts.rows * length + within
        columns = list(documents.columns)
        for number, column in enumerate(documents.columns):
            if number in packed:
                given = self.padding_values
                padding = given.get(packed[number], 0) if isinstance(given, Mapping) else given
                columns[number] = _copied(column, parts, which, places, (rows, length), padding)
            else:
                shared = locked_entries(column) if self.packing.splits else column  # several rows get the same arrays
                columns[number] = _per_segment(shared, which, firsts, self.packing.max_segments)
        row_leaves = self._row_leaves(parts, places, sizes, firsts, within + spaces)
        leaves, structure = flatten(map_structure(columns.__getitem__, template) | row_leaves)
        return Block(tuple(leaves), structure, rows)

    def _row_leaves(
        self, parts: PackedParts, places: Numbers, sizes: Numbers, firsts: Numbers, ends: Numbers
    ) -> dict[str, Column]:
        """Return the leaves that say where the parts of rows are."""
        rows, length = parts.count, self.packing.length
        numbers = np.arange(len(places)) - np.repeat(firsts[:-1], np.diff(firsts)) + 1
        gaps = np.append(places[1:], rows * length) - places - sizes
        counts = np.stack([sizes, gaps], axis=1).reshape(-1)

        def spread(values: Numbers) -> Numbers:
            both = np.stack([values, np.zeros_like(values)], axis=1).reshape(-1)
            return np.repeat(both, counts)

        segments = spread(numbers)
        mask = segments > 0
        positions = np.where(mask, np.arange(rows * length) - spread(places), 0)
        if self.mask_borders:
            mask[places + sizes - 1] = False
        shape = rows, length
        found = {
            "segment_ids": segments.astype(np.int32).reshape(shape),
            "positions": positions.astype(np.int32).reshape(shape),
            "loss_mask": mask.reshape(shape),
        }
        if self.cu_seqlens:
            most = int(numbers.max(initial=0)) if self.packing.max_segments is None else self.packing.max_segments
            edges = np.full((rows, most + 2), length, np.int32)
            edges[:, 0] = 0
            edges[parts.rows, numbers] = ends
            if self.packing.max_segments is None:
                counted = np.diff(firsts)
                edges = object_column([row[: count + 2] for row, count in zip(edges, counted, strict=True)])
            found[_EDGES] = edges
        return found

    def spec(self, documents: Any) -> Any:
        """Return the specification of rows of such documents."""
        leaves, structure = flatten(documents)
        template, packed = self._leaves(structure, [len(leaf.shape) for leaf in leaves])
        length, most = self.packing.length, self.packing.max_segments
        found = [
            with_rows(leaf, length, assumed=False)
            if number in packed
            else (ragged_rows(leaf, None) if leaf.shape else batched(leaf, most))
            for number, leaf in enumerate(leaves)
        ]
        row_leaves = {name: TensorSpec((length,), dtype) for name, dtype in _ROW_LEAVES.items()}
        if self.cu_seqlens:
            row_leaves[_EDGES] = TensorSpec((None if most is None else most + 2,), np.int32)
        return map_structure(found.__getitem__, template) | row_leaves

    def _leaves(self, structure: Structure, axes: list[int]) -> tuple[dict[str, Any], dict[int, str]]:
        """Return the numbers of the leaves in a dictionary like that of a row, and the names of those that are packed.

        Raises:
            ElementError: elements that cannot be packed, or without such leaves.
        """
        template = structure.unflatten(range(len(axes)))
        if structure.kind == "leaf":
            template = {_ALONE: 0}
        if not isinstance(template, dict):
            raise ElementError(f"pack takes arrays, or dictionaries of them, got {structure}: make one by map")
        if missing := [name for name in self.carry if name not in template]:
            raise ElementError(f"pack(carry=...) names {missing[0]!r}, and the leaves are {sorted(template)}")
        taken = [name for name in (*_ROW_LEAVES, _EDGES) if name in template]
        if taken:
            raise ElementError(f"pack adds a leaf {taken[0]!r}, and there is one: give it another name by map")
        packed = {
            number: name
            for name, inner in template.items()
            if name not in self.carry
            for number in flatten(inner)[0]
            if axes[number]
        }
        if not packed:
            raise ElementError(f"pack needs a leaf with an axis of tokens, got {structure} without one")
        return dict(template), packed


def _axes(column: Column) -> int:
    """Return the number of axes of the rows of a column."""
    return int(column[0].ndim) if is_ragged(column) else column.ndim - 1


def _lengths(column: Column) -> Numbers:
    if is_ragged(column):
        return np.fromiter(map(len, column), np.int64, len(column))
    return np.full(len(column), column.shape[1])


def _copied(
    column: Column, parts: PackedParts, which: Numbers, places: Numbers, shape: tuple[int, int], padding: Any
) -> Column:
    """Return rows with the tokens of their parts."""
    rows, length = shape
    inner = column[0].shape[1:] if is_ragged(column) else column.shape[2:]
    tokens: npt.NDArray[Any] = np.full((rows * length, *inner), padding, dtype_of_rows(column))
    copies = zip(which.tolist(), parts.starts.tolist(), parts.stops.tolist(), places.tolist(), strict=True)
    for document, start, stop, place in copies:
        tokens[place : place + stop - start] = column[document][start:stop]
    return tokens.reshape(rows, length, *inner)


def _per_segment(column: Column, which: Numbers, firsts: Numbers, most: int | None) -> Column:
    """Return for each row the entries of its parts; numbers and strings filled up to `most`, if that is given."""
    taken = column[which]
    apart = _axes(column) > 0
    rows = []
    for start, stop in zip(firsts[:-1].tolist(), firsts[1:].tolist(), strict=True):
        row = object_column(taken[start:stop]) if apart else taken[start:stop]
        if most is not None and not apart:
            kind = type(row[0]) if row.dtype == object else None
            filled = np.full(most, kind() if kind in (str, bytes) else None if kind else 0, row.dtype)
            filled[: len(row)] = row
            row = filled
        rows.append(row)
    return object_column(rows) if apart else column_of(rows)
