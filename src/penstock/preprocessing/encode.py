"""Indices as vectors: one_hot, multi_hot and count."""

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.integer[Any]]


def encode(indices: Indices, mode: str, depth: int, leading: int = 0, weights: Any = None) -> Floats:
    """The vectors of length `depth` for these indices; indices outside of it are ignored.

    "one_hot" gives a vector for each index, which replaces a last axis of length 1. "multi_hot" and "count" give one
    for all indices along the last axis.

    Args:
        leading: the number of axes that only count the rows of a block.
        weights: of the indices, for "count".

    Example:
        >>> import numpy as np
        >>> encode(np.array([[0, 1, 1], [2, 2, 2]]), "count", depth=3).tolist()
        [[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]]
    """
    axes = indices.ndim - leading
    if mode == "one_hot":
        if axes > 1 and indices.shape[-1] == 1:
            indices = indices[..., 0]
        indices = indices[..., None]
    elif axes == 0:
        indices = indices[..., None]
    *shape, samples = indices.shape
    count = int(np.prod(shape))
    rows = np.repeat(np.arange(count), samples)
    return encode_rows(rows, indices.reshape(-1), mode, count, depth, weights).reshape(*shape, depth)


def encode_rows(
    rows: npt.NDArray[np.int64], indices: Indices, mode: str, count: int, depth: int, weights: Any = None
) -> Floats:
    """`count` vectors; `rows` has the number of each index's vector."""
    output = np.zeros(count * depth, np.float32)
    inside = (indices >= 0) & (indices < depth)
    places = rows[inside] * depth + indices[inside]
    if mode in ("count", "tf_idf"):  # the layer multiplies counts by weights
        np.add.at(output, places, np.float32(1) if weights is None else weights.reshape(-1)[inside])
    else:
        output[places] = 1
    return output.reshape(count, depth)
