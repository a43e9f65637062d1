"""Frames of videos."""

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.extras import load
from penstock.formats.media_files import VideoInfo


def info(source: bytes | str | os.PathLike[str]) -> VideoInfo:
    """The header of a video, without decoding it.

    The result has `frames` (their number), `times` (when each is shown, in seconds; the first at 0), `height`, `width`,
    `rate` (frames per second), `seconds` and `codec`.

    Args:
        source: the content of a file, or its name, which may have a protocol.

    Raises:
        ElementError: it is not a video, or it is cut off.
        StorageError: the file cannot be opened.
        MissingExtraError: PyAV is not installed.
    """
    found: VideoInfo = load("penstock.formats.video", "video", "ps.video").info(source)
    return found


def decode(
    source: bytes | str | os.PathLike[str],
    frames: range | Sequence[int] | None = None,
    seconds: Sequence[float] | None = None,
    channels: int = 3,
) -> npt.NDArray[np.uint8]:
    """Frames of a video as an array of shape (frames, height, width, channels).

    Frames are numbered from 0 in the order in which they are shown, whatever their order in the file. Decoding begins
    at the last key frame before the first frame that is wanted. So the cost of a frame depends on how far apart key
    frames are, which is often a few seconds: read neighbouring frames with one call.

    Args:
        source: the content of a file, or its name, which may have a protocol. For a local file
            given by its name, the index of frames is kept: the next clip of it costs only that clip's frames.
        frames: the numbers that are wanted, in any order; `range(100, 132, 2)` is a clip. None for all.
        seconds: times instead of numbers: the frame that is shown at each of them.
        channels: 3 for RGB, 1 for grayscale.

    Raises:
        ElementError: it is not a video, is damaged or cut off, or has fewer frames. It says which file and
            frame.
        InvalidArgumentError: other frames or channels than these.
        StorageError: the file cannot be opened.
        MissingExtraError: PyAV is not installed.
    """
    clip: npt.NDArray[np.uint8] = load("penstock.formats.video", "video", "ps.video").decode(
        source, frames, seconds, channels
    )
    return clip
