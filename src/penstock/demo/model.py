"""The tutorial's network as a pure function of its weights: two convolutions and two dense layers, in plain JAX.

One thing differs: the convolutions pad their input, so that the same network also fits images of 8x8 pixels.
"""

import math
from typing import Any, Final

import jax
import jax.numpy as jnp

Array = jax.Array
Parameters = dict[str, dict[str, Array]]

_CLASSES: Final = 10
_REGULARISATION: Final = 1e-5


def initial_parameters(key: Array, image_shape: tuple[int, int, int]) -> Parameters:
    """Random weights for images of this height, width and number of channels; height and width must be multiples of 4.

    Example:
        >>> parameters = initial_parameters(jax.random.key(0), (8, 8, 1))
        >>> {name: layer["kernel"].shape for name, layer in parameters.items()}
        {'conv1': (3, 3, 1, 32), 'conv2': (3, 3, 32, 64), 'dense1': (256, 64), 'dense2': (64, 10)}
    """
    height, width, channels = image_shape
    shapes: dict[str, tuple[int, ...]] = {
        "conv1": (3, 3, channels, 32),
        "conv2": (3, 3, 32, 64),
        "dense1": (height // 4 * (width // 4) * 64, 64),
        "dense2": (64, _CLASSES),
    }
    keys = jax.random.split(key, len(shapes))
    return {
        name: {"kernel": _glorot_uniform(layer_key, shape), "bias": jnp.zeros(shape[-1])}
        for (name, shape), layer_key in zip(shapes.items(), keys, strict=True)
    }


def logits(parameters: Parameters, images: Array) -> Array:
    """One score per class for each image."""
    hidden = images
    for name in ("conv1", "conv2"):
        hidden = _halved(jax.nn.relu(_convolved(parameters[name], hidden)))
    hidden = hidden.reshape(hidden.shape[0], math.prod(hidden.shape[1:]))
    hidden = jax.nn.relu(_dense(parameters["dense1"], hidden))
    return _dense(parameters["dense2"], hidden)


def regularisation(parameters: Parameters) -> Array:
    """The L2 penalty on all kernels."""
    squares = [jnp.sum(jnp.square(layer["kernel"])) for layer in parameters.values()]
    return _REGULARISATION * jnp.sum(jnp.stack(squares))


def _glorot_uniform(key: Array, shape: tuple[int, ...]) -> Array:
    receptive_field = math.prod(shape[:-2])
    limit = math.sqrt(6 / (receptive_field * (shape[-2] + shape[-1])))
    return jax.random.uniform(key, shape, minval=-limit, maxval=limit)


def _convolved(layer: dict[str, Array], images: Array) -> Array:
    dimensions: Any = ("NHWC", "HWIO", "NHWC")
    result = jax.lax.conv_general_dilated(images, layer["kernel"], (1, 1), "SAME", dimension_numbers=dimensions)
    return result + layer["bias"]


def _halved(images: Array) -> Array:
    """The largest of each 2x2 pixels; by a reshape, because the gradient of a window reduction is slow on a CPU."""
    count, height, width, channels = images.shape
    return images.reshape(count, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def _dense(layer: dict[str, Array], values: Array) -> Array:
    return values @ layer["kernel"] + layer["bias"]
