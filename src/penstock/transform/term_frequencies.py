"""tf-idf: how much a token says about its row."""

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.transform.columns import Array, Integers, Ragged, in_rows_of, is_text
from penstock.transform.text_operations import rows_of


def tfidf_terms(column: Any, vocab_size: Any) -> Ragged:
    """The distinct tokens of each row, in order."""
    lengths, rows, terms, _ = counted_terms(column, vocab_size)
    return Ragged(terms, np.bincount(rows, minlength=len(lengths)).astype(np.int64))


def tfidf_weights(column: Any, vocab_size: Any, documents: Any, corpus_size: Any, *, smooth: bool) -> Ragged:
    """The weight of each of these tokens: its share of the row, times the logarithm of how few rows have it."""
    lengths, rows, terms, counts = counted_terms(column, vocab_size)
    frequency = counts / lengths[rows]
    weights = frequency.astype(np.float32) * _rareness(documents, corpus_size, smooth, True)[terms]
    return Ragged(weights, np.bincount(rows, minlength=len(lengths)).astype(np.int64))


def document_frequency(column: Any, vocab_size: Any, documents: Any) -> Any:
    """Return how many rows have each token."""
    return in_rows_of(column, np.asarray(documents)[_terms(column, vocab_size)])


def idf(column: Any, vocab_size: Any, documents: Any, corpus_size: Any, *, smooth: bool, add_baseline: bool) -> Any:
    """Return how rare each token is among the rows."""
    found = _rareness(documents, corpus_size, smooth, add_baseline)[_terms(column, vocab_size)]
    return in_rows_of(column, found)


def _rareness(documents: Any, corpus_size: Any, smooth: bool, add_baseline: bool) -> Array:
    """The logarithm of how few rows have each token, in float32 as in tft."""
    size, having = np.float32(corpus_size), np.asarray(documents).astype(np.float32)
    share = (size + 1) / (1 + having) if smooth else size / having
    return np.asarray(np.log(share) + np.float32(add_baseline))


def counted_terms(column: Any, vocab_size: Any) -> tuple[Integers, Integers, Integers, Array]:
    """Return how many tokens each row has, the rows and the distinct tokens in them, and how often they occur there.

    Raises:
        InvalidTypeError: anything but rows of integers.
        InvalidArgumentError: no indices.
    """
    given, terms, size = rows_of("tfidf", column), _terms(column, vocab_size), int(vocab_size)
    found, counts = np.unique(given.rows * size + terms, return_counts=True)
    return given.lengths, found // size, found % size, counts


def _terms(column: Any, vocab_size: Any) -> Integers:
    terms = rows_of("tfidf", column).values
    if is_text(terms) or terms.dtype.kind not in "iu":
        raise InvalidTypeError("tfidf takes rows of the indices of tokens: use compute_and_apply_vocabulary first")
    if int(vocab_size) < 1:
        raise InvalidArgumentError(f"tfidf takes a vocab_size of at least 1, got {int(vocab_size)}")
    return np.mod(terms, int(vocab_size)).astype(np.int64)  # type: ignore[no-any-return]
