"""Counts of tokens, and sums of their weights, block by block in Arrow; more than memory should hold go to files."""

from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any
from weakref import finalize

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.accumulators.accumulator import TEXT, Accumulator, Array, State
from penstock.accumulators.runs import merged_runs, read_run, write_run

_PENDING = 1 << 20
TOKENS_IN_MEMORY = 1 << 21
"""Limit of distinct tokens in memory; above it, counts go to files, a run of sorted tokens in each."""

_COLUMNS = ["token", "count", "weight"]
_BY_TOKEN = [("token", "ascending")]


class WeightCounts(Accumulator):
    """Number of occurrences of each token, and the sum of its weights.

    Args:
        most: the number of distinct tokens from which on they go to files.
        kind: the Arrow type of the tokens.

    Example:
        >>> counts = WeightCounts()
        >>> counts.add(pa.array([b"b", b"a", b"b"], TEXT)); counts.add(pa.array([b"c"], TEXT))
        >>> [table["token"].to_pylist() for table in counts.by_frequency()]
        [[b'b', b'c', b'a']]
    """

    def __init__(self, most: int = TOKENS_IN_MEMORY, kind: Any = TEXT) -> None:
        self._most = most
        self._tables = [_table(pa.array([], kind), np.zeros(0, np.int64), None)]
        self._pending = 0
        self._directory: Path | None = None
        self._runs: list[Path] = []
        self.total = 0
        """How many tokens were added."""

    def add(self, tokens: pa.Array, weights: Array | None = None) -> None:
        """Count tokens, each with its weight: 1 if there are none."""
        self.total += len(tokens)
        if weights is None:
            values, counts = pc.value_counts(tokens).flatten()
            self._append(_table(values, counts, None))
            return
        encoded = tokens.dictionary_encode()
        places, size = encoded.indices.to_numpy(), len(encoded.dictionary)
        sums = np.bincount(places, weights, size)
        self._append(_table(encoded.dictionary, np.bincount(places, minlength=size), sums))

    def _append(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._pending += len(table)
        if self._pending > max(_PENDING, 2 * len(self._tables[0])) or self._pending > self._most:
            self._tables, self._pending = [_summed(self._tables)], 0
            if len(self._tables[0]) > self._most:
                self._spill()

    def _spill(self) -> None:
        if self._directory is None:
            self._directory = Path(mkdtemp(prefix="penstock-counts-"))
            finalize(self, rmtree, self._directory, ignore_errors=True)
        path = self._directory / f"{len(self._runs)}.arrow"
        table = _summed(self._tables)
        write_run(path, table, _BY_TOKEN)
        self._runs.append(path)
        self._tables, self._pending = [table.slice(0, 0)], 0

    def merge(self, other: "WeightCounts") -> None:
        self.total += other.total
        for run in other._runs:
            for part in read_run(run):
                self._append(part)
        for table in other._tables:
            self._append(table)

    def tables(self) -> Iterator[pa.Table]:
        """Every token once, with its count and its weight: one table, or parts that follow each other by tokens."""
        if not self._runs:
            yield _summed(self._tables)
            return
        self._spill()
        for part in merged_runs(self._runs, _BY_TOKEN):
            yield _summed([part, part.slice(0, 0)])

    def by_frequency(self, weighted: bool = False) -> Iterator[pa.Table]:
        """The same, the most frequent or the heaviest tokens first, and equal ones in reverse order."""
        order = [("weight" if weighted else "count", "descending"), ("token", "descending")]
        if not self._runs:
            yield _summed(self._tables).sort_by(order)
            return
        with TemporaryDirectory(prefix="penstock-counts-") as directory:
            runs = []
            for number, table in enumerate(_joined(self.tables(), _PENDING)):
                runs.append(Path(directory) / f"{number}.arrow")
                write_run(runs[-1], table, order)
            for part in merged_runs(runs, order):
                yield part.sort_by(order)

    def state(self) -> State:
        parts = [_summed(self._tables), *(part for run in self._runs for part in read_run(run))]
        return {"total": self.total, "parts": [_plain(part) for part in parts]}

    def load(self, state: State) -> None:
        self._tables, self._pending, self._directory, self._runs = [self._tables[0].slice(0, 0)], 0, None, []
        for part in state["parts"]:
            token = part["token"] if isinstance(part["token"], pa.Array) else pa.array(part["token"])
            self._append(_table(token, part["count"], part["weight"]))
        self.total = state["total"]


def _table(tokens: pa.Array, counts: Any, weights: Any) -> pa.Table:
    counts = pa.array(counts, pa.int64())
    weights = counts.cast(pa.float64()) if weights is None else pa.array(weights, pa.float64())
    return pa.table([tokens, counts, weights], names=_COLUMNS)


def _summed(tables: list[pa.Table]) -> pa.Table:
    if len(tables) == 1:
        return tables[0]
    groups = pa.concat_tables(tables).group_by("token").aggregate([("count", "sum"), ("weight", "sum")])
    return groups.select(["token", "count_sum", "weight_sum"]).rename_columns(_COLUMNS)


def _joined(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Join the tables to fewer ones, of about this number of rows."""
    parts: list[pa.Table] = []
    for table in tables:
        parts.append(table)
        if sum(map(len, parts)) >= rows:
            yield pa.concat_tables(parts)
            parts = []
    if parts:
        yield pa.concat_tables(parts)


def _plain(table: pa.Table) -> State:
    token = table["token"].combine_chunks()
    plain = token if token.type == TEXT else token.to_numpy()
    return {"token": plain, "count": table["count"].to_numpy(), "weight": table["weight"].to_numpy()}
