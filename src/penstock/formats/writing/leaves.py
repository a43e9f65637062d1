"""The leaves of rows that are saved: the kind of each, and its name in formats with named columns."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt

from penstock.errors import ElementError, InvalidTypeError
from penstock.formats.plain_data import spec_of_data, spec_to_data, structure_to_data
from penstock.spec import LeafSpec, TensorSpec, merged, merged_specs, spec_of_leaf
from penstock.structure import Structure

Column = npt.NDArray[Any]
Columns = tuple[Column, ...]
Kind = Literal["numbers", "text", "bytes", "lists", "any"]

ONLY: Final = "value"
"""The name of a leaf that is a whole element."""


def names_of(structure: Structure) -> list[str]:
    """A name for each leaf: the keys and positions that lead to it, joined by dots.

    Raises:
        InvalidTypeError: two leaves would have the same name.
    """
    names = [".".join(steps) or ONLY for steps in steps_of(structure)]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidTypeError(f"two leaves would be saved under the name {twice[0]!r}: rename one of them")
    return names


def steps_of(structure: Structure) -> list[tuple[str, ...]]:
    """The keys and positions that lead to each leaf."""
    if structure.kind == "leaf":
        return [()]
    return [
        (str(name), *below)
        for name, child in zip(structure.names, structure.children, strict=True)
        for below in steps_of(child)
    ]


def kind_of(column: Column) -> Kind:
    """Return the kind of a column's rows.

    Raises:
        InvalidTypeError: Python objects that are neither strings nor bytes nor arrays of numbers, or strings of NumPy's
            StringDType.
    """
    if column.dtype.kind == "T":
        raise InvalidTypeError(
            f"this format cannot store values of dtype {column.dtype}: convert them by map, to objects"
        )
    if column.dtype.kind != "O":
        return {"U": "text", "S": "bytes"}.get(column.dtype.kind, "numbers")  # type: ignore[return-value]  # of those
    kinds = set(map(type, column.flat))
    if kinds <= {str, np.str_}:
        return "text"
    if kinds <= {bytes, np.bytes_}:
        return "bytes"
    if kinds == {np.ndarray} and not any(map(is_ragged, column.flat)):
        found = {kind_of(row) for row in column.flat}
        if len(found) == 1:
            return found.pop()
    named = ", ".join(sorted(kind.__name__ for kind in kinds))
    if kinds == {np.ndarray}:
        raise InvalidTypeError(
            f"this format cannot store objects of type {named} in arrays of arrays: convert them by map, or save in "
            "penstock's own format"
        )
    raise InvalidTypeError(
        f"this format cannot store objects of type {named}: convert them by map, to numbers, strings or bytes"
    )


def is_ragged(column: Column) -> bool:
    """True if each row is an array with its own shape."""
    return column.dtype == object and column.ndim == 1 and len(column) > 0 and isinstance(column[0], np.ndarray)


def dense(column: Column) -> Column:
    """A column of arrays of one shape as one array; any other column unchanged."""
    if is_ragged(column) and len({row.shape for row in column}) == 1 and column[0].dtype != object:
        return np.stack(list(column))
    return column


def _spec_of(column: Column, kind: Kind) -> LeafSpec:
    """The specification of the rows of a column."""
    if not is_ragged(column) and (column.dtype != object or column.ndim == 1):
        return TensorSpec(column.shape[1:], column.dtype)
    differing = {id(row) if row.dtype == object else (row.dtype, row.shape): row for row in column}
    return _covering(map(spec_of_leaf, differing.values()), kind)


def _covering(specs: Iterable[LeafSpec], kind: Kind) -> LeafSpec:
    """The specification that covers all of these; where any rows or lists can be saved, perhaps that of objects.

    Raises:
        ElementError: they have nothing in common.
    """
    try:
        return merged_specs(specs)
    except ElementError:
        if kind not in ("any", "lists"):
            raise
        return TensorSpec((), object)


def _add(specs: list[LeafSpec], spec: LeafSpec) -> None:
    """Add a specification, or extend the one that differs in the lengths of axes alone: there may be many of these."""
    for number, known in enumerate(specs):
        if (known.dtype, len(known.shape), known.ragged_rank) == (spec.dtype, len(spec.shape), spec.ragged_rank):
            specs[number] = merged(known, spec)
            return
    specs.append(spec)


@dataclass
class Leaves:
    """The leaves of the rows that a writer has received.

    Args:
        kind_of: gives the kind of a column's rows.

    Attributes:
        structure: of a row; None before the first.
        kinds: of the leaves.
        specs: for each leaf, the specifications of its rows so far.
    """

    kind_of: Callable[[Column], Kind] = kind_of
    structure: Structure | None = None
    kinds: list[Kind] = field(default_factory=list)
    specs: list[list[LeafSpec]] = field(default_factory=list)

    def note(self, columns: Columns, structure: Structure) -> None:
        """Note the leaves of rows.

        Raises:
            InvalidTypeError: Python objects that cannot be saved.
            ElementError: a leaf holds strings in some rows, and something else in others.
        """
        kinds = list(map(self.kind_of, columns))
        if self.structure is None:
            self.structure, self.kinds, self.specs = structure, kinds, [[] for _ in columns]
        _check_same(self.structure, self.kinds, kinds)
        for specs, column, kind in zip(self.specs, columns, kinds, strict=True):
            _add(specs, _spec_of(column, kind))

    def to_data(self) -> dict[str, Any]:
        """The structure, the kinds and the specifications as plain data."""
        structure = None if self.structure is None else structure_to_data(self.structure)
        return {
            "structure": structure,
            "kinds": self.kinds,
            "specs": [list(map(spec_to_data, specs)) for specs in self.specs],
        }


@dataclass(frozen=True)
class SavedLeaf:
    """The kind and the specification of a leaf of saved rows."""

    kind: Kind
    spec: LeafSpec

    def restored(self, values: Column) -> Column:
        """A column as it was saved, from what a format returns for it: perhaps of another dtype, or separate rows."""
        spec = self.spec
        if self.kind == "lists":
            return values
        if None in spec.shape or spec.ragged_rank:
            return _each(values, spec.dtype)
        if 0 in spec.shape:
            return np.empty((len(values), *(length or 0 for length in spec.shape)), spec.dtype)
        if values.dtype == object and values.ndim == 1 and spec.shape and len(values):
            values = np.stack([np.asarray(value, None if spec.dtype != object else object) for value in values])
        if self.kind != "numbers" and spec.dtype != object:
            return values.astype(spec.dtype)
        return values.reshape(len(values), *spec.shape).astype(spec.dtype, copy=False)


def _each(values: Column, dtype: np.dtype[Any]) -> Column:
    return np.fromiter((np.asarray(value).astype(dtype, copy=False) for value in values), object, len(values))


def merged_leaves(structure: Structure, shards: Sequence[Any]) -> list[SavedLeaf]:
    """The leaves of all shards, merged from the `Leaves.to_data` of each shard with rows.

    Raises:
        ElementError: they have nothing in common.
    """
    kinds: list[Kind] = [cast(Kind, kind) for kind in shards[0]["kinds"]]
    for shard in shards:
        _check_same(structure, kinds, shard["kinds"])
    specs = zip(*(shard["specs"] for shard in shards), strict=True)
    return [
        SavedLeaf(kind, _covering((spec_of_data(one) for several in found for one in several), kind))
        for kind, found in zip(kinds, specs, strict=True)
    ]


def _check_same(structure: Structure, expected: Sequence[str], found: Sequence[str]) -> None:
    for path, before, kind in zip(structure.paths(), expected, found, strict=True):
        if before != kind:
            raise ElementError(f"the leaf {path or 'of an element'} holds {before} in some rows, and {kind} in others")
