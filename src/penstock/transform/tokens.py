"""Mappers of strings, tokens and vocabularies. Names, arguments and results are those of tft."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.data.arguments import user_site
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer
from penstock.preprocessing.tokens import TEXT
from penstock.transform.arguments import checked
from penstock.transform.building import checked_integers, checked_path, noted, present
from penstock.transform.functions import name_of
from penstock.transform.symbols import Column
from penstock.transform.text_operations import change_text
from penstock.transform.vocabularies import NUMBERED, digest_of
from penstock.transform.vocabulary_analyzers import approximate_vocabulary, vocabulary
from penstock.transform.vocabulary_files import count_tokens, holds_records


def compute_and_apply_vocabulary(
    x: Any, *, default_value: int = -1, num_oov_buckets: int = 0, min_diff_from_avg: float = 0.0, **arguments: Any
) -> Column:
    """The index of each token in the vocabulary of all of them, as int64.

    Args:
        x: strings or integers, in rows of any length.
        default_value: the index of tokens that are not in the vocabulary.
        num_oov_buckets: give such tokens one of this number of indices after the vocabulary instead, by their hashes.
        min_diff_from_avg: as in `vocabulary`, which chooses a difference where none is given.
        **arguments: the others of `vocabulary`.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"w": ["b", "a", "b", "c"]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.compute_and_apply_vocabulary(columns["w"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [0 2 0 1]
    """
    tokens = checked(vocabulary)(x, min_diff_from_avg=min_diff_from_avg, **arguments)
    return apply_vocabulary(x, tokens, default_value=default_value, num_oov_buckets=num_oov_buckets)


def compute_and_apply_approximate_vocabulary(
    x: Any, *, default_value: int = -1, top_k: int | None = None, num_oov_buckets: int = 0, **arguments: Any
) -> Column:
    """The index of each token among the `top_k` most frequent ones; other arguments are `approximate_vocabulary`'s.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"w": ["b", "a", "b", "c"]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.compute_and_apply_approximate_vocabulary(columns["w"], top_k=2)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [ 0 -1  0  1]
    """
    tokens = checked(approximate_vocabulary)(x, top_k, **arguments)
    return apply_vocabulary(x, tokens, default_value=default_value, num_oov_buckets=num_oov_buckets)


def apply_vocabulary(
    x: Any,
    deferred_vocab_filename_tensor: Any,
    *,
    default_value: int = -1,
    num_oov_buckets: int = 0,
    lookup_fn: Callable[[Any, str], tuple[Any, int]] | None = None,
    file_format: str = "text",
    name: str | None = None,
) -> Column:
    """The index of each token in a vocabulary, as int64.

    Args:
        x: strings or integers, in rows of any length.
        deferred_vocab_filename_tensor: what `vocabulary` returned, or the path of a file with a token on each line,
            which may have many millions; `analyze` copies it into the working directory.
        default_value: the index of tokens that are not in the vocabulary.
        num_oov_buckets: give such tokens one of this number of indices after the vocabulary instead, by their hashes.
        lookup_fn: a function of a module, which is saved by its name: from an array of tokens and the path of the
            vocabulary to an array of their integers, and the number of different ones. The two arguments before have no
            effect with it. It is called for every block of rows, so let it cache the file.
        file_format: of a file of yours: "text", or "tfrecord_gzip" with a token in each record.
        name: of the operation.

    Raises:
        InvalidArgumentError: there is no such file, or the function cannot be imported by its name.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"w": ["b", "a", "b", "c"]}
        >>> def preprocess(columns):
        ...     learned = ps.transform.vocabulary(columns["w"])
        ...     return {"y": ps.transform.apply_vocabulary(columns["w"], learned, num_oov_buckets=1)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [0 2 0 1]
    """
    tokens: Any = deferred_vocab_filename_tensor
    records = holds_records("apply_vocabulary", file_format)
    if not isinstance(tokens, Column):
        path = checked_path("apply_vocabulary", "deferred_vocab_filename_tensor", tokens)
        arguments = {"path": path, "digest": digest_of(path), "size": count_tokens(path, records)}
        arguments |= {"records": True} if records else {}
        tokens = x._recorder.add("given_vocabulary", [], arguments)
    elif not _is_vocabulary(tokens):
        raise InvalidTypeError(
            f"{user_site()}: apply_vocabulary takes what ps.transform.vocabulary has given, or a path, got {tokens!r}"
        )
    if lookup_fn is not None:
        return noted("lookup_by", x, tokens, function=name_of("apply_vocabulary(lookup_fn=...)", lookup_fn))
    buckets = check_integer("apply_vocabulary", "num_oov_buckets", num_oov_buckets, minimum=0)
    return noted("lookup", x, tokens, default_value=int(default_value), num_oov_buckets=buckets)


def _is_vocabulary(column: Column) -> bool:
    recorder = column._recorder
    node = recorder.node(column)
    made = [recorder.node(Column(recorder, number)).operation for number in node.inputs]
    return node.operation == "item" and made[0].endswith("vocabulary")


def get_num_buckets_for_transformed_feature(transformed_feature: Any) -> Column:
    """Return the number of values of a column of buckets, hashes or indices, to compute with in the same function.

    `TransformOutput.num_buckets` says it outside of the function.

    Raises:
        InvalidTypeError: a column of something else, or with a `lookup_fn`, which says it when it is called.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"w": ["b", "a", "b", "c"]}
        >>> def preprocess(columns):
        ...     index = ps.transform.compute_and_apply_vocabulary(columns["w"])
        ...     return {"y": (index + 1) / ps.transform.get_num_buckets_for_transformed_feature(index)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [0.33 1.   0.33 0.67]
    """
    if isinstance(transformed_feature, Column):
        recorder = transformed_feature._recorder
        node = recorder.node(transformed_feature)
        if node.operation in NUMBERED:
            learned = [Column(recorder, number) for number in node.inputs[1:][-1:]]
            arguments = {"operation": node.operation, "arguments": node.arguments}
            return recorder.add("number_of_values", learned, arguments)
    raise InvalidTypeError(
        f"{user_site()}: get_num_buckets_for_transformed_feature takes a column that apply_vocabulary, bucketize, "
        f"hash_strings or the like has given, got {transformed_feature!r:.100}"
    )


def hash_strings(strings: Any, hash_buckets: int, key: Sequence[int] | None = None, name: str | None = None) -> Column:
    """One of `hash_buckets` for each string, by TensorFlow's hashes: FarmHash; SipHash with a key of two integers.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"w": ["b", "a", "b", "c"]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.hash_strings(columns["w"], 10)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [2 9 2 2]
    """
    buckets = check_integer("hash_strings", "hash_buckets", hash_buckets, minimum=1)
    parts = None if key is None else checked_integers("hash_strings", "key", key, 2)
    return noted("hash_strings", strings, hash_buckets=buckets, key=parts)


def fill_missing(x: Any, value: Any) -> Column:
    """A column of the dataset with a value where its own is missing: None, an Arrow null, or NaN.

    Rows of lists that have one entry at most become that entry, or the value: these are sparse in tft.

    Args:
        x: a column that the function was given. Give the result to all that takes it.
        value: a string among strings, an integer among integers, a number among floats.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"w": ["b", None, "b"], "x": [1.0, float("nan"), 3.0]}
        >>> def preprocess(columns):
        ...     word = ps.transform.fill_missing(columns["w"], "none")
        ...     x = ps.transform.fill_missing(columns["x"], 0.0)
        ...     return {"w": ps.transform.compute_and_apply_vocabulary(word), "x": ps.transform.scale_to_0_1(x)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     output = ps.transform.analyze(ps.Dataset.from_tensor_slices(rows), preprocess, directory)
        ...     found = output.transform_features_layer()(rows)
        ...     print(found["w"], found["x"].round(2))
        [0 1 0] [0.33 0.   1.  ]
    """
    if not isinstance(x, Column) or x._recorder.node(x).operation != "input":
        raise InvalidTypeError(f"{user_site()}: fill_missing takes a column of the dataset, got {x!r:.100}")
    if not isinstance(value, (str, int, float)) or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidTypeError(f"{user_site()}: fill_missing takes a string or a finite number, got {value!r:.100}")
    return noted("fill_missing", x, value=value)


def split(x: Any, separator: str | None = None) -> Column:
    """The parts of each text between separators; without a separator its words, as `tf.strings.split`.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"t": ["the cat sat", "a cat"]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.word_count(ps.transform.split(columns["t"]))}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [3 2]
    """
    if separator == "":
        raise InvalidArgumentError(f"{user_site()}: split(separator=...) takes a string that is not empty, or None")
    return noted("split", x, separator=separator)


def lower(x: Any) -> Column:
    """Texts in lower case.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"w": ["The", "CAT"]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.lower(columns["w"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        ['the' 'cat']
    """
    return noted("change_text", x, how="lower")


def upper(x: Any) -> Column:
    """Texts in upper case.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"w": ["The", "cat"]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.upper(columns["w"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        ['THE' 'CAT']
    """
    return noted("change_text", x, how="upper")


def strip(x: Any) -> Column:
    """Texts without spaces at their ends.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"w": [" the", "cat "]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.strip(columns["w"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        ['the' 'cat']
    """
    return noted("change_text", x, how="strip")


def regex_replace(x: Any, pattern: str, rewrite: str) -> Column:
    r"""Texts in which what matches a regular expression (RE2) is replaced; \1 stands for its first group.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"t": ["the cat sat", "a cat"]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.regex_replace(columns["t"], "[aeiou]", "_")}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        ['th_ c_t s_t' '_ c_t']
    """
    try:
        change_text(pa.array([b""], TEXT), how="replace", pattern=pattern, replacement=rewrite)
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(f"{user_site()}: regex_replace({pattern!r}, {rewrite!r}): {error}") from error
    return noted("change_text", x, how="replace", pattern=pattern, replacement=rewrite)


def join(columns: Sequence[Any], separator: str = "") -> Column:
    """Texts of several columns as one, row by row: a key of several columns, for example. Integers are spelled out.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"a": ["x", "y"], "b": ["1", "2"]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.join([columns["a"], columns["b"]], "-")}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        ['x-1' 'y-2']
    """
    if not isinstance(columns, (list, tuple)) or not all(isinstance(column, Column) for column in columns):
        raise InvalidTypeError(f"{user_site()}: join takes a list of columns, got {columns!r:.100}")
    return noted("join", *columns, separator=separator)


def ngrams(tokens: Any, ngram_range: tuple[int, int], separator: str, name: str | None = None) -> Column:
    """The n-grams of each row of tokens, of all lengths from the first to the second number, joined by a separator.

    Raises:
        InvalidArgumentError: a range that begins below 1, or ends before it begins.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"t": ["the cat sat", "a cat"]}
        >>> def preprocess(columns):
        ...     tokens = ps.transform.split(columns["t"])
        ...     return {"y": ps.transform.word_count(ps.transform.ngrams(tokens, (1, 2), " "))}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [5 3]
    """
    least, most = checked_integers("ngrams", "ngram_range", ngram_range, 2)
    if least < 1 or most < least:
        raise InvalidArgumentError(
            f"{user_site()}: ngrams(ngram_range=...) takes a pair such as (1, 2), got {ngram_range!r}"
        )
    return noted("ngrams", tokens, ngram_range=[least, most], separator=separator)


def bag_of_words(tokens: Any, ngram_range: tuple[int, int], separator: str, name: str | None = None) -> Column:
    """The distinct n-grams of each row of tokens.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"t": ["the cat sat", "a cat"]}
        >>> def preprocess(columns):
        ...     tokens = ps.transform.split(columns["t"])
        ...     return {"y": ps.transform.word_count(ps.transform.bag_of_words(tokens, (1, 2), " "))}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [5 3]
    """
    return deduplicate_tensor_per_row(ngrams(tokens, ngram_range, separator, name))


def deduplicate_tensor_per_row(input_tensor: Any, name: str | None = None) -> Column:
    """The distinct values of each row, in the order in which they first occur.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"t": ["a b a", "c"]}
        >>> def preprocess(columns):
        ...     tokens = ps.transform.split(columns["t"])
        ...     return {"y": ps.transform.word_count(ps.transform.deduplicate_tensor_per_row(tokens))}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [2 1]
    """
    return noted("distinct_per_row", input_tensor)


def word_count(tokens: Any, name: str | None = None) -> Column:
    """Return how many tokens each row has, as int64.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = {"t": ["the cat sat", "a cat"]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.word_count(ps.transform.split(columns["t"]))}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"])
        [3 2]
    """
    return noted("row_lengths", tokens)


def sparse_tensor_to_dense_with_shape(
    x: Any, shape: Sequence[int | None], default_value: float = 0, *, indices: Any = None
) -> Column:
    """Rows of numbers as arrays of one length, filled up with a default.

    Args:
        x: rows of numbers.
        shape: of all rows; shape[1] is their length, None that of the longest row.
        default_value: in places without a number.
        indices: the place of each number in its row, in rows of the same lengths, as the index column of TensorFlow's
            `SparseFeature` has it. None for numbers without gaps between them.

    Example:
        >>> import tempfile
        >>> import pyarrow
        >>> import penstock as ps
        >>> rows = {"v": pyarrow.array([[7.0, 8.0], [9.0]])}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.sparse_tensor_to_dense_with_shape(columns["v"], [None, 3], -1)}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_arrow(pyarrow.table(rows))
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].tolist())
        [[7.0, 8.0, -1.0], [9.0, -1.0, -1.0]]
    """
    if not isinstance(shape, (list, tuple)) or len(shape) != 2:
        raise InvalidTypeError(
            f"{user_site()}: sparse_tensor_to_dense_with_shape(shape=...) takes [None, length], got {shape!r:.100}"
        )
    (length,) = checked_integers("sparse_tensor_to_dense_with_shape", "shape", [shape[1] or 0], 1)
    if length < 0:
        raise InvalidArgumentError(f"{user_site()}: sparse_tensor_to_dense_with_shape: rows of length {length}")
    lengths = [None, None if shape[1] is None else length]
    return noted("to_dense", *present(x, indices), shape=lengths, default_value=default_value)


def call(function: Callable[..., Any], *columns: Any) -> Column:
    """The results of a function of yours on NumPy arrays with all rows of a block.

    The function is saved by its name: it must be importable wherever the transform is used.

    Raises:
        InvalidArgumentError: it is not a function of a module.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import penstock as ps
        >>> rows = {"x": [1.0, 2.0, 3.0, 6.0]}
        >>> def preprocess(columns):
        ...     return {"y": ps.transform.call(np.sqrt, columns["x"])}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     dataset = ps.Dataset.from_tensor_slices(rows)
        ...     output = ps.transform.analyze(dataset, preprocess, directory)
        ...     print(output.transform_features_layer()(rows)["y"].round(2))
        [1.   1.41 1.73 2.45]
    """
    if not callable(function):
        raise InvalidTypeError(f"{user_site()}: call takes a function and columns, got {function!r:.100}")
    return noted("call", *columns, function=name_of("call", function))
