"""padded_batch: rows of unequal shape padded to one, and the shapes and padding values given for each leaf."""

from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

import numpy as np

from penstock.data.batches.batching import Batching, at_leaf
from penstock.data.block import Block, Column, column_of, is_ragged
from penstock.errors import ElementError, InvalidArgumentError
from penstock.spec import LeafSpec, TensorSpec, as_leaf, assuming, batched, cast, leaf_spec
from penstock.structure import LEAF, Structure, flatten

_DTYPE, _NDIM, _SHAPE = attrgetter("dtype"), attrgetter("ndim"), attrgetter("shape")
_SHORT = 512
"""The length up to which rows of one axis are padded all at once."""


class PaddedBatch(Batching, name="padded_batch"):
    """`batch_size` consecutive elements padded to one shape and stacked."""

    padded_shapes: Any = None
    padding_values: Any = None
    memory = "copies rows"

    @property
    def slices_alike(self) -> bool:
        """Return whether all batches are padded to one shape, regardless of their longest row."""
        if _is_fixed(self.padded_shapes):
            return True
        return self.spec is not None and not any(None in leaf.shape[1:] for leaf in flatten(self.spec)[0])

    def spec_of_batches(self, rows: Any) -> Any:
        leaves, structure = flatten(rows)
        shapes = _per_leaf(self.padded_shapes, structure, is_shape=True)
        values = _per_leaf(self.padding_values, structure, is_shape=False)
        return structure.unflatten(
            [batched(_padded_spec(*leaf), self.rows) for leaf in zip(leaves, shapes, values, strict=True)]
        )

    def batches(self, block: Block, size: int) -> Block:
        shapes = _per_leaf(self.padded_shapes, block.structure, is_shape=True)
        values = _per_leaf(self.padding_values, block.structure, is_shape=False)
        columns = [
            self._padded(column, size, path, shape, value)
            for column, path, shape, value in zip(block.columns, block.structure.paths(), shapes, values, strict=True)
        ]
        return Block(tuple(columns), block.structure, len(block) // size)

    def _padded(self, column: Column, size: int, leaf: str, shape: Sequence[int | None] | None, value: Any) -> Column:
        if not is_ragged(column) and (shape is None or tuple(shape) == column.shape[1:]):
            return column.reshape(len(column) // size, size, *column.shape[1:])
        starts = range(0, len(column), size)
        return column_of([self._pad(list(column[start : start + size]), leaf, shape, value) for start in starts])

    def _pad(self, rows: list[Any], leaf: str, shape: Sequence[int | None] | None, value: Any) -> Column:
        if set(map(type, rows)) != {np.ndarray}:
            rows = [np.asarray(row) for row in rows]
        axes = rows[0].ndim
        if set(map(_NDIM, rows)) != {axes} or (shape is not None and len(shape) != axes):
            wanted = f"padded_shapes has {len(shape)}" if shape is not None else "the first row has another number"
            raise ElementError(f"{self.where()}: a row has {axes} axes{at_leaf(leaf)} where {wanted}")
        lengths = list(map(len, rows)) if axes == 1 else []
        longest = [max(lengths)] if axes == 1 else list(map(max, zip(*map(_SHAPE, rows), strict=True)))
        target = [
            long if shape is None or shape[axis] in (None, -1) else int(shape[axis] or 0)
            for axis, long in enumerate(longest)
        ]
        if any(long > limit for long, limit in zip(longest, target, strict=True)):
            raise ElementError(
                f"{self.where()}: a row of shape {tuple(longest)}{at_leaf(leaf)} does not fit into padded_shapes "
                f"{tuple(target)}"
            )
        dtypes = set(map(_DTYPE, rows))  # they differ at most in the width of strings
        dtype: np.dtype[Any] = dtypes.pop() if len(dtypes) == 1 else np.result_type(*dtypes)
        if dtype.kind == "O" and any(row.size and isinstance(row.flat[0], np.ndarray) for row in rows):
            raise ElementError(f"{self.where()}: a row holds arrays of unequal shape{at_leaf(leaf)}: pad them first")
        fill = _default_padding(rows)
        if value is not None:
            self._check_padding(value, dtype, fill, leaf)
            fill = value
        if dtype.kind in "US":
            dtype = np.result_type(dtype, np.asarray(fill))  # the width of the widest string
        shape_of_all = (len(rows), *target)
        zeros = value is None and dtype.kind in "biufc"
        batch = np.zeros(shape_of_all, dtype) if zeros else np.full(shape_of_all, fill, dtype=dtype)
        if axes == 1 and max(longest) <= _SHORT:  # all at once: copying each short row costs more than a mask
            batch[np.arange(target[0]) < np.array(lengths)[:, None]] = np.concatenate(rows)
            return batch
        for number, row in enumerate(rows):
            corner: tuple[Any, ...] = (number, *map(slice, row.shape))
            batch[corner] = row
        return batch

    def _check_padding(self, value: Any, dtype: np.dtype[Any], default: Any, leaf: str) -> None:
        """Refuse a padding value that rows of this dtype cannot hold."""
        given = np.asarray(value)
        if dtype.kind in "US" and given.dtype.kind == dtype.kind:
            return
        if dtype.kind == "O" and (default is None or isinstance(value, type(default))):
            return
        with suppress(TypeError, ValueError, OverflowError):
            exact = dtype.kind != "O" and cast(given, dtype) == given  # raises where a number becomes infinite
            if exact or (dtype.kind in "fc" and given.dtype.kind in "biufc"):
                return
        kind = type(default).__name__ if dtype.kind == "O" else dtype
        raise InvalidArgumentError(f"{self.where()}: rows of {kind}{at_leaf(leaf)} cannot be padded with {value!r}")


def _padded_spec(row: LeafSpec, shape: Sequence[int | None] | None, value: Any) -> LeafSpec:
    """Return the specification of a row that is padded to this shape, whose open axes depend on the longest row."""
    dtype = row.dtype
    if dtype.kind in "US" and dtype.itemsize and value is not None:
        dtype = np.result_type(dtype, np.asarray(value))
    if shape is None or len(shape) != len(row.shape):
        return assuming(leaf_spec(row.shape, dtype, row.ragged_rank), row.assumed_axes, dtype=row.assumed_dtype)
    given = [None if length == -1 else length for length in shape]
    lengths = [own if length is None else length for own, length in zip(row.shape, given, strict=True)]
    assumed = [axis for axis in row.assumed_axes if given[axis] is None]
    return assuming(TensorSpec(lengths, dtype), assumed, dtype=row.assumed_dtype)


def _default_padding(rows: list[Any]) -> Any:
    """Return 0, or the empty string or bytes; None for other objects."""
    dtype = rows[0].dtype
    if dtype.kind != "O":
        return np.zeros((), dtype)
    sample = next((row.flat[0] for row in rows if row.size), "")
    return b"" if isinstance(sample, bytes) else "" if isinstance(sample, str) else None


def _per_leaf(value: Any, structure: Structure, *, is_shape: bool) -> list[Any]:
    """Return an argument, given once for all leaves or in the elements' structure, as a list with an entry per leaf."""
    count = structure.leaf_count
    if value is None:
        return [None] * count
    if is_shape and structure == LEAF and not _is_shape(value):
        raise InvalidArgumentError(
            f"padded_batch(padded_shapes=...) takes a shape for elements of one leaf, got {value!r}"
        )
    if structure == LEAF or (is_shape and _is_shape(value)) or (not is_shape and not isinstance(value, (tuple, dict))):
        return [value if is_shape else as_leaf(value)] * count
    return list(_leaves_like(value, structure))


def bounded_shapes(structure: Structure, unknown: list[list[bool]], padded_shapes: Any, length: int) -> Any:
    """Return `padded_shapes` of elements of this structure, with `length` on every open axis.

    A leaf without a shape is padded on its unknown axes.
    """
    shapes = _per_leaf(padded_shapes, structure, is_shape=True)
    bounded = [
        tuple(length if open_ else None for open_ in axes)
        if shape is None
        else tuple(length if size in (None, -1) else size for size in shape)
        for shape, axes in zip(shapes, unknown, strict=True)
    ]
    return structure.unflatten(bounded)


def _is_fixed(shapes: Any) -> bool:
    """Return whether `padded_shapes` leaves no axis open, however deep they are."""
    if _is_shape(shapes):
        return None not in shapes and -1 not in shapes
    parts = shapes.values() if isinstance(shapes, dict) else shapes if isinstance(shapes, (tuple, list)) else [None]
    return all(part is not None and _is_fixed(part) for part in parts)


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(entry is None or hasattr(entry, "__index__") for entry in value)


def _leaves_like(value: Any, structure: Structure) -> list[Any]:
    """Return the entries of `value` at the leaves of `structure`; they may be tuples (shapes) or None."""
    if structure.kind == "leaf":
        return [value]
    if structure.kind == "none":
        return []
    parts: list[Any] = []
    for name, child in zip(structure.names, structure.children, strict=True):
        try:
            part = getattr(value, name) if structure.kind == "class" else value[name]
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"expected one entry for each of {structure}, got {value!r}") from error
        parts.extend(_leaves_like(part, child))
    return parts
