"""Unknown axes of leaves: those whose length differs from element to element."""

from collections.abc import Sequence
from typing import Any

from penstock.structure import flatten

_VARIES = -1


class UnknownAxes:
    """The unknown axes of a dataset's elements: by its specification, or without one, by the elements seen so far.

    The results of a function have no specification. Then an axis counts as unknown once two elements differ in it, or
    while its length has equalled that of the sequence in every element.

    Args:
        spec: the specification of the elements; None if it is unknown without reading one.
    """

    def __init__(self, spec: Any) -> None:
        self._declared = spec is not None
        self._unknown = [[length is None for length in leaf.shape] for leaf in flatten(spec)[0]] if spec else []
        # By leaf and axis: the length that all elements had, or _VARIES; and whether it was always the sequence's.
        self._seen: list[list[tuple[int, bool]]] = []

    def meet(self, leaves: Sequence[Any], length: int) -> None:
        """Note the shapes of the leaves of an element whose sequence has this length."""
        if self._declared:
            return
        shapes = [getattr(leaf, "shape", ()) for leaf in leaves]
        if not self._seen:
            self._seen = [[(size, size == length) for size in shape] for shape in shapes]
            return
        self._seen = [
            [
                (before if before == size else _VARIES, sequence and size == length)
                for (before, sequence), size in zip(seen, shape, strict=False)
            ]
            for seen, shape in zip(self._seen, shapes, strict=True)
        ]

    def unknown(self) -> list[list[bool]]:
        """For each leaf, whether each of its axes is unknown."""
        if self._declared:
            return self._unknown
        return [[size == _VARIES or sequence for size, sequence in leaf] for leaf in self._seen]

    def state(self) -> Any:
        """Return the lengths seen so far, as plain data."""
        return [[list(axis) for axis in leaf] for leaf in self._seen]

    def restore(self, state: Any) -> None:
        """Continue from a state."""
        self._seen = [[(size, sequence) for size, sequence in leaf] for leaf in state]
