"""sample: elements drawn by weight, by index."""

import json
import pickle

import cloudpickle
import numpy as np
import pytest

import penstock as ps

SQUARES = ps.Dataset.range(10).map(lambda x: x * x)


def values(dataset):
    return [int(x) for x in dataset]


def test_rows_come_in_proportion_to_their_weights():
    drawn = ps.Dataset.range(4).sample([1, 0, 2, 1], num=40_000, seed=3)
    found = np.bincount(values(drawn), minlength=4)
    assert found[1] == 0
    assert np.abs(found - [10_000, 0, 20_000, 10_000]).max() < 500


def test_without_replacement_each_draw_is_by_the_weights_that_are_left():
    epochs = ps.Dataset.range(3).sample([1, 2, 5], replacement=False, seed=1).batch(3).repeat(3000)
    orders = [tuple(epoch.tolist()) for epoch in epochs]
    assert {tuple(sorted(order)) for order in orders} == {(0, 1, 2)}
    first = np.bincount([order[0] for order in orders]) / 3000
    assert np.abs(first - [1 / 8, 2 / 8, 5 / 8]).max() < 0.03
    after_two = np.bincount([order[1] for order in orders if order[0] == 2]) / sum(order[0] == 2 for order in orders)
    assert np.abs(after_two - [1 / 3, 2 / 3]).max() < 0.04


@pytest.mark.parametrize("replacement", [True, False])
def test_draws_are_a_function_of_seed_and_epoch(replacement):
    def drawn(seed=5):
        return SQUARES.sample(np.arange(10), num=6, replacement=replacement, seed=seed)

    epochs = [values(drawn().repeat(2))[:6], values(drawn().repeat(2))[6:]]
    dataset = drawn()
    assert [values(dataset), values(dataset)] == epochs and epochs[0] != epochs[1]
    assert values(drawn(6)) != epochs[0] and 0 not in epochs[0]
    assert values(pickle.loads(cloudpickle.dumps(drawn()))) == epochs[0]
    assert [batch.tolist() for batch in drawn().batch(4)] == [epochs[0][:4], epochs[0][4:]]
    assert int(drawn()[3]) == epochs[0][3]


def test_without_replacement_rows_with_a_weight_come_once():
    assert sorted(values(SQUARES.sample([0, 1, 0, 1e-300, 1, 0, 0, 0, 0, 1e300], replacement=False))) == [1, 9, 16, 81]
    assert (
        len(set(values(ps.Dataset.range(200_000).sample(np.ones(200_000), num=150_000, replacement=False)))) == 150_000
    )


def test_weights_may_be_a_dataset_or_a_map_of_a_file(tmp_path):
    np.save(tmp_path / "weights.npy", np.arange(10.0))
    expected = values(SQUARES.sample(np.arange(10), seed=1))
    assert values(SQUARES.sample(ps.Dataset.range(10).map(lambda x: x * 0.5), seed=1)) == expected
    assert values(SQUARES.sample(np.load(tmp_path / "weights.npy", mmap_mode="r"), seed=1)) == expected


def test_weights_may_be_a_column_or_a_function():
    rows = ps.Dataset.from_list([{"x": x, "w": x % 3} for x in range(9)])
    expected = [row["x"] for row in rows.sample([x % 3 for x in range(9)], seed=1)]
    for weights in ("w", lambda row: row["w"]):
        assert [row["x"] for row in rows.sample(weights, seed=1)] == expected
    with pytest.raises(ps.ElementError, match=r"sample\(weights='v'\) takes the name of a leaf, .* \['w', 'x'\]"):
        rows.sample("v")


def test_a_state_is_a_position_and_is_refused_under_other_weights():
    def resumed(weights, **arguments):
        iterator = iter(SQUARES.sample(weights, seed=1, **arguments))
        iterator.load_state_dict(state)
        return values(iterator)

    iterator = iter(SQUARES.sample(np.arange(10), seed=1))
    given = [int(next(iterator)) for _ in range(3)]
    state = json.loads(json.dumps(iterator.state_dict()))
    assert given + resumed(np.arange(10)) == values(SQUARES.sample(np.arange(10), seed=1))
    with pytest.raises(ps.StateMismatchError, match=r"was sample\(10 of 10, seed=1\) with other data or arguments"):
        resumed(np.arange(10) + 1)
    with pytest.raises(ps.StateMismatchError, match="sample"):
        resumed([0, *[1] * 9], replacement=False)


def test_at_most_eight_bytes_a_row_are_held():
    weights = np.ones(1000)
    assert SQUARES.concatenate(ps.Dataset.range(990)).sample(weights).node.memory == "holds 8 kB"
    once = ps.Dataset.range(1000).sample(weights, replacement=False)
    values(once)
    assert once.node.held.nbytes + once.node._order_of(0).nbytes == 6000


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (
            [1] * 9,
            ps.InvalidArgumentError,
            r"a weight for each of the 10 rows of map\(.*, got 9: make them of the same",
        ),
        ([1] * 9 + [-2], ps.InvalidArgumentError, r"got -2.0 for row 9 of map\(.*give a row that shall not come .* 0"),
        ([1, np.nan, np.inf] + [1] * 7, ps.InvalidArgumentError, r"got nan for row 1 of .* and 1 more such weights"),
        ([0] * 10, ps.InvalidArgumentError, r"at least one weight above 0, and all 10 rows of map\(.* have 0"),
        (["a"] * 10, ps.InvalidTypeError, r"takes numbers along one axis, got <U1 of shape \(10,\)"),
        (np.ones((10, 1)), ps.InvalidTypeError, r"got float64 of shape \(10, 1\)"),
        (ps.Dataset.counter(), ps.InvalidArgumentError, r"sample: counter\(.* never ends"),
        (ps.Dataset.range(10).enumerate(), ps.InvalidTypeError, r"takes a dataset of numbers"),
    ],
)
def test_weights_that_say_nothing_are_refused(weights, error, message):
    with pytest.raises(error, match=message):
        SQUARES.sample(weights)


def test_more_draws_than_rows_without_replacement_are_refused():
    with pytest.raises(
        ps.InvalidArgumentError, match=r"sample\(num=3, replacement=False\) .*, and 2 of the 10 rows of"
    ):
        SQUARES.sample([1, 1] + [0] * 8, num=3, replacement=False)
    assert len(SQUARES.sample([1, 1] + [0] * 8, num=3)) == 3


def test_rows_whose_numbers_change_in_every_epoch_are_not_sampled():
    for moving in (SQUARES.shuffle(seed=1), SQUARES.shuffle().cache(), SQUARES.sample([1] * 10).map(abs)):
        with pytest.raises(
            ps.InvalidArgumentError, match="gives other rows these numbers in every epoch: sample before"
        ):
            moving.sample([1] * 10)
    fixed = SQUARES.shuffle(seed=1, reshuffle_each_iteration=False)
    assert len(fixed.sample([1] * 10)) == len(SQUARES.map(lambda x, rng: x, seed=1).sample([1] * 10)) == 10


def test_only_rows_by_number_are_sampled():
    with pytest.raises(
        ps.InvalidArgumentError, match=r"sample reads by index, and filter\(.* is a stream: sample before"
    ):
        ps.Dataset.range(9).filter(bool).sample([1])
    with pytest.raises(ps.InvalidArgumentError, match=r"sample: counter\(.* never ends: put .take\(count\) before"):
        ps.Dataset.counter().sample([1])
    assert values(ps.Dataset.range(0).sample([])) == []


@pytest.mark.extended
def test_services_give_the_same_draws():
    ps.testing.check_service(ps.Dataset.range(60).sample(np.arange(60), seed=1).batch(4))
    ps.testing.check_service(ps.Dataset.range(60).sample(np.arange(60), replacement=False, seed=1).batch(4), kills=1)


def test_weights_belong_to_the_rows_of_a_cache_that_are_the_same_in_every_epoch():
    kept = ps.Dataset.range(9).shuffle(seed=1).cache()
    wanted = [int(x == 4) for x in kept]
    assert {int(x) for _ in range(3) for x in kept.sample(wanted, seed=2)} == {4}
