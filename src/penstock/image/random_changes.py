"""Random crops and flips, decided by the generator of a row."""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.preprocessing.images import RandomCrop, RandomFlip


def random_crop(image: npt.ArrayLike, size: tuple[int, int], generator: np.random.Generator) -> npt.NDArray[Any]:
    """Crop an image at a random position; all images of a batch are cropped at the same one.

    Args:
        image: (height, width, channels), or a batch of them.
        size: (height, width) of the crop.
        generator: draws the random numbers; `map(..., seed=...)` gives its function one for each element, as the last
            argument.

    Raises:
        InvalidArgumentError: an image that is smaller than the crop.
        InvalidTypeError: `image` is not an image.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> images = ps.Dataset.from_tensor_slices(np.arange(200, dtype=np.uint8).reshape(2, 10, 10, 1))
        >>> crops = images.map(lambda image, generator: ps.image.random_crop(image, (1, 2), generator), seed=4)
        >>> [crop.ravel().tolist() for crop in crops]
        [[50, 51], [191, 192]]
    """
    return RandomCrop(*size)(image, generator)


def random_flip(image: npt.ArrayLike, generator: np.random.Generator, mode: str = "horizontal") -> npt.NDArray[Any]:
    """Mirror an image with probability one half; each image of a batch is decided by itself.

    Args:
        image: (height, width, channels), or a batch of them.
        generator: draws the random numbers; `map(..., seed=...)` gives its function one for each element, as the last
            argument.
        mode: "horizontal" (left to right), "vertical" (top to bottom), or "horizontal_and_vertical", which decides
            on each of the two independently.

    Raises:
        InvalidArgumentError: another mode.
        InvalidTypeError: `image` is not an image.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> images = ps.Dataset.from_tensor_slices(np.array([[[[1], [2]]]] * 4))
        >>> [image.ravel().tolist() for image in images.map(ps.image.random_flip, seed=1)]
        [[2, 1], [1, 2], [2, 1], [1, 2]]
    """
    return RandomFlip(mode)(image, generator)
