"""Decodes images, changes their size, and crops and flips them at random."""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.formats import media
from penstock.preprocessing.images import RandomCrop, RandomFlip


def decode(
    data: bytes,
    channels: int = 3,
    dtype: str = "uint8",
    size: tuple[int, int] | None = None,
    *,
    interpolation: str = "bilinear",
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
) -> npt.NDArray[Any]:
    """An image as an array of shape (height, width, channels), from the bytes of its file.

    JPEG, PNG, WebP, GIF, BMP, TIFF and whatever else Pillow reads. An animation gives its first picture. As in
    TensorFlow, the orientation in EXIF data is ignored, and colour profiles are not applied.

    Args:
        data: the content of the file.
        channels: 1 for grayscale, 3 for RGB, 4 for RGBA. Images of another kind are converted; those without opacity
            become opaque.
        dtype: "uint8", 0 to 255; "uint16", 0 to 65535, which keeps 16 bits of a file; "float32", 0 to 1. Where
            colours have 16 bits, these two need OpenCV (the extra `opencv`), and a PNG or TIFF.
        size: (height, width) of the result; None for that of the file. A JPEG that is at least twice as large is
            decoded at a half, a quarter or an eighth of its size. That is much faster than halving it by `resize`, and
            gives slightly different pixels.
        interpolation: as for `resize`.
        crop_to_aspect_ratio: as for `resize`.
        pad_to_aspect_ratio: as for `resize`.

    Raises:
        ElementError: the bytes are no image, or one that is damaged or cut off. `ignore_errors` above the map, or
            `ps.Options(on_error="skip")`, leaves such rows out and counts them.
        InvalidArgumentError: other channels, dtypes, sizes or interpolations than these.
        InvalidTypeError: `data` is not bytes.
        MissingExtraError: simplejpeg or Pillow is not installed.

    Example:
        >>> import io
        >>> import numpy as np
        >>> import PIL.Image
        >>> import penstock as ps
        >>> file = io.BytesIO()
        >>> PIL.Image.fromarray(np.full((30, 40, 3), 200, np.uint8)).save(file, "png")
        >>> ps.image.decode(file.getvalue()).shape, ps.image.decode(file.getvalue(), channels=1, size=(16, 16)).shape
        ((30, 40, 3), (16, 16, 1))
    """
    given = {"crop_to_aspect_ratio": crop_to_aspect_ratio, "pad_to_aspect_ratio": pad_to_aspect_ratio}
    pixels: npt.NDArray[Any] = media.images.decode(data, channels, dtype, size, interpolation=interpolation, **given)
    return pixels


def resize(
    image: npt.ArrayLike,
    size: tuple[int, int],
    *,
    interpolation: str = "bilinear",
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
) -> npt.NDArray[Any]:
    """Change the size of an image, and keep its dtype.

    "bilinear" first halves the image as long as it is at least twice as large as the result, where each pixel is the
    mean of four. Then it interpolates each pixel of the result from the four nearest ones. So every pixel of the image
    counts. It is the fastest, especially with OpenCV (the extra `opencv`), which changes pixels by rounding only.
    "triangle" is TensorFlow's `"bilinear"` with `antialias=True`; "bicubic", "area" and "lanczos3" are antialiased too.

    Args:
        image: (height, width, channels) of unsigned or floating-point numbers, or a batch of them. With four
            channels of uint8, "triangle", "bicubic", "area" and "lanczos3" treat the fourth as opacity.
        size: (height, width) of the result.
        interpolation: "bilinear", "nearest", "triangle", "bicubic", "area" or "lanczos3".
        crop_to_aspect_ratio: first crop to the largest central part that has the proportions of `size`.
        pad_to_aspect_ratio: keep the image's proportions, and pad two edges with zeros.

    Raises:
        InvalidArgumentError: another interpolation, a size below 1, or both a crop and a padding.
        InvalidTypeError: `image` is not an image.
        ElementError: an image without pixels.
        MissingExtraError: simplejpeg or Pillow is not installed.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> image = np.arange(16, dtype=np.uint8).reshape(4, 4, 1)
        >>> ps.image.resize(image, (2, 2), interpolation="area")[..., 0].tolist()
        [[3, 5], [11, 13]]
    """
    given = {"crop_to_aspect_ratio": crop_to_aspect_ratio, "pad_to_aspect_ratio": pad_to_aspect_ratio}
    pixels: npt.NDArray[Any] = media.images.resize(image, size, interpolation=interpolation, **given)
    return pixels


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
