"""Counts of tokens, and sums of their weights, block by block in Arrow; more than memory should hold go to files."""

from collections.abc import Iterator
from heapq import merge as in_order
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any
from weakref import finalize

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.accumulators.accumulator import TEXT, Accumulator, Array, State

_PENDING = 1 << 20
TOKENS_IN_MEMORY = 1 << 24
"""So many distinct tokens are counted in memory; above that, counts go to files, a run of sorted tokens in each."""

_ROWS = 1 << 16
_COLUMNS = ["token", "count", "weight"]


class Counts(Accumulator):
    """How often each token occurs, and the sum of its weights.

    Args:
        most: the number of distinct tokens from which on they go to files.

    Example:
        >>> counts = Counts()
        >>> counts.add(pa.array([b"b", b"a", b"b"], TEXT)); counts.add(pa.array([b"c"], TEXT))
        >>> [table["token"].to_pylist() for table in counts.by_frequency()]
        [[b'b', b'c', b'a']]
    """

    def __init__(self, most: int = TOKENS_IN_MEMORY) -> None:
        self._most = most
        self._tables = [_table(pa.array([], TEXT), np.zeros(0, np.int64), None)]
        self._pending = 0
        self._directory: Path | None = None
        self._runs: list[Path] = []
        self.total = 0
        """How many tokens were added."""

    def add(self, tokens: pa.LargeBinaryArray, weights: Array | None = None) -> None:
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
        table = _summed(self._tables).sort_by("token")
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=_ROWS)
        self._runs.append(path)
        self._tables, self._pending = [table.slice(0, 0)], 0

    def merge(self, other: "Counts") -> None:
        self.total += other.total
        for run in other._runs:
            for part in _read(run):
                self._append(part)
        for table in other._tables:
            self._append(table)

    def tables(self) -> Iterator[pa.Table]:
        """Every token once, with its count and its weight: one table, or parts in the order of the tokens."""
        if not self._runs:
            yield _summed(self._tables)
            return
        self._spill()
        rows = in_order(*(_rows(run) for run in self._runs), key=lambda row: row[0])
        yield from _grouped(rows)

    def by_frequency(self, weighted: bool = False) -> Iterator[pa.Table]:
        """The same, the most frequent or the heaviest tokens first, and equal ones in reverse order."""
        order = [("weight" if weighted else "count", "descending"), ("token", "descending")]
        if not self._runs:
            yield _summed(self._tables).sort_by(order)
            return
        place = 2 if weighted else 1
        with TemporaryDirectory(prefix="penstock-counts-") as directory:
            runs = []
            for number, table in enumerate(self.tables()):
                path = Path(directory) / f"{number}.arrow"
                with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                    writer.write_table(table.sort_by(order), max_chunksize=_ROWS)
                runs.append(path)
            rows = in_order(*map(_rows, runs), key=lambda row: (row[place], row[0]), reverse=True)
            yield from _grouped(rows)

    def state(self) -> State:
        parts = [_summed(self._tables), *(part for run in self._runs for part in _read(run))]
        return {"total": self.total, "parts": [_plain(part) for part in parts]}

    def load(self, state: State) -> None:
        self.__init__(self._most)  # type: ignore[misc]  # empty again
        for part in state["parts"]:
            self._append(_table(part["token"], part["count"], part["weight"]))
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


def _plain(table: pa.Table) -> State:
    token = table["token"].combine_chunks()
    return {"token": token, "count": table["count"].to_numpy(), "weight": table["weight"].to_numpy()}


def _read(path: Path) -> Iterator[pa.Table]:
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])


def _rows(path: Path) -> Iterator[tuple[bytes, int, float]]:
    for table in _read(path):
        yield from zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True)


def _grouped(rows: Iterator[tuple[bytes, int, float]]) -> Iterator[pa.Table]:
    """Tables of rows whose equal neighbours are summed."""
    tokens: list[bytes] = []
    counts: list[int] = []
    weights: list[float] = []
    for token, count, weight in rows:
        if tokens and tokens[-1] == token:
            counts[-1] += count
            weights[-1] += weight
            continue
        if len(tokens) == _ROWS * 16:
            yield _table(pa.array(tokens, TEXT), counts, weights)
            tokens, counts, weights = [], [], []
        tokens.append(token)
        counts.append(count)
        weights.append(weight)
    yield _table(pa.array(tokens, TEXT), counts, weights)
