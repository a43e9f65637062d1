"""Recordings of sound: WAV, FLAC, Ogg Vorbis, Opus, MP3 and what else libsndfile reads, from any place in the file."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import soundfile

from penstock.errors import ElementError, InvalidArgumentError
from penstock.formats.media.recordings import AudioInfo, Source, opened, seconds_bounds

_DTYPES: Final = ("int16", "int32", "float32", "float64")
_FLOATS: Final = ("FLOAT", "DOUBLE")


def info(source: Source) -> AudioInfo:
    """Do what `ps.audio.info` says."""
    with _recording("audio.info", source) as (file, _):
        return AudioInfo(file.frames, file.channels, file.samplerate, f"{file.format} {file.subtype}")


def decode(source: Source, samples: Any, seconds: Any, dtype: str) -> tuple[npt.NDArray[Any], int]:
    """Do what `ps.audio.decode` says."""
    call = "audio.decode"
    if dtype not in _DTYPES:
        raise InvalidArgumentError(f"{call}(dtype=...) takes one of {', '.join(map(repr, _DTYPES))}, got {dtype!r}")
    if samples is not None and seconds is not None:
        raise InvalidArgumentError(f"{call} takes one of samples and seconds, got both")
    if samples is not None:
        _check_samples(call, samples)
    times = None if seconds is None else seconds_bounds(call, seconds)
    with _recording(call, source) as (file, name):
        begin, end = 0, file.frames
        if samples is not None:
            begin, end = samples
        elif times is not None:
            begin, end = round(times[0] * file.samplerate), round(times[1] * file.samplerate)
        if end > file.frames:
            raise ElementError(f"{name} has {file.frames} samples, expected those from {begin} to {end}")
        return _read(file, name, begin, end, dtype), file.samplerate


def _check_samples(call: str, samples: Any) -> None:
    given = tuple(samples) if isinstance(samples, (tuple, list)) else ()
    whole = len(given) == 2 and all(isinstance(number, (int, np.integer)) for number in given)
    if not whole or not 0 <= given[0] <= given[1]:
        raise InvalidArgumentError(f"{call}(samples=...) takes (begin, end), numbers from 0, got {samples!r}")


def _read(file: Any, name: str, begin: int, end: int, dtype: str) -> npt.NDArray[Any]:
    end_read = begin
    try:
        file.seek(begin)
        scales = file.subtype in _FLOATS and dtype.startswith("int")
        data: npt.NDArray[Any] = file.read(end - begin, dtype="float64" if scales else dtype, always_2d=True)
        if scales:  # libsndfile would take 0.5 for 0
            limits = np.iinfo(dtype)
            data = np.clip(np.rint(data * -float(limits.min)), limits.min, limits.max).astype(dtype)
        end_read = begin + len(data)
    except soundfile.SoundFileError as error:
        raise ElementError(f"{name} is damaged after sample {begin}, of {file.frames}: {_reason(error)}") from error
    if end_read < end:
        raise ElementError(f"{name} is cut: it ends after {end_read} of {file.frames} samples")
    return data


@contextmanager
def _recording(call: str, source: Source) -> Iterator[tuple[Any, str]]:
    with opened(call, source) as (file, name):
        try:
            sound = soundfile.SoundFile(file)
        except soundfile.SoundFileError as error:
            raise ElementError(
                f"{name} is no audio that is known, or damaged at its beginning: {_reason(error)}"
            ) from error
        with sound:
            cut = re.search(r"data : (\d+) \(should be (\d+)\)", sound.extra_info)
            if cut is not None:  # libsndfile takes what is there for the whole
                raise ElementError(f"{name} is cut: it has {cut[2]} bytes of samples, expected {cut[1]}")
            yield sound, name


def _reason(error: Exception) -> str:
    return str(getattr(error, "error_string", error))
