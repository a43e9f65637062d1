"""unbatch by index: where the number of rows of every element is known, rows are read by number."""

import numpy as np
import pytest

import penstock as ps
from penstock.testing import check_conformance

PATCHES = ps.TensorSpec((4, 2), np.int64)


def patches(x):
    """Four rows of a volume."""
    return np.stack([np.full(2, 10 * x + number) for number in range(4)])


def volumes(function=patches, count=5):
    return ps.Dataset.range(count).map(function, output_signature=PATCHES)


def firsts(dataset):
    return [int(row[0]) for row in dataset]


def test_patches_of_volumes_are_rows_by_number():
    rows = volumes().unbatch()
    expected = [10 * x + number for x in range(5) for number in range(4)]
    assert len(rows) == 20
    assert firsts(rows) == expected
    assert firsts(rows.select([19, 0, 7, 7])) == [43, 0, 13, 13]
    assert sorted(firsts(rows.shuffle(seed=1))) == expected != firsts(rows.shuffle(seed=1))
    assert firsts(rows.shard(3, 1)) == expected[1::3]
    assert rows.rows(9)[0].row == 2


def test_a_short_last_batch_has_its_rows_too():
    rows = ps.Dataset.range(11).batch(4).unbatch()
    assert len(rows) == 11
    assert [int(x) for x in rows.select([10, 0, 8, 7])] == [10, 0, 8, 7]
    assert [int(x) for x in rows.prefetch(2)] == list(range(11))


@pytest.mark.parametrize("order", [lambda d: d, lambda d: d.shuffle(8, seed=1), lambda d: d.shuffle(clump=2, seed=1)])
def test_a_function_is_called_once_for_all_rows_of_its_element(order):
    calls = []

    def counted(x):
        calls.append(int(x))
        return patches(x)

    assert sorted(firsts(order(volumes(counted).unbatch()).batch(3).unbatch())) == firsts(volumes().unbatch())
    assert sorted(calls) == list(range(5))


def test_rows_of_kept_elements_cannot_be_overwritten():
    rows = ps.Dataset.range(12).map(lambda x: np.arange(x % 3)).ragged_batch(4).unbatch().repeat(2)
    found = []
    for row in rows:
        found.append(row.tolist())
        if row.flags.writeable:
            row[:] = -1
    assert found == [list(range(x % 3)) for x in range(12)] * 2


def test_an_element_with_other_rows_than_known_is_an_error():
    class Lying:
        """Rows that are not of the shape that they are said to have."""

        shape, dtype = (3, 2), np.dtype(np.int64)

        def __len__(self):
            return 3

        def __getitem__(self, rows):
            return np.zeros((rows.stop - rows.start, 2 + (rows.start == 1)), np.int64)

    iterator = iter(ps.Dataset.from_source(Lying()).unbatch())
    assert [next(iterator), next(iterator)] == [0, 0]
    with pytest.raises(ps.ElementError, match="element 1 has 3 rows, and is known to have 2"):
        next(iterator)


def test_rows_of_an_element_that_fails_fail_and_no_others():
    def failing(x):
        if x == 2:
            raise ZeroDivisionError("no 2")
        return patches(x)

    rows = volumes(failing).unbatch().with_options(ps.Options(on_error="skip"))
    with iter(rows) as iterator:
        assert firsts(iterator) == [10 * x + number for x in (0, 1, 3, 4) for number in range(4)]
        assert iterator.errors.count == 4


def test_a_state_of_rows_by_number_is_refused_where_their_number_is_unknown():
    with iter(volumes().unbatch()) as iterator:
        next(iterator)
        state = iterator.state_dict()
    with (
        iter(ps.Dataset.range(5).map(patches).unbatch()) as other,
        pytest.raises(ps.StateMismatchError, match=r"unbatch\(\) with other data or arguments"),
    ):
        other.load_state_dict(state)


def test_each_worker_reads_the_volumes_of_its_rows_only():
    read = [set(), set()]

    def worker(index):
        def noted(x):
            read[index].add(int(x))
            return patches(x)

        batches = volumes(noted, 8).unbatch().batch(8)
        options = ps.Options(auto_shard_policy=ps.AutoShardPolicy.DATA)
        strategy = ps.HostStrategy(num_workers=2, worker_index=index)
        return [firsts(step.values[0]) for step in strategy.distribute_dataset(batches.with_options(options))]

    steps = [worker(0), worker(1)]
    assert [first + second for first, second in zip(*steps, strict=True)] == [
        [10 * x + number for x in (2 * step, 2 * step + 1) for number in range(4)] for step in range(4)
    ]
    assert read[1] & read[0] <= {0}


@pytest.mark.parametrize(
    "dataset",
    [
        lambda: volumes().unbatch().shuffle(7, seed=1).batch(3),
        lambda: ps.Dataset.range(11).map(lambda x: np.arange(x % 3)).padded_batch(4).unbatch(),
        lambda: ps.Dataset.range(11).map(lambda x: {"x": x, "name": f"row {x}"}).batch(4).unbatch().shuffle(5, seed=2),
        lambda: ps.Dataset.range(20).batch(2).batch(3).unbatch().unbatch(),
        lambda: ps.Dataset.range(6).batch(2).repeat().unbatch(),
    ],
)
def test_rows_by_number_conform(dataset):
    assert dataset().node.indexable
    check_conformance(dataset)
