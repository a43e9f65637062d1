"""Base of StringLookup and IntegerLookup: the indices of tokens, and the tokens of indices."""

from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.preprocessing.encode import Floats, encode, encode_rows
from penstock.preprocessing.keys import Numbers
from penstock.preprocessing.vocabulary import VocabularyLayer


class IndexLookup(VocabularyLayer):
    """Tokens to indices or vectors, or indices to tokens."""

    @abstractmethod
    def _oov_buckets(self, values: pa.Array) -> Numbers:
        """Return which of several indices each unknown token gets, from 0."""

    def _transform(self, inputs: Any, leading: int) -> Any:
        if self.invert:
            return self._tokens_of(np.asarray(inputs))
        values, shape = self._arrow(inputs)
        indices = self.indices_of(values).reshape(shape)
        if self.output_mode == "int":
            return indices[()]
        mode = "count" if self.output_mode == "tf_idf" else self.output_mode
        return self._weighted(encode(indices, mode, self._depth(len(self._known)), leading))

    def encode_documents(self, rows: Numbers, indices: Numbers, count: int) -> Floats:
        """`count` vectors of documents; `rows` has the number of each index's document."""
        mode = "count" if self.output_mode == "tf_idf" else self.output_mode
        return self._weighted(encode_rows(rows, indices, mode, count, self._depth(len(self._known))))

    def _weighted(self, vectors: Floats) -> Floats:
        return vectors if self.idf_weights is None else vectors * self.idf_weights

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
            self._place_unknown(values, indices, np.flatnonzero(unknown))
        return indices

    def _place_unknown(self, values: pa.Array, indices: Numbers, where: npt.NDArray[np.intp]) -> None:
        if len(where) == 0:
            return
        unknown = values.take(pa.array(where))
        if self.num_oov_indices == 0:
            shown = self._plain(unknown[:10]).tolist()
            raise InvalidArgumentError(
                f"{self._call}(num_oov_indices=0) takes tokens of its vocabulary only, got {shown}: "
                "set num_oov_indices=1 to give unknown ones an index"
            )
        indices[where] = self._oov_buckets(unknown) + self._mask_first

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
