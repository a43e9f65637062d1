"""Recordings of sound: WAV, FLAC, Ogg Vorbis, Opus, MP3 and all others that libsndfile reads, from any place."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import soundfile

from penstock.errors import ElementError, InvalidArgumentError, StorageError
from penstock.formats.file_errors import by_library
from penstock.formats.media.recordings import AudioInfo, KeptByFile, Source, opened

_DTYPES: Final = ("int16", "int32", "float32", "float64")
_FLOATS: Final = ("FLOAT", "DOUBLE", "VORBIS", "OPUS")
"""The samples that libsndfile does not make integers of: it would take 0.5 for 0, or 1.01 for -1."""
_LENGTHS: Final = re.compile(r"(?:data|SSND|BODY|Data Size|[Rr]iff(?: size)?)\s*: (\d+) \(should be (\d+)\)")
"""Remarks of libsndfile on a recording that has fewer bytes than its header claims."""
_STREAMED: Final = 0x7FFF_F000
"""From here on the bytes that a header claims are no number: its writer could not go back to fill it in."""
_UNKNOWN: Final = 1 << 62
_MOST_AT_ONCE: Final = 1 << 20
"""Samples that a header claims get memory when they come."""
_LONGEST: Final = 64
"""The most times as long as by its first bit rate an MP3 may be: bit rates are from 8 to 320 kbit in a second."""
_TAG_BYTES: Final = 128
_OGG_PAGE: Final = b"OggS\0"
_OGG_HEADER: Final = 27
_OGG_PAGE_BYTES: Final = _OGG_HEADER + 255 + 255 * 255
_counts: Final = KeptByFile[int]()


def info(source: Source) -> AudioInfo:
    """Implementation of `ps.audio.info`."""
    with _recording("audio.info", source) as (file, _, count, _):
        return AudioInfo(count, file.channels, file.samplerate, f"{file.format} {file.subtype}")


def decode(source: Source, samples: Any, seconds: Any, dtype: str) -> tuple[npt.NDArray[Any], int]:
    """Implementation of `ps.audio.decode`."""
    call = "audio.decode"
    if dtype not in _DTYPES:
        raise InvalidArgumentError(f"{call}(dtype=...) takes one of {', '.join(map(repr, _DTYPES))}, got {dtype!r}")
    if samples is not None and seconds is not None:
        raise InvalidArgumentError(f"{call} takes one of samples and seconds, got both")
    bounds = None if samples is None else _bounds(call, "samples", samples, (int, np.integer))
    times = None if seconds is None else _bounds(call, "seconds", seconds, (int, float))
    with _recording(call, source) as (file, name, count, last):
        begin, end = bounds or (0, count)
        if times is not None:
            begin, end = round(times[0] * file.samplerate), round(times[1] * file.samplerate)
        if end > count:
            raise ElementError(f"{name} has {count} samples, expected those from {begin} to {end}")
        start = min(begin, last) if file.subtype == "VORBIS" else begin
        return _read(file, name, start, end, count, dtype)[begin - start :], file.samplerate


def _bounds(call: str, argument: str, given: Any, kinds: tuple[type, ...]) -> tuple[Any, Any]:
    pair = tuple(given) if isinstance(given, (tuple, list)) else ()
    if len(pair) != 2 or not all(isinstance(each, kinds) for each in pair) or not 0 <= pair[0] <= pair[1]:
        raise InvalidArgumentError(f"{call}({argument}=...) takes (begin, end), numbers from 0, got {given!r}")
    return pair


def _read(file: Any, name: str, begin: int, end: int, count: int, dtype: str) -> npt.NDArray[Any]:
    with by_library(f"{name} is damaged after sample {begin}, of {count}"):
        file.seek(begin)
        scales = file.subtype in _FLOATS and dtype.startswith("int")
        kind = "float64" if scales else dtype
        parts = [file.read(min(end - begin, _MOST_AT_ONCE), dtype=kind, always_2d=True)]
        while len(parts[-1]) == _MOST_AT_ONCE:
            parts.append(file.read(min(end - file.tell(), _MOST_AT_ONCE), dtype=kind, always_2d=True))
    data: npt.NDArray[Any] = np.concatenate(parts) if len(parts) > 1 else parts[0]
    if scales:
        limits = np.iinfo(dtype)
        data = np.clip(np.rint(data * -float(limits.min)), limits.min, limits.max).astype(dtype)
    if len(data) < end - begin:
        raise ElementError(f"{name} is cut: it ends after {begin + len(data)} of {count} samples")
    return data


@contextmanager
def _recording(call: str, source: Source) -> Iterator[tuple[Any, str, int, int]]:
    """An open recording, its name in errors, the number of its samples, and the last to which libsndfile goes."""
    with opened(call, source) as (file, name):
        content = _Content(file)
        try:
            with _sound(content, name) as sound:
                _check_length(sound, name)
                if sound.format != "MP3" or not content.is_guessed():
                    yield sound, name, sound.frames, content.last_page(name) if sound.format == "OGG" else sound.frames
                    return
            count = _counts.get(source, lambda: _counted(content, name))
            with _sound(content, name) as sound:
                yield sound, name, count, count
        except ElementError:
            if content.failure is not None:
                raise content.failure from None
            raise


def _sound(content: "_Content", name: str) -> Any:
    content.seek(0)
    with by_library(f"{name} is no audio that is known, or damaged at its beginning"):
        return soundfile.SoundFile(content)


def _check_length(sound: Any, name: str) -> None:
    """Refuse a file that is cut, which libsndfile would take for a shorter one, or whose length is unknown."""
    lengths = _LENGTHS.search(sound.extra_info)
    if lengths is not None and int(lengths[2]) < int(lengths[1]) < _STREAMED:
        raise ElementError(f"{name} is cut: it has {lengths[2]} bytes of samples, expected {lengths[1]}")
    if sound.frames >= _UNKNOWN or (not sound.frames and "RIFF : 0\n" in sound.extra_info):
        raise ElementError(
            f"{name} does not say how many samples it has: its writer could not go back to its beginning. Write it "
            "again, as by: ffmpeg -i FILE NEW_FILE"
        )


def _counted(content: "_Content", name: str) -> int:
    """The number of samples of a recording whose header does not contain it, by decoding it."""
    count = 0
    with _sound(content, name) as sound, by_library(f"{name} is damaged after sample {count}"):
        while part := len(sound.read(_MOST_AT_ONCE, "int16", always_2d=True)):
            count += part
    return count


class _Content:
    """The bytes of a file, as libsndfile asks for them.

    Attributes:
        size: the number of bytes.
        failure: the error of reading them: libsndfile ignores errors in its callbacks.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._at = 0
        self.size = self._end = file.seek(0, os.SEEK_END)
        self.failure: StorageError | None = None

    def is_guessed(self) -> bool:
        """True if no head of an MP3 contains its length, which libsndfile then guesses by the file's size.

        It reads no further than its guess. So the file is longer from then on, and samples come as long as there are.
        """
        self._file.seek(0)
        begin = self._file.read(10)
        tags = sum((byte & 0x7F) << shift for byte, shift in zip(begin[6:], (21, 14, 7, 0)))
        self._file.seek(10 + tags if begin.startswith(b"ID3") else 0)
        head = self._file.read(256)
        guessed = not any(mark in head for mark in (b"Xing", b"Info", b"VBRI"))
        if guessed:
            self._end = self.size * _LONGEST
        return guessed

    def last_page(self, name: str) -> int:
        """The number of the sample with which the last page of an Ogg file begins, from where on it must be read.

        libsndfile goes to other samples within that page.

        Raises:
            ElementError: the file is cut, which libsndfile would take for a shorter one.
        """
        self._file.seek(max(0, self.size - 2 * _OGG_PAGE_BYTES))
        pages = self._file.read()
        last = pages.rfind(_OGG_PAGE)
        sizes = pages[last + _OGG_HEADER - 1 : last + _OGG_HEADER + 255]
        whole = _OGG_HEADER + sizes[0] + sum(sizes[1 : 1 + sizes[0]]) if sizes else _OGG_HEADER
        if last < 0 or len(pages) - last < whole or not pages[last + 5] & 4:
            raise ElementError(
                f"{name} is cut: it has no last page. Write what there is of it again, as by: ffmpeg -i FILE NEW_FILE"
            )
        before = max(0, pages.rfind(_OGG_PAGE, 0, last))
        return max(0, int.from_bytes(pages[before + 6 : before + 14], "little", signed=True))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, count: int) -> bytes:
        if self._at >= self._end - _TAG_BYTES > self.size:
            return bytes(max(0, min(count, self._end - self._at)))  # the place of a tag, without which it is refused
        try:
            self._file.seek(self._at)
            data: bytes = self._file.read(count)
        except StorageError as error:
            self.failure, data = error, b""
        self._at += len(data)
        return data
