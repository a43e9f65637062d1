"""Samples of recordings."""

import os
from typing import Any

import numpy.typing as npt

from penstock.extras import load
from penstock.formats.media.recordings import AudioInfo


def info(source: bytes | str | os.PathLike[str]) -> AudioInfo:
    """The header of a recording, without decoding it: `samples`, `channels`, `rate`, `seconds` and `format`.

    Args:
        source: the content of a file, or its name, which may have a protocol.

    Raises:
        ElementError: it is not audio, or it is damaged.
        StorageError: the file cannot be opened.
        MissingExtraError: soundfile is not installed.

    Example:
        >>> import io, wave
        >>> import penstock as ps
        >>> content = io.BytesIO()
        >>> with wave.open(content, "wb") as file:
        ...     file.setparams((1, 2, 8000, 0, "NONE", ""))
        ...     file.writeframes(bytes(8000))
        >>> found = ps.audio.info(content.getvalue())
        >>> found.samples, found.channels, found.seconds
        (4000, 1, 0.5)
    """
    found: AudioInfo = load("penstock.formats.media.audio", "audio", "ps.audio").info(source)
    return found


def decode(
    source: bytes | str | os.PathLike[str],
    samples: tuple[int, int] | None = None,
    seconds: tuple[float, float] | None = None,
    dtype: str = "float32",
) -> tuple[npt.NDArray[Any], int]:
    """The samples of a recording as an array of shape (samples, channels), and the sample rate.

    WAV, FLAC, Ogg Vorbis, Opus, MP3, AIFF and whatever else libsndfile reads. Of a part of a recording, nothing else is
    decoded; from a file given by its name, nothing else is read.

    Args:
        source: the content of a file, or its name, which may have a protocol.
        samples: (begin, end) of the part, as numbers of samples; None for the whole recording.
        seconds: the same in seconds, rounded to samples.
        dtype: "float32" or "float64", from -1 to 1; "int16" or "int32".

    Raises:
        ElementError: it is not audio, is damaged or cut off, or ends before the part does. The error names the file
            and the sample.
        InvalidArgumentError: other dtypes or parts than these.
        StorageError: the file cannot be opened.
        MissingExtraError: soundfile is not installed.

    Example:
        >>> import io, wave
        >>> import numpy as np
        >>> import penstock as ps
        >>> content = io.BytesIO()
        >>> with wave.open(content, "wb") as file:
        ...     file.setparams((1, 2, 8000, 0, "NONE", ""))
        ...     file.writeframes(np.arange(4, dtype="<i2").tobytes())
        >>> samples, rate = ps.audio.decode(content.getvalue(), samples=(1, 3), dtype="int16")
        >>> samples.tolist(), rate
        ([[1], [2]], 8000)
    """
    found: tuple[npt.NDArray[Any], int] = load("penstock.formats.media.audio", "audio", "ps.audio").decode(
        source, samples, seconds, dtype
    )
    return found
