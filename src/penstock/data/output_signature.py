"""`output_signature`: the promise about each row that a user's function or generator makes, and its check."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from penstock.errors import ElementError
from penstock.spec import LeafSpec, covers, fitted, spec_of_leaf
from penstock.structure import Structure, flatten


@dataclass(frozen=True)
class RowSource:
    """A maker of rows, with the errors that it raises.

    Attributes:
        unlike: the error of a row that is unlike those before it.
        unfit: the error of a row that does not fit `output_signature`.
    """

    unlike: str
    unfit: str


FUNCTION: Final = RowSource(
    "the function returned {found} after it had returned {known}; return one kind of element, of one structure and one "
    "dtype (object stands for strings, bytes and other Python objects; an empty list takes the dtype of the lists "
    "before it, and counts as float64 where it comes first: give numpy.zeros(0, numpy.int64), say, or "
    "output_signature)",
    "the function returned a result that does not fit output_signature: expected {expected}, got {found}",
)
GENERATOR: Final = RowSource(
    "the generator yielded {found} after {known}; all its elements must be of one kind, which output_signature can "
    "declare",
    "the generator yielded an element that does not fit output_signature: expected {expected}, got {found}",
)


@dataclass(frozen=True)
class OutputSignature:
    """The structure of every row, and the specification of each leaf."""

    structure: Structure
    leaves: tuple[LeafSpec, ...]
    source: RowSource

    def check_structure(self, structure: Structure) -> None:
        """Raise an ElementError if a row is of another structure."""
        if structure != self.structure:
            raise ElementError(
                self.source.unfit.format(expected=self.structure, found=f"{structure}, another structure")
            )

    def fitted(self, number: int, leaf: Any) -> Any:
        """A leaf, by its number, of which Python numbers and lists take the promised dtype.

        Raises:
            ElementError: it is not as promised.
        """
        spec = self.leaves[number]
        leaf = fitted(spec, leaf)
        found = spec_of_leaf(leaf)
        if not covers(spec, found):
            path = self.structure.paths()[number]
            expected = f"{spec}{' at ' + path if path else ''}"
            raise ElementError(self.source.unfit.format(expected=expected, found=found))
        return leaf

    def allows_shape(self, number: int, shape: tuple[int, ...]) -> bool:
        """Return whether an array of the promised dtype may have this shape."""
        axes, lengths = self._known_lengths[number]
        return len(shape) == axes and (not lengths or all(shape[axis] == length for axis, length in lengths))

    @cached_property
    def _known_lengths(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """For each leaf, the number of its axes, and the length of each axis that has a promised one."""
        shapes = [leaf.shape for leaf in self.leaves]
        return [(len(shape), [(n, length) for n, length in enumerate(shape) if length is not None]) for shape in shapes]


class HasOutputSignature:
    """A node whose function may have an `output_signature`, which then specifies its elements."""

    source = FUNCTION
    output_signature: Any

    @property
    def spec(self) -> Any:
        return self.output_signature

    @property
    def spec_from_call(self) -> bool:
        return self.output_signature is None

    @cached_property
    def signature(self) -> OutputSignature | None:
        """Return the signature for the check of rows; None if nothing is promised."""
        if self.output_signature is None:
            return None
        leaves, structure = flatten(self.output_signature)
        return OutputSignature(structure, tuple(leaves), self.source)
