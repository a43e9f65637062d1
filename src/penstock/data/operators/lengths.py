"""with_lengths: the length of each element, known without reading it."""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.data.block import Indices
from penstock.data.node import DependsOn, Node, Run, SameElements, derived
from penstock.data.streams.index_reading import Reading
from penstock.data.streams.stream import Stream
from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.runtime.threads import Threads
from penstock.spec import TensorSpec
from penstock.structure import leaf_of

_MOST: Final = (1 << 32) - 1
"""The largest length that is kept: four bytes for each element."""
_PIECE: Final = 1 << 20
"""The lengths that are in memory at a time while a digest of all is made."""


class WithLengths(SameElements, name="with_lengths"):
    """The elements of the input, whose lengths are the elements of `of`, by the same positions."""

    depends_on = DependsOn.ALL  # of a part of the elements they would be those of others
    of: Node = field(repr=False)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.input, self.of

    @property
    def spec_inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    @derived
    def has_lengths(self) -> bool:
        return self.input.indexable

    @cached_property
    def digest(self) -> str:
        """A digest of all lengths."""
        run, found = Run(self.of, 0, Threads()), hashlib.blake2b(digest_size=8)
        for start in range(0, self.of.cardinality, _PIECE):
            rows = range(start, min(start + _PIECE, self.of.cardinality))
            found.update(self.lengths_at(run, 0, rows).tobytes())
        return found.hexdigest()

    def lengths_at(self, run: Run, epoch: int, indices: Indices) -> npt.NDArray[np.int64]:
        return self.of.read(run, epoch, indices).columns[0].astype(np.int64)

    def stream(self, run: Run, epoch: int) -> Stream:
        return self.input.open(run, epoch)


class WithKnownSizes(SameElements):
    """Pairs of an element and its length, which is known without reading it, as `WithCosts` makes them."""

    depends_on = DependsOn.ANY
    call: str = field(default="", repr=False, kw_only=True)
    """The method that takes lengths."""
    divides: bool = field(default=False, repr=False, kw_only=True)
    """Whether lengths decide which rows are in a batch, so that a state is one of these lengths only."""

    @property
    def name(self) -> str:  # type: ignore[override]  # elsewhere it is that of a class
        return self.call

    @property
    def identity(self) -> dict[str, Any] | None:
        known = [node.digest for node in self.walk() if isinstance(node, WithLengths)] if self.divides else []
        return {"lengths": known} if known else None

    def spec_over(self, *inputs: Any) -> Any:
        return inputs[0], TensorSpec((None,), np.float64)

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        block = yield from self.input.reading(run, epoch, indices)
        return block.beside(self.input.lengths_at(run, epoch, indices).astype(np.float64)[:, None])


@dataclass(frozen=True)
class LeafLength:
    """A function for `map` that gives the length of a leaf, or its value if it is a number.

    Args:
        leaf: its name; None: the element is the leaf.
        call: the argument that names it, for errors.
    """

    leaf: str | None
    call: str = "with_lengths(lengths)"

    def __call__(self, *element: Any) -> Any:
        """Return the length of an element."""
        value: Any = element[0] if len(element) == 1 else element
        if self.leaf is not None or isinstance(value, (dict, tuple)):
            value = leaf_of(f"{self.call[:-1]}={self.leaf!r})", value, self.leaf)
        return len(value) if isinstance(value, (str, bytes)) or np.ndim(value) else value


def as_length(length: Any) -> np.uint32:
    """Return a length as it is kept.

    Raises:
        ElementError: it is no integer, or negative, or too large.
    """
    if getattr(length, "dtype", np.dtype(object)).kind not in "iu" or not 0 <= length <= _MOST:
        raise ElementError(f"with_lengths: a length must be an integer from 0 to {_MOST:,}, got {length!r:.200}")
    return np.uint32(length)


def check_lengths(node: Node, lengths: Node, spec: Any) -> None:
    """Refuse lengths of this specification that do not belong to the elements of a node.

    Raises:
        InvalidArgumentError: they are more or fewer, or have no order by number.
        InvalidTypeError: they are no integers.
    """
    if lengths.cardinality and (not isinstance(spec, TensorSpec) or spec.shape or spec.dtype.kind not in "iu"):
        raise InvalidTypeError(f"with_lengths(lengths=...) takes integers along one axis, got {spec}")
    if not lengths.indexable or lengths.cardinality != node.cardinality:
        raise InvalidArgumentError(
            f"with_lengths(lengths=...) takes a length for each of the {node.cardinality:,} elements of "
            f"{node.where()}, got {lengths.cardinality:,}"
        )
