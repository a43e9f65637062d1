"""select: the elements at given positions, by index."""

import json
import pickle

import cloudpickle
import numpy as np
import pytest

import penstock as ps

SQUARES = ps.Dataset.range(10).map(lambda x: x * x)


def values(dataset):
    return [int(x) for x in dataset]


@pytest.mark.parametrize(
    "indices",
    [
        [7, 2, 2, 9],
        (7, 2, 2, 9),
        np.array([7, 2, 2, 9], np.uint8),
        ps.Dataset.from_tensor_slices([7, 2, 2, 9]),
        ps.Dataset.range(10)
        .filter(lambda x: x in (7, 2, 9))
        .flat_map(lambda x: ps.Dataset.from_tensors({2: 7, 7: 2, 9: 9}[int(x)]).repeat(2 if x == 7 else 1)),
    ],
    ids=["list", "tuple", "array", "dataset", "stream"],
)
def test_elements_come_in_the_order_of_their_positions(indices):
    chosen = SQUARES.select(indices)
    assert values(chosen) == [49, 4, 4, 81]
    assert len(chosen) == 4 and int(chosen[3]) == 81
    assert [batch.tolist() for batch in chosen.skip(1).batch(2)] == [[4, 4], [81]]
    assert sorted(values(chosen.shuffle(seed=1).repeat(2))) == [4, 4, 4, 4, 49, 49, 81, 81]


@pytest.mark.parametrize(
    "part", [slice(None), slice(2, 7), slice(None, None, -3), slice(8, 1, -2), slice(5, 5), slice(-3, None)]
)
def test_a_slice_is_that_of_a_list(part):
    chosen = SQUARES.select(part)
    expected = [x * x for x in range(10)][part]
    assert values(chosen) == expected
    assert values(chosen.shuffle(seed=2).map(lambda x: x)) == values(chosen.shuffle(seed=2))
    assert sorted(values(chosen.shuffle(seed=2))) == sorted(expected)


def test_a_map_of_a_file_is_not_copied(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(9, -1, -1))
    chosen = SQUARES.select(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    assert isinstance(chosen.node.rows.base, np.memmap)
    assert values(chosen) == values(pickle.loads(cloudpickle.dumps(chosen))) == [x * x for x in range(9, -1, -1)]


def test_a_change_of_the_array_changes_no_element():
    indices = np.array([1, 2, 3])
    chosen = SQUARES.select(indices)
    indices[:] = 0
    assert values(chosen) == [1, 4, 9]


def test_a_state_is_a_position_and_is_refused_for_other_rows():
    iterator = iter(SQUARES.select([3, 1, 4, 1, 5]))
    assert [int(next(iterator)) for _ in range(2)] == [9, 1]
    state = json.loads(json.dumps(iterator.state_dict()))
    resumed = iter(SQUARES.select([3, 1, 4, 1, 5]))
    resumed.load_state_dict(state)
    assert [int(x) for x in resumed] == [16, 1, 25]
    with pytest.raises(ps.StateMismatchError, match=r"select\(5 of 10\)"):
        iter(SQUARES.select([3, 1, 4, 1, 6])).load_state_dict(state)


@pytest.mark.parametrize(
    ("indices", "error", "message"),
    [
        ([0, 3, -1], ps.InvalidArgumentError, r"range|map.*has 10 elements: got -1 as number 2 of the indices"),
        (np.array([3, 10]), ps.InvalidArgumentError, r"has 10 elements: got 10 as number 1 of the indices"),
        ([True], ps.InvalidTypeError, r"got bool of shape \(1,\): np.flatnonzero\(mask\) gives them"),
        ([1.0], ps.InvalidTypeError, r"takes integers along one axis, or a slice, got float64 of shape \(1,\)"),
        ([True, False], ps.InvalidTypeError, r"got bool of shape \(2,\)"),
        (3, ps.InvalidTypeError, r"got int64 of shape \(\)"),
        ([[1]], ps.InvalidTypeError, r"got int64 of shape \(1, 1\)"),
        (ps.Dataset.range(3).enumerate(), ps.InvalidTypeError, r"takes a dataset of integers, got one of"),
        (ps.Dataset.counter(), ps.InvalidArgumentError, r"select: counter\(.* never ends: put .take\(count\) before"),
    ],
)
def test_other_positions_are_refused_by_name(indices, error, message):
    with pytest.raises(error, match=message):
        SQUARES.select(indices)


def test_what_cannot_be_read_by_index_is_refused():
    with pytest.raises(ps.InvalidArgumentError, match=r"select reads by index, and filter\(.* is a stream"):
        ps.Dataset.range(9).filter(bool).select([1])
    with pytest.raises(ps.InvalidArgumentError, match=r"counter\(.* never ends: pass positions instead of a slice"):
        ps.Dataset.counter().select(slice(3))
    assert values(ps.Dataset.counter().select([10**12, 5])) == [10**12, 5]
    assert values(SQUARES.select([])) == []


def test_rows_that_fail_are_skipped_wherever_they_are_selected():
    inverse = ps.Dataset.range(4).map(lambda x: 12 // int(x)).select([3, 0, 1, 0])
    iterator = iter(inverse.with_options(ps.Options(on_error="skip")))
    assert [int(x) for x in iterator] == [4, 12] and iterator.errors.count == 2


def test_several_datasets_are_joined_at_once():
    parts = [ps.Dataset.range(number) for number in range(4)]
    assert values(ps.Dataset.concatenate(*parts)) == values(parts[0].concatenate(*parts[1:])) == [0, 0, 1, 0, 1, 2]
    with pytest.raises(ps.InvalidTypeError, match="concatenate needs elements of one kind"):
        parts[1].concatenate(parts[2], ps.Dataset.from_list(["a"]))
