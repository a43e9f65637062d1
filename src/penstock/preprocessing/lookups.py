"""StringLookup and IntegerLookup."""

import codecs
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.preprocessing.hashes import hash_buckets
from penstock.preprocessing.index_lookup import IndexLookup
from penstock.preprocessing.keys import Numbers
from penstock.preprocessing.tokens import INTEGERS, TEXT, Shape, decoded, encode_text, integer_array, text_array
from penstock.preprocessing.vocabulary_file import FileKeys


class StringLookup(IndexLookup):
    """Maps strings to indices.

    Args:
        max_tokens: the largest number of indices, including those of the mask and of unknown tokens.
        num_oov_indices: the number of indices for tokens that are not in the vocabulary. If there are several, the
            token's FarmHash fingerprint chooses one; with 0 such a token is an error.
        mask_token: the token for missing values; it gets index 0, and no place in vectors.
        oov_token: the token for all unknown ones, in the vocabulary and in the results of `invert=True`.
        vocabulary: the tokens in order, as a list or an array, or the path of a text file with one token in each line,
            which is then read by memory map. Without it, call `adapt`: it puts the most frequent tokens first, equally
            frequent ones in reverse order. For "tf_idf" the last axis of an array is a document.
        idf_weights: the weight of each token, for "tf_idf".
        invert: map indices to strings instead.
        output_mode: "int", or a vector: "one_hot" for each token, "multi_hot", "count" or "tf_idf" for all tokens along
            the last axis.
        pad_to_max_tokens: make vectors as long as `max_tokens`, however small the vocabulary is.
        encoding: how strings become bytes, and how `get_vocabulary` and `invert=True` decode bytes. Tokens that are
            bytes are looked up unchanged.
        cache_dir: where the index of a vocabulary file is kept; next to the file by default.

    Raises:
        InvalidArgumentError: arguments that contradict each other, or a vocabulary that cannot work.
        InvalidTypeError: tokens that are neither strings nor bytes.

    Example:
        >>> layer = StringLookup(vocabulary=["a", "b", "c"])
        >>> layer([["a", "c"], ["b", "d"]])
        array([[1, 3],
               [2, 0]])
        >>> StringLookup(vocabulary=["a", "b", "c"], output_mode="multi_hot")([["a", "c"], ["b", "d"]])
        array([[0., 1., 0., 1.],
               [1., 0., 1., 0.]], dtype=float32)
        >>> StringLookup(vocabulary=["a", "b", "c"], invert=True)([1, 3, 0])
        array(['a', 'c', '[UNK]'], dtype=object)
    """

    kind = TEXT
    why_not_keras = "Keras's own needs TensorFlow, and XLA has no strings"

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | bytes | None = None,
        oov_token: str | bytes | None = "[UNK]",
        vocabulary: Any = None,
        idf_weights: Any = None,
        *,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        encoding: str = "utf-8",
        cache_dir: str | None = None,
    ) -> None:
        try:
            codecs.lookup(encoding)
        except (LookupError, TypeError) as error:
            raise InvalidArgumentError(f"encoding={encoding!r}: Python knows no such encoding") from error
        self.encoding = encoding
        super().__init__(
            max_tokens,
            num_oov_indices,
            self._special("mask_token", mask_token),
            self._special("oov_token", oov_token),
            vocabulary,
            idf_weights,
            invert=invert,
            output_mode=output_mode,
            pad_to_max_tokens=pad_to_max_tokens,
            cache_dir=cache_dir,
        )

    def _special(self, name: str, token: Any) -> str | None:
        if token is not None and not isinstance(token, (str, bytes)):
            raise InvalidTypeError(f"StringLookup({name}=...) takes a string, got {token!r}")
        return token.decode(self.encoding, "surrogateescape") if isinstance(token, bytes) else token

    def _arrow(self, inputs: Any) -> tuple[pa.Array, Shape]:
        return text_array(self._call, inputs, self.encoding)

    def _scalar(self, token: Any) -> pa.Scalar:
        return pa.scalar(encode_text(token, self.encoding), TEXT)

    def _plain(self, tokens: pa.Array) -> npt.NDArray[Any]:
        return decoded(tokens, self.encoding)

    def _oov_buckets(self, values: pa.Array) -> Numbers:
        return hash_buckets(values, self.num_oov_indices)


class IntegerLookup(IndexLookup):
    """Maps integers to indices.

    The arguments are those of `StringLookup`. If there are several indices for unknown tokens, a token's
    remainder chooses one. A file holds one integer per line.

    Raises:
        InvalidArgumentError: arguments that contradict each other, or a vocabulary that cannot work.
        InvalidTypeError: tokens that are not integers.

    Example:
        >>> layer = IntegerLookup(vocabulary=[12, 36, 1138, 42])
        >>> layer([[12, 1138, 42], [42, 1000, 36]])
        array([[1, 3, 4],
               [4, 0, 2]])
        >>> IntegerLookup().adapt([5, 7, 7]).get_vocabulary()
        [-1, 7, 5]
    """

    kind = INTEGERS
    why_not_keras = "Keras's own needs TensorFlow, and its table of keys cannot be compiled"

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int | None = -1,
        vocabulary: Any = None,
        idf_weights: Any = None,
        *,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        cache_dir: str | None = None,
    ) -> None:
        for name, token in [("mask_token", mask_token), ("oov_token", oov_token)]:
            if token is not None and not isinstance(token, (int, np.integer)):
                raise InvalidTypeError(f"IntegerLookup({name}=...) takes an integer, got {token!r}")
        super().__init__(
            max_tokens,
            num_oov_indices,
            None if mask_token is None else int(mask_token),
            None if oov_token is None else int(oov_token),
            vocabulary,
            idf_weights,
            invert=invert,
            output_mode=output_mode,
            pad_to_max_tokens=pad_to_max_tokens,
            cache_dir=cache_dir,
        )

    def _arrow(self, inputs: Any) -> tuple[pa.Array, Shape]:
        return integer_array(self._call, inputs)

    def _plain(self, tokens: pa.Array) -> npt.NDArray[Any]:
        numbers = tokens if tokens.type == INTEGERS else tokens.cast(pa.large_string()).cast(INTEGERS)
        return np.asarray(numbers.to_numpy(zero_copy_only=False))

    def _oov_buckets(self, values: pa.Array) -> Numbers:
        return np.asarray(values.to_numpy() % self.num_oov_indices)

    def _file_keys(self, path: str) -> FileKeys:
        keys = super()._file_keys(path)
        if not keys.all_integers:
            raise InvalidArgumentError(
                f"vocabulary={path!r}: every line must be an integer, written without spaces, '+' or leading zeros"
            )
        return keys
