"""Rows as people look at them, in HTML: pictures, sound, text, and figures of arrays; or as a line of text each."""

import io
import sys
import wave
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidTypeError, MissingExtraError
from penstock.formats import media
from penstock.printing import in_bytes, one_line
from penstock.structure import Structure, flatten

Array = npt.NDArray[Any]

_STYLE: Final = (
    "<style>.penstock{overflow-x:auto;font:13px system-ui,sans-serif}.penstock table{border-collapse:collapse}"
    ".penstock th,.penstock td{border:1px solid #8886;padding:4px 8px;text-align:left;vertical-align:top;"
    "max-width:36em;overflow-wrap:break-word}.penstock audio{width:240px}"
    ".penstock img,.penstock video{max-width:240px;max-height:240px;margin:2px}"
    ".penstock small{display:block;opacity:.75}.penstock span{border-radius:3px;white-space:pre-wrap}</style>"
)
_KINDS: Final = (
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"\x89PNG\r\n", 0, "image/png"),
    (b"GIF8", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"WAVE", 8, "audio/wav"),
    (b"fLaC", 0, "audio/flac"),
    (b"OggS", 0, "audio/ogg"),
    (b"ID3", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"ftyp", 4, "video/mp4"),
    (b"\x1aE\xdf\xa3", 0, "video/webm"),
)
"""Bytes at a place in a file, and the kind of file that has them there."""
_TAGS: Final = {"image": "<img src='{}'>", "audio": "<audio controls src='{}'></audio>"}
_VIDEO: Final = "<video controls src='{}'></video>"
_LARGEST_FILE: Final = 8_000_000
_LONGEST_TEXT: Final = 500
_LONGEST_SIDE: Final = 512
_MOST_ENTRIES: Final = 8
_MOST_TOKENS: Final = 600
_MOST_SECONDS: Final = 30
_FEWEST_SAMPLES: Final = 256
"""An array of fewer, beside a sample rate, is no sound."""
_BINS: Final = 24
_RATES: Final = ("rate", "sample_rate", "sampling_rate")
_BESIDE_TOKENS: Final = ("segment_ids", "positions", "loss_mask", "attention_mask")


class ShownRows(str):
    """HTML of rows: a notebook shows it, and `Path("rows.html").write_text(shown)` makes a page of it."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f'<HTML of rows, {len(self):,} characters: Path("rows.html").write_text(shown) makes a page of it>'


def shown_rows(elements: Sequence[Any], tokenizer: Any = None) -> ShownRows:
    """Rows as a table with a column for each leaf.

    Raises:
        InvalidTypeError: a tokenizer without `decode`.
    """
    decode = None if tokenizer is None else getattr(tokenizer, "decode", None)
    if tokenizer is not None and decode is None:
        raise InvalidTypeError(f"show(tokenizer=...) takes an object with decode(ids), got {tokenizer!r:.200}")
    lines, heads = [], None
    for number, element in enumerate(elements):
        leaves, structure = flatten(element)
        names = _names(structure)
        if names != heads:
            lines.append("".join(f"<th>{escape(name)}</th>" for name in ["", *names]))
            heads = names
        cells = "".join(f"<td>{cell}</td>" for cell in _Row(names, leaves, decode).cells())
        lines.append(f"<th>{number}</th>{cells}")
    rows = "".join(f"<tr>{line}</tr>" for line in lines) or "<tr><td>no rows</td></tr>"
    return ShownRows(f"<div class='penstock'>{_STYLE}<table>{rows}</table></div>")


def print_rows(elements: Sequence[Any]) -> None:
    """Print a line for each row."""
    for number, element in enumerate(elements):
        leaves, structure = flatten(element)
        shown = [
            f"{name}: {_text(leaf)}".removeprefix(": ") for name, leaf in zip(_names(structure), leaves, strict=True)
        ]
        sys.stdout.write(one_line(f"{number}  {', '.join(shown)}") + "\n")


def _text(leaf: Any) -> str:
    if isinstance(leaf, bytes):
        return f"{in_bytes(len(leaf))} {leaf[:_MOST_ENTRIES]!r}..."
    array = np.asarray(leaf)
    if not array.ndim:
        return str(leaf)
    entries = np.array2string(array, threshold=_MOST_ENTRIES, edgeitems=2, precision=4)
    return f"{array.dtype}{list(array.shape)} {' '.join(entries.split())}"


def _names(structure: Structure) -> list[str]:
    return [path.replace("['", ".").replace("']", "").lstrip(".") for path in structure.paths()]


class _Row:
    """A row, some leaves of which say how others are shown: a sample rate, and the segments of packed tokens."""

    def __init__(self, names: list[str], leaves: list[Any], decode: Callable[[list[int]], str] | None) -> None:
        self._leaves = {
            name: leaf if isinstance(leaf, (bytes, str)) else np.asarray(leaf)
            for name, leaf in zip(names, leaves, strict=True)
        }
        self._decode = decode
        self._segments = next((leaf for name, leaf in self._leaves.items() if _last(name) == "segment_ids"), None)
        self._rate = next((int(leaf) for name, leaf in self._leaves.items() if _is_rate(name, leaf)), None)

    def cells(self) -> Iterator[str]:
        for name, leaf in self._leaves.items():
            yield self._array(name, leaf) if isinstance(leaf, np.ndarray) else _scalar(leaf)

    def _array(self, name: str, array: Array) -> str:
        if array.ndim == 0:
            return _scalar(array.item())
        if array.dtype.kind in "OSU":
            return _entries(array)
        if array.dtype.kind not in "biuf" or not array.size:
            return escape(f"{array.shape} {array.dtype} {array.ravel()[:_MOST_ENTRIES]}")
        side = _last(name) in _BESIDE_TOKENS
        packed = self._segments is not None and np.shape(self._segments) == array.shape
        if array.ndim <= 2 and array.dtype.kind in "iu" and (packed or self._decode and not side):
            return _tokens(array, self._segments if packed else None, None if side else self._decode) + _facts(array)
        channels = array.shape[1] if array.ndim == 2 else array.ndim
        if self._rate and channels <= 2 and array.dtype.kind in "if" and len(array) >= _FEWEST_SAMPLES:
            return _embedded(_wav(array, self._rate), "audio/wav") + _facts(array)
        return "".join(map(_picture, _images(array))) + _facts(array) + _histogram(array)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _is_rate(name: str, leaf: Any) -> bool:
    """Return whether a leaf is the sample rate of the sound beside it, as in the pair that `ps.audio.decode` gives."""
    number = isinstance(leaf, np.ndarray) and leaf.ndim == 0 and leaf.dtype.kind in "iu"
    return number and 4_000 <= int(leaf) <= 384_000 and (_last(name) in _RATES or name.endswith("[1]"))


def _scalar(value: Any) -> str:
    if not isinstance(value, bytes):
        text = value if isinstance(value, str) else repr(value)
        return escape(text[:_LONGEST_TEXT]) + ("…" if len(text) > _LONGEST_TEXT else "")
    kind = next((kind for start, at, kind in _KINDS if value[at : at + len(start)] == start), None)
    if kind and len(value) <= _LARGEST_FILE:
        return f"{_embedded(value, kind)}<small>{kind}, {in_bytes(len(value))}</small>"
    shown = repr(value[:80]) if kind or b"\0" in value else value[:_LONGEST_TEXT].decode(errors="replace")
    return f"{escape(shown)}<small>{in_bytes(len(value))}</small>"


def _embedded(content: bytes, kind: str) -> str:
    return _TAGS.get(kind.partition("/")[0], _VIDEO).format(f"data:{kind};base64,{b64encode(content).decode()}")


def _entries(array: Array) -> str:
    entries = array.ravel()[:_MOST_ENTRIES].tolist()
    shown = "<br>".join(_facts(entry) if isinstance(entry, np.ndarray) else _scalar(entry) for entry in entries)
    return f"{shown}<small>{len(entries)} of {array.size:,}</small>" if array.size > len(entries) else shown


def _tokens(array: Array, segments: Any, decode: Callable[[list[int]], str] | None) -> str:
    """Tokens as text or numbers, those of each segment in a colour of its own, padding pale."""
    if array.ndim == 2:
        rows = range(min(len(array), _MOST_ENTRIES))
        return "<hr>".join(_tokens(array[row], None if segments is None else segments[row], decode) for row in rows)
    numbers = np.zeros(len(array), int) if segments is None else segments
    parts = []
    for run in np.split(np.arange(min(len(array), _MOST_TOKENS)), np.flatnonzero(np.diff(numbers[:_MOST_TOKENS])) + 1):
        ids, segment = array[run].tolist(), int(numbers[run[0]])
        colour = f"background:hsl({segment * 137 % 360} 80% 50%/.3)" if segment else "opacity:.5"
        style = "" if segments is None else f" style='{colour}' title='segment {segment}'"
        parts.append(f"<span{style}>{escape(decode(ids) if decode else ' '.join(map(str, ids)))}</span>")
    return " ".join(parts) + ("…" if len(array) > _MOST_TOKENS else "")


def _wav(samples: Array, rate: int) -> bytes:
    samples = samples[: rate * _MOST_SECONDS].reshape(min(len(samples), rate * _MOST_SECONDS), -1)
    whole = samples.clip(-1, 1) * 32767 if samples.dtype.kind == "f" else samples >> 8 * (samples.itemsize - 2)
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((samples.shape[1], 2, rate, 0, "NONE", ""))
        file.writeframes(whole.astype("<i2").tobytes())
    return content.getvalue()


def _images(array: Array) -> Sequence[Array]:
    """The images in an array: one of them, or a batch; channels are last, or before height and width."""
    if array.ndim > 2 and array.shape[-1] not in (1, 3, 4) and array.shape[-3] in (1, 3, 4):
        array = np.moveaxis(array, -3, -1)
    coloured = array.ndim > 2 and array.shape[-1] in (1, 3, 4)
    axes = 3 if coloured else 2
    is_picture = (coloured or array.dtype in (np.uint8, np.bool_)) and min(array.shape[array.ndim - axes :][:2]) >= 8
    if not is_picture or array.ndim not in (axes, axes + 1):
        return ()
    return list(array[:_MOST_ENTRIES] if array.ndim > axes else array[None])


def _picture(image: Array) -> str:
    step = -(-max(image.shape[:2]) // _LONGEST_SIDE)
    image = image[::step, ::step]
    if image.dtype != np.uint8:
        low, high = _range(image)
        scaled = (image.astype(np.float64) - low) * (255 / ((high - low) or 1))
        image = np.nan_to_num(scaled, posinf=255, neginf=0).astype(np.uint8)
    try:
        return _embedded(media.images.encode_png(image[..., 0] if image.shape[2:] == (1,) else image), "image/png")
    except MissingExtraError:  # the figures are shown without it
        return ""


def _range(array: Array) -> tuple[float, float]:
    finite = array[np.isfinite(array)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def _facts(array: Array) -> str:
    facts = f"{array.shape} {array.dtype}"
    if array.size and array.dtype.kind in "biuf":
        finite = array[np.isfinite(array)]
        if finite.size < array.size:
            facts += f", {array.size - finite.size:,} not finite"
        if finite.size:
            low, high = _range(finite)
            facts += f", {low:g} to {high:g}, mean {finite.mean(dtype=np.float64):.4g}"
    values = f"{array.tolist()} " if array.ndim == 1 and array.size <= _MOST_ENTRIES else ""
    return f"{escape(values)}<small>{escape(facts)}</small>"


def _histogram(array: Array) -> str:
    values = array[np.isfinite(array)]
    if values.size <= _MOST_ENTRIES:
        return ""
    counts, _ = np.histogram(values.astype(np.float64), _BINS)
    bars = "".join(
        f"<rect x='{5 * place}' y='{30 - height:.1f}' width='4' height='{height:.1f}'/>"
        for place, height in enumerate(counts / counts.max() * 30)
    )
    return f"<svg width='{5 * _BINS}' height='30' fill='currentColor' opacity='.6'>{bars}</svg>"
