"""Hashing: strings and integers to bins, without a vocabulary."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer
from penstock.preprocessing.encode import encode
from penstock.preprocessing.hashes import hash_buckets
from penstock.preprocessing.layer import ArrayLayer, check_choice
from penstock.preprocessing.tokens import TEXT, Shape, encode_text, text_array

_WORD = (1 << 64) - 1


class Hashing(ArrayLayer):
    """Maps strings or integers to one of `num_bins` bins by their hash: no vocabulary is needed.

    Args:
        num_bins: the number of bins, including that of the mask.
        mask_value: the value that gets bin 0, which no other value then gets.
        salt: a key of one or two integers for SipHash, which cannot be computed without the key. Without a salt the
            hash is FarmHash.
        output_mode: "int", or a vector: "one_hot" for each value, "multi_hot" or "count" for all values along the last
            axis.

    Raises:
        InvalidArgumentError: no bins, or an unknown output mode.
        InvalidTypeError: a salt that is neither an integer nor two.

    Example:
        >>> Hashing(num_bins=3)([["A"], ["B"], ["C"], ["D"], ["E"]]).ravel()
        array([1, 0, 1, 1, 2])
        >>> Hashing(num_bins=3, salt=[133, 137])([["A"], ["B"], ["C"], ["D"], ["E"]]).ravel()
        array([1, 2, 1, 0, 2])
    """

    why_not_keras = "Keras's own needs TensorFlow, and XLA has no strings"

    def __init__(
        self, num_bins: int, mask_value: Any = None, salt: int | Sequence[int] | None = None, output_mode: str = "int"
    ) -> None:
        self.num_bins = check_integer("Hashing", "num_bins", num_bins, minimum=1)
        self.mask_value = mask_value
        self.salt = None if salt is None else _key(salt)
        self.output_mode = check_choice("Hashing", "output_mode", output_mode, ("int", "one_hot", "multi_hot", "count"))

    @property
    def depth(self) -> int:
        return self.num_bins

    def _transform(self, inputs: Any, leading: int) -> Any:
        values, shape = _as_text(inputs)
        bins = self._bins(values).reshape(shape)
        return bins[()] if self.output_mode == "int" else encode(bins, self.output_mode, self.num_bins, leading)

    def _bins(self, values: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
        masked = self.mask_value is not None and self.num_bins > 1
        bins = hash_buckets(values, self.num_bins - masked, self.salt)
        if masked:
            value = self.mask_value if isinstance(self.mask_value, bytes) else str(self.mask_value)
            mask = pa.scalar(encode_text(value, "utf-8"), TEXT)
            bins = np.where(pc.equal(values, mask).to_numpy(zero_copy_only=False), 0, bins + 1)
        return bins


def _key(salt: int | Sequence[int]) -> tuple[int, int]:
    words = (salt, salt) if isinstance(salt, (int, np.integer)) else salt
    if not isinstance(words, (list, tuple)) or len(words) != 2:
        raise InvalidTypeError(f"Hashing(salt=...) takes an integer or two, got {salt!r}")
    low, high = (check_integer("Hashing", "salt", word, minimum=0) for word in words)
    if max(low, high) > _WORD:
        raise InvalidArgumentError(f"Hashing(salt=...) takes integers below 2**64, got {salt!r}")
    return low, high


def _as_text(inputs: Any) -> tuple[pa.LargeBinaryArray, Shape]:
    """Numbers as TensorFlow converts them to text: floats without their fraction."""
    array = inputs if isinstance(inputs, (np.ndarray, pa.Array, pa.ChunkedArray)) else np.asarray(inputs)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf":
        return text_array("Hashing", inputs)
    whole = array.astype(np.int64) if array.dtype.kind == "f" else array
    return pa.array(np.ascontiguousarray(whole).reshape(-1)).cast(pa.large_string()).cast(TEXT), array.shape
