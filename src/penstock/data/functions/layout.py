"""What the results of one function have in common."""

import math
from contextlib import suppress
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, Final

import numpy as np

from penstock.data.functions.output_signature import Promise
from penstock.errors import ElementError, InvalidTypeError
from penstock.spec import TensorSpec, alike, as_leaf, of_rows_like
from penstock.structure import Structure, flatten

KINDS: Final = (
    "object stands for strings, bytes and other Python objects; an empty list takes the dtype of the lists before it, "
    "and counts as float64 where it comes first: give numpy.zeros(0, numpy.int64), say, or output_signature"
)


@dataclass(frozen=True)
class Layout:
    """What every result of one function must look like: its structure, and the dtype of each leaf.

    The shapes are those of the result it was taken from; others may differ. `scalars` tells which of its leaves were
    values without axes, and no arrays.
    """

    structure: Structure
    dtypes: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...] = field(compare=False)
    scalars: tuple[bool, ...] = field(compare=False)

    @staticmethod
    def of(value: Any, like: "Layout | None" = None) -> "Layout":
        """The layout of one result; its structure is that of `like`, the same object, if it is equal."""
        leaves, structure = _apart(value, like)
        if value is None:
            raise InvalidTypeError("the function returned None: does it lack a `return`?")
        if any(isinstance(leaf, GeneratorType) for leaf in leaves):
            raise InvalidTypeError(
                "the function returned a generator, which can be read once only: return a list or an array, or use "
                "flat_map with ps.Dataset.from_generator"
            )
        leaves = [as_leaf(leaf) for leaf in leaves]
        if like is not None and structure is like.structure:
            leaves = like.typed(leaves)
        shapes = tuple(leaf.shape if isinstance(leaf, (np.ndarray, np.generic)) else () for leaf in leaves)
        scalars = tuple(not isinstance(leaf, np.ndarray) for leaf in leaves)
        return Layout(structure, tuple(map(dtype_of_leaf, leaves)), shapes, scalars)

    @staticmethod
    def promised(promise: Promise | None) -> "Layout | None":
        """The layout of results whose shapes and dtypes were promised; None where some are not known."""
        if promise is None:
            return None
        shapes, dtypes = [], []
        for spec in promise.leaves:
            if not isinstance(spec, TensorSpec) or spec.assumed or spec.dtype.kind not in "biufc" or None in spec.shape:
                return None
            shapes.append(tuple(length for length in spec.shape if length is not None))
            dtypes.append(spec.dtype)
        return Layout(promise.structure, tuple(dtypes), tuple(shapes), tuple(not shape for shape in shapes))

    @property
    def nbytes(self) -> int:
        """How many bytes a result holds, if it has the shapes of the first."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in zip(self.shapes, self.dtypes, strict=True))

    @property
    def untold(self) -> bool:
        """Whether a leaf was an empty list, which does not tell what those of other results are."""
        return any(shape == (0,) and dtype == np.float64 for shape, dtype in zip(self.shapes, self.dtypes, strict=True))

    def typed(self, leaves: list[Any]) -> list[Any]:
        """Leaves of a result, of which empty lists take the dtype of those before."""
        return list(map(of_rows_like, leaves, self.dtypes, self.shapes))

    def check(self, other: "Layout") -> None:
        """Raise an ElementError if the other layout differs from this one, but for the width of fixed-width strings."""
        if self == other:
            return
        same = self.structure == other.structure and all(
            alike(a, b) for a, b in zip(self.dtypes, other.dtypes, strict=True)
        )
        if not same:
            raise ElementError(
                f"the function returned {other} after it had returned {self}; return one kind of element ({KINDS})"
            )

    def __str__(self) -> str:
        return self.structure.shown([str(dtype) for dtype in self.dtypes])


def _apart(value: Any, like: Layout | None) -> tuple[list[Any], Structure]:
    if like is not None:
        with suppress(ElementError):
            return like.structure.flatten_like(value), like.structure
    return flatten(value)


def dtype_of_leaf(leaf: Any) -> np.dtype[Any]:
    """The dtype of a leaf; of strings and other objects `object`."""
    return leaf.dtype if isinstance(leaf, (np.ndarray, np.generic)) else np.dtype(object)
