"""Recordings of audio and video: where a recording comes from, and which part of it is asked for."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.formats.opening import open_file
from penstock.paths import has_protocol, local_path


@dataclass(frozen=True)
class AudioInfo:
    """The facts of a recording; see `ps.audio.info`.

    Attributes:
        samples: how many, of each channel.
        channels: how many.
        rate: how many samples are in a second.
        format: of the file and of its samples.
    """

    samples: int
    channels: int
    rate: int
    format: str

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.samples / self.rate


@dataclass(frozen=True)
class VideoInfo:
    """The facts of a video; see `ps.video.info`.

    Attributes:
        frames: how many.
        height: of a frame.
        width: of a frame.
        rate: how many frames are in a second, on average.
        codec: how they are compressed.
        times: the seconds at which each frame is shown; the first at 0.
    """

    frames: int
    height: int
    width: int
    rate: float
    codec: str
    times: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Its length: until its last frame ends."""
        return self.times[-1] + 1 / self.rate if self.frames else 0.0


Source = bytes | bytearray | memoryview | str | os.PathLike[str]
"""The content of a file, or its name."""


@contextmanager
def opened(call: str, source: Any) -> Iterator[tuple[Any, str]]:
    """A file object that can be read from any place, and what errors call it. It is closed at the end.

    Raises:
        InvalidTypeError: neither bytes nor a name.
        StorageError: the file cannot be opened.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        with io.BytesIO(source) as content:
            yield content, f"the recording of {len(source)} bytes"
        return
    if not isinstance(source, (str, os.PathLike)):
        raise InvalidTypeError(f"{call} takes the bytes of a file or its name, got a {type(source).__name__}")
    with open_file(source) as file:
        yield file, repr(os.fspath(source))


_MOST_KEPT: Final = 256
Found = TypeVar("Found")


class KeptByFile(Generic[Found]):
    """What was found out about local files, of those that were used last: many clips of one are asked for."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[tuple[str, int, int], Found] = {}

    def get(self, source: Source, find: Callable[[], Found]) -> Found:
        """What is kept of a recording, or what `find` finds."""
        if not isinstance(source, (str, os.PathLike)) or has_protocol(os.fspath(source)):
            return find()
        status = os.stat(local_path(os.fspath(source)))
        version = os.fspath(source), status.st_size, status.st_mtime_ns
        found = self._kept.get(version)
        if found is None:
            found = find()
            with self._lock:
                while len(self._kept) >= _MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[version] = found
        return found


def seconds_bounds(call: str, seconds: Any) -> tuple[float, float]:
    """Begin and end in seconds.

    Raises:
        InvalidArgumentError: no two times in order, from 0.
    """
    given = tuple(seconds) if isinstance(seconds, (tuple, list)) else ()
    numbers = len(given) == 2 and all(isinstance(time, (int, float)) for time in given)
    if not numbers or not 0 <= given[0] <= given[1]:
        raise InvalidArgumentError(f"{call}(seconds=...) takes (begin, end) from 0 in seconds, got {seconds!r}")
    return float(given[0]), float(given[1])
