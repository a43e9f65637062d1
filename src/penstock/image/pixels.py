"""Decodes images, and changes their size."""

from typing import Any

import numpy.typing as npt

from penstock import formats


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
        dtype: "uint8", 0 to 255; "uint16", 0 to 65535, which keeps the 16 bits of a gray PNG; "float32", 0 to 1.
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
    pixels: npt.NDArray[Any] = formats.images.decode(
        data, channels, dtype, size, interpolation=interpolation, memory=None, **given
    )
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
    pixels: npt.NDArray[Any] = formats.images.resize(image, size, interpolation=interpolation, out=None, **given)
    return pixels
