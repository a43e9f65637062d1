"""Strings to strings, tokens and numbers, for all rows of a block at once in Arrow."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ElementError, InvalidTypeError
from penstock.preprocessing import hashes
from penstock.preprocessing.text import grams, split_texts
from penstock.preprocessing.tokens import TEXT
from penstock.transform.columns import Array, Integers, Ragged, as_ragged, flat, in_rows_of, is_text, texts_of


def split(column: Any, *, separator: str | None) -> Ragged:
    """The parts of each text; without a separator its words."""
    texts = _texts("split", column)
    if separator is None:
        words = split_texts(texts, "whitespace", "utf-8")
        return Ragged(words.values, words.lengths)
    lists = pc.split_pattern(texts.view(pa.large_string()), pattern=separator)
    return Ragged(lists.flatten().cast(TEXT), pc.list_value_length(lists).to_numpy().astype(np.int64))


def change_text(column: Any, *, how: str, pattern: str = "", replacement: str = "") -> Any:
    """Each text in lower or upper case, without spaces at its ends, or with a regular expression replaced."""
    strings = texts_of(column).view(pa.large_string())
    changed = {
        "lower": pc.utf8_lower,
        "upper": pc.utf8_upper,
        "strip": pc.utf8_trim_whitespace,
        "replace": lambda texts: pc.replace_substring_regex(texts, pattern=pattern, replacement=replacement),
    }[how](strings).cast(TEXT)
    return in_rows_of(column, changed)


def join(*columns: Any, separator: str) -> pa.LargeBinaryArray:
    """The texts of several columns, or integers as texts, row by row with a separator between them."""
    return pc.binary_join_element_wise(*map(texts_of, columns), pa.scalar(separator.encode(), TEXT))


def ngrams(column: Any, *, ngram_range: list[int], separator: str) -> Ragged:
    """At each token the n-grams that begin with it, the shortest first."""
    least, most = ngram_range
    found = grams(_tokens("ngrams", column), range(least, most + 1), separator.encode(), by_token=True)
    return Ragged(found.values, found.lengths)


def distinct_per_row(column: Any) -> Ragged:
    """The values of each row without repetitions, in the order in which they first occur."""
    ragged = rows_of("deduplicate_tensor_per_row", column)
    numbers = _numbered(ragged.values)
    _, first = np.unique(ragged.rows * (numbers.max(initial=0) + 1) + numbers, return_index=True)
    kept = np.sort(first)
    lengths = np.bincount(ragged.rows[kept], minlength=len(ragged.lengths)).astype(np.int64)
    return Ragged(ragged.values.take(pa.array(kept)) if is_text(ragged.values) else ragged.values[kept], lengths)


def row_lengths(column: Any) -> Integers:
    """Return how many values each row has."""
    return rows_of("word_count", column).lengths


def hash_strings(column: Any, *, hash_buckets: int, key: list[int] | None) -> Any:
    """Return a bucket for each text, by the hashes of TensorFlow."""
    texts = flat(column)
    if not is_text(texts):
        raise InvalidTypeError(f"hash_strings takes strings, got {texts.dtype}")
    return in_rows_of(column, hashes.hash_buckets(texts, hash_buckets, key))


def to_dense(column: Any, indices: Any = None, *, shape: list[int | None], default_value: Any) -> Array:
    """Ragged numbers as an array of rows of one length, each at its index, filled with a default."""
    ragged = rows_of("sparse_tensor_to_dense_with_shape", column)
    if is_text(ragged.values):
        raise InvalidTypeError("sparse_tensor_to_dense_with_shape takes numbers: look strings up in a vocabulary first")
    if indices is None:
        places = ragged.positions
    else:
        places = _places(ragged, rows_of("sparse_tensor_to_dense_with_shape", indices))
    width = shape[1] if shape[1] is not None else int(places.max(initial=-1)) + 1
    dense = np.full((len(ragged.lengths), width), default_value, ragged.values.dtype)
    inside = places < width
    dense[ragged.rows[inside], places[inside]] = ragged.values[inside]
    return dense


def _places(numbers: Ragged, indices: Ragged) -> Integers:
    """The index of each number.

    Raises:
        ElementError: rows with another number of indices than numbers.
        InvalidTypeError: indices that are no integers from 0 on.
    """
    if not np.array_equal(numbers.lengths, indices.lengths):
        row = np.flatnonzero(numbers.lengths != indices.lengths)[0]
        raise ElementError(
            f"sparse_tensor_to_dense_with_shape: row {row} of the block has {numbers.lengths[row]} numbers and "
            f"{indices.lengths[row]} indices"
        )
    places = indices.values
    if is_text(places) or places.dtype.kind not in "iu" or places.min(initial=0) < 0:
        raise InvalidTypeError("sparse_tensor_to_dense_with_shape(indices=...) takes integers from 0 on")
    return places.astype(np.int64)  # type: ignore[no-any-return]


def _numbered(values: Any) -> Integers:
    """A number for each value, the same for equal ones."""
    if is_text(values):
        return values.dictionary_encode().indices.to_numpy().astype(np.int64)  # type: ignore[no-any-return]
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _texts(call: str, column: Any) -> pa.LargeBinaryArray:
    if not is_text(column):
        raise InvalidTypeError(f"{call} takes a string for each row, got {_kind(column)}")
    return column


def rows_of(call: str, column: Any) -> Ragged:
    """The values of each row: one, or those of a list.

    Raises:
        InvalidTypeError: elements with more axes.
    """
    if isinstance(column, Ragged) or is_text(column) or (isinstance(column, np.ndarray) and column.ndim in (1, 2)):
        return as_ragged(column)
    raise InvalidTypeError(f"{call} takes rows of values, got {_kind(column)}")


def _tokens(call: str, column: Any) -> Ragged:
    if isinstance(column, Ragged) and is_text(column.values):
        return column
    raise InvalidTypeError(f"{call} takes rows of tokens, got {_kind(column)}: use ps.transform.split on texts first")


def _kind(column: Any) -> str:
    if isinstance(column, Ragged):
        return f"rows of {_kind(column.values)}"
    return "strings" if is_text(column) else f"an array of {np.asarray(column).dtype}"
