"""The layout that all rows of one function or generator have in common."""

import math
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import GeneratorType
from typing import Any, Final

import numpy as np

from penstock.data.output_signature import FUNCTION, OutputSignature, RowSource
from penstock.errors import ElementError, InvalidTypeError
from penstock.spec import Array, alike, as_leaf, of_rows_like
from penstock.structure import Structure, flatten

_MOST_ROWS: Final = 1 << 16
_MOST_BYTES: Final = 1 << 30


class Unlike:
    """Stands for the type of a leaf that is checked in each row: no value has this type."""


@dataclass(frozen=True)
class Layout:
    """The structure of every row, and the dtype of each leaf.

    Attributes:
        structure: of each row.
        dtypes: for each leaf.
        shapes: of the leaves of the row from which this was taken; those of others may differ.
        kinds: the types of that row's leaves, before conversion.
        signature: the promised `output_signature` of the rows.
        source: makes the rows.
    """

    structure: Structure
    dtypes: tuple[np.dtype[Any], ...]
    shapes: tuple[tuple[int, ...], ...] = field(compare=False)
    kinds: tuple[type, ...] = field(compare=False)
    signature: OutputSignature | None = field(default=None, compare=False)
    source: RowSource = field(default=FUNCTION, compare=False)

    @staticmethod
    def of(
        value: Any, signature: OutputSignature | None = None, source: RowSource = FUNCTION, like: "Layout | None" = None
    ) -> "Layout":
        """The layout of one row; its structure is that of `like`, the same object, if it is equal.

        Raises:
            InvalidTypeError: a function has returned None, or a generator.
            ElementError: the row does not fit the signature, or a leaf is nothing that a dataset holds.
        """
        came, structure = _taken_apart(value, like)
        if source is FUNCTION:
            _check_result(value, came)
        if signature is None:
            leaves = [as_leaf(leaf) for leaf in came]
        else:
            signature.check_structure(structure)
            structure = signature.structure if like is None else structure
            leaves = [signature.fitted(number, leaf) for number, leaf in enumerate(came)]
        if like is not None and structure is like.structure:
            leaves = list(map(of_rows_like, leaves, like.dtypes, like.shapes))
        shapes = tuple(leaf.shape if isinstance(leaf, (np.ndarray, np.generic)) else () for leaf in leaves)
        return Layout(structure, tuple(map(dtype_of_leaf, leaves)), shapes, tuple(map(type, came)), signature, source)

    @property
    def nbytes(self) -> int:
        """Return how many bytes a row holds, if it has the shapes of the first."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in zip(self.shapes, self.dtypes, strict=True))

    @cached_property
    def most_rows(self) -> int:
        """Return how many rows a block may have: fewer if they are huge."""
        return max(1, min(_MOST_ROWS, _MOST_BYTES // max(1, self.nbytes)))

    @property
    def untold(self) -> bool:
        """Return whether a leaf was an empty list, so that the dtype of other rows is unknown."""
        return any(shape == (0,) and dtype == np.float64 for shape, dtype in zip(self.shapes, self.dtypes, strict=True))

    @cached_property
    def quick_kinds(self) -> tuple[type, ...]:
        """The types of the leaves, as far as values of them need no check."""
        return tuple([kind if self.quick(number, kind) else Unlike for number, kind in enumerate(self.kinds)])

    def quick(self, number: int, kind: type) -> bool:
        """Return whether values of a type need no check as this leaf.

        Those are arrays, whose dtype and shape suffice, and immutable values that can be converted to a column together
        as well as one by one.
        """
        dtype = self.dtypes[number]
        if kind is np.ndarray:
            return dtype.kind in "biufc"
        if self.shapes[number]:
            return False
        if kind in (str, bytes):
            return dtype.kind == "O"
        if kind is bool:
            return dtype.kind == "b"
        if kind is int:
            return dtype == np.int64 if self.signature is None else dtype.kind in "iuf"
        if kind is float:
            return dtype == np.float32 if self.signature is None else dtype.kind == "f"
        return issubclass(kind, np.generic) and dtype.kind in "biufc" and np.dtype(kind) == dtype

    def takes_array(self, number: int, array: Array) -> bool:
        """Return whether an array needs no other check as this leaf."""
        if array.dtype != self.dtypes[number]:
            return False
        signature = self.signature
        return signature is None or array.shape == self.shapes[number] or signature.allows_shape(number, array.shape)

    def check(self, other: "Layout") -> None:
        """Raise an ElementError if the other layout differs from this one, but for the width of fixed-width strings."""
        if self.structure != other.structure or not all(map(alike, self.dtypes, other.dtypes)):
            raise ElementError(self.source.unlike.format(found=other, known=self))

    def leaves_of(self, value: Any) -> tuple[list[Any], list[Any]]:
        """Return the leaves of a row before and after conversion.

        Raises:
            ElementError: it is not of this layout, or does not fit the signature.
        """
        try:
            came = self.structure.flatten_like(value)
        except ElementError:
            self.check(Layout.of(value, self.signature, self.source))
            raise
        leaves = [self.leaf(number, leaf) for number, leaf in enumerate(came)]
        if not all(map(alike, map(dtype_of_leaf, leaves), self.dtypes)):
            self.check(Layout.of(value, self.signature, self.source))
        return came, leaves

    def leaf(self, number: int, came: Any) -> Any:
        """Convert one leaf of a row, without a check that its dtype is that of the layout."""
        leaf = as_leaf(came) if self.signature is None else self.signature.fitted(number, came)
        return of_rows_like(leaf, self.dtypes[number], self.shapes[number])

    def __str__(self) -> str:
        return self.structure.shown([str(dtype) for dtype in self.dtypes])


def _taken_apart(value: Any, like: Layout | None) -> tuple[list[Any], Structure]:
    if like is not None:
        with suppress(ElementError):
            return like.structure.flatten_like(value), like.structure
    return flatten(value)


def _check_result(value: Any, leaves: list[Any]) -> None:
    if value is None:
        raise InvalidTypeError("the function returned None: does it lack a `return`?")
    if any(isinstance(leaf, GeneratorType) for leaf in leaves):
        raise InvalidTypeError(
            "the function returned a generator, which can be read once only: return a list or an array, or use "
            "flat_map with ps.Dataset.from_generator"
        )


def dtype_of_leaf(leaf: Any) -> np.dtype[Any]:
    """The dtype of a leaf; of strings and other objects `object`."""
    return leaf.dtype if isinstance(leaf, (np.ndarray, np.generic)) else np.dtype(object)
