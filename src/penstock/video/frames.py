"""Frames of videos."""

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.extras import load
from penstock.formats.media.recordings import VideoInfo


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

    Example:
        >>> import io
        >>> import av
        >>> import numpy as np
        >>> import penstock as ps
        >>> content = io.BytesIO()
        >>> with av.open(content, "w", format="mp4") as file:
        ...     stream = file.add_stream("mpeg4", rate=25, width=32, height=16)
        ...     for shade in (0, 128, 255):
        ...         image = np.full((16, 32, 3), shade, np.uint8)
        ...         file.mux(stream.encode(av.VideoFrame.from_ndarray(image)))
        ...     file.mux(stream.encode(None))
        >>> found = ps.video.info(content.getvalue())
        >>> found.frames, found.height, found.width, found.rate
        (3, 16, 32, 25.0)
    """
    found: VideoInfo = load("penstock.formats.media.video", "video", "ps.video").info(source)
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
    frames are, which is often a few seconds: read neighbouring frames with one call. Frames are turned as players turn
    them, where the file of a phone has such a note.

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

    Example:
        >>> import io
        >>> import av
        >>> import numpy as np
        >>> import penstock as ps
        >>> content = io.BytesIO()
        >>> with av.open(content, "w", format="mp4") as file:
        ...     stream = file.add_stream("mpeg4", rate=25, width=32, height=16)
        ...     for shade in (0, 128, 255):
        ...         image = np.full((16, 32, 3), shade, np.uint8)
        ...         file.mux(stream.encode(av.VideoFrame.from_ndarray(image)))
        ...     file.mux(stream.encode(None))
        >>> clip = ps.video.decode(content.getvalue(), frames=[2, 0])
        >>> clip.shape, clip.mean(axis=(1, 2, 3)).round().tolist()
        ((2, 16, 32, 3), [255.0, 0.0])
    """
    clip: npt.NDArray[np.uint8] = load("penstock.formats.media.video", "video", "ps.video").decode(
        source, frames, seconds, channels
    )
    return clip
