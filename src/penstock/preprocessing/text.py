"""From texts to tokens: standardising, splitting and n-grams, for all texts of an array at once in Arrow."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidTypeError
from penstock.preprocessing.hashes import spans
from penstock.preprocessing.tokens import TEXT, decoded, is_utf8, text_array

_PUNCTUATION = r'[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']'

Function = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of many texts, or other rows of unequal length, one after the other.

    Attributes:
        values: those of all rows.
        lengths: how many each row has.
    """

    values: Any
    lengths: npt.NDArray[np.int64]

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The number of each value's row."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """The position of each value in its row, from 0."""
        return np.arange(len(self.values)) - np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)


def standardized(texts: pa.LargeBinaryArray, how: str | Function | None, encoding: str) -> pa.LargeBinaryArray:
    """Texts in lower case (ASCII letters only, as in TensorFlow), without punctuation, or what a function returns."""
    if callable(how):
        changed, shape = text_array("TextVectorization(standardize=...)", how(_for_users(texts, encoding)), encoding)
        if shape != (len(texts),):
            raise InvalidTypeError(f"standardize must return one string for each of {len(texts)}, got shape {shape}")
        return changed
    if how is None:
        return texts
    strings = texts.view(pa.large_string())
    if how.startswith("lower"):
        strings = pc.ascii_lower(strings)
    if how.endswith("strip_punctuation"):
        strings = pc.replace_substring_regex(strings, pattern=_PUNCTUATION, replacement="")
    return strings.view(TEXT)


def split_texts(texts: pa.LargeBinaryArray, how: str | Function, encoding: str) -> Tokens:
    """The words of each text, its characters, or what a function returns."""
    if callable(how):
        parts = [list(part) for part in how(_for_users(texts, encoding))]
        if len(parts) != len(texts):
            raise InvalidTypeError(f"split must return one list for each of {len(texts)} texts, got {len(parts)}")
        return _joined(parts, encoding)
    if how == "whitespace":
        return _words(texts)
    if is_utf8(encoding) and _is_utf8_throughout(texts):
        return _characters(texts)
    return _joined([list(text) for text in decoded(texts, encoding)], encoding)


def _joined(parts: list[list[Any]], encoding: str) -> Tokens:
    tokens = [token for part in parts for token in part]
    values, shape = text_array("TextVectorization(split=...)", tokens, encoding)
    if shape != (len(tokens),):
        raise InvalidTypeError(f"split must return a list of strings for each text, got {parts!r:.100}")
    return Tokens(values, np.fromiter(map(len, parts), np.int64, len(parts)))


def _for_users(texts: pa.LargeBinaryArray, encoding: str) -> npt.NDArray[Any]:
    """Texts as strings of variable width: as wide as the longest, a few long texts would fill the memory."""
    try:
        return decoded(texts, encoding).astype(np.dtypes.StringDType())
    except UnicodeEncodeError as error:
        raise InvalidTypeError(
            f"TextVectorization: functions get strings, and some texts are not {encoding}: give their encoding=..."
        ) from error


def _is_utf8_throughout(texts: pa.LargeBinaryArray) -> bool:
    try:
        texts.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _words(texts: pa.LargeBinaryArray) -> Tokens:
    lists = pc.ascii_split_whitespace(texts.view(pa.large_string()))
    values = lists.flatten()
    owners = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    filled = pc.greater(pc.binary_length(values), 0)  # spaces at the ends make empty words
    lengths = np.bincount(owners[filled.to_numpy(zero_copy_only=False)], minlength=len(texts))
    return Tokens(values.filter(filled).cast(TEXT), lengths)


def _characters(texts: pa.LargeBinaryArray) -> Tokens:
    data, starts, sizes = spans(texts)
    if len(texts) == 0:
        return Tokens(texts, np.zeros(0, np.int64))
    first, last = int(starts[0]), int(starts[-1] + sizes[-1])
    begins = np.flatnonzero((data[first:last] & 0xC0) != 0x80) + first
    offsets = np.append(begins, last)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    values = pa.LargeBinaryArray.from_buffers(TEXT, len(begins), buffers)
    lengths = np.searchsorted(begins, starts + sizes) - np.searchsorted(begins, starts)
    return Tokens(values, lengths)


def grams(tokens: Tokens, widths: Iterable[int], separator: bytes = b" ", *, by_token: bool = False) -> Tokens:
    """Runs of neighbouring tokens, joined by a separator.

    For each text all of the first width come first, then all of the next; or with `by_token`, for each token all that
    begin with it.
    """
    rest = np.repeat(tokens.lengths, tokens.lengths) - tokens.positions
    values, starts = [], []
    for width in widths:
        begins = np.flatnonzero(rest >= width)
        parts = [tokens.values.take(pa.array(begins + offset)) for offset in range(width)]
        values.append(pc.binary_join_element_wise(*parts, pa.scalar(separator, TEXT)) if width > 1 else parts[0])
        starts.append(begins)
    start = np.concatenate(starts)
    owner = tokens.rows[start]
    order = np.argsort(start if by_token else owner, kind="stable")
    lengths = np.bincount(owner, minlength=len(tokens.lengths))
    return Tokens(pa.concat_arrays(values).take(pa.array(order)), lengths)
