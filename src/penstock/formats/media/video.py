"""Videos: frames by number or by time, through FFmpeg (PyAV), without decoding from the beginning of the file.

The packets of a file contain the time at which each frame is shown, and mark those at which decoding can begin. So they
are looked through first, without decoding, and the numbers of frames do not depend on where decoding began.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import VideoReformatter

from penstock.errors import ElementError, InvalidArgumentError
from penstock.formats.file_errors import by_library
from penstock.formats.media.recordings import KeptByFile, Source, VideoInfo, opened

Frames = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Index:
    """The times of frames, in the stream's own units, and the places from which decoding can begin.

    Attributes:
        shown: the times of the frames, sorted.
        keys: the frames that need no others: the times at which each is shown and decoded. Some kinds of files are
            searched by the first, which leads to an earlier key frame in others, and some by the second.
        turns: the quarters by which frames are turned to the left when they are shown, as those of phones are.
    """

    shown: tuple[int, ...]
    keys: tuple[tuple[int, int], ...]
    turns: int = 0

    @property
    def start(self) -> int:
        """The time at which the first frame is shown."""
        return self.shown[0]

    def size(self, stream: Any) -> tuple[int, int]:
        """Height and width of a frame as it is shown."""
        stored = stream.codec_context.height, stream.codec_context.width
        return (stored[1], stored[0]) if self.turns % 2 else stored


def info(source: Source) -> VideoInfo:
    """Implementation of `ps.video.info`."""
    with _stream("video.info", source) as (container, stream, name):
        index = _indexes.get(source, lambda: _looked_through(container, stream, name))
        unit = float(stream.time_base)
        return VideoInfo(
            len(index.shown),
            *index.size(stream),
            float(stream.average_rate or 0),
            str(stream.codec_context.name),
            tuple((time - index.start) * unit for time in index.shown),
        )


def decode(source: Source, frames: Any, seconds: Any, channels: int) -> Frames:
    """Implementation of `ps.video.decode`."""
    call = "video.decode"
    if channels not in (1, 3):
        raise InvalidArgumentError(f"{call}(channels=...) takes 1 (gray) or 3 (RGB), got {channels!r}")
    if frames is not None and seconds is not None:
        raise InvalidArgumentError(f"{call} takes one of frames and seconds, got both")
    numbers = None if frames is None else _numbers(call, "frames", frames, (int, np.integer))
    times = None if seconds is None else _numbers(call, "seconds", seconds, (int, float, np.number))
    with _stream(call, source) as (container, stream, name):
        index = _indexes.get(source, lambda: _looked_through(container, stream, name))
        count = len(index.shown)
        if times is not None:
            numbers = [_shown_at(index, float(time), float(stream.time_base)) for time in times]
        elif numbers is None:
            numbers = list(range(count))
        missing = next((number for number in numbers if number >= count), None)
        if missing is not None:
            raise ElementError(f"{name} has {count} frames, expected one of number {missing}")
        clip = np.empty((len(numbers), *index.size(stream), channels), np.uint8)
        _decode_into(clip, container, stream, index, numbers, name)
        return clip


def _numbers(call: str, argument: str, given: Any, kinds: tuple[type, ...]) -> list[Any]:
    numbers: list[Any] | None = list(given) if isinstance(given, (range, list, tuple, np.ndarray)) else None
    if numbers is None or not all(isinstance(each, kinds) for each in numbers) or min(numbers, default=0) < 0:
        raise InvalidArgumentError(
            f"{call}({argument}=...) takes a list or range of numbers from 0, got {given!r:.200}"
        )
    return numbers


def _shown_at(index: _Index, seconds: float, unit: float) -> int:
    """The number of the frame that is shown at a time: of the last one that is not later."""
    return max(0, bisect_right(index.shown, index.start + seconds / unit + 1e-6) - 1)


@contextmanager
def _stream(call: str, source: Source) -> Iterator[tuple[Any, Any, str]]:
    with opened(call, source) as (file, name):
        with by_library(f"{name} is no video that is known, or cut or damaged"):
            container = av.open(file, "r", **_ANY_TITLES)
        with container:
            stream = next(iter(container.streams.video), None)
            if stream is None or stream.codec_context is None:
                raise ElementError(f"{name} has no video that can be decoded")
            stream.codec_context.thread_count = 1  # several videos are decoded at the same time
            stream.codec_context.options = {"err_detect": "explode"}
            yield container, stream, name


_indexes: Final = KeptByFile[_Index]()
_ANY_TITLES: Final[dict[str, Any]] = (
    {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
)
"""PyAV takes titles in any encoding by default from version 19 on."""
_FRAMES_LOST: Final = 4
"""About the number of frames that a decoder has begun, and loses when it goes elsewhere."""


def _looked_through(container: Any, stream: Any, name: str) -> _Index:
    shown, keys = [], []
    packets = 0
    try:
        for packet in container.demux(stream):
            packets += packet.size > 0
            if packet.size == 0 or packet.is_discard:
                continue
            time = packet.dts if packet.pts is None else packet.pts
            if time is None:
                raise ElementError(f"{name} does not say when its frames are shown, so they have no numbers")
            shown.append(time)
            if packet.is_keyframe:
                keys.append((time, time if packet.dts is None else packet.dts))
    except av.FFmpegError as error:
        raise ElementError(f"{name} is damaged after frame {len(shown)}: {error.strerror}") from error
    # Where an edit list skips frames, the index of the file has fewer of them than its header.
    expected = len(stream.index_entries) if "mp4" in container.format.name else stream.frames
    if packets < expected:
        raise ElementError(f"{name} is cut: it ends after {packets} of {expected} frames")
    if not shown:
        raise ElementError(f"{name} has a video without frames")
    index = _Index(tuple(sorted(shown)), tuple(sorted(keys)))
    # A first frame that is damaged is refused when it is asked for.
    with suppress(ElementError), by_library(name):
        container.seek(min(index.start, 0), stream=stream, backward=True)
        return replace(index, turns=round(next(container.decode(stream)).rotation / 90))
    return index


def _decode_into(clip: Frames, container: Any, stream: Any, index: _Index, numbers: Sequence[int], name: str) -> None:
    """Decode the frames of these numbers, each once, in the order of the file."""
    rows: dict[int, list[int]] = {}
    for row, number in enumerate(numbers):
        rows.setdefault(index.shown[number], []).append(row)
    wanted = sorted(rows)
    number_of = {time: number for number, time in enumerate(index.shown)}
    decoded: Iterator[Any] = iter(())
    last: int | None = None
    converter = VideoReformatter()  # preparing one for each frame would take longer than converting
    for time in wanted:
        key = bisect_right(index.keys, time, key=itemgetter(0)) - 1
        what = f"{name}: frame {number_of[time]} of {len(index.shown)}"
        frame = None
        if last is not None:
            skipped = number_of[time] - number_of[last]
            if key < 0 or skipped <= number_of[time] - number_of[index.keys[key][0]] + _FRAMES_LOST:
                frame = _next_at(decoded, time, what)
        places = (place for number in range(key, -1, -1) for place in dict.fromkeys(index.keys[number]))
        for place in () if frame is not None else chain(places, [min(index.start, 0)]):
            decoded = _from(container, stream, place, what)
            frame = _next_at(decoded, time, what)
            if frame is not None:
                break
        if frame is None:
            raise ElementError(f"{what} cannot be decoded: it is damaged")
        pixels = converter.reformat(frame, format="gray" if clip.shape[3] == 1 else "rgb24").to_ndarray()
        shown = np.rot90(pixels.reshape(frame.height, frame.width, -1), index.turns)
        if shown.shape != clip.shape[1:]:
            raise ElementError(
                f"{what} has {shown.shape[0]} x {shown.shape[1]} pixels, expected {clip.shape[1]} x {clip.shape[2]}"
            )
        for row in rows[time]:
            clip[row] = shown
        last = time


def _from(container: Any, stream: Any, time: int, what: str) -> Iterator[Any]:
    with by_library(f"{what} cannot be decoded: its file is damaged, or of a kind that is read from its start alone"):
        container.seek(time, stream=stream, backward=True)
    return iter(container.decode(stream))


def _next_at(decoded: Iterator[Any], time: int, what: str) -> Any:
    """The frame that is shown at this time, out of those that are decoded one after the other; None without one."""
    with by_library(f"{what} cannot be decoded"):
        for frame in decoded:
            shown = frame.dts if frame.pts is None else frame.pts
            if shown == time:
                return frame
            if shown is not None and shown > time:
                break
    return None
