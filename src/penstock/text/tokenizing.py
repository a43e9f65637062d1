"""Texts to tokens, by a tokenizer of Hugging Face's, tiktoken's or sentencepiece's, or any other object like these.

They release the lock, so the calls of a `map` run in parallel, each for a block of texts. Their own threads would come
on top of these, and are not used unless `TOKENIZERS_PARALLELISM` asks for them.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.data.block import object_column
from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError, StorageError
from penstock.extras import load
from penstock.formats.file_errors import by_library
from penstock.options import check_integer
from penstock.structure import leaf_of

_OWN_THREADS: Final = "TOKENIZERS_PARALLELISM"
_TOKENS: Final = "tokens"
Encode = Callable[[list[str]], Sequence[Any]]


def tokenizer(
    source: Any,
    *,
    leaf: str | None = None,
    dtype: Any = "int32",
    max_length: int | None = None,
    bos: int | None = None,
    eos: int | None = None,
    add_special_tokens: bool = True,
    offsets: bool = False,
) -> "Tokenizer":
    """A function for `map` that makes an array of tokens of a text; `map` calls it for a block of texts at a time.

    Args:
        source: a file: `tokenizer.json` of Hugging Face's `tokenizers` (extra `text`), or a `.model` of sentencepiece.
            Or a tokenizer of these packages, of tiktoken or of transformers, or any object with `encode_batch(texts)`,
            which gives a list of tokens for each text.
        leaf: for elements that are dictionaries, the name of the text. The result has "tokens" instead of it, and all
            other leaves. None: the element is the text.
        dtype: of the tokens; one that it does not hold is an error.
        max_length: tokens behind it are cut off, with `bos` and `eos` counted.
        bos: a token to put before those of each text.
        eos: a token to put after them.
        add_special_tokens: whether a tokenizer of Hugging Face's adds the special tokens of its file.
        offsets: adds "offsets" to the tokens: the first character of each and the one behind its last, of shape (n, 2).
            Only tokenizers of Hugging Face's tell them.

    Raises:
        InvalidTypeError: something that is no tokenizer.
        InvalidArgumentError: `offsets` of a tokenizer without them, or a `max_length` without room for a token.
        StorageError: the file cannot be read.
        MissingExtraError: `tokenizers` is not installed.
        ElementError: while mapping, a token outside of the dtype, or what is no text.

    Example:
        >>> import penstock as ps
        >>> class Letters:
        ...     def encode_batch(self, texts):
        ...         return [[ord(letter) - 96 for letter in text] for text in texts]
        >>> texts = ps.Dataset.from_tensor_slices(["abc", "bee"])
        >>> [tokens.tolist() for tokens in texts.map(ps.text.tokenizer(Letters(), dtype="uint16", eos=0))]
        [[1, 2, 3, 0], [2, 5, 5, 0]]
    """
    before, after = ([] if token is None else [token] for token in (bos, eos))
    if max_length is not None:
        around = len(before) + len(after)
        max_length = check_integer("text.tokenizer", "max_length", max_length, minimum=1 + around) - around
    kind = np.dtype(dtype)
    if kind.kind not in "iu":
        raise InvalidTypeError(f"text.tokenizer(dtype=...) takes a type of integers, got {kind}")
    given = _from_file(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else source
    given = getattr(given, "backend_tokenizer", given)  # of transformers
    if hasattr(given, "encode_batch_fast"):
        given = type(given).from_str(given.to_str())  # the user's stays as it is
        given.no_padding()
        if max_length is not None:
            given.enable_truncation(max_length)
    elif offsets:
        raise InvalidArgumentError(f"text.tokenizer(offsets=True): a {type(given).__name__} does not tell offsets")
    made = Tokenizer(given, leaf, kind, max_length, before, after, add_special_tokens, offsets)
    made.encoder()  # refuses what is no tokenizer
    return made


def _from_file(name: str) -> Any:
    pieces = name.endswith(".model")
    package, kind = ("sentencepiece", "SentencePieceProcessor") if pieces else ("tokenizers", "Tokenizer")
    library: Any = load(package, "text", "ps.text.tokenizer", kind)
    with by_library(f"text.tokenizer: {name!r} cannot be read", StorageError):
        return library(model_file=name) if pieces else library.from_file(name)


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A function from a text, or a column of texts, to tokens, with tokens `before` and `after` those of a text.

    The other arguments are those of `tokenizer`.
    """

    source: Any
    leaf: str | None
    dtype: np.dtype[Any]
    max_length: int | None
    before: list[int]
    after: list[int]
    add_special_tokens: bool
    offsets: bool

    def __call__(self, element: Any) -> Any:
        """Return the tokens of a text, or an element with tokens instead of its text."""
        texts = self._texts(element)
        if isinstance(texts, np.ndarray) and texts.ndim == 1:  # a batch
            return self._map_block(element)
        return self._beside(element, {name: values[0] for name, values in self._encoded([texts]).items()})

    def _map_block(self, element: Any) -> Any:
        """Return the results for all rows of a block, as `map` asks for them."""
        found = self._encoded(self._texts(element).tolist())
        return self._beside(element, {name: object_column(values) for name, values in found.items()})

    def _texts(self, element: Any) -> Any:
        return element if self.leaf is None else leaf_of(f"text.tokenizer(leaf={self.leaf!r})", element, self.leaf)

    def _beside(self, element: Any, made: dict[str, Any]) -> Any:
        if self.leaf is not None:
            return {**{name: value for name, value in element.items() if name != self.leaf}, **made}
        return made if self.offsets else made[_TOKENS]

    def _encoded(self, texts: list[Any]) -> dict[str, list[npt.NDArray[Any]]]:
        """Return the tokens of texts, and their offsets if they are wanted."""
        for text in texts:
            if not isinstance(text, str):
                advice = "name its text by leaf=..." if isinstance(text, dict) else "decode bytes to str first"
                raise ElementError(f"text.tokenizer takes texts, got a {type(text).__name__}: {advice}")
        encodings = self.encoder()(texts)
        if len(encodings) != len(texts):
            raise ElementError(f"text.tokenizer: {len(texts)} texts gave {len(encodings)} lists of tokens")
        rows: list[Any] = [getattr(encoding, "ids", encoding) for encoding in encodings]
        found = {_TOKENS: [self._tokens(row) for row in rows]}
        if self.offsets:
            found["offsets"] = [
                np.array(
                    [*([(0, 0)] * len(self.before)), *encoding.offsets, *([(len(text),) * 2] * len(self.after))],
                    np.int32,
                ).reshape(-1, 2)
                for text, encoding in zip(texts, encodings, strict=True)
            ]
        return found

    def _tokens(self, row: Sequence[int]) -> npt.NDArray[Any]:
        kept = row if self.max_length is None else row[: self.max_length]
        tokens = np.array([*self.before, *kept, *self.after] if self.before or self.after else kept, np.int64)
        limits = np.iinfo(self.dtype)
        if len(tokens) and not limits.min <= tokens.min() <= tokens.max() <= limits.max:
            wrong = tokens.min() if tokens.min() < limits.min else tokens.max()
            raise ElementError(
                f"text.tokenizer(dtype={self.dtype}): {wrong} is a token, which does not fit: take dtype='int32'"
            )
        return tokens.astype(self.dtype)

    def encoder(self) -> Encode:
        """Return what gives the tokens of texts, in one thread unless the user's environment asks for more."""
        source: Any = self.source
        if hasattr(source, "encode_batch_fast"):
            os.environ.setdefault(_OWN_THREADS, "false")
            encode = source.encode_batch if self.offsets else source.encode_batch_fast
            return lambda texts: encode(texts, add_special_tokens=self.add_special_tokens)
        if hasattr(source, "encode_ordinary_batch"):  # tiktoken
            return lambda texts: source.encode_ordinary_batch(texts, num_threads=1)
        if hasattr(source, "encode_batch"):
            return lambda texts: source.encode_batch(texts)
        if hasattr(source, "piece_to_id"):  # sentencepiece
            return lambda texts: source.encode(texts, out_type=int, num_threads=1)
        raise InvalidTypeError(
            f"text.tokenizer takes a file or an object with encode_batch(texts), got {type(source).__name__}"
        )
