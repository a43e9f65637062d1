"""Images: the bytes of a file to an array, and arrays to another size.

JPEG goes through libjpeg-turbo (simplejpeg), at a reduced scale where that is enough. Pillow takes what it rejects,
such as CMYK and files with small faults, and every other format.
"""

import io
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError, MissingExtraError
from penstock.options import check_flag, check_integer

try:
    import simplejpeg
    from PIL import Image, UnidentifiedImageError
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "images need simplejpeg and Pillow: pip install 'penstock[image]'", name=error.name or "PIL"
    ) from error

Pixels = npt.NDArray[Any]
Size = tuple[int, int]
"""Height and width."""

_FILTERS: Final = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "area": Image.Resampling.BOX,
    "lanczos3": Image.Resampling.LANCZOS,
}
_KINDS: Final = {1: ("GRAY", "L"), 3: ("RGB", "RGB"), 4: ("RGBA", "RGBA")}
"""By the number of channels: what simplejpeg and Pillow call pixels of so many."""
_DTYPES: Final = ("uint8", "uint16", "float32")
_JPEG: Final = b"\xff\xd8\xff"
# What libjpeg-turbo can divide both sides by with little work; other scales take longer than the whole image.
_SCALES: Final = (8, 4, 2)
# What Pillow raises for images that are damaged, depending on the format.
_DAMAGE: Final = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    Image.DecompressionBombError,
)


def decode(
    data: bytes | bytearray | memoryview,
    channels: int = 3,
    dtype: str = "uint8",
    size: Size | None = None,
    *,
    interpolation: str = "bilinear",
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
) -> Pixels:
    """What `ps.image.decode` says."""
    check_decode("image.decode", channels, dtype, size, interpolation, crop_to_aspect_ratio, pad_to_aspect_ratio)
    given: Any = data
    if not isinstance(given, (bytes, bytearray, memoryview)):
        what = (
            f"the text {given!r:.100}: read the file first" if isinstance(given, str) else f"a {type(given).__name__}"
        )
        raise InvalidTypeError(f"image.decode(data=...) takes the bytes of an image file, got {what}")
    least = None if size is None or interpolation == "nearest" else (size, pad_to_aspect_ratio)
    pixels = _of_jpeg(data, channels, least) if data[:3] == _JPEG and dtype != "uint16" else None
    if pixels is None:
        pixels = _by_pillow(data, channels, dtype)
    if size is not None:
        pixels = resize(
            pixels,
            size,
            interpolation=interpolation,
            crop_to_aspect_ratio=crop_to_aspect_ratio,
            pad_to_aspect_ratio=pad_to_aspect_ratio,
        )
    return pixels.astype(np.float32) / np.float32(_LARGEST[pixels.dtype]) if dtype == "float32" else pixels


_LARGEST: Final = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}


def check_decode(
    call: str, channels: int, dtype: str, size: Size | None, interpolation: str, crop: bool, pad: bool
) -> None:
    """Refuse arguments that never work.

    Raises:
        InvalidArgumentError, InvalidTypeError: as `decode` says.
    """
    if channels not in _KINDS:
        raise InvalidArgumentError(
            f"{call}(channels=...) takes 1 (gray), 3 (RGB) or 4 (RGB and opacity), got {channels!r}"
        )
    if dtype not in _DTYPES:
        raise InvalidArgumentError(f"{call}(dtype=...) takes 'uint8', 'uint16' or 'float32', got {dtype!r}")
    if size is not None:
        _check_resize(call, size, interpolation, crop, pad)


def _check_resize(call: str, size: Any, interpolation: str, crop: bool, pad: bool) -> None:
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        raise InvalidTypeError(f"{call}(size=...) takes (height, width), got {size!r}")
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


def _of_jpeg(data: bytes | bytearray | memoryview, channels: int, least: tuple[Size, bool] | None) -> Pixels | None:
    """The pixels of a JPEG; None where simplejpeg rejects it, and Pillow is to say what it finds.

    Args:
        data: the file.
        channels: how many the result has.
        least: the size that is wanted in the end, and whether the image will be fitted into it.
    """
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        factor = 1 if least is None else _scale(height, width, *least)
        if colours not in ("RGB", "Gray", "YCbCr") or _is_too_large(height // factor, width // factor):
            return None
        small = {} if factor == 1 else {"min_height": -(-height // factor), "min_width": -(-width // factor)}
        pixels: Pixels = simplejpeg.decode_jpeg(data, _KINDS[channels][0], **small)
    except ValueError:
        return None
    return pixels


def _scale(height: int, width: int, size: Size, fitted: bool) -> int:
    """By how much both sides of a JPEG can be divided and still be as long as the result's."""
    if fitted:
        share = min(size[0] / height, size[1] / width)
        size = (round(height * share), round(width * share))
    fits = [factor for factor in _SCALES if height >= size[0] * factor and width >= size[1] * factor]
    return fits[0] if fits else 1


def _is_too_large(height: int, width: int) -> bool:
    """Whether Pillow refuses so many pixels, lest they fill the memory."""
    limit: Any = Image.MAX_IMAGE_PIXELS  # programs may set it to None
    return limit is not None and height * width > 2 * limit


def _by_pillow(data: bytes | bytearray | memoryview, channels: int, dtype: str) -> Pixels:
    try:
        with Image.open(io.BytesIO(data)) as image:
            return _pixels_of(image, channels, dtype)
    except UnidentifiedImageError as error:
        begin = f"they begin with {bytes(data[:12])!r}" if len(data) else "there are none"
        raise ElementError(f"the {len(data)} bytes are no image of a format that is known: {begin}") from error
    except _DAMAGE as error:
        if isinstance(error, ElementError):
            raise
        raise ElementError(f"the image of {len(data)} bytes cannot be decoded: {error}") from error


def encode_png(pixels: Pixels) -> bytes:
    """A uint8 image as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def _pixels_of(image: Any, channels: int, dtype: str) -> Pixels:
    if image.mode in ("I", "F"):
        raise ElementError(
            f"the {image.format} has pixels of 32 bits, which image.decode has no scale for: read it by Pillow"
        )
    if image.mode.startswith("I;16"):
        wide = np.asarray(image).astype(np.uint16)[..., None]
        shades = wide if dtype != "uint8" else (wide >> 8).astype(np.uint8)
        opaque = np.full_like(shades, _LARGEST[shades.dtype])
        return np.concatenate([shades] * min(channels, 3) + [opaque] * (channels == 4), axis=-1)
    if "transparency" in image.info:  # otherwise Pillow warns, and takes one colour for another
        image = image.convert("RGBA")
    pixels = np.asarray(image.convert(_KINDS[channels][1]))
    pixels = pixels[..., None] if channels == 1 else pixels
    return pixels.astype(np.uint16) * np.uint16(257) if dtype == "uint16" else pixels


def resize(
    image: Any,
    size: Size,
    *,
    interpolation: str = "bilinear",
    crop_to_aspect_ratio: bool = False,
    pad_to_aspect_ratio: bool = False,
) -> Pixels:
    """What `ps.image.resize` says."""
    _check_resize("image.resize", size, interpolation, crop_to_aspect_ratio, pad_to_aspect_ratio)
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
    inner = _fitted(height, width, size) if pad_to_aspect_ratio else (size[0], size[1])
    resized = pixels if inner == (height, width) else _resized(pixels, inner, _FILTERS[interpolation])
    if inner == tuple(size):
        return resized
    padded = np.zeros((*size, pixels.shape[-1]), pixels.dtype)
    top, left = ((whole - part) // 2 for whole, part in zip(size, inner))
    padded[top : top + inner[0], left : left + inner[1]] = resized
    return padded


def _middle(height: int, width: int, size: Size) -> tuple[int, int, int, int]:
    """Top, left, bottom and right of the largest part in the middle with the proportions of `size`, as in Keras."""
    cut_height = max(1, min(height, int(width * size[0] / size[1])))
    cut_width = max(1, min(width, int(height * size[1] / size[0])))
    top, left = (height - cut_height) // 2, (width - cut_width) // 2
    return top, left, top + cut_height, left + cut_width


def _fitted(height: int, width: int, size: Size) -> Size:
    """The largest size with the proportions of an image that fits into `size`."""
    share = min(size[0] / height, size[1] / width)
    return max(1, min(size[0], round(height * share))), max(1, min(size[1], round(width * share)))


def _resized(pixels: Pixels, size: Size, by: Image.Resampling) -> Pixels:
    channels = pixels.shape[-1]
    shape = (size[1], size[0])
    if pixels.dtype == np.uint8 and channels in _KINDS:
        image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
        result = np.asarray(image.resize(shape, by))
        return result[..., None] if channels == 1 else result
    # Pillow has no image of several numbers wider than a byte: one channel after the other.
    planes = [
        np.asarray(Image.fromarray(np.ascontiguousarray(pixels[..., channel], np.float32)).resize(shape, by))
        for channel in range(channels)
    ]
    result = np.stack(planes, axis=-1)
    if pixels.dtype.kind == "f":
        floats: Pixels = result.astype(pixels.dtype)
        return floats
    limits = np.iinfo(pixels.dtype)
    whole: Pixels = np.clip(np.rint(result), limits.min, limits.max).astype(pixels.dtype)
    return whole
