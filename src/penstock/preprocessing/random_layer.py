"""Keras's random layers, with random numbers from the seed of `map`."""

from typing import Any, ClassVar

import numpy as np

from penstock.errors import InvalidTypeError
from penstock.preprocessing import convert


def random(layer: Any) -> "RandomLayer":
    """A layer of Keras that draws random numbers, as a function for `dataset.map(..., seed=...)`.

    The layer itself draws from a hidden state that changes with every call. The function draws from the generator of
    the element instead, so that an element gets the same numbers on any number of threads, in any process and after a
    restore. Inside your own function, call it with the generator that `map` passes as the last argument.

    Args:
        layer: any layer or model of Keras with a `keras.random.SeedGenerator`, its own or that of a layer inside it. It
            is called with `training=True`. Its weights do not change.

    Raises:
        InvalidTypeError: not a layer of Keras, or one that draws no random numbers.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> import penstock as ps
        >>> flip = ps.preprocessing.random(keras.layers.RandomFlip("horizontal"))
        >>> images = ps.Dataset.from_tensor_slices((np.ones((4, 8, 8, 3), np.float32), [0, 1, 0, 1]))
        >>> dataset = images.map(lambda image, label, generator: (flip(image, generator), label), seed=3)
        >>> next(iter(dataset.batch(2)))[0].shape
        (2, 8, 8, 3)
    """
    return RandomLayer(layer)


class RandomLayer:
    """A layer of Keras that takes a generator as its last argument; see `random`."""

    draws: ClassVar[bool] = True

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._seeds = convert.seeds_of(layer)
        if not self._seeds:
            raise InvalidTypeError(
                f"random(layer) takes a layer of Keras that draws random numbers, got {layer!r:.100}"
            )

    def __call__(self, inputs: Any, generator: np.random.Generator) -> Any:
        """The layer's result for an element or a batch, as arrays."""
        keys = generator.integers(0, 1 << 32, (len(self._seeds), 2), np.uint32)
        return convert.call_with_seeds(self._layer, inputs, self._seeds, keys)

    def __reduce__(self) -> Any:
        return RandomLayer, (self._layer,)

    def __repr__(self) -> str:
        return f"random({self._layer.name})"
