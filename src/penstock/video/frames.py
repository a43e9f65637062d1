"""Frames of videos."""

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.extras import load
from penstock.formats.media_files import VideoInfo


def info(source: bytes | str | os.PathLike[str]) -> VideoInfo:
    """What a video is, without decoding it.

    Of the result `frames` says how many it has, `times` at which second each is shown, the first at 0, and `height`,
    `width`, `rate` (frames in a second), `seconds` and `codec` what their names say.

    Args:
        source: the content of a file, or its name, also one with a protocol.

    Raises:
        ElementError: it is no video, or cut off.
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

    Frames have numbers from 0 in the order in which they are shown, whatever the order and the distances in the file.
    Decoding begins at the last place before a frame where it can, so what a frame costs depends on how far apart these
    places are: often a few seconds. Frames that are near to each other should be asked for by one call.

    Args:
        source: the content of a file, or its name, also one with a protocol. Of a local file that is named, the
            places of its frames are kept, so that the next clip of it costs its own frames only.
        frames: the numbers that are wanted, in any order; `range(100, 132, 2)` is a clip. None for all.
        seconds: the times instead: of each the frame that is shown then.
        channels: 3 for red, green and blue, 1 for shades of gray.

    Raises:
        ElementError: it is no video, is damaged or cut off, or has fewer frames. It names the file and the frame.
        InvalidArgumentError: other frames or channels than these.
        StorageError: the file cannot be opened.
        MissingExtraError: PyAV is not installed.
    """
    clip: npt.NDArray[np.uint8] = load("penstock.formats.video", "video", "ps.video").decode(
        source, frames, seconds, channels
    )
    return clip
