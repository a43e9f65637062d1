"""Counts how often each token occurs, and in how many documents."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.accumulators.accumulator import State
from penstock.accumulators.counts import WeightCounts


class TokenCounts(WeightCounts):
    """Counts of tokens, whose weights are the numbers of documents that they occur in.

    Args:
        kind: the Arrow type of the tokens.
        by_document: count documents too; weights mean nothing otherwise.

    Example:
        >>> import numpy as np
        >>> import pyarrow as pa
        >>> counts = TokenCounts(pa.int64(), by_document=True)
        >>> counts.add_documents(pa.array([3, 5, 3, 4]), np.array([0, 0, 0, 1]), documents=2)
        >>> pa.concat_tables(counts.by_frequency()).to_pydict()
        {'token': [3, 5, 4], 'count': [2, 1, 1], 'weight': [1.0, 1.0, 1.0]}
    """

    def __init__(self, kind: Any, by_document: bool) -> None:
        super().__init__(kind=kind)
        self._by_document = by_document
        self.documents = 0

    def add_documents(self, tokens: pa.Array, rows: npt.NDArray[Any], documents: int) -> None:
        """Count the tokens of so many documents; `rows` has the number of each token's document."""
        self.documents += documents
        if not self._by_document:
            self.add(tokens)
            return
        table = pa.table({"token": tokens, "row": rows, "place": np.arange(len(tokens))})
        first = np.zeros(len(tokens))
        first[table.group_by(["token", "row"]).aggregate([("place", "min")])["place_min"].to_numpy()] = 1
        self.add(tokens, first)

    def merge(self, other: WeightCounts) -> None:
        assert isinstance(other, TokenCounts)
        self.documents += other.documents
        super().merge(other)

    def state(self) -> State:
        return {**super().state(), "documents": self.documents}

    def load(self, state: State) -> None:
        super().load(state)
        self.documents = state["documents"]
