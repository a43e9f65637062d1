"""`all_gather` inside a step, and what a process can ask of where it runs."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps


@pytest.fixture
def strategy(strategy_of):
    return strategy_of(4)


def gathered(strategy, value, axis: int):
    return strategy.run(lambda part: ps.get_replica_context().all_gather(part, axis), args=(value,)).values


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, bool])
def test_every_replica_gets_all_values_in_order(strategy, axis: int, dtype) -> None:
    parts = [np.array([[number, 2], [3, number % 2]], dtype) for number in range(4)]
    for part in gathered(strategy, ps.PerReplica(parts), axis):
        assert np.asarray(part).dtype == dtype
        np.testing.assert_array_equal(part, np.concatenate(parts, axis))


@pytest.mark.slow
def test_sums_of_a_ragged_step_can_be_gathered_and_scalars_not(strategy) -> None:
    (batch,) = strategy.distribute_dataset(ps.Dataset.range(6).batch(8))
    results = strategy.run(
        lambda rows: ps.get_replica_context().all_gather({"sum": jnp.sum(rows, keepdims=True)}, 0), args=(batch,)
    )
    assert [np.asarray(part).tolist() for part in results["sum"].values] == [[1, 5, 9, 0]] * 4
    with pytest.raises(ps.InvalidArgumentError, match=r"all_gather\(axis=0\).*has no such axis"):
        gathered(strategy, ps.PerReplica([1.0] * 4), 0)
    with pytest.raises(ps.InvalidTypeError, match=r"all_gather\(axis=\.\.\.\) takes an axis"):
        gathered(strategy, ps.PerReplica([np.ones(1)] * 4), None)


@pytest.mark.parametrize("inside", [lambda step: step, lambda step: jax.jit(step), jax.checkpoint])
def test_rows_of_a_ragged_step_are_refused_by_the_name_of_all_gather(four, inside) -> None:
    (batch,) = four.distribute_dataset(ps.Dataset.range(7).batch(8))

    def step(rows):
        ps.get_replica_context().all_reduce("SUM", rows.sum())
        return ps.get_replica_context().all_gather(rows, 0)

    with pytest.raises(
        ps.InvalidArgumentError,
        match=r"^all_gather must be .*got all_gather of \(2,\) on replica 0 and all_gather of \(1,\) on replica 3.*"
        r"strategy\.gather.*partial_batch=\"pad\"",
    ):
        four.run(inside(step), args=(batch,))


def test_a_ragged_step_names_the_call_that_one_replica_makes_once_more(four) -> None:
    (batch,) = four.distribute_dataset(ps.Dataset.range(7).batch(8))

    def step(call, rows):
        return call(ps.get_replica_context()) if rows.size == 2 else 0

    for call, name in (
        (lambda context: context.all_gather(jnp.ones(1), 0), "all_gather"),
        (lambda context: context.all_reduce("SUM", 1), "all_reduce"),
    ):
        with pytest.raises(ps.InvalidArgumentError, match=f"^{name} must be called equally often on every replica"):
            four.run(step, args=(call, batch))


def test_only_numbers_can_be_gathered_in_a_step(four) -> None:
    with pytest.raises(ps.InvalidTypeError, match="all_gather takes numbers and arrays, got 'a'"):
        four.run(lambda: ps.get_replica_context().all_gather("a", 0))


def test_a_host_strategy_says_that_it_does_not_look_for_others(monkeypatch, caplog) -> None:
    for name, value in {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert ps.HostStrategy(2, num_workers=4, worker_index=2).num_replicas_in_sync == 8
        assert ps.HostStrategy(2, num_workers=1).num_replicas_in_sync == 2
        assert caplog.messages == []
        assert ps.HostStrategy(2).num_replicas_in_sync == 2
    (message,) = caplog.messages
    assert "(torchrun) names several processes: give it num_workers=4, worker_index=2" in message
