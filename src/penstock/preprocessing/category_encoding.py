"""CategoryEncoding: integers as one-hot, multi-hot or count vectors."""

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer
from penstock.preprocessing.encode import Floats, encode
from penstock.preprocessing.layer import ArrayLayer, as_floats, check_choice


class CategoryEncoding(ArrayLayer):
    """Integers from 0 to `num_tokens` - 1 as vectors of that length.

    Args:
        num_tokens: the length of a vector. Integers outside the range are ignored.
        output_mode: "one_hot" for each integer; "multi_hot" or "count" for all integers along the last axis.

    Raises:
        InvalidArgumentError: no tokens, or an unknown output mode.

    Example:
        >>> CategoryEncoding(num_tokens=4, output_mode="one_hot")([3, 2, 0])
        array([[0., 0., 0., 1.],
               [0., 0., 1., 0.],
               [1., 0., 0., 0.]], dtype=float32)
        >>> layer = CategoryEncoding(num_tokens=4, output_mode="count")
        >>> layer([[0, 1], [0, 0]], count_weights=[[0.1, 0.2], [0.1, 0.1]])
        array([[0.1, 0.2, 0. , 0. ],
               [0.2, 0. , 0. , 0. ]], dtype=float32)
    """

    def __init__(self, num_tokens: int, output_mode: str = "multi_hot") -> None:
        self.num_tokens = check_integer("CategoryEncoding", "num_tokens", num_tokens, minimum=1)
        modes = ("one_hot", "multi_hot", "count")
        self.output_mode = check_choice("CategoryEncoding", "output_mode", output_mode, modes)

    def __call__(self, inputs: Any, count_weights: Any = None) -> Floats:
        """The vectors of these integers; `count_weights`, of the same shape, is the weight of each."""
        return self._transform(inputs, count_weights, leading=0)

    def _transform(self, inputs: Any, count_weights: Any = None, *, leading: int) -> Floats:
        indices = _integers(inputs)
        if count_weights is None:
            return encode(indices, self.output_mode, self.num_tokens, leading)
        if self.output_mode != "count":
            raise InvalidArgumentError(f"count_weights needs output_mode='count', this layer's is {self.output_mode!r}")
        weights = as_floats("count_weights", count_weights)
        if weights.shape != indices.shape:
            raise InvalidArgumentError(
                f"count_weights must have the inputs' shape {indices.shape}, got {weights.shape}"
            )
        return encode(indices, "count", self.num_tokens, leading, weights)


def _integers(inputs: Any) -> Any:
    indices = np.asarray(inputs)
    if indices.dtype.kind in "iu" or indices.size == 0:
        return indices.astype(np.int64)
    raise InvalidTypeError(f"CategoryEncoding takes integers, got an array of {indices.dtype}")
