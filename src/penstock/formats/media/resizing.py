"""Resizing of images by each interpolation, with OpenCV where it is installed, else with Pillow and NumPy.

"bilinear" halves an image as long as it is at least twice as large, and then takes each pixel from the four around its
place. OpenCV and NumPy do the same, but for rounding. All other interpolations are Pillow's.
"""

import importlib
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.options import check_flag, check_integer
from penstock.runtime.memory_thresholds import keep_freed_memory

cv2: Any
try:
    cv2 = importlib.import_module("cv2")
except ImportError:  # not installed, or without the libraries of a desktop that some of its packages need
    cv2 = None

Pixels = npt.NDArray[Any]
Size = tuple[int, int]
"""Height and width."""

_FILTERS: Final = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": None,
    "triangle": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "area": Image.Resampling.BOX,
    "lanczos3": Image.Resampling.LANCZOS,
}
_MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}
_OF_OPENCV: Final = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.float32))


def check_resize(call: str, size: Any, interpolation: str, crop: bool, pad: bool, argument: str = "size") -> None:
    """Refuse arguments that never work.

    Raises:
        InvalidArgumentError, InvalidTypeError: as for `ps.image.resize`.
    """
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        raise InvalidTypeError(f"{call}({argument}=...) takes (height, width), got {size!r}")
    for name, length in zip(("height", "width"), size):
        check_integer(call, name, length, minimum=1)
    if interpolation not in _FILTERS:
        raise InvalidArgumentError(
            f"{call}(interpolation=...) takes one of {', '.join(map(repr, _FILTERS))}, got {interpolation!r}"
        )
    check_flag(call, "crop_to_aspect_ratio", crop)
    check_flag(call, "pad_to_aspect_ratio", pad)
    if crop and pad:
        raise InvalidArgumentError(f"{call} takes one of crop_to_aspect_ratio and pad_to_aspect_ratio, got both")


def resize(
    image: Any,
    size: Size,
    *,
    interpolation: str = "bilinear",
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
) -> Pixels:
    """Implementation of `ps.image.resize`."""
    check_resize("image.resize", size, interpolation, crop_to_aspect_ratio, pad_to_aspect_ratio)
    keep_freed_memory()  # new pages would cost more than all else here
    pixels = np.asarray(image)
    if pixels.ndim not in (3, 4) or pixels.dtype.kind not in "uf":
        raise InvalidTypeError(
            f"image.resize takes an image (height, width, channels) of unsigned or floating-point numbers, or a batch "
            f"of them, got an array of {pixels.dtype} with shape {pixels.shape}"
        )
    if 0 in pixels.shape[-3:]:
        raise ElementError(f"image.resize takes images with pixels, got shape {pixels.shape}")
    if pixels.ndim == 4:
        given = {"crop_to_aspect_ratio": crop_to_aspect_ratio, "pad_to_aspect_ratio": pad_to_aspect_ratio}
        rows = [resize(row, size, interpolation=interpolation, **given) for row in pixels]
        return np.stack(rows) if rows else np.empty((0, *size, pixels.shape[-1]), pixels.dtype)
    height, width = pixels.shape[:2]
    if crop_to_aspect_ratio:
        top, left, bottom, right = _middle(height, width, size)
        pixels, height, width = pixels[top:bottom, left:right], bottom - top, right - left
    inner = fitted(height, width, size) if pad_to_aspect_ratio else (size[0], size[1])
    resized = pixels if inner == (height, width) else _resized(pixels, inner, interpolation)
    if inner == (size[0], size[1]):
        return resized
    padded = np.zeros((*size, pixels.shape[-1]), pixels.dtype)
    top, left = ((length - part) // 2 for length, part in zip(size, inner))
    padded[top : top + inner[0], left : left + inner[1]] = resized
    return padded


def _middle(height: int, width: int, size: Size) -> tuple[int, int, int, int]:
    """Top, left, bottom and right of the largest part in the middle with the proportions of `size`, as in Keras."""
    cut_height = max(1, min(height, int(width * size[0] / size[1])))
    cut_width = max(1, min(width, int(height * size[1] / size[0])))
    top, left = (height - cut_height) // 2, (width - cut_width) // 2
    return top, left, top + cut_height, left + cut_width


def fitted(height: int, width: int, size: Size) -> Size:
    """The largest size with the proportions of an image that fits into `size`."""
    share = min(size[0] / height, size[1] / width)
    return max(1, min(size[0], round(height * share))), max(1, min(size[1], round(width * share)))


def _resized(pixels: Pixels, size: Size, interpolation: str) -> Pixels:
    by = _FILTERS[interpolation]
    if by is not None:
        return _by_pillow(pixels, size, by)
    while pixels.shape[0] >= 2 * size[0] and pixels.shape[1] >= 2 * size[1]:
        pixels = _halved(pixels)
    if pixels.shape[:2] == size:
        return pixels
    if _is_for_opencv(pixels):
        resized: Pixels = cv2.resize(pixels, (size[1], size[0]), interpolation=cv2.INTER_LINEAR)
        return resized.reshape(*size, -1)
    return _between_four(pixels, size)


def _is_for_opencv(pixels: Pixels) -> bool:
    return cv2 is not None and pixels.dtype in _OF_OPENCV and pixels.shape[2] <= 4


def _halved(pixels: Pixels) -> Pixels:
    """An image of half the size: each pixel is the mean of four. A last row or column without partner counts twice."""
    height, width, channels = pixels.shape
    if height % 2 or width % 2:
        pixels = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), "edge")
    size = pixels.shape[0] // 2, pixels.shape[1] // 2
    if _is_for_opencv(pixels):
        halved: Pixels = cv2.resize(pixels, (size[1], size[0]), interpolation=cv2.INTER_AREA)
        return halved.reshape(*size, channels)
    if pixels.dtype == np.uint8 and channels in (1, 3):  # Pillow weights colours by a fourth channel, as opacity
        return _of_image(_image_of(pixels).reduce(2))
    parts = pixels.reshape(size[0], 2, size[1], 2, channels)
    return _as(pixels.dtype, parts.mean((1, 3), dtype=_exact(pixels.dtype)))


def _between_four(pixels: Pixels, size: Size) -> Pixels:
    """Each pixel of the result from the four around its place, weighted by how near they are."""
    above, below, down = _neighbours(pixels.shape[0], size[0])
    floats, channels = _exact(pixels.dtype), pixels.shape[2]
    upper, lower = (pixels[rows].reshape(size[0], -1) for rows in (above, below))
    mixed, unit = (_mixed_bytes if pixels.dtype == np.uint8 else _mixed_numbers)(upper, lower, down[:, None], floats)
    left, right, aside = _neighbouring_numbers(pixels.shape[1], size[1], channels)
    first, second = (mixed.take(numbers, 1).astype(floats, copy=False) for numbers in (left, right))
    second -= first
    second *= aside.astype(floats)
    second += first
    if unit != 1:
        second *= 1 / unit
    return _rounded(pixels.dtype, second.reshape(*size, channels))


def _mixed_bytes(upper: Pixels, lower: Pixels, share: Pixels, floats: np.dtype[Any]) -> tuple[Pixels, float]:
    """Bytes between others, in 256ths, and how many are 1: 16 bits hold them, and take half the time of floats."""
    weights = np.round(share * 256).astype(np.uint16)
    mixed, other = upper.astype(np.uint16), lower.astype(np.uint16)
    mixed *= 256 - weights
    other *= weights
    mixed += other
    return mixed, 256


def _mixed_numbers(upper: Pixels, lower: Pixels, share: Pixels, floats: np.dtype[Any]) -> tuple[Pixels, float]:
    """The same as `_mixed_bytes`, of other numbers as they are."""
    upper = upper.astype(floats, copy=False)
    mixed = lower.astype(floats, copy=False) - upper
    mixed *= share.astype(floats)
    mixed += upper
    return mixed, 1


@lru_cache(64)
def _neighbours(length: int, wanted: int) -> tuple[Any, Any, Any]:
    """For each of `wanted` pixels along an axis: the two old pixels around it, and its distance from the first."""
    centres = (np.arange(wanted) + 0.5) * (length / wanted) - 0.5
    first = np.floor(centres)
    numbers = first.astype(np.int64)
    return numbers.clip(0, length - 1), (numbers + 1).clip(0, length - 1), centres - first


@lru_cache(64)
def _neighbouring_numbers(width: int, wanted: int, channels: int) -> tuple[Any, Any, Any]:
    """`_neighbours` for each number of the pixels of a row: NumPy takes single numbers faster than triples."""
    left, right, aside = _neighbours(width, wanted)
    first, second = ((columns[:, None] * channels + np.arange(channels)).ravel() for columns in (left, right))
    return first, second, np.repeat(aside, channels)


def _exact(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The floating-point numbers in which means are formed."""
    return np.dtype(np.float32 if dtype.itemsize <= 2 or dtype == np.float32 else np.float64)


def _as(dtype: np.dtype[Any], floats: Pixels) -> Pixels:
    """Numbers in their own dtype; if it has no fractions they are rounded, and cut off at its limits."""
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        np.clip(floats, limits.min, limits.max, out=floats)
    return _rounded(dtype, floats)


def _rounded(dtype: np.dtype[Any], floats: Pixels) -> Pixels:
    """The same as `_as`, of numbers that the dtype has room for, such as those between others of it."""
    if dtype.kind != "f":
        floats += 0.5  # these dtypes are unsigned, for which a conversion cuts off the fraction as `floor` does
    return floats.astype(dtype, copy=False)


def _by_pillow(pixels: Pixels, size: Size, by: Image.Resampling) -> Pixels:
    channels = pixels.shape[-1]
    shape = (size[1], size[0])
    if pixels.dtype == np.uint8 and channels in _MODES:
        return _of_image(_image_of(pixels).resize(shape, by))
    # Pillow has no image of several numbers wider than a byte: one channel after the other.
    planes = [
        np.asarray(Image.fromarray(np.ascontiguousarray(pixels[..., channel], np.float32)).resize(shape, by))
        for channel in range(channels)
    ]
    return _as(pixels.dtype, np.stack(planes, axis=-1))


def _image_of(pixels: Pixels) -> Any:
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _of_image(image: Any) -> Pixels:
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels
