"""Counts how often each token occurs, and in how many documents, block by block in Arrow."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.accumulators.accumulator import TEXT, State

_PENDING = 1 << 20


class TokenCounts:
    """Counts of tokens; memory is bounded by the number of distinct ones.

    Args:
        kind: the Arrow type of the tokens.
        by_document: also count in how many documents a token occurs.

    Example:
        >>> import numpy as np
        >>> import pyarrow as pa
        >>> counts = TokenCounts(pa.int64(), by_document=False)
        >>> counts.add(pa.array([3, 5, 3, 4]), np.zeros(4), documents=1)
        >>> counts.ordered()["token"].to_pylist()
        [3, 5, 4]
    """

    def __init__(self, kind: Any, by_document: bool) -> None:
        self._by_document = by_document
        self._tables: list[pa.Table] = [self._table(pa.array([], kind), [], [])]
        self._pending = 0
        self.documents = 0

    def add(self, tokens: pa.Array, rows: npt.NDArray[Any], documents: int) -> None:
        """Count these tokens; `rows` has the number of each token's document."""
        self.documents += documents
        values, counts = pc.value_counts(tokens).flatten()
        self._append(self._table(values, counts, np.zeros(len(values), np.int64)))
        if self._by_document:
            once = pa.table({"token": tokens, "row": rows}).group_by(["token", "row"]).aggregate([])
            values, counts = pc.value_counts(once["token"].combine_chunks()).flatten()
            self._append(self._table(values, np.zeros(len(values), np.int64), counts))

    @staticmethod
    def _table(tokens: pa.Array, counts: Any, documents: Any) -> pa.Table:
        columns = [tokens, pa.array(counts, pa.int64()), pa.array(documents, pa.int64())]
        return pa.table(columns, names=["token", "count", "documents"])

    def _append(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._pending += len(table)
        if self._pending > max(_PENDING, 2 * len(self._tables[0])):
            self._tables, self._pending = [self._summed()], 0

    def _summed(self) -> pa.Table:
        groups = pa.concat_tables(self._tables).group_by("token").aggregate([("count", "sum"), ("documents", "sum")])
        return groups.select(["token", "count_sum", "documents_sum"]).rename_columns(["token", "count", "documents"])

    def merge(self, other: "TokenCounts") -> None:
        """Take in what `other` has counted."""
        self.documents += other.documents
        for table in other._tables:
            self._append(table)

    def state(self) -> State:
        """Everything that was counted, as plain data."""
        table = self._summed()
        token = table["token"].combine_chunks()
        plain = token if token.type == TEXT else token.to_numpy()
        numbers = {name: table[name].to_numpy() for name in ("count", "documents")}
        return {"token": plain, **numbers, "all documents": self.documents}

    def load(self, state: State) -> None:
        """Take the place of what `state` says."""
        token = state["token"] if isinstance(state["token"], pa.Array) else pa.array(state["token"])
        self._tables, self._pending = [self._table(token, state["count"], state["documents"])], 0
        self.documents = state["all documents"]

    def ordered(self) -> pa.Table:
        """The tokens with their counts: the most frequent first, equally frequent ones in reverse order."""
        return self._summed().sort_by([("count", "descending"), ("token", "descending")])
