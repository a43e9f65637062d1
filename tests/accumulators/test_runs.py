"""Runs in files are merged in order."""

import numpy as np
import pyarrow as pa
import pytest

from penstock.accumulators import runs


@pytest.mark.parametrize(
    "order",
    [
        [("token", "ascending")],
        [("count", "descending"), ("token", "descending")],
        [("count", "ascending"), ("token", "descending")],
    ],
)
def test_parts_follow_each_other_and_equal_rows_are_in_one_part(monkeypatch, tmp_path, order):
    monkeypatch.setattr(runs, "ROWS", 4)
    generator = np.random.default_rng(len(order))
    tables = []
    for number, length in enumerate((0, 1, 4, 30, 38)):
        tokens = pa.array([f"t{value}".encode() for value in generator.permutation(40)[:length]], pa.large_binary())
        tables.append(pa.table({"token": tokens, "count": pa.array(generator.integers(0, 3, length), pa.int64())}))
        runs.write_run(tmp_path / str(number), tables[-1], order)
    parts = [part.sort_by(order) for part in runs.merged_runs([tmp_path / str(n) for n in range(5)], order)]
    expected = pa.concat_tables(tables).sort_by(order)
    assert pa.concat_tables(parts).to_pylist() == expected.to_pylist()
    columns = [name for name, _ in order]
    keys = [{tuple(row[name] for name in columns) for row in part.to_pylist()} for part in parts]
    assert len(parts) > 3 and sum(map(len, keys)) == len(set.union(*keys))


def test_no_runs_have_no_rows():
    assert list(runs.merged_runs([], [("token", "ascending")])) == []
