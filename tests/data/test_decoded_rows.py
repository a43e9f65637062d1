"""What datasets keep of decoded rows: how much memory that is, for all of them together."""

import gc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.formats import decoded_rows
from penstock.formats.decoded_rows import CACHE_BYTES, DecodedRows

_ROWS, _GROUP, _COLUMNS = 50_000, 1_250, 60
_DECODED = _ROWS * _COLUMNS * 8
_BOUND = CACHE_BYTES // 8
_SLACK = 1 << 22


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Forty row groups of 0.6 MB, together 24 MB when they are decoded."""
    path = tmp_path_factory.mktemp("kept") / "rows.parquet"
    column = pa.array(np.arange(_ROWS) // _GROUP)
    pq.write_table(pa.table({f"c{number}": column for number in range(_COLUMNS)}), path, row_group_size=_GROUP)
    return path


@pytest.fixture
def bound(monkeypatch):
    """An eighth of what all datasets may keep together, for files that are as much smaller."""
    monkeypatch.setattr(decoded_rows, "CACHE_BYTES", _BOUND)


def held_by_arrow():
    """The memory of decoded columns, which Arrow has allocated."""
    gc.collect()
    return pa.total_allocated_bytes()


def exhaust(dataset):
    for _ in dataset:
        pass


@pytest.mark.extended
@pytest.mark.usefixtures("bound")
def test_datasets_together_keep_as_much_as_one(file):
    before = held_by_arrow()
    datasets = [ps.ParquetDataset(file) for _ in range(4)]
    held = []
    for dataset in datasets:
        exhaust(dataset.batch(625))
        held.append(held_by_arrow() - before)
    assert _DECODED <= held[0] < _DECODED + _SLACK
    assert max(held) < _BOUND + _SLACK  # four of them decode 96 MB
    assert min(held[1:]) > _BOUND - _SLACK
    del dataset, datasets[1:]
    assert held_by_arrow() - before < _SLACK  # the last two had it all


@pytest.mark.extended
@pytest.mark.usefixtures("bound")
def test_rows_at_random_keep_no_more_than_the_bound(file, tmp_path):
    """Row groups that are decoded together share memory, of which one that is kept keeps all."""
    (tmp_path / "second.parquet").hardlink_to(file)
    before = held_by_arrow()
    dataset = ps.ParquetDataset([file, tmp_path / "second.parquet"])  # 80 groups, 48 MB
    most = 0
    for batch in dataset.shuffle(seed=1).batch(40).take(60):
        assert len(batch["c0"]) == 40
        most = max(most, held_by_arrow() - before)
    assert _BOUND - _SLACK < most < _BOUND + _SLACK
    del dataset, batch
    assert held_by_arrow() - before < _SLACK


def test_large_groups_of_many_datasets_are_decoded_once_in_turn():
    """Each has one group of half the bound, of which all use another row in turn."""
    datasets = [DecodedRows() for _ in range(8)]
    for number, kept in enumerate(datasets):
        kept.put({("file", 0): number}, CACHE_BYTES // 2)
    for _ in range(100):
        assert [kept.get(("file", 0)) for kept in datasets] == list(range(8))


def test_a_dataset_that_is_read_no_more_keeps_nothing_of_what_others_need():
    left, read = DecodedRows(), DecodedRows()
    left.put({("left", 0): "left"}, CACHE_BYTES)
    for group in range(255):
        read.put({("read", group): group}, 1)
    assert left.get(("left", 0)) == "left"
    for group in range(256):
        read.put({("read", group): group}, 1)
    assert left.get(("left", 0)) is None
    for group in range(256, 512):
        read.put({("read", group): group}, 1)
    assert [read.get(("read", group)) for group in range(255, 512)] == list(range(255, 512))


def test_groups_that_share_memory_go_together_and_the_last_used_stay():
    kept = DecodedRows()
    kept.put({("a", 0): 0, ("a", 1): 1}, CACHE_BYTES // 2)
    kept.put({("b", 0): 2}, CACHE_BYTES // 2)
    assert kept.get(("a", 1)) == 1
    kept.put({("c", 0): 3}, 1)
    assert [kept.get(key) for key in (("a", 0), ("a", 1), ("b", 0), ("c", 0))] == [0, 1, None, 3]


def test_what_was_decoded_twice_counts_until_both_are_dropped():
    kept = DecodedRows()
    kept.put({("a", 0): 0, ("a", 1): 1}, CACHE_BYTES // 2)
    kept.put({("a", 0): 2}, CACHE_BYTES // 2)
    assert kept.get(("a", 0)) == 2 and kept.get(("a", 1)) == 1
    kept.put({("b", 0): 3}, CACHE_BYTES // 2)
    assert kept.get(("a", 0)) is None and kept.get(("a", 1)) == 1
