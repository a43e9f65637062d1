"""Global arrays from the rows that this process has read."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from penstock.distribute.feed.steps import StepLeaf
from penstock.distribute.jax.device_dtypes import check_width
from penstock.distribute.values import PerReplica
from penstock.errors import ElementError
from penstock.jax.shardings import check_divides


class MeshPlacement:
    """Puts the rows of a step on this process's devices, as parts of global arrays.

    Args:
        shardings: those of the leaves; the last one is that of the mask, which padded steps have after their leaves.
        paths: where in an element the leaves are, for errors.
        parts: the number of slices of a batch.
        held: the numbers of those that this process has, in order.
    """

    def __init__(
        self, shardings: Sequence[NamedSharding], paths: Sequence[str], parts: int, held: Sequence[int]
    ) -> None:
        self._shardings = list(shardings)
        self._paths = list(paths)
        self._parts = parts
        self._places = {number: place for place, number in enumerate(held)}
        self._size = lru_cache(maxsize=256)(self._checked_size)  # of one size where steps are alike

    def __call__(self, leaves: list[StepLeaf], even: bool) -> list[Any]:
        """One global array for each leaf.

        Raises:
            ElementError: the slices are not all of one shape, or an axis is not divided evenly.
        """
        if not even:
            shapes = sorted({rows.shape for leaf in leaves for rows in leaf.slices})
            raise ElementError(
                f"ps.jax.loader: a batch cannot be cut into {self._parts} slices of one shape, which global arrays "
                f'need; slices here have the shapes {shapes}: use ps.InputOptions(partial_batch="pad") or "drop"'
            )
        arrays = [self._placed(number, leaf) for number, leaf in enumerate(leaves)]
        # Of a single slice the caller hands out the only value.
        return [PerReplica([array]) for array in arrays] if self._parts == 1 else arrays

    def _placed(self, number: int, leaf: StepLeaf) -> jax.Array:
        rows = leaf.whole if leaf.whole is not None else np.concatenate(leaf.slices)
        check_width("a batch", rows)
        shape = (len(leaf.slices[0]) * self._parts, *rows.shape[1:])
        size = self._size(number, shape)

        def of_device(index: Any) -> Any:
            start, stop, _ = index[0].indices(shape[0])
            first = self._places[start // size] * size if size else 0
            return rows[(slice(first, first + stop - start), *index[1:])]

        # Faster than `device_put`, which slices the array in Python.
        return jax.make_array_from_callback(shape, self._shardings[number], of_device)

    def _checked_size(self, number: int, shape: tuple[int, ...]) -> int:
        """The rows of a slice; the first time that a leaf has this shape, the sharding must divide it."""
        for axis in range(1, len(shape)):
            path = self._paths[number] if number < len(self._paths) else ""
            check_divides(self._shardings[number], axis, shape[axis], f"the leaf at {path}" if path else "the batch")
        return shape[0] // self._parts
