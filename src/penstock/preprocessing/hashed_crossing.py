"""HashedCrossing: several features to one bin, by their common hash."""

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer
from penstock.preprocessing.encode import encode
from penstock.preprocessing.hashes import Words, fingerprint64, joined_fingerprints, spans
from penstock.preprocessing.layer import ArrayLayer, check_choice
from penstock.preprocessing.tokens import Shape, integer_array, text_array

_KEY = np.uint64(0xDECAFCAFFE)  # with which TensorFlow's hashes of crossed features begin


class HashedCrossing(ArrayLayer):
    """Maps several features to one of `num_bins` bins, by the hash of all their values together.

    It is called with the features as one tuple or list, or as one argument each, as `map` does with elements that are
    tuples. The features are strings or integers, in arrays of one shape.

    Args:
        num_bins: the number of bins.
        output_mode: "int", or "one_hot" for a vector of each crossed value.

    Raises:
        InvalidArgumentError: no bins, an unknown output mode, a single feature, or features of different shapes.
        InvalidTypeError: features that are neither strings nor integers.

    Example:
        >>> layer = HashedCrossing(num_bins=5)
        >>> layer((["A", "B", "A", "B", "A"], [101, 101, 101, 102, 102]))
        array([1, 4, 1, 1, 3])
    """

    why_not_keras = "Keras's own needs TensorFlow, and XLA has no strings"

    def __init__(self, num_bins: int, output_mode: str = "int") -> None:
        self.num_bins = check_integer("HashedCrossing", "num_bins", num_bins, minimum=1)
        self.output_mode = check_choice("HashedCrossing", "output_mode", output_mode, ("int", "one_hot"))

    def _transform(self, *given: Any, leading: int) -> Any:
        inputs = given[0] if len(given) == 1 else given
        if not isinstance(inputs, (tuple, list)) or len(inputs) < 2:
            raise InvalidArgumentError(
                f"HashedCrossing takes a tuple or a list of at least two features, got {inputs!r:.100}"
            )
        features = [_words(feature) for feature in inputs]
        shapes = [shape for _, shape in features]
        if len(set(shapes)) > 1:
            raise InvalidArgumentError(f"HashedCrossing takes features of one shape, got {shapes}")
        hashes = np.full(len(features[0][0]), _KEY)
        for words, _ in features:
            hashes = joined_fingerprints(hashes, words)
        bins = (hashes % np.uint64(self.num_bins)).astype(np.int64).reshape(shapes[0])
        return bins[()] if self.output_mode == "int" else encode(bins, "one_hot", self.num_bins, leading)


def _words(feature: Any) -> tuple[Words, Shape]:
    """64 bits for each value: an integer itself, the fingerprint of a string."""
    sample = feature if isinstance(feature, np.ndarray) else np.asarray(feature)
    if sample.dtype.kind in "iu":
        numbers, shape = integer_array("HashedCrossing", feature)
        return numbers.to_numpy().view(np.uint64), shape
    if sample.dtype.kind in "OUST":
        texts, shape = text_array("HashedCrossing", feature)
        return fingerprint64(*spans(texts)), shape
    raise InvalidTypeError(f"HashedCrossing takes strings or integers, got an array of {sample.dtype}")
