"""TextVectorization: texts to indices or vectors."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.data.block import Column, column_of, is_ragged
from penstock.errors import InvalidArgumentError
from penstock.options import check_integer
from penstock.preprocessing.counts import TokenCounts
from penstock.preprocessing.layer import check_choice
from penstock.preprocessing.lookups import StringLookup
from penstock.preprocessing.text import Function, Tokens, grams, split_texts, standardized
from penstock.preprocessing.tokens import Shape

_STANDARDS = ("lower_and_strip_punctuation", "lower", "strip_punctuation")
_MODES = ("int", "multi_hot", "count", "tf_idf")


class TextVectorization(StringLookup):
    """Maps texts to the indices of their words, or to one vector for each text.

    Args:
        max_tokens: the largest number of indices, including those of padding and of unknown words.
        standardize: "lower_and_strip_punctuation", "lower", "strip_punctuation", None, or a function from an array of
            texts to another. It gets one text or many, with dtype `numpy.dtypes.StringDType`; the result for a text
            must not depend on the others.
        split: "whitespace", "character", None (the inputs are words already), or a function from an array of texts, as
            above, to a list of lists.
        ngrams: also use runs of up to this many words; a tuple lists the lengths to use.
        output_mode: "int" for indices, padded with 0 to the longest text, or a vector of each text: "multi_hot",
            "count" or "tf_idf".
        output_sequence_length: cut or pad indices to this length.
        pad_to_max_tokens: make vectors as long as `max_tokens`, however small the vocabulary is.
        vocabulary: the words in order, as a list or an array, or the path of a text file with one in each line. Without
            it, call `adapt`.
        idf_weights: the weight of each word, for "tf_idf".
        encoding: how strings become bytes, and how bytes are decoded for functions and in `get_vocabulary`.
        cache_dir: where the index of a vocabulary file is kept; next to the file by default.

    Raises:
        InvalidArgumentError: arguments that contradict each other, or a vocabulary that cannot work.

    Example:
        >>> layer = TextVectorization(vocabulary=["earth", "wind", "and", "fire"])
        >>> layer(["Earth, wind & fire!", "fire and rain"])
        array([[2, 3, 5],
               [5, 4, 1]])
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        standardize: str | Function | None = "lower_and_strip_punctuation",
        split: str | Function | None = "whitespace",
        ngrams: int | tuple[int, ...] | None = None,
        output_mode: str = "int",
        output_sequence_length: int | None = None,
        *,
        pad_to_max_tokens: bool = False,
        vocabulary: Any = None,
        idf_weights: Any = None,
        encoding: str = "utf-8",
        cache_dir: str | None = None,
    ) -> None:
        call = "TextVectorization"
        if standardize is not None and not callable(standardize):
            check_choice(call, "standardize", standardize, _STANDARDS)
        if split is not None and not callable(split):
            check_choice(call, "split", split, ("whitespace", "character"))
        check_choice(call, "output_mode", output_mode, _MODES)
        if output_sequence_length is not None:
            output_sequence_length = check_integer(call, "output_sequence_length", output_sequence_length, minimum=1)
            if output_mode != "int":
                raise InvalidArgumentError(f"{call}(output_sequence_length=...) needs output_mode='int'")
        self.standardize, self.split, self.ngrams = standardize, split, ngrams
        self._widths = _widths(ngrams)
        self.output_sequence_length = output_sequence_length
        super().__init__(
            max_tokens,
            mask_token="",
            vocabulary=vocabulary,
            idf_weights=idf_weights,
            output_mode=output_mode,
            pad_to_max_tokens=pad_to_max_tokens,
            encoding=encoding,
            cache_dir=cache_dir,
        )

    @property
    def depth(self) -> None:
        return None

    @property
    def pads(self) -> bool:
        """Return whether results are padded to the longest text of a call."""
        return self.output_mode == "int" and self.output_sequence_length is None

    def _add(self, summary: TokenCounts, rows: Any) -> None:
        tokens = self._tokens(*self._arrow(rows), leading=1)
        summary.add_documents(tokens.values, tokens.rows, len(tokens.lengths))

    def _tokens(self, texts: pa.LargeBinaryArray, shape: Shape, leading: int) -> Tokens:
        """The tokens of each text; without splitting, those along the last axis of an element belong together."""
        texts = standardized(texts, self.standardize, self.encoding)
        if self.split is not None:
            tokens = split_texts(texts, self.split, self.encoding)
        else:
            outer, length = (shape[:-1], shape[-1]) if len(shape) > leading else (shape, 1)
            tokens = Tokens(texts, np.full(int(np.prod(outer)), length))
        return tokens if self._widths is None else grams(tokens, self._widths)

    def _transform(self, inputs: Any, leading: int) -> Any:
        texts, shape = self._arrow(inputs)
        outer = (*shape[:leading], *self._outer_shape(shape[leading:]))
        tokens = self._tokens(texts, shape, leading)
        if self.output_mode != "int":
            vectors = self.encode_documents(tokens.rows, self.indices_of(tokens.values), len(tokens.lengths))
            return vectors.reshape(*outer, vectors.shape[-1])
        if len(shape) == leading and self.split is None and self._widths is None:
            return self.indices_of(tokens.values).reshape(shape)[()]
        rows = self._padded(tokens)
        return rows.reshape(*outer, rows.shape[-1])

    def _outer_shape(self, shape: Shape) -> Shape:
        """The shape of the texts, without the axis of tokens."""
        if self.split is not None and len(shape) < 2:
            return shape
        if self.split is not None and shape[-1] != 1:
            raise InvalidArgumentError(
                f"TextVectorization splits one text for each element, got shape {shape}: its last axis must be 1"
            )
        return shape[:-1]

    def _padded(self, tokens: Tokens) -> npt.NDArray[np.int64]:
        length = self.output_sequence_length
        if length is None:
            length = int(tokens.lengths.max(initial=0))
        rows = np.zeros((len(tokens.lengths), length), np.int64)
        positions = tokens.positions
        kept = positions < length
        rows[tokens.rows[kept], positions[kept]] = self.indices_of(tokens.values)[kept]
        return rows

    def _map_block(self, *columns: Column) -> Any:
        if not self.pads:
            return super()._map_block(*columns)
        (column,) = columns
        if is_ragged(column) or column.ndim > 1 or self.split is None:
            return column_of([self(row) for row in column])
        tokens = self._tokens(*self._arrow(column), leading=1)
        indices = self.indices_of(tokens.values)
        return column_of(np.split(indices, np.cumsum(tokens.lengths)[:-1]))


def _widths(ngrams: int | tuple[int, ...] | None) -> tuple[int, ...] | None:
    if ngrams is None:
        return None
    widths = (
        tuple(ngrams)
        if isinstance(ngrams, (tuple, list))
        else range(1, check_integer("TextVectorization", "ngrams", ngrams, minimum=1) + 1)
    )
    return tuple(check_integer("TextVectorization", "ngrams", width, minimum=1) for width in widths)
