"""Recordings of audio and video: their sources, and the part that is asked for."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from penstock.errors import InvalidTypeError
from penstock.formats.opening import open_file
from penstock.paths import has_protocol, local_path


@dataclass(frozen=True)
class AudioInfo:
    """The facts of a recording; see `ps.audio.info`.

    Attributes:
        samples: the number of samples of each channel.
        channels: the number of channels.
        rate: the number of samples in a second.
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
        frames: the number of frames.
        height: of a frame.
        width: of a frame.
        rate: the number of frames in a second, on average.
        codec: the name of their compression.
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
    """A file object that can be read from any place, and its name in errors. It is closed at the end.

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
    """Facts about the local files that were used last: often many clips of a file are read."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[tuple[str, int, int], Found] = {}

    def get(self, source: Source, find: Callable[[], Found]) -> Found:
        """The fact that is kept of a recording, or else the one that `find` finds."""
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
