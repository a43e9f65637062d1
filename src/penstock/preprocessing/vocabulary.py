"""Layers with a vocabulary: given as a list or a file, or learned."""

import os
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidArgumentError
from penstock.options import check_integer
from penstock.paths import local_path
from penstock.preprocessing.counts import TokenCounts
from penstock.preprocessing.keys import Keys, MemoryKeys
from penstock.preprocessing.layer import LearningLayer, check_choice
from penstock.preprocessing.tokens import Shape
from penstock.preprocessing.vocabulary_file import FileKeys

MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")


class VocabularyLayer(LearningLayer):
    """A layer whose indices are those of the mask, if there is one, of unknown tokens, and of a vocabulary."""

    kind: ClassVar[Any]
    """The Arrow type of the tokens."""

    shown_as: ClassVar[str] = ""
    """What errors call the layer, where that is not the name of its class."""

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
        call = self._call = self.shown_as or type(self).__name__
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
            self.idf_weights = self._padded(self._weights(idf_weights, len(keys), specials), len(keys))
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
        return MemoryKeys(self._checked(tokens[self._token_start :] if found else tokens)), found

    def _begins_with_specials(self, tokens: pa.Array) -> bool:
        """Return whether the mask, if there is one, and one token for each index of unknown ones come first."""
        specials = self._specials
        return bool(specials) and self._plain(tokens[: len(specials)]).tolist() == specials

    def _checked(self, tokens: pa.Array) -> pa.Array:
        counted = pc.value_counts(tokens)
        if len(counted) < len(tokens):
            repeated = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
            shown = self._plain(repeated[:10]).tolist()
            raise InvalidArgumentError(f"{self._call}(vocabulary=...): every token must occur once, repeated: {shown}")
        return tokens

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

    def _padded(self, weights: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
        return np.append(weights, np.zeros(self._depth(count) - len(weights), np.float32))

    def _depth(self, count: int) -> int:
        return self.max_tokens if self.pad_to_max_tokens and self.max_tokens else count + self._token_start

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
            self.idf_weights = self._padded(self._weights(weights, len(table), False), len(table))

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

    def get_config(self) -> dict[str, Any]:
        vocabulary = self._keys.path if isinstance(self._keys, FileKeys) else self.get_vocabulary()
        return {
            "max_tokens": self.max_tokens,
            "num_oov_indices": self.num_oov_indices,
            "mask_token": self.mask_token,
            "oov_token": self.oov_token,
            "vocabulary": vocabulary if self._keys is not None and vocabulary else None,
            "idf_weights": None if self.idf_weights is None else self.idf_weights[: self.vocabulary_size()].tolist(),
            "invert": self.invert,
            "output_mode": self.output_mode,
            "pad_to_max_tokens": self.pad_to_max_tokens,
            "cache_dir": self.cache_dir,
        }
