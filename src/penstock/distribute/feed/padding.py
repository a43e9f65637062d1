"""Slices that are filled up to one number of rows, with a mask of the real ones."""

from typing import Any

import numpy as np

from penstock.distribute.feed.steps import HostStep, StepLeaf
from penstock.errors import ElementError
from penstock.structure import LEAF, PAIR


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
