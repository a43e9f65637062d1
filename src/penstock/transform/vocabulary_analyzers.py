"""Analyzers of tokens that write vocabularies. Their names, arguments and results are those of TensorFlow Transform."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from penstock.data.arguments import user_site
from penstock.errors import InvalidArgumentError
from penstock.options import check_integer
from penstock.transform.building import present, results
from penstock.transform.functions import name_of
from penstock.transform.symbols import Column
from penstock.transform.vocabulary_files import check_reserved, holds_records


def vocabulary(
    x: Any,
    *,
    top_k: int | None = None,
    frequency_threshold: float | None = None,
    vocab_filename: str | None = None,
    store_frequency: bool | None = False,
    reserved_tokens: Sequence[str] | None = None,
    weights: Any = None,
    labels: Any = None,
    use_adjusted_mutual_info: bool = False,
    min_diff_from_avg: float | None = None,
    coverage_top_k: int | None = None,
    coverage_frequency_threshold: float | None = None,
    key_fn: Callable[[str], Any] | None = None,
    fingerprint_shuffle: bool | None = False,
    file_format: str = "text",
    name: str | None = None,
) -> Column:
    """The distinct tokens, the most frequent first, equally frequent ones in reverse order; for `apply_vocabulary`.

    Args:
        x: strings or integers, in rows of any length. Empty strings, and those with line
            breaks, are not in text vocabularies.
        top_k: the number of most frequent tokens to keep; None keeps all.
        frequency_threshold: keep tokens that occur at least so often, or are so heavy.
        vocab_filename: the name of the file in the working directory, by which `TransformOutput.vocabulary_by_name`
            finds it. None: a name made of the place in the function.
        store_frequency: whether the file says how often each token occurs: "frequency token" on each line, with
            "__SPACE__" for a token of one space.
        reserved_tokens: put these in front; each once, and none that a line of text cannot hold.
        weights: of the tokens: frequencies are their sums.
        labels: an integer for each row, or integers in rows of any length: put the tokens first that say most about
            them, by their mutual information, to which a frequency_threshold then refers.
        use_adjusted_mutual_info: less the mutual information that chance would give.
        min_diff_from_avg: a label counts as unrelated to a token if they meet about as often as by chance, up to this
            difference; None for 2 of a few rows to 25 of a million.
        coverage_top_k: keep so many of the most frequent tokens of each key as well.
        coverage_frequency_threshold: of each key only those that occur at least so often.
        key_fn: a function of a module, from a token to its key; it is saved by its name.
        fingerprint_shuffle: order tokens by their hashes.
        file_format: "text", with a token on each line; or "tfrecord_gzip", with any tokens, in memory for look-ups.
        name: shown in summaries.

    Raises:
        InvalidArgumentError: another format, a top_k below 1, a negative threshold, a key_fn without coverage, or
            coverage without one.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"w": ["b", "a", "b", "c"]}
        >>> def preprocess(columns):
        ...     learned = ps.transform.vocabulary(columns["w"], top_k=2)
        ...     return {"y": ps.transform.apply_vocabulary(columns["w"], learned)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [ 0 -1  0  1]
    """
    _check_limits(top_k=top_k, frequency_threshold=frequency_threshold)
    records = holds_records("vocabulary", file_format)
    arguments: dict[str, Any] = {
        "top_k": top_k,
        "frequency_threshold": frequency_threshold,
        "store_frequency": bool(store_frequency),
        "reserved_tokens": check_reserved([] if reserved_tokens is None else reserved_tokens, records),
        "weighted": weights is not None,
        "fingerprint_shuffle": bool(fingerprint_shuffle),
    }
    if records:
        arguments["file_format"] = file_format
    if key_fn is not None or coverage_top_k is not None or coverage_frequency_threshold is not None:
        arguments |= _coverage(key_fn, coverage_top_k, coverage_frequency_threshold)
    inputs = present(x, labels, weights)
    kind = "vocabulary"
    if labels is not None:
        kind = "informative_vocabulary"
        arguments |= {"use_adjusted_mutual_info": use_adjusted_mutual_info, "min_diff_from_avg": min_diff_from_avg}
    file = vocab_filename
    if file is not None and not file.strip():
        raise InvalidArgumentError(f"{user_site()}: vocabulary(vocab_filename=...) takes a name, got {file!r}")
    if file is None:
        numbers = [entry._number for entry in inputs if isinstance(entry, Column)]
        digest = hashlib.blake2b(json.dumps([kind, numbers, arguments, name]).encode(), digest_size=4).hexdigest()
        file = f"vocab_{'frequency_' * bool(store_frequency)}{digest}"
    file = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "_", file).strip())
    return results(kind, 1, *inputs, **arguments, vocab_filename=file, name=name)[0]


def approximate_vocabulary(
    x: Any,
    top_k: int | None,
    *,
    vocab_filename: str | None = None,
    store_frequency: bool = False,
    reserved_tokens: Sequence[str] | None = None,
    weights: Any = None,
    file_format: str = "text",
    name: str | None = None,
) -> Column:
    """The `top_k` most frequent tokens, exactly, as `vocabulary` finds them: tft's estimate has no place here.

    Counts that memory should not hold go to files. In tft it is `tft.experimental.approximate_vocabulary`.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"w": ["b", "a", "b", "c"]}
        >>> def preprocess(columns):
        ...     learned = ps.transform.approximate_vocabulary(columns["w"], top_k=1)
        ...     return {"y": ps.transform.apply_vocabulary(columns["w"], learned)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [ 0 -1  0 -1]
    """
    return vocabulary(
        x,
        top_k=top_k,
        vocab_filename=vocab_filename,
        store_frequency=store_frequency,
        reserved_tokens=reserved_tokens,
        weights=weights,
        file_format=file_format,
        name=name,
    )


def _check_limits(prefix: str = "", *, top_k: int | None, frequency_threshold: float | None) -> None:
    if top_k is not None:
        check_integer("vocabulary", f"{prefix}top_k", top_k, minimum=1)
    if frequency_threshold is not None and frequency_threshold < 0:
        raise InvalidArgumentError(
            f"{user_site()}: vocabulary({prefix}frequency_threshold=...) takes 0 or more, got {frequency_threshold!r}"
        )


def _coverage(
    key_fn: Callable[[str], Any] | None, top_k: int | None, frequency_threshold: float | None
) -> dict[str, Any]:
    """The arguments of a vocabulary that covers all keys."""
    if key_fn is None or (top_k is None and frequency_threshold is None):
        raise InvalidArgumentError(
            f"{user_site()}: vocabulary takes key_fn together with coverage_top_k or coverage_frequency_threshold, "
            f"got key_fn={key_fn!r}, coverage_top_k={top_k!r}, coverage_frequency_threshold={frequency_threshold!r}"
        )
    _check_limits("coverage_", top_k=top_k, frequency_threshold=frequency_threshold)
    return {
        "key_fn": name_of("vocabulary(key_fn=...)", key_fn),
        "coverage_top_k": top_k,
        "coverage_frequency_threshold": frequency_threshold,
    }
