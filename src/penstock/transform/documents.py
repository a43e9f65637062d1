"""Mappers of tokens by how many rows have them, which tft calls documents."""

from typing import Any

from penstock.errors import InvalidArgumentError
from penstock.options import check_integer
from penstock.transform.building import noted, results, without_rows
from penstock.transform.symbols import Column

_MOST_TOKENS = 1 << 31


def tfidf(x: Any, vocab_size: Any, smooth: bool = True, name: str | None = None) -> tuple[Column, Column]:
    """The distinct tokens of each row, and the weight of each: how frequent it is there, and how rare elsewhere.

    Args:
        x: rows of the indices of tokens, as `compute_and_apply_vocabulary` gives them; modulo `vocab_size`.
        vocab_size: the number of indices, or `get_num_buckets_for_transformed_feature(x)`.
        smooth: log((rows + 1) / (1 + rows with the token)) + 1, otherwise log(rows / rows with the token) + 1.
        name: shown in summaries.

    Returns:
        Two columns of rows of equal lengths: the tokens in order, and their weights, float32.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"text": ["a cat a", "a dog"]}
        >>> def preprocess(columns):
        ...     words = ps.transform.compute_and_apply_vocabulary(ps.transform.split(columns["text"]))
        ...     tokens, weights = ps.transform.tfidf(words, 3)
        ...     return {"tokens": tokens, "weights": weights}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     row = output.transform_features_layer()({"text": ["a cat a"]})
        ...     print(row["tokens"][0].tolist(), [f"{weight:.2f}" for weight in row["weights"][0]])
        [0, 2] ['0.67', '0.47']
    """
    vocab_size = _size("tfidf", vocab_size)
    documents, corpus = results("document_counts", 2, x, vocab_size)
    return (
        noted("tfidf_terms", x, vocab_size),
        noted("tfidf_weights", x, vocab_size, documents, corpus, smooth=bool(smooth)),
    )


def document_frequency(x: Any, vocab_size: Any, name: str | None = None) -> Column:
    """Return how many rows have each token, in the places of the tokens, as int64; see `tfidf` for the arguments.

    In tft it is `tft.experimental.document_frequency`.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"text": ["a cat a", "a dog"]}
        >>> def preprocess(columns):
        ...     words = ps.transform.compute_and_apply_vocabulary(ps.transform.split(columns["text"]))
        ...     return {"y": ps.transform.document_frequency(words, 3)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"][0])
        [2 1 2]
    """
    vocab_size = _size("document_frequency", vocab_size)
    documents, _ = results("document_counts", 2, x, vocab_size)
    return noted("document_frequency", x, vocab_size, documents)


def idf(x: Any, vocab_size: Any, smooth: bool = True, add_baseline: bool = True, name: str | None = None) -> Column:
    """Return how rare each token is among the rows, in the places of the tokens, as float32; arguments as in `tfidf`.

    In tft it is `tft.experimental.idf`.

    Args:
        x: rows of the indices of tokens; modulo `vocab_size`.
        vocab_size: the number of indices.
        smooth: log((rows + 1) / (1 + rows with the token)), otherwise log(rows / rows with the token).
        add_baseline: add 1.
        name: shown in summaries.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"text": ["a cat a", "a dog"]}
        >>> def preprocess(columns):
        ...     words = ps.transform.compute_and_apply_vocabulary(ps.transform.split(columns["text"]))
        ...     return {"y": ps.transform.idf(words, 3)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"][0].round(2))
        [1.   1.41 1.  ]
    """
    vocab_size = _size("idf", vocab_size)
    documents, corpus = results("document_counts", 2, x, vocab_size)
    arguments = {"smooth": bool(smooth), "add_baseline": bool(add_baseline)}
    return noted("idf", x, vocab_size, documents, corpus, **arguments)


def _size(call: str, vocab_size: Any) -> Any:
    """A number of indices, which may be learned."""
    if isinstance(vocab_size, Column):
        return without_rows(call, "vocab_size", vocab_size)
    size = check_integer(call, "vocab_size", vocab_size, minimum=1)
    if size > _MOST_TOKENS:
        raise InvalidArgumentError(f"{call}(vocab_size=...) takes at most {_MOST_TOKENS}, got {size}")
    return size
