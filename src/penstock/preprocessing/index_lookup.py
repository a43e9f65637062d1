"""Base of StringLookup and IntegerLookup: a vocabulary, the indices of its tokens, and the tokens of indices."""

import os
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer
from penstock.paths import local_path
from penstock.preprocessing.counts import TokenCounts
from penstock.preprocessing.encode import Floats, encode, encode_rows
from penstock.preprocessing.keys import MemoryKeys, Numbers
from penstock.preprocessing.layer import LearningLayer, check_choice
from penstock.preprocessing.tokens import Shape
from penstock.preprocessing.vocabulary_file import FileKeys, Keys

MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")


class IndexLookup(LearningLayer):
    """Tokens to indices or vectors, or indices to tokens.

    Indices are those of the mask, if there is one, of unknown tokens, and of a vocabulary.
    """

    kind: ClassVar[Any]
    """The Arrow type of the tokens."""

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: Any = None,
        oov_token: Any = None,
        vocabulary: Any = None,
        idf_weights: Any = None,
        *,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        cache_dir: str | None = None,
    ) -> None:
        call = self._call = type(self).__name__
        self.max_tokens = None if max_tokens is None else check_integer(call, "max_tokens", max_tokens, minimum=2)
        self.num_oov_indices = check_integer(call, "num_oov_indices", num_oov_indices, minimum=0)
        self.mask_token = mask_token
        self.oov_token = oov_token
        self.invert = bool(invert)
        self.output_mode = check_choice(call, "output_mode", output_mode, MODES)
        self.pad_to_max_tokens = bool(pad_to_max_tokens)
        self.cache_dir = None if cache_dir is None else local_path(cache_dir)
        if self.invert and output_mode != "int":
            raise InvalidArgumentError(f"{call}(invert=True) gives tokens: leave output_mode out, got {output_mode!r}")
        if oov_token is None and (self.invert or self.num_oov_indices):
            raise InvalidArgumentError(f"{call}(oov_token=...) must not be None: it replaces unknown values")
        if self.pad_to_max_tokens and max_tokens is None:
            raise InvalidArgumentError(f"{call}(pad_to_max_tokens=True) needs max_tokens")
        self._keys: Keys | None = None
        self._given = vocabulary is not None
        self.idf_weights: npt.NDArray[np.float32] | None = None
        if vocabulary is not None:
            self.set_vocabulary(vocabulary, idf_weights)
        elif idf_weights is not None:
            raise InvalidArgumentError(f"{call}(idf_weights=...) belong to a vocabulary: give vocabulary too")

    @property
    def _mask_first(self) -> int:
        """Return 1 if index 0 is the mask, as in mode "int"; other modes have no mask."""
        return int(self.mask_token is not None and self.output_mode == "int")

    @property
    def _specials(self) -> list[Any]:
        return [self.mask_token] * self._mask_first + [self.oov_token] * self.num_oov_indices

    @property
    def _token_start(self) -> int:
        return self._mask_first + self.num_oov_indices

    @abstractmethod
    def _arrow(self, inputs: Any) -> tuple[pa.Array, Shape]:
        """Tokens as a flat Arrow array, and the shape they came in."""

    @abstractmethod
    def _plain(self, tokens: pa.Array) -> npt.NDArray[Any]:
        """Tokens as a NumPy array."""

    @abstractmethod
    def _oov_buckets(self, values: pa.Array) -> Numbers:
        """Return which of several indices each unknown token gets, from 0."""

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Look tokens up in this list, array or file from now on.

        Raises:
            InvalidArgumentError: an empty vocabulary, repeated tokens, more than max_tokens, the mask or the token for
                unknown ones in the middle, or weights that do not fit.
        """
        weighted = self.output_mode == "tf_idf"
        if weighted != (idf_weights is not None):
            need = "needs idf_weights, one for each token" if weighted else "has no use for idf_weights"
            raise InvalidArgumentError(f"{self._call}: a vocabulary with output_mode={self.output_mode!r} {need}")
        if isinstance(vocabulary, (str, os.PathLike)):
            if weighted:
                raise InvalidArgumentError(f"{self._call}: with output_mode='tf_idf' give the vocabulary as a list")
            keys: Keys = self._file_keys(local_path(vocabulary))
            specials = False
            if self._begins_with_specials(keys.take(np.arange(min(len(keys), self._token_start)))):
                raise InvalidArgumentError(
                    f"{self._call}(vocabulary={str(vocabulary)!r}): the file begins with the tokens of the mask and of "
                    "unknown ones, which have separate indices before its lines: remove them from the file"
                )
        else:
            keys, specials = self._memory_keys(vocabulary)
        self._refuse_specials(keys)
        size = len(keys) + self._token_start
        if self.max_tokens is not None and size > self.max_tokens:
            raise InvalidArgumentError(
                f"{self._call}: the vocabulary has {size} tokens, max_tokens is {self.max_tokens}"
            )
        if weighted:
            self.idf_weights = self._weights(idf_weights, len(keys), specials)
        self._keys = keys
        self._given = True

    def _file_keys(self, path: str) -> FileKeys:
        return FileKeys(path, self.cache_dir)

    def _memory_keys(self, vocabulary: Any) -> tuple[MemoryKeys, bool]:
        """The keys of a list, and whether it begins with the mask and the token for unknown ones."""
        tokens, shape = self._arrow(vocabulary)
        if len(shape) != 1 or len(tokens) == 0:
            raise InvalidArgumentError(
                f"{self._call}(vocabulary=...) takes a list of at least one token, got {vocabulary}"
            )
        found = self._begins_with_specials(tokens)
        tokens = tokens[self._token_start :] if found else tokens
        counted = pc.value_counts(tokens)
        if len(counted) < len(tokens):
            repeated = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
            shown = self._plain(repeated[:10]).tolist()
            raise InvalidArgumentError(f"{self._call}(vocabulary=...): every token must occur once, repeated: {shown}")
        return MemoryKeys(tokens), found

    def _begins_with_specials(self, tokens: pa.Array) -> bool:
        """Return whether the mask, if there is one, and one token for each index of unknown ones come first."""
        specials = self._specials
        return bool(specials) and self._plain(tokens[: len(specials)]).tolist() == specials

    def _refuse_specials(self, keys: Keys) -> None:
        for name, token in [("mask_token", self.mask_token), ("oov_token", self.oov_token if self.invert else None)]:
            if token is not None and (place := int(keys.find(pa.array([self._scalar(token)], self.kind))[0])) >= 0:
                raise InvalidArgumentError(
                    f"{self._call}(vocabulary=...): {name} {token!r} is token {place}: leave it out, or begin a list "
                    "with the mask, if there is one, and num_oov_indices times oov_token"
                )

    def _weights(self, idf_weights: Any, count: int, specials: bool) -> npt.NDArray[np.float32]:
        """The weight of every index. Tokens that were never counted get the mean of the others."""
        weights = np.asarray(idf_weights, np.float32)
        expected = count + self._token_start * specials
        if weights.shape != (expected,):
            raise InvalidArgumentError(
                f"{self._call}(idf_weights=...) takes a weight for each of {expected} tokens, got shape {weights.shape}"
            )
        if specials:
            return weights
        mean = weights.mean() if len(weights) else np.float32(1)
        return np.append(np.repeat(mean, self._token_start), weights)

    @property
    def _width(self) -> int:
        return self.max_tokens if self.pad_to_max_tokens and self.max_tokens else self.vocabulary_size()

    @property
    def depth(self) -> int | None:
        return self.vocabulary_size()

    @property
    def can_adapt(self) -> bool:
        return not self._given

    def _add(self, summary: TokenCounts, rows: Any) -> None:
        tokens, shape = self._arrow(rows)
        # The last axis of an array is a document; a single token is one too.
        length = shape[-1] if len(shape) > 1 else 1
        documents = len(tokens) // length if length else int(np.prod(shape[:-1]))
        summary.add_documents(tokens, np.repeat(np.arange(documents), length), documents)

    def summary(self) -> TokenCounts:
        if self._given:
            raise InvalidArgumentError(f"{self._call}.adapt(data): the layer was given a vocabulary, make one without")
        return TokenCounts(self.kind, self.output_mode == "tf_idf")

    def learn(self, summary: TokenCounts) -> None:
        if summary.documents == 0:
            raise InvalidArgumentError(f"{self._call}.adapt(data): there are no tokens to learn from")
        table = pa.concat_tables(summary.by_frequency())
        for token in (self.mask_token, self.oov_token):
            if token is not None:
                table = table.filter(pc.not_equal(table["token"], self._scalar(token)))
        if self.max_tokens is not None:
            table = table.slice(0, max(0, self.max_tokens - self._token_start))
        self._keys = MemoryKeys(table["token"].combine_chunks())
        if self.output_mode == "tf_idf":
            weights = np.log(1 + summary.documents / (1 + table["weight"].to_numpy()))
            self.idf_weights = self._weights(weights, len(table), False)

    def _scalar(self, token: Any) -> pa.Scalar:
        return pa.scalar(token, self.kind)

    @property
    def _known(self) -> Keys:
        if self._keys is None:
            raise InvalidArgumentError(f"{self._call} has no vocabulary yet: give vocabulary=... or call adapt(data)")
        return self._keys

    def get_vocabulary(self, *, include_special_tokens: bool = True) -> list[Any]:
        """The tokens in the order of their indices; first the special ones, if asked for: mask and unknown tokens."""
        tokens = [] if self._keys is None else self._plain(self._keys.take(np.arange(len(self._keys)))).tolist()
        return self._specials + tokens if include_special_tokens else tokens

    def vocabulary_size(self) -> int:
        """The number of indices, including those of the mask and of unknown tokens."""
        return self._token_start + (0 if self._keys is None else len(self._keys))

    @property
    def vocabulary(self) -> Any:
        """Return the tokens as `get_vocabulary` does, or the path of their file; None if there are none yet."""
        if isinstance(self._keys, FileKeys):
            return self._keys.path
        return None if self._keys is None else self.get_vocabulary() or None

    def _transform(self, inputs: Any, leading: int) -> Any:
        if self.invert:
            return self._tokens_of(np.asarray(inputs))
        values, shape = self._arrow(inputs)
        indices = self.indices_of(values).reshape(shape)
        if self.output_mode == "int":
            return indices[()]
        return self._weighted(encode(indices, self.output_mode, self._width, leading))

    def encode_documents(self, rows: Numbers, indices: Numbers, count: int) -> Floats:
        """`count` vectors of documents; `rows` has the number of each index's document."""
        return self._weighted(encode_rows(rows, indices, self.output_mode, count, self._width))

    def _weighted(self, vectors: Floats) -> Floats:
        if self.idf_weights is not None:
            vectors[..., : len(self.idf_weights)] *= self.idf_weights
        return vectors

    def indices_of(self, values: pa.Array) -> Numbers:
        """The index of each token; for vectors, masked tokens have -1, so that they are ignored."""
        found = self._known.find(values)
        indices: Numbers = np.add(found, self._token_start, dtype=np.int64)
        masked = None
        if self.mask_token is not None:
            masked = pc.equal(values, self._scalar(self.mask_token)).to_numpy(zero_copy_only=False)
            indices[masked] = 0 if self.output_mode == "int" else -1
        if self.num_oov_indices != 1:  # with one such index, -1 has been replaced by it already
            unknown = found < 0 if masked is None else (found < 0) & ~masked
            if unknown.any():
                indices[unknown] = self._of_unknown(values.filter(pa.array(unknown)))
        return indices

    def _of_unknown(self, tokens: pa.Array) -> Numbers:
        if self.num_oov_indices == 0:
            shown = self._plain(tokens[:10]).tolist()
            raise InvalidArgumentError(
                f"{self._call}(num_oov_indices=0) takes tokens of its vocabulary only, got {shown}: "
                "set num_oov_indices=1 to give unknown ones an index"
            )
        return self._oov_buckets(tokens) + self._mask_first

    def _tokens_of(self, indices: npt.NDArray[Any]) -> Any:
        if indices.dtype.kind not in "iu":
            raise InvalidTypeError(f"{self._call}(invert=True) takes integers, got an array of {indices.dtype}")
        keys = self._known
        numbers = indices.reshape(-1).astype(np.int64) - self._token_start
        known = (numbers >= 0) & (numbers < len(keys))
        tokens = np.empty(len(numbers), dtype=self._plain(pa.array([], self.kind)).dtype)
        tokens[:] = self.oov_token
        tokens[known] = self._plain(keys.take(numbers[known]))
        if self.mask_token is not None:
            tokens[indices.reshape(-1) == 0] = self.mask_token
        return tokens.reshape(indices.shape)[()]
