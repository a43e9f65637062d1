"""Images from bytes, and in other sizes."""

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

    JPEG, PNG, WebP, GIF, BMP, TIFF and whatever else Pillow reads; of an animation the first picture. How a camera was
    held (EXIF) is not looked at, and colour profiles are not applied, as in TensorFlow.

    Args:
        data: the content of the file.
        channels: 1 for shades of gray, 3 for red, green and blue, 4 with opacity too. Images of another kind are
            converted; those without opacity are opaque.
        dtype: "uint8", 0 to 255; "uint16", 0 to 65535, which keeps the 16 bits of a gray PNG; "float32", 0 to 1.
        size: (height, width) of the result; None for that of the file. A JPEG that is at least twice as large is
            decoded at a half, a quarter or an eighth of its size, which is much faster, and takes the place of the
            halves of `resize`, from which it differs slightly.
        interpolation: as for `resize`.
        crop_to_aspect_ratio: as for `resize`.
        pad_to_aspect_ratio: as for `resize`.

    Raises:
        ElementError: the bytes are no image, or one that is damaged or cut off. `ignore_errors` above the map, or
            `ps.Options(on_error="skip")`, leaves such rows out and counts them.
        InvalidArgumentError: other channels, dtypes, sizes or interpolations than these.
        InvalidTypeError: no bytes.
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
    """An image in another size, in its own dtype.

    "bilinear" halves an image, each pixel the mean of four, as long as it is at least twice as large, and then takes
    each pixel from the four around its place, by how near they are: so no pixel of the image is left out. It is the
    fastest, most of all where OpenCV is installed (the extra `opencv`); with it or without, pixels differ by rounding
    only. "triangle" is `"bilinear"` with `antialias=True` in TensorFlow. "bicubic", "area" and "lanczos3" smooth in
    the same way.

    Args:
        image: (height, width, channels) of unsigned or floating-point numbers, or a batch of them. Where four channels
            are uint8, "triangle", "bicubic", "area" and "lanczos3" take the fourth for opacity.
        size: (height, width) of the result.
        interpolation: "bilinear", "nearest", "triangle", "bicubic", "area" or "lanczos3".
        crop_to_aspect_ratio: keep the proportions, and use the largest part in the middle that has those of `size`.
        pad_to_aspect_ratio: keep the proportions, and fill up the two edges with zeros.

    Raises:
        InvalidArgumentError: another interpolation, a size below 1, or both a crop and a padding.
        InvalidTypeError: no image.
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
