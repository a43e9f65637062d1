"""Steps in host memory: what each local replica gets before it is placed, and steps filled up to one size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.data.node import Node
from penstock.distribute.control.messages import RowShape
from penstock.distribute.feed.shards import gives_batches
from penstock.errors import ElementError
from penstock.spec import LeafSpec
from penstock.structure import LEAF, PAIR, Structure, flatten

Sizes = list[tuple[int, ...]]
"""The rows of each replica, per worker."""
Layout = tuple[RowShape, ...]
"""Dtype, and shape without the rows, of each leaf."""


@dataclass(frozen=True)
class StepLeaf:
    """One leaf of a step.

    Attributes:
        slices: the rows of each local replica.
        whole: the rows of all local replicas as one array, where they are contiguous in memory.
    """

    slices: list[Any]
    whole: Any | None = None


@dataclass(frozen=True)
class HostStep:
    """One step of this worker.

    Attributes:
        structure: the structure of an element.
        leaves: one entry per leaf.
        sizes: the rows of each local replica.
        all_sizes: the rows of each replica of all workers, where this worker knows them.
    """

    structure: Structure
    leaves: list[StepLeaf]
    sizes: tuple[int, ...]
    all_sizes: tuple[int, ...] | None = None

    @property
    def regular(self) -> bool:
        """Return whether the local replicas agree in shapes without the rows, as the slices of one batch do."""
        return all(leaf.whole is not None or len({rows.shape[1:] for rows in leaf.slices}) == 1 for leaf in self.leaves)

    def first_rows(self, count: int) -> "HostStep":
        """The first `count` rows of each local replica; a step of this worker alone."""
        if set(self.sizes) == {count}:
            return self
        leaves = [StepLeaf([rows[:count] for rows in leaf.slices]) for leaf in self.leaves]
        return HostStep(self.structure, leaves, (count,) * len(self.sizes))

    def layout(self) -> tuple[RowShape, ...]:
        """Dtype and shape without the rows of every leaf, if all replicas agree in them."""
        return tuple(_layout(leaf.slices) for leaf in self.leaves)


def _layout(slices: Sequence[Any]) -> RowShape:
    shapes = {rows.shape[1:] for rows in slices}
    return RowShape(str(slices[0].dtype), shapes.pop() if len(shapes) == 1 else None)


@dataclass(frozen=True)
class Template:
    """Dtypes and shapes of a batch, for making empty batches for replicas without data."""

    structure: Structure
    leaves: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]

    @classmethod
    def of(cls, leaves: list[Any], structure: Structure) -> "Template":
        """The template of a batch."""
        return cls(structure, tuple((leaf.dtype, leaf.shape[1:]) for leaf in leaves))

    @classmethod
    def of_spec(cls, spec: Any) -> "Template":
        """The template of batches of a specification; lengths that it leaves open are 0."""
        leaves, structure = flatten(spec)
        return cls(structure, tuple(map(_without_rows, leaves)))

    def empty(self) -> list[Any]:
        """The leaves of a batch without rows."""
        return [np.empty((0, *shape), dtype) for dtype, shape in self.leaves]

    def step(self, replicas: int) -> HostStep:
        """A step without rows for this number of replicas."""
        return HostStep(self.structure, [StepLeaf([leaf] * replicas, leaf) for leaf in self.empty()], (0,) * replicas)


def _without_rows(spec: LeafSpec) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and the shape, after the rows, of the arrays that hold such a leaf."""
    lengths = spec.shape[1 : spec.ragged_rank or None]
    return np.dtype(object) if spec.ragged_rank else spec.dtype, tuple(length or 0 for length in lengths)


def rows_of(leaves: list[Any], structure: Structure) -> int:
    """The leading length that all leaves of a batch share.

    Raises:
        ElementError: a leaf without one, leaves that differ in it, or no leaves.
    """
    rows: int | None = None
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, np.ndarray) or leaf.ndim == 0:
            raise unbatched(structure.paths()[number], beside_rows=any(map(np.ndim, leaves)))
        if rows is None:
            rows = len(leaf)
        elif len(leaf) != rows:
            raise unequal(structure, [len(array) for array in leaves])
    if rows is None:
        raise ElementError(f"a distributed batch must have at least one array, got an element of structure {structure}")
    return rows


def check_spec(spec: Any, node: Node) -> None:
    """Refuse the elements of a node if they are not batches, where their specification is known."""
    if spec is None:
        return
    leaves, structure = flatten(spec)
    for path, leaf in zip(structure.paths(), leaves, strict=True):
        if len(leaf.shape) == 0:
            raise unbatched(path, beside_rows=gives_batches(node) and any(other.shape for other in leaves))
    lengths = [leaf.shape[0] for leaf in leaves]
    if len(set(lengths) - {None}) > 1:
        raise unequal(structure, lengths)


def unequal(structure: Structure, lengths: Sequence[int | None]) -> ElementError:
    """The error for leaves that differ in length."""
    rows = ", ".join(f"{path}: {length}" for path, length in zip(structure.paths(), lengths, strict=True))
    return ElementError(
        f"all leaves of a distributed batch must have the same number of rows, got {rows}: elements that are single "
        "rows need .batch(global_batch_size), and a function that puts the rows of a batch together is given to the "
        "loader, or to distribute_dataset, as collate=..."
    )


def unbatched(path: str, *, beside_rows: bool = False) -> ElementError:
    """The error for elements that are not batches; `beside_rows` says that other leaves seem to have rows."""
    problem = f"training takes batches, but elements of the dataset hold a scalar{' at ' + path if path else ''}"
    if beside_rows:
        return ElementError(
            f"{problem} beside the rows of other leaves: give it a value for each row, as by np.full(len(rows), "
            "value); elements that are single rows need .batch(global_batch_size)"
        )
    return ElementError(
        f"{problem}: add .batch(global_batch_size) to the dataset, or the batch size per replica "
        "inside distribute_datasets_from_function"
    )


class Padding:
    """Fills up the slices of one pass; it knows from earlier steps what rows of objects are like."""

    def __init__(self) -> None:
        self._fillings: dict[int, Any] = {}

    def __call__(self, step: HostStep, rows: int) -> HostStep:
        """The step with every slice padded to `rows` rows, paired with a mask that is True for real rows.

        Raises:
            ElementError: the replicas' slices differ in other axes.
        """
        masks = [np.arange(rows) < size for size in step.sizes]
        leaves = [self._filled(number, leaf, step.sizes, rows) for number, leaf in enumerate(step.leaves)]
        mask = StepLeaf(masks, np.concatenate(masks))
        return HostStep(PAIR.nested([step.structure, LEAF]), [*leaves, mask], (rows,) * len(step.sizes))

    def _filled(self, number: int, leaf: StepLeaf, sizes: tuple[int, ...], rows: int) -> StepLeaf:
        filling = self._filling(number, leaf.slices)
        if all(size == rows for size in sizes):
            return leaf
        shapes = {part.shape[1:] for part in leaf.slices}
        if len(shapes) > 1:
            raise ElementError(
                f'partial_batch="pad" fills up rows, but the replicas\' batches differ in their other axes: '
                f"{sorted(shapes)}; use padded_batch(padded_shapes=...) in the dataset"
            )
        whole = np.empty((rows * len(sizes), *shapes.pop()), leaf.slices[0].dtype)
        whole.fill(filling)
        parts = [whole[number * rows : (number + 1) * rows] for number in range(len(sizes))]
        for part, real, size in zip(parts, leaf.slices, sizes, strict=True):
            part[:size] = real
        return StepLeaf(parts, whole)

    def _filling(self, number: int, parts: list[Any]) -> Any:
        """The value of padding: 0; of objects "" or b"" where the rows are strings, an empty row where they are arrays.

        Until a row was seen, objects are taken for strings.
        """
        if parts[0].dtype.kind != "O":
            return np.zeros((), parts[0].dtype)
        if number not in self._fillings:
            sample = next((part.flat[0] for part in parts if part.size), None)
            if sample is None:
                return ""
            self._fillings[number] = _filling_like(sample)
        return self._fillings[number]


def _filling_like(sample: Any) -> Any:
    if isinstance(sample, np.ndarray):
        return np.zeros((0, *sample.shape[1:]) if sample.ndim else (), sample.dtype)
    return type(sample)() if isinstance(sample, (str, bytes)) else None
