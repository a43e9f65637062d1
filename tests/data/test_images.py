"""Images: what Pillow writes is what is decoded, at what sizes, and what is wrong with those that cannot be."""

import io
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import simplejpeg
from PIL import Image

import penstock as ps


def noise(height, width, channels=3):
    """Random pixels; of one channel without an axis for it, as Pillow has them."""
    shape = (height, width) if channels == 1 else (height, width, channels)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def smooth(height, width):
    """Pixels that change slowly, as those of a photograph."""
    return np.asarray(Image.fromarray(noise(6, 8)).resize((width, height), Image.Resampling.BICUBIC))


def encoded(pixels, kind, mode=None, **given):
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, kind, **given)
    return file.getvalue()


def by_pillow(data, mode):
    image = Image.open(io.BytesIO(data))
    image.draft(mode, image.size)  # for JPEG: shades of gray as they stand in the file
    return np.asarray(image.convert(mode))


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "ppm"])
def test_formats_without_loss_give_the_pixels_that_were_written(kind):
    pixels = noise(7, 11)
    assert np.array_equal(ps.image.decode(encoded(pixels, kind)), pixels)
    assert np.array_equal(ps.image.decode(encoded(noise(7, 11, 1), kind), 1)[..., 0], noise(7, 11, 1))


@pytest.mark.parametrize(
    ("kind", "mode"), [("jpeg", None), ("jpeg", "L"), ("jpeg", "CMYK"), ("webp", None), ("gif", None), ("png", "P")]
)
def test_every_kind_of_image_becomes_as_many_channels_as_are_asked_for(kind, mode):
    data = encoded(smooth(30, 50), kind, mode)
    for channels, pillows in ((1, "L"), (3, "RGB"), (4, "RGBA")):
        pixels = ps.image.decode(data, channels)
        assert pixels.shape == (30, 50, channels) and pixels.dtype == np.uint8
        expected = by_pillow(data, pillows).reshape(30, 50, channels)
        # Both use libjpeg-turbo, and may round in other places.
        assert np.abs(pixels.astype(int) - expected).max() <= (2 if kind == "jpeg" else 0)


def test_opacity_is_kept_or_left_out():
    pixels = noise(5, 6, 4)
    data = encoded(pixels, "png")
    assert np.array_equal(ps.image.decode(data, 4), pixels)
    assert np.array_equal(ps.image.decode(data, 3), pixels[..., :3])
    assert (ps.image.decode(encoded(noise(5, 6), "jpeg"), 4)[..., 3] == 255).all()
    see_through = encoded(noise(5, 6), "png", "P", transparency=bytes([0, 128, 255]))
    assert np.array_equal(ps.image.decode(see_through, 4), by_pillow(see_through, "RGBA"))


def test_dtypes_have_the_scale_of_their_own():
    pixels = noise(5, 6)
    data = encoded(pixels, "png")
    assert np.array_equal(ps.image.decode(data, dtype="float32"), pixels.astype(np.float32) / np.float32(255))
    assert np.array_equal(ps.image.decode(data, dtype="uint16"), pixels.astype(np.uint16) * 257)
    deep = (np.arange(30, dtype=np.uint16) * 2000).reshape(5, 6)
    assert np.array_equal(ps.image.decode(encoded(deep, "png"), 1, "uint16")[..., 0], deep)
    assert np.array_equal(ps.image.decode(encoded(deep, "png"), 1)[..., 0], deep >> 8)
    assert np.array_equal(ps.image.decode(encoded(deep, "png"), 4, "uint16")[0, 1], [2000, 2000, 2000, 65535])


@pytest.mark.parametrize("size", [(64, 64), (100, 160), (50, 200), (300, 300), (400, 700)])
def test_a_jpeg_at_reduced_scale_is_close_to_the_whole_one_resized(size):
    data = encoded(smooth(400, 640), "jpeg", quality=95)
    for given in ({}, {"crop_to_aspect_ratio": True}, {"pad_to_aspect_ratio": True}):
        reduced = ps.image.decode(data, size=size, **given).astype(int)
        whole = ps.image.resize(ps.image.decode(data), size, **given).astype(int)
        assert reduced.shape == (*size, 3)
        assert np.abs(reduced - whole).mean() < 1.5


def test_resizing_is_pillows_for_bytes_and_agrees_with_it_for_floats():
    pixels = noise(31, 47)
    expected = np.asarray(Image.fromarray(pixels).resize((20, 10), Image.Resampling.BICUBIC))
    assert np.array_equal(ps.image.resize(pixels, (10, 20), interpolation="bicubic"), expected)
    floats = ps.image.resize(pixels.astype(np.float32), (10, 20))
    assert floats.dtype == np.float32
    # Bytes are rounded twice: when the image is halved, by half a level, and at the end, where Pillow cuts off.
    assert np.abs(floats - ps.image.resize(pixels, (10, 20))).max() < 1.5
    wide = ps.image.resize(pixels.astype(np.uint16) * 257, (10, 20))
    assert wide.dtype == np.uint16 and np.abs(wide / 257 - floats).max() < 0.01
    batch = ps.image.resize(np.stack([pixels, pixels[::-1]]), (10, 20))
    assert batch.shape == (2, 10, 20, 3) and np.array_equal(batch[0], ps.image.resize(pixels, (10, 20)))
    assert ps.image.resize(pixels, (31, 47)) is pixels


def bilinear_by_definition(pixels, size):
    """Halves, then four pixels around each place, by loops."""
    while pixels.shape[0] >= 2 * size[0] and pixels.shape[1] >= 2 * size[1]:
        pixels = np.pad(pixels, ((0, pixels.shape[0] % 2), (0, pixels.shape[1] % 2), (0, 0)), "edge").astype(np.float64)
        pixels = (pixels[::2, ::2] + pixels[1::2, ::2] + pixels[::2, 1::2] + pixels[1::2, 1::2]) / 4
    result = np.empty((*size, pixels.shape[2]))
    for y, x in np.ndindex(size):
        down = (y + 0.5) * pixels.shape[0] / size[0] - 0.5
        aside = (x + 0.5) * pixels.shape[1] / size[1] - 0.5
        result[y, x] = 0
        for row, high in ((np.floor(down), 1 - down % 1), (np.floor(down) + 1, down % 1)):
            for column, wide in ((np.floor(aside), 1 - aside % 1), (np.floor(aside) + 1, aside % 1)):
                at = int(np.clip(row, 0, pixels.shape[0] - 1)), int(np.clip(column, 0, pixels.shape[1] - 1))
                result[y, x] += pixels[at] * high * wide
    return result


@pytest.fixture(params=["numpy", "opencv"])
def library(request, monkeypatch):
    """What resizes: OpenCV, where it is installed, or nothing but NumPy."""
    if request.param == "numpy":
        monkeypatch.setattr("penstock.formats.media.resizing.cv2", None)
    else:
        pytest.importorskip("cv2", reason="OpenCV is not installed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "dtype", "size"),
    [
        *(
            (3, dtype, size)
            for dtype in (np.uint8, np.float32)
            for size in [(20, 30), (31, 30), (10, 12), (7, 40), (3, 3)]
        ),
        *((channels, np.uint8, size) for channels in (1, 4) for size in [(10, 12), (70, 100)]),
    ],
)
def test_bilinear_is_one_definition_whatever_library_resizes(size, channels, dtype, library):
    pixels = noise(31, 47, channels).reshape(31, 47, channels).astype(dtype)
    resized = ps.image.resize(pixels, size)
    assert resized.shape == (*size, channels) and resized.dtype == dtype
    # One level for each rounding: of each halving, and at the end.
    assert np.abs(resized - bilinear_by_definition(pixels, size)).max() <= (1.5 if dtype == np.uint8 else 1e-3)


def test_images_of_a_folder_are_decoded_where_their_batch_stands(tmp_path, library):
    (tmp_path / "a").mkdir()
    for number in range(7):  # the fifth has another size, and the last is no JPEG
        image = encoded(noise(30 + (number == 4), 40), "png" if number == 6 else "jpeg")
        (tmp_path / "a" / f"{number}.{'png' if number == 6 else 'jpg'}").write_bytes(image)
    for size in ((30, 40), (20, 25)):
        folder = ps.Dataset.from_image_folder(tmp_path, size, num_parallel_calls=2)
        for images, labels in folder.repeat(2).batch(7):
            assert labels.tolist() == [0] * 7
            for number, image in enumerate(images):
                (file,) = (tmp_path / "a").glob(f"{number}.*")
                assert np.array_equal(image, ps.image.decode(file.read_bytes(), size=size))


def test_what_decode_gave_is_not_overwritten_by_the_next_image():
    given = {"size": (40, 40), "crop_to_aspect_ratio": True}
    first = ps.image.decode(JPEG, **given)
    kept = first.copy()
    ps.image.decode(encoded(255 - smooth(40, 60), "jpeg"), **given)
    assert np.array_equal(first, kept)


def test_proportions_are_kept_by_a_crop_or_by_edges_of_zeros():
    pixels = np.zeros((10, 40, 1), np.uint8)
    pixels[:, 15:25] = 200
    assert (ps.image.resize(pixels, (5, 5), crop_to_aspect_ratio=True) == 200).all()
    bright = np.full((10, 40, 1), 200, np.uint8)
    padded = ps.image.resize(bright, (20, 20), pad_to_aspect_ratio=True)[..., 0]
    assert padded.any(axis=1).tolist() == [False] * 7 + [True] * 5 + [False] * 8


def test_crops_and_flips_are_a_function_of_seed_epoch_and_position():
    images = ps.Dataset.from_tensor_slices(np.random.default_rng(0).integers(0, 256, (20, 12, 12, 3), np.uint8))

    def augmented(image, generator):
        return ps.image.random_flip(ps.image.random_crop(image, (8, 8), generator), generator, "vertical")

    one, many = (images.map(augmented, calls, seed=3) for calls in (None, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, many, strict=True))
    assert one[0].shape == (8, 8, 3) and not np.array_equal(one[0], images[0][:8, :8])
    with pytest.raises(ps.InvalidArgumentError, match=r"at least that size, got 12 x 12"):
        images.map(lambda image, generator: ps.image.random_crop(image, (13, 1), generator), seed=1)[0]


JPEG = encoded(smooth(40, 60), "jpeg")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the 0 bytes are no image of a format that is known: there are none"),
        (b"hello, world, how are you", r"the 25 bytes are no image .* they begin with b'hello, world'"),
        (JPEG[: len(JPEG) // 2], r"the image of \d+ bytes cannot be decoded: .*(?i:truncated)"),
        (encoded(noise(40, 60), "png")[:500], "the image of 500 bytes cannot be decoded"),
        (encoded(np.ones((3, 3), np.float32), "tiff"), "the TIFF has pixels of 32 bits"),
    ],
)
def test_what_is_no_image_is_an_error_of_its_row_which_can_be_skipped(data, message):
    with pytest.raises(ps.ElementError, match=message):
        ps.image.decode(data)
    images = ps.Dataset.from_list([JPEG, data, JPEG]).map(ps.image.decode, ps.AUTOTUNE)
    iterator = iter(images.ignore_errors())
    assert [image.shape for image in iterator] == [(40, 60, 3)] * 2
    assert iterator.errors.count == 1 and iterator.errors.rows[0].position == 1


def test_a_jpeg_with_small_faults_is_decoded_all_the_same():
    faulty = JPEG[:20] + b"junk" + JPEG[20:]  # between its first part and the next
    with pytest.raises(ValueError, match="extraneous"):
        simplejpeg.decode_jpeg(faulty)
    assert np.abs(ps.image.decode(faulty).astype(int) - ps.image.decode(JPEG)).max() <= 2


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: ps.image.decode("a.jpg"), ps.InvalidTypeError, "got the text 'a.jpg': read the file first"),
        (lambda: ps.image.decode(3), ps.InvalidTypeError, "the bytes of an image file, got a int"),
        (lambda: ps.image.decode(JPEG, 2), ps.InvalidArgumentError, r"channels=...\) takes 1 \(gray\), 3"),
        (lambda: ps.image.decode(JPEG, dtype="int8"), ps.InvalidArgumentError, "takes 'uint8', 'uint16' or 'float32'"),
        (lambda: ps.image.decode(JPEG, size=224), ps.InvalidTypeError, r"takes \(height, width\), got 224"),
        (lambda: ps.image.decode(JPEG, size=(0, 1)), ps.InvalidArgumentError, "height.*at least 1"),
        (
            lambda: ps.image.resize(noise(4, 4), (2, 2), interpolation="cubic"),
            ps.InvalidArgumentError,
            "takes one of 'nearest', 'bilinear'",
        ),
        (
            lambda: ps.image.resize(noise(4, 4), (2, 2), crop_to_aspect_ratio=True, pad_to_aspect_ratio=True),
            ps.InvalidArgumentError,
            "takes one of crop_to_aspect_ratio and pad_to_aspect_ratio, got both",
        ),
        (lambda: ps.image.resize(np.zeros((4, 4)), (2, 2)), ps.InvalidTypeError, r"got an array of float64 with shape"),
        (lambda: ps.image.resize(np.zeros((0, 4, 3)), (2, 2)), ps.ElementError, "images with pixels"),
    ],
)
def test_arguments_that_never_work_are_refused(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_images_as_large_as_a_memory_are_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(ps.ElementError, match="2400 pixels"):
        ps.image.decode(JPEG)
    assert ps.image.decode(JPEG, size=(10, 10)).shape == (10, 10, 3)  # decoded as so many that they may be


def test_several_threads_decode_the_same():
    expected = ps.image.decode(JPEG, size=(20, 20))
    with ThreadPoolExecutor(4) as pool:
        assert all(
            np.array_equal(image, expected)
            for image in pool.map(lambda _: ps.image.decode(JPEG, size=(20, 20)), range(40))
        )


@pytest.mark.slow
def test_looking_at_ps_image_imports_neither_package():
    program = "import sys, penstock as ps; ps.image.decode; print(sorted({'PIL', 'simplejpeg'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def png_of(bits, kind, shades, transparent=None):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.tobytes() for row in shades)
    size = struct.pack(">IIBBBBB", shades.shape[1], shades.shape[0], bits, kind, 0, 0, 0)
    shade = [] if transparent is None else [(b"tRNS", struct.pack(">H", transparent))]
    parts = [(b"IHDR", size), *shade, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def test_gray_images_of_16_bits_keep_their_depth_and_what_is_transparent():
    pixels = np.arange(20, dtype=np.uint16).reshape(4, 5) * 3000
    pgm = b"P5 5 4 65535\n" + pixels.astype(">u2").tobytes()
    assert ps.image.decode(pgm, channels=1, dtype="uint16")[..., 0].tolist() == pixels.tolist()
    assert ps.image.decode(pgm, channels=1)[..., 0].tolist() == (pixels >> 8).tolist()
    for bits, kind in ((8, "u1"), (16, ">u2")):
        png = png_of(bits, 0, (np.arange(20).reshape(4, 5) * 10).astype(kind), 30)
        assert ps.image.decode(png, channels=4)[0, :, 3].tolist() == [255, 255, 255, 0, 255]


def test_colours_of_16_bits_are_refused_where_depth_is_asked_for():
    ppm = b"P6 5 2 65535\n" + np.arange(30).astype(">u2").tobytes()
    for dtype in ("uint16", "float32"):
        with pytest.raises(ps.ElementError, match="the PPM has colours of 16 bits: .* dtype='uint8' takes"):
            ps.image.decode(ppm, dtype=dtype)
    assert ps.image.decode(ppm).shape == (2, 5, 3)


@pytest.mark.parametrize("kind", [2, 4, 6])
def test_colours_of_16_bits_keep_their_depth_with_opencv(kind, monkeypatch):
    values = (np.arange(80, dtype=np.uint16) * 801).reshape(4, 5, 4)
    pixels = {2: values[..., :3], 4: values[..., :2], 6: values}[kind]
    png = png_of(16, kind, pixels.astype(">u2"))
    colours = pixels[..., [0, 0, 0]] if kind == 4 else pixels[..., :3]
    with monkeypatch.context() as without:
        without.setattr("penstock.formats.media.images.cv2", None)
        with pytest.raises(ps.ElementError, match=r"PNG has colours of 16 bits: pip install 'penstock-data\[opencv\]'"):
            ps.image.decode(png, dtype="uint16")
    pytest.importorskip("cv2", reason="OpenCV is not installed")
    opacity = np.full((4, 5), 65535) if kind == 2 else pixels[..., -1]
    assert np.array_equal(ps.image.decode(png, dtype="uint16"), colours)
    assert np.array_equal(ps.image.decode(png, dtype="float32"), colours / np.float32(65535))
    assert np.array_equal(ps.image.decode(png, channels=4, dtype="uint16"), np.dstack([colours, opacity]))
    assert ps.image.decode(png, channels=1, dtype="uint16").shape == (4, 5, 1)
    with pytest.raises(ps.ElementError):
        ps.image.decode(png[:-20], dtype="uint16")


@pytest.mark.skipif(".avif" not in Image.registered_extensions(), reason="this Pillow reads no AVIF")
def test_damaged_avif_files_are_errors_of_their_rows():
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(file, "AVIF")
    for place in range(0, len(file.getvalue()), 5):
        data = bytearray(file.getvalue())
        data[place] ^= 0xFF
        with suppress(ps.ElementError):
            ps.image.decode(bytes(data))


@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
def test_colours_of_8_bits_in_a_tiff_are_not_taken_for_16(compression):
    for rows in range(1, 60):  # the place of a directory in the file may have the digits 16
        file = io.BytesIO()
        Image.fromarray(noise(rows, 7)).save(file, "TIFF", compression=compression)
        assert np.array_equal(ps.image.decode(file.getvalue(), dtype="uint16"), noise(rows, 7).astype("u2") * 257)
