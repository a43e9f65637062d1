"""shuffle(clump=...): rows that are decoded together stay near each other."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from two_workers import two_workers

import penstock as ps
from penstock.formats.tables.parquet import ParquetFiles


@pytest.fixture
def files(tmp_path):
    """300 rows in 3 files, with row groups of 30, 30, 30 and 10 rows."""
    for number in range(3):
        rows = pa.table({"x": np.arange(100 * number, 100 * number + 100)})
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=30)
    return tmp_path / "*.parquet"


def table(files):
    return ps.ParquetDataset(files).map(lambda row: row["x"])


def group_of(row):
    return row // 100 * 4 + row % 100 // 30


def groups_in(rows):
    """The groups of consecutive clumps of two: as soon as a third group comes, a clump ends."""
    clumps = [set()]
    for row in rows:
        if len(clumps[-1] | {group_of(row)}) > 2:
            clumps.append(set())
        clumps[-1].add(group_of(row))
    return clumps


def values(dataset):
    return [int(x) for x in dataset]


def test_the_rows_of_so_many_groups_are_mixed(files):
    mixed = table(files).shuffle(seed=1, clump=2)
    first, second = values(mixed), values(mixed)
    for rows in (first, second):
        assert sorted(rows) == list(range(300))
        clumps = groups_in(rows)
        assert len(clumps) == 6 and sorted(itertools.chain(*clumps)) == list(range(12))
        one = [group_of(row) for row in rows[:20]]
        assert len(set(one)) == 2 and one != sorted(one)
    assert groups_in(first) != groups_in(second)
    assert values(table(files).shuffle(seed=1, clump=2)) == first
    fixed = table(files).shuffle(seed=1, clump=2, reshuffle_each_iteration=False)
    assert values(fixed) == values(fixed)


def test_every_group_is_decoded_once(files, monkeypatch):
    decoded = []
    decode = ParquetFiles._decoded

    def counted(self, file, groups):
        decoded.extend((file.name, group) for group in groups)
        return decode(self, file, groups)

    monkeypatch.setattr(ParquetFiles, "_decoded", counted)
    assert len(values(table(files).shuffle(seed=4, clump=2))) == 300
    assert len(decoded) == len(set(decoded)) == 12


def test_it_can_be_entered_anywhere_and_read_by_index(files):
    mixed = table(files).shuffle(seed=1, clump=5)
    rows = values(mixed)
    iterator = iter(mixed.skip(7))
    assert [int(next(iterator)) for _ in range(100)] == rows[7:107]
    again = table(files).shuffle(seed=1, clump=5)
    assert [int(again[position]) for position in (0, 99, 299)] == [rows[0], rows[99], rows[299]]
    iterator = iter(again)
    given = [int(next(iterator)) for _ in range(77)]
    state = json.loads(json.dumps(iterator.state_dict()))
    resumed = iter(table(files).shuffle(seed=1, clump=5))
    resumed.load_state_dict(state)
    assert given + values(resumed) == rows
    with pytest.raises(ps.StateMismatchError, match=r"shuffle\(buffer_size=all, seed=1, clump=5\)"):
        iter(table(files).shuffle(seed=1, clump=4)).load_state_dict(state)


@pytest.mark.parametrize(
    ("part", "ends"),
    [
        (lambda d: d, [30, 60, 90, 100, 130, 160, 190, 200, 230, 260, 290, 300]),
        (lambda d: d.take(95), [30, 60, 90, 95]),
        (lambda d: d.skip(195), [5, 35, 65, 95, 105]),
        (lambda d: d.select(np.arange(0, 300, 50)), [1, 2, 3, 4, 5, 6]),
        (lambda d: d.skip(200).concatenate(ps.Dataset.range(7)), [30, 60, 90, 100, 107]),
        (lambda d: d.split([0.5, 0.5], seed=1)[0].take(50), [11, 27, 45, 50]),
    ],
    ids=["all", "take", "skip", "select", "concatenate", "split"],
)
def test_parts_and_chains_know_their_groups(files, part, ends):
    mixed = part(table(files)).shuffle(clump=3, seed=1)
    assert mixed.node._ends.tolist() == ends
    assert sorted(values(mixed)) == sorted(values(part(table(files))))


def test_workers_that_read_files_of_their_own_mix_their_groups(files):
    batches = table(files).shuffle(clump=2, seed=1).batch(10)
    by_file = batches.with_options(ps.Options(auto_shard_policy=ps.AutoShardPolicy.FILE))
    found = []
    for worker in range(3):
        steps = ps.HostStrategy(num_workers=3, worker_index=worker).distribute_dataset(by_file)
        found.append([int(x) for step in steps for x in step.values[0]])
    assert [sorted(rows) for rows in found] == [list(range(100 * worker, 100 * worker + 100)) for worker in range(3)]


def test_workers_of_a_service_give_the_same_order(files):
    expected = values(table(files).shuffle(clump=2, seed=1))
    with two_workers() as target:
        served = table(files).shuffle(clump=2, seed=1).apply(ps.service.distribute("distributed_epoch", target))
        assert values(served.with_options(ps.Options(deterministic=True))) == expected


def test_rows_that_cost_the_same_are_all_mixed():
    assert sorted(values(ps.Dataset.range(100).shuffle(clump=4, seed=1))) == list(range(100))
    assert values(ps.Dataset.range(0).shuffle(clump=4)) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: d.batch(2).shuffle(clump=2), r"batch\(.* does not say which rows are read together: shuffle before"),
        (lambda d: d.select([3, 1]).shuffle(clump=2), r"select\(.* does not say which rows are read together"),
        (lambda d: d.filter(bool).shuffle(clump=2), r"shuffle\(clump=...\) reads by index, and filter\(.* is a stream"),
        (lambda d: d.shuffle(100, clump=2), "takes a buffer_size or a clump, got 100 and a clump"),
        (lambda d: d.shuffle(clump=0), r"shuffle\(clump=...\) must be at least 1"),
        (lambda d: ps.Dataset.counter().shuffle(clump=2), r"never ends"),
    ],
)
def test_what_has_no_groups_is_refused(files, make, message):
    with pytest.raises(ps.InvalidArgumentError, match=message):
        make(table(files))
