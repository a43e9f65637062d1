"""tf-idf: how much a token says about its row."""

from typing import Any

import numpy as np

from penstock.errors import InvalidTypeError
from penstock.transform.columns import Array, Integers, Ragged, is_text


def tfidf_terms(column: Any, vocab_size: Any) -> Ragged:
    """The distinct tokens of each row, in order."""
    rows, terms, _ = counted_terms(column, vocab_size)
    return Ragged(terms, np.bincount(rows, minlength=len(column.lengths)).astype(np.int64))


def tfidf_weights(column: Any, vocab_size: Any, documents: Any, corpus_size: Any, *, smooth: bool) -> Ragged:
    """The weight of each of these tokens: its share of the row, times the logarithm of how few rows have it."""
    rows, terms, counts = counted_terms(column, vocab_size)
    frequency = counts / column.lengths[rows]
    size, having = np.float32(corpus_size), np.asarray(documents).astype(np.float32)
    with np.errstate(divide="ignore"):
        idf = np.log((size + 1) / (1 + having)) if smooth else np.log(size / having)
    weights = frequency.astype(np.float32) * (idf + np.float32(1))[terms]
    return Ragged(weights, np.bincount(rows, minlength=len(column.lengths)).astype(np.int64))


def counted_terms(column: Any, vocab_size: Any) -> tuple[Integers, Integers, Array]:
    """The rows and the distinct tokens in them, and how often they occur there.

    Raises:
        InvalidTypeError: anything but rows of integers.
    """
    if not isinstance(column, Ragged) or is_text(column.values) or column.values.dtype.kind not in "iu":
        raise InvalidTypeError("tfidf takes rows of the indices of tokens: use compute_and_apply_vocabulary first")
    size = int(vocab_size)
    codes = column.rows * size + np.mod(column.values, size)
    found, counts = np.unique(codes, return_counts=True)
    return found // size, found % size, counts
