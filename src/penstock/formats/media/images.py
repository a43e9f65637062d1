"""Images: the bytes of a file to an array.

JPEG is decoded by libjpeg-turbo (simplejpeg), at a reduced scale where that is enough. Pillow decodes files that it
rejects, such as CMYK and files with small faults, and every other format; OpenCV, colours of 16 bits.
"""

import io
from typing import Any, Final

import numpy as np

from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError, MissingExtraError
from penstock.formats.file_errors import by_library
from penstock.runtime.memory_thresholds import keep_freed_memory

try:
    import simplejpeg
    from PIL import Image, UnidentifiedImageError

    from penstock.formats.media.resizing import Pixels, Size, check_resize, cv2, fitted
    from penstock.formats.media.resizing import resize as resize
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "images need simplejpeg and Pillow: pip install 'penstock-data[image]'", name=error.name or "PIL"
    ) from error

_KINDS: Final = {1: ("GRAY", "L"), 3: ("RGB", "RGB"), 4: ("RGBA", "RGBA")}
"""By the number of channels, the names of such pixels in simplejpeg and Pillow."""
_DTYPES: Final = ("uint8", "uint16", "float32")
_JPEG: Final = b"\xff\xd8\xff"
# Numbers by which libjpeg-turbo divides both sides with little work; other scales take longer than the whole image.
_SCALES: Final = (8, 4, 2)


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
    """Implementation of `ps.image.decode`."""
    check_decode("image.decode", channels, dtype, size, interpolation, crop_to_aspect_ratio, pad_to_aspect_ratio)
    keep_freed_memory()
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
    if size is not None and pixels.shape[:2] != tuple(size):
        pixels = resize(
            pixels,
            size,
            interpolation=interpolation,
            crop_to_aspect_ratio=crop_to_aspect_ratio,
            pad_to_aspect_ratio=pad_to_aspect_ratio,
        )
    if dtype == "float32":
        floats: Pixels = np.divide(pixels, np.float32(_LARGEST[pixels.dtype]))
        return floats
    return pixels


_LARGEST: Final = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}


def check_decode(
    call: str,
    channels: int,
    dtype: str,
    size: Size | None,
    interpolation: str,
    crop: bool,
    pad: bool,
    *,
    argument: str = "size",
) -> None:
    """Refuse arguments that never work.

    Raises:
        InvalidArgumentError, InvalidTypeError: as for `decode`.
    """
    if channels not in _KINDS:
        raise InvalidArgumentError(
            f"{call}(channels=...) takes 1 (gray), 3 (RGB) or 4 (RGB and opacity), got {channels!r}"
        )
    if dtype not in _DTYPES:
        raise InvalidArgumentError(f"{call}(dtype=...) takes 'uint8', 'uint16' or 'float32', got {dtype!r}")
    if size is not None:
        check_resize(call, size, interpolation, crop, pad, argument)


def _of_jpeg(data: bytes | bytearray | memoryview, channels: int, least: tuple[Size, bool] | None) -> Pixels | None:
    """The pixels of a JPEG; None where simplejpeg rejects it, so that Pillow decodes it or raises a better error.

    Args:
        data: the file.
        channels: the number of channels of the result.
        least: the size that is wanted in the end, and True if the image will be fitted into it.
    """
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        factor = 1 if least is None else _scale(height, width, *least)
        height, width = -(-height // factor), -(-width // factor)
        if colours not in ("RGB", "Gray", "YCbCr") or _is_too_large(height, width):
            return None
        small = {} if factor == 1 else {"min_height": height, "min_width": width}
        pixels: Pixels = simplejpeg.decode_jpeg(data, _KINDS[channels][0], **small)
    except Exception:  # simplejpeg raises all kinds
        return None
    return pixels


def _scale(height: int, width: int, size: Size, is_fitted: bool) -> int:
    """The largest number by which both sides of a JPEG can be divided and still be as long as the result's."""
    if is_fitted:
        size = fitted(height, width, size)
    fits = [factor for factor in _SCALES if height >= size[0] * factor and width >= size[1] * factor]
    return fits[0] if fits else 1


def _is_too_large(height: int, width: int) -> bool:
    """True if Pillow refuses this number of pixels, which could fill the memory."""
    limit: Any = Image.MAX_IMAGE_PIXELS  # programs may set it to None
    return limit is not None and height * width > 2 * limit


def _by_pillow(data: bytes | bytearray | memoryview, channels: int, dtype: str) -> Pixels:
    with by_library(f"the image of {len(data)} bytes cannot be decoded"):
        try:
            image = Image.open(io.BytesIO(data))
        except UnidentifiedImageError as error:
            begin = f"they begin with {bytes(data[:12])!r}" if len(data) else "there are none"
            raise ElementError(f"the {len(data)} bytes are no image of a format that is known: {begin}") from error
        with image:
            if dtype != "uint8" and image.mode in ("RGB", "RGBA") and _has_16_bits(image):
                image.load()  # raises the error of a damaged image, of which OpenCV gives what there is
                return _wide_colours(data, str(image.format), channels)
            return _pixels_of(image, channels, dtype)


def _wide_colours(data: bytes | bytearray | memoryview, kind: str, channels: int) -> Pixels:
    """The pixels of an image whose colours have 16 bits, by OpenCV, which does not scale those of other formats."""
    if cv2 is None or kind not in ("PNG", "TIFF"):
        raise ElementError(
            f"the {kind} has colours of 16 bits: pip install 'penstock-data[opencv]' reads those of PNG and TIFF, and "
            "dtype='uint8' takes the upper 8 bits without it"
        )
    found = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if found is None or found.dtype != np.uint16:
        raise ElementError(f"the {kind} of {len(data)} bytes is damaged, or OpenCV reads no 16 bits of it")
    order = {3: "BGR", 4: "BGRA"}[found.shape[2]]
    pixels: Pixels = cv2.cvtColor(found, getattr(cv2, f"COLOR_{order}2{_KINDS[channels][0]}"))
    return pixels.reshape(*pixels.shape[:2], channels)


def encode_png(pixels: Pixels) -> bytes:
    """A uint8 image as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def _has_16_bits(image: Any) -> bool:
    """True if the file has more bits of each colour than Pillow reads."""
    arguments: Any = image.tile[0][3] if image.tile else ""
    if image.format == "PPM":
        return bool(arguments[-1] > _LARGEST[np.dtype(np.uint8)])
    return "16" in str(arguments if isinstance(arguments, str) else arguments[0])


def _pixels_of(image: Any, channels: int, dtype: str) -> Pixels:
    if image.mode in ("I", "F") and image.format != "PPM":
        raise ElementError(
            f"the {image.format} has pixels of 32 bits, which image.decode has no scale for: read it by Pillow"
        )
    if image.mode.startswith("I"):  # the shades of a PGM fill 16 bits, whatever its largest value is
        wide = np.asarray(image).astype(np.uint16)[..., None]
        shades = wide if dtype != "uint8" else (wide >> 8).astype(np.uint8)
        opaque = np.full_like(shades, _LARGEST[shades.dtype])
        opaque[wide == image.info.get("transparency", -1)] = 0
        return np.concatenate([shades] * min(channels, 3) + [opaque] * (channels == 4), axis=-1)
    if "transparency" in image.info:  # otherwise Pillow warns, and takes one colour for another
        image = image.convert("RGBA")
    pixels = np.asarray(image.convert(_KINDS[channels][1]))
    pixels = pixels[..., None] if channels == 1 else pixels
    return pixels.astype(np.uint16) * np.uint16(257) if dtype == "uint16" else pixels
