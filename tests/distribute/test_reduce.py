"""`reduce` and `gather` give the same on both kinds of strategy."""

import numpy as np
import pytest

import penstock as ps


def shares(strategy, *rows):
    """A `PerReplica` of these arrays, where the strategy keeps its values."""
    return strategy.distribute_values_from_function(lambda context: rows[context.replica_id_in_sync_group])


@pytest.fixture
def strategy(strategy_of):
    return strategy_of(4)


def test_over_replicas(strategy) -> None:
    value = shares(strategy, *[np.float32([number, 2 * number]) for number in range(4)])
    assert np.asarray(strategy.reduce("SUM", value)).tolist() == [6, 12]
    assert np.asarray(strategy.reduce(ps.ReduceOp.MEAN, value)).tolist() == [1.5, 3]


@pytest.mark.parametrize("axis", [0, -1])
def test_over_an_axis_too(strategy, axis: int) -> None:
    value = shares(strategy, *[np.float32([number, number + 1]) for number in range(4)])
    assert float(strategy.reduce("sum", value, axis=axis)) == 16
    assert float(strategy.reduce("mean", value, axis=axis)) == 2


def test_the_mean_is_that_of_all_rows_however_they_lie(strategy) -> None:
    rows = [np.float32([[1, 10], [2, 20], [3, 30]]), np.float32([[6, 60]])]
    value = shares(strategy, *rows, np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32))
    assert np.asarray(strategy.reduce("MEAN", value, axis=0)).tolist() == [3, 30]
    assert np.asarray(strategy.reduce("SUM", value, axis=0)).tolist() == [12, 120]


def test_a_mean_of_nothing_is_refused(strategy) -> None:
    with pytest.raises(ps.InvalidArgumentError, match="no rows on any replica"):
        strategy.reduce("MEAN", shares(strategy, *[np.zeros(0, np.float32)] * 4), axis=0)


@pytest.mark.slow
def test_booleans_and_small_integers_do_not_wrap_around(strategy) -> None:
    assert int(strategy.reduce("SUM", shares(strategy, *[np.bool_(True)] * 4))) == 4
    assert int(strategy.reduce("SUM", shares(strategy, *[np.uint8(200)] * 4))) == 800
    everywhere = strategy.run(lambda: ps.get_replica_context().all_reduce("SUM", np.uint8(200)))
    assert [int(total) for total in everywhere.values] == [800] * 4


def test_structures_and_values_that_are_the_same_everywhere(strategy) -> None:
    value = {"own": shares(strategy, 1.0, 2.0, 3.0, 4.0), "same": np.float32(5)}
    assert {name: float(total) for name, total in strategy.reduce("SUM", value).items()} == {"own": 10, "same": 20}
    assert {name: float(mean) for name, mean in strategy.reduce("MEAN", value).items()} == {"own": 2.5, "same": 5}


def test_one_replica(strategy_of) -> None:
    strategy = strategy_of(1)
    assert np.asarray(strategy.reduce("SUM", np.float32([1, 2]))).tolist() == [1, 2]
    assert float(strategy.reduce("MEAN", np.float32([1, 2]), axis=0)) == 1.5


def test_gather(strategy) -> None:
    value = shares(strategy, np.int32([[0, 1]]), np.int32([[2, 3], [4, 5]]), *[np.zeros((0, 2), np.int32)] * 2)
    assert np.asarray(strategy.gather(value, axis=0)).tolist() == [[0, 1], [2, 3], [4, 5]]
    equal = shares(strategy, *[np.int32([[number], [number]]) for number in range(4)])
    assert np.asarray(strategy.gather(equal, axis=1)).tolist() == [[0, 1, 2, 3]] * 2


def test_bad_arguments(strategy) -> None:
    value = shares(strategy, *[np.zeros(2)] * 4)
    with pytest.raises(ps.InvalidArgumentError, match='takes one of "SUM", "MEAN", got \'MAX\''):
        strategy.reduce("MAX", value)
    with pytest.raises(ps.InvalidTypeError, match="takes a ps.ReduceOp or one of"):
        strategy.reduce(1, value)
    with pytest.raises(ps.InvalidArgumentError, match=r"axis=1\) got a value of shape \(2,\)"):
        strategy.reduce("SUM", value, axis=1)
    with pytest.raises(ps.InvalidTypeError, match=r"an axis, a tuple of axes or None"):
        strategy.reduce("SUM", value, axis=(0, "1"))
    with pytest.raises(ps.InvalidArgumentError, match=r"axis=1\) got a value of shape \(2,\)"):
        strategy.reduce("SUM", value, axis=(0, 1))
    with pytest.raises(ps.InvalidArgumentError, match=r"axis=\(0, -1\)\) names an axis twice"):
        strategy.reduce("SUM", value, axis=(0, -1))
    with pytest.raises(ps.InvalidArgumentError, match=r"fitting shapes.*axis=0"):
        strategy.reduce("SUM", shares(strategy, *[np.zeros(number) for number in range(4)]))
    with pytest.raises(ps.InvalidTypeError, match="takes numbers"):
        strategy.reduce("SUM", shares(strategy, *"abcd"))
    with pytest.raises(ps.InvalidArgumentError, match="has no such axis"):
        strategy.gather(shares(strategy, 1, 2, 3, 4), axis=0)


def test_values_of_another_strategy_are_refused(strategy) -> None:
    foreign = ps.PerReplica([1, 2, 3])
    for use in (
        lambda: strategy.reduce("SUM", foreign),
        lambda: strategy.gather(foreign, 0),
        lambda: strategy.local_results(foreign),
        lambda: strategy.run(lambda value: value, args=(foreign,)),
    ):
        with pytest.raises(ps.InvalidArgumentError, match="PerReplica of 3 replicas, but it runs 4"):
            use()


def test_workers_of_a_host_strategy_exchange_nothing() -> None:
    strategy = ps.HostStrategy(2, num_workers=2)
    with pytest.raises(ps.InvalidArgumentError, match="exchanges nothing between workers"):
        strategy.reduce("SUM", ps.PerReplica([1, 2]))
    with pytest.raises(ps.InvalidArgumentError, match="exchanges nothing between workers"):
        strategy.run(lambda: ps.get_replica_context().all_reduce("SUM", 1.0))


@pytest.mark.slow
def test_over_several_axes(strategy) -> None:
    rows = [np.full((number, 2, 3), number, np.float32) for number in range(1, 5)]
    ragged, equal = shares(strategy, *rows), shares(strategy, *[np.ones((2, 3), np.float32) * n for n in range(4)])
    assert np.asarray(strategy.reduce("SUM", ragged, axis=(0, 2))).tolist() == [90, 90]
    np.testing.assert_allclose(strategy.reduce("MEAN", ragged, axis=(-1, 0)), [3, 3], rtol=1e-6)
    assert float(strategy.reduce("SUM", equal, axis=(0, 1))) == 36
    assert float(strategy.reduce("MEAN", equal, axis=(1, 0))) == 1.5


def test_gather_takes_strings(strategy) -> None:
    words = shares(strategy, *[np.array([f"{number}", "x" * number], object) for number in range(4)])
    assert strategy.gather(words, axis=0).tolist() == ["0", "", "1", "x", "2", "xx", "3", "xxx"]
    (batch,) = strategy.distribute_dataset(ps.Dataset.from_tensor_slices(np.array(list("abcde"))).batch(5))
    assert [str(word) for word in strategy.gather(batch, axis=0)] == list("abcde")
