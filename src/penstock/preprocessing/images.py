"""Flips and crops of images, in NumPy: CenterCrop, RandomCrop and RandomFlip."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock.data.block import Column, column_of, is_ragged
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer
from penstock.preprocessing.layer import ArrayLayer, Layer, check_choice
from penstock.row_generators import RowGenerators
from penstock.runtime.memory import empty

Images = npt.NDArray[Any]
Numbers = npt.NDArray[np.float64]

_FORMATS = ("channels_last", "channels_first")
_MODES = ("horizontal", "vertical", "horizontal_and_vertical")
# Images are flipped through temporary arrays of this size, which fit into the processor's cache.
_BYTES_AT_ONCE = 1 << 16


class _Crop:
    """The size of a crop, checked, and its configuration."""

    def __init__(self, height: int, width: int, data_format: str = "channels_last") -> None:
        call = type(self).__name__
        self.height = check_integer(call, "height", height, minimum=1)
        self.width = check_integer(call, "width", width, minimum=1)
        self.data_format = check_choice(call, "data_format", data_format, _FORMATS)


class CenterCrop(_Crop, ArrayLayer):
    """Crops images to their centre, in their own dtype.

    Args:
        height: of the result, at most that of the images.
        width: of the result, at most that of the images.
        data_format: "channels_last", (height, width, channels), or "channels_first"; with or without a batch axis.

    Raises:
        InvalidArgumentError: a size below 1, an unknown format, or images that are smaller than the crop.

    Example:
        >>> import numpy as np
        >>> CenterCrop(2, 2)(np.arange(16).reshape(4, 4, 1))[..., 0]
        array([[ 5,  6],
               [ 9, 10]])
    """

    def _transform(self, inputs: Any, leading: int) -> Images:
        images = _as_images("CenterCrop", inputs, leading)
        rows, columns = _room_for(self, images.shape)
        return _cropped(self, images, rows // 2, columns // 2).copy()


class RandomImageLayer(Layer, ABC):
    """A layer that changes an image by random numbers of the generator that `map(layer, seed=...)` passes to it."""

    draws: ClassVar[bool] = True
    data_format: str

    @abstractmethod
    def _draws(self, shape: tuple[int, ...]) -> int:
        """Return how many random numbers an image or a batch of this shape takes."""

    @abstractmethod
    def _changed(self, images: Images, numbers: Numbers) -> Images:
        """Rows of images, or of batches, each changed by its row of numbers in [0, 1)."""

    def __call__(self, inputs: Any, generator: np.random.Generator) -> Images:
        """The images, changed at random, in their own dtype.

        Args:
            inputs: an image or a batch of them.
            generator: draws the random numbers; `map(..., seed=...)` passes one for each element.
        """
        images = _as_images(type(self).__name__, inputs, 0)
        numbers = generator.random((1, self._draws(images.shape)))
        return self._changed(images[None], numbers)[0]  # type: ignore[no-any-return]

    def _map_block(self, column: Column, generators: RowGenerators) -> Column:
        """The results for all rows of a column, each by its own generator."""
        if is_ragged(column):
            return column_of([self(*row) for row in zip(column, generators, strict=True)])
        images = _as_images(type(self).__name__, column, 1)
        return self._changed(images, generators.uniform(self._draws(images.shape[1:])))


class RandomCrop(_Crop, RandomImageLayer):
    """Crops images at a random position, which is the same for all images of a batch, as in Keras.

    Args:
        height: of the result, at most that of the images.
        width: of the result, at most that of the images.
        data_format: "channels_last", (height, width, channels), or "channels_first"; with or without a batch axis.

    Raises:
        InvalidArgumentError: a size below 1, an unknown format, or images that are smaller than the crop.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> images = ps.Dataset.from_tensor_slices(np.zeros((8, 40, 40, 3), np.uint8))
        >>> next(iter(images.map(RandomCrop(32, 32), seed=1).batch(4))).shape
        (4, 32, 32, 3)
    """

    def _draws(self, shape: tuple[int, ...]) -> int:
        return 2

    def _changed(self, images: Images, numbers: Numbers) -> Images:
        rows, columns = _room_for(self, images.shape)
        corners = (numbers * (rows + 1, columns + 1)).astype(np.int64)
        output = empty(_cropped(self, images, 0, 0).shape, images.dtype)
        for row, place, (top, left) in zip(images, output, corners.tolist(), strict=True):
            place[...] = _cropped(self, row, top, left)
        return output


class RandomFlip(RandomImageLayer):
    """Flips each image with probability one half.

    Args:
        mode: "horizontal" (left to right), "vertical" (top to bottom), or "horizontal_and_vertical", which decides
            separately for each direction.
        data_format: "channels_last", (height, width, channels), or "channels_first"; with or without a batch axis.

    Raises:
        InvalidArgumentError: an unknown mode or format.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> images = ps.Dataset.from_tensor_slices(np.array([[[[1], [2]]]] * 4))
        >>> [image.ravel().tolist() for image in images.map(RandomFlip("horizontal"), seed=1)]
        [[2, 1], [1, 2], [2, 1], [1, 2]]
    """

    def __init__(self, mode: str = "horizontal_and_vertical", data_format: str = "channels_last") -> None:
        self.mode = check_choice("RandomFlip", "mode", mode, _MODES)
        self.data_format = check_choice("RandomFlip", "data_format", data_format, _FORMATS)

    def _draws(self, shape: tuple[int, ...]) -> int:
        return 2 * (shape[0] if len(shape) > 3 else 1)

    def _changed(self, images: Images, numbers: Numbers) -> Images:
        mirrored, upside_down = numbers.reshape(-1, 2).T < 0.5
        output = empty(images.shape, images.dtype)
        output[...] = images
        before, after = (array.reshape(-1, *images.shape[-3:]) for array in (images, output))
        down, across = (1, 2) if self.data_format == "channels_last" else (2, 3)
        if self.mode == "horizontal":
            _copy_flipped(before, after, mirrored, (across,))
        elif self.mode == "vertical":
            _copy_flipped(before, after, upside_down, (down,))
        else:
            _copy_flipped(before, after, mirrored & ~upside_down, (across,))
            _copy_flipped(before, after, upside_down & ~mirrored, (down,))
            _copy_flipped(before, after, mirrored & upside_down, (down, across))
        return output


def _copy_flipped(source: Images, target: Images, chosen: npt.NDArray[np.bool_], axes: tuple[int, ...]) -> None:
    """Copy the chosen images from one array to another, flipped along these axes."""
    rows = np.flatnonzero(chosen)
    channels = source.shape[-1] if 3 not in axes else 0
    # NumPy copies pixels of a few bytes one by one, but the values of one channel in one loop.
    planes = [slice(channel, channel + 1) for channel in range(channels)] if 0 < channels <= 4 else [slice(None)]
    at_once = max(1, _BYTES_AT_ONCE // max(1, source[:1].nbytes))
    for start in range(0, len(rows), at_once):
        some = source[rows[start : start + at_once]]
        flipped, result = np.flip(some, axes), np.empty_like(some)
        for plane in planes:
            result[..., plane] = flipped[..., plane]
        target[rows[start : start + at_once]] = result


def _as_images(call: str, inputs: Any, leading: int) -> Images:
    images = np.asarray(inputs)
    if images.dtype.kind not in "biuf" or images.ndim - leading not in (3, 4):
        raise InvalidTypeError(
            f"{call} takes an image (height, width, channels) or a batch of them, got an array of {images.dtype} with "
            f"shape {images.shape[leading:]}"
        )
    return images


def _room_for(layer: CenterCrop | RandomCrop, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return how far a crop can be moved down and across in images of this shape."""
    height, width = shape[-3:-1] if layer.data_format == "channels_last" else shape[-2:]
    if height < layer.height or width < layer.width:
        raise InvalidArgumentError(
            f"{type(layer).__name__}({layer.height}, {layer.width}) takes images of at least that size, got "
            f"{height} x {width}: resize them first"
        )
    return height - layer.height, width - layer.width


def _cropped(layer: CenterCrop | RandomCrop, images: Images, top: int, left: int) -> Images:
    rows, columns = slice(top, top + layer.height), slice(left, left + layer.width)
    return images[..., rows, columns, :] if layer.data_format == "channels_last" else images[..., rows, columns]
