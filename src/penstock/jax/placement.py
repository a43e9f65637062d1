"""Global arrays from the rows that this process has read."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from penstock.distribute.feed.steps import StepLeaf
from penstock.distribute.jax.device_dtypes import check_byte_order, check_width
from penstock.distribute.jax.devices import moving_explicitly
from penstock.distribute.values import PerReplica
from penstock.errors import ElementError
from penstock.jax.shardings import check_divides, is_text
from penstock.statistics.tracing import span


class MeshPlacement:
    """Puts the rows of a step on this process's devices, as parts of global arrays.

    Args:
        shardings: those of the leaves; the last one is that of the mask, which padded steps have after their leaves,
            and of all further leaves.
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
        self._index_of_slice = {number: index for index, number in enumerate(held)}
        self._check = lru_cache(maxsize=256)(self._check_leaf)  # once where steps are alike

    @moving_explicitly
    def __call__(self, leaves: list[StepLeaf], even: bool) -> list[Any]:
        """One global array for each leaf; strings and objects stay in host memory, as the rows of this process.

        Raises:
            ElementError: the slices are not all of one shape, or an axis is not divided evenly.
        """
        if not even:
            shapes = sorted({rows.shape for leaf in leaves for rows in leaf.slices})
            raise ElementError(
                f"ps.jax.loader: a batch cannot be cut into {self._parts} slices of one shape, which global arrays "
                f'need; slices here have the shapes {shapes}: use ps.InputOptions(partial_batch="pad") or "drop", '
                "and let a function given as collate pad its results"
            )
        with span("copy to the devices"):
            arrays = [self._placed(number, leaf) for number, leaf in enumerate(leaves)]
        # Of a single slice the caller hands out the only value.
        return [PerReplica([array]) for array in arrays] if self._parts == 1 else arrays

    def _placed(self, number: int, leaf: StepLeaf) -> Any:
        rows = leaf.whole if leaf.whole is not None else np.concatenate(leaf.slices)
        if is_text(rows):
            return rows
        if rows.dtype.itemsize >= 8:  # JAX may keep fewer bits
            check_width("a batch", rows)
            rows = rows.astype(jax.dtypes.canonicalize_dtype(rows.dtype), copy=False)
        sharding, slice_rows = self._sharding_of(number), len(leaf.slices[0])
        shape = (slice_rows * self._parts, *rows.shape[1:])
        self._check(number, shape, rows.dtype)

        def on_device(index: Any) -> Any:
            start, stop, _ = index[0].indices(shape[0])
            first = self._index_of_slice[start // slice_rows] * slice_rows if slice_rows else 0
            return rows[slice(first, first + stop - start), *index[1:]]

        return jax.make_array_from_callback(shape, sharding, on_device)

    def _sharding_of(self, number: int) -> NamedSharding:
        return self._shardings[min(number, len(self._shardings) - 1)]

    def _check_leaf(self, number: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Refuse arrays whose bytes are in another order, or with an axis that their sharding does not divide."""
        path = self._paths[number] if number < len(self._paths) else ""
        where = f"the leaf at {path}" if path else "the batch"
        check_byte_order(f"ps.jax.loader: {where}", dtype)
        for axis in range(1, len(shape)):
            check_divides(self._sharding_of(number), axis, shape[axis], where)
