"""`PerReplica` holds a value for each replica and is no array; contexts are refused where they mean nothing."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penstock as ps


def test_it_prints_one_line_per_replica() -> None:
    assert repr(ps.PerReplica([1, "two"])) == "PerReplica:{\n  0: 1,\n  1: 'two'\n}"


@pytest.mark.parametrize(
    "use",
    [
        float,
        int,
        bool,
        len,
        list,
        operator.neg,
        operator.itemgetter(0),
        np.asarray,
        lambda value: value + 1,
        lambda value: 1 + value,
        lambda value: value @ value,
        lambda value: value < 1,
        lambda value: np.ones(2) + value,
        lambda value: np.ones(2) * value,
    ],
)
def test_it_is_no_array_and_says_what_to_do_instead(use: Callable[[object], object]) -> None:
    with pytest.raises(ps.InvalidTypeError, match=r"strategy\.run.*strategy\.reduce.*strategy\.local_results"):
        use(ps.PerReplica([1, 2]))


def test_it_needs_values() -> None:
    with pytest.raises(ps.InvalidTypeError, match="one value per replica"):
        ps.PerReplica(3)
    with pytest.raises(ps.InvalidArgumentError, match="at least one value"):
        ps.PerReplica([])


def test_values_from_a_function(strategy_of) -> None:
    contexts = []

    def value(context: ps.types.ValueContext) -> dict[str, object]:
        contexts.append(str(context))
        return {"id": context.replica_id_in_sync_group, "rows": np.ones(context.replica_id_in_sync_group)}

    values = strategy_of(3).distribute_values_from_function(value)
    assert contexts[2] == "ps.types.ValueContext(replica id 2, total replicas in sync: 3)"
    assert [int(number) for number in values["id"].values] == [0, 1, 2]
    assert [len(rows) for rows in values["rows"].values] == [0, 1, 2]


def test_values_of_a_single_replica_are_bare(strategy_of) -> None:
    assert strategy_of(1).distribute_values_from_function(lambda context: "value") == "value"


def test_values_must_agree_in_structure(strategy_of) -> None:
    with pytest.raises(ps.InvalidTypeError, match=r"one structure on every replica.*replica 1"):
        strategy_of(2).distribute_values_from_function(lambda context: (1,) * context.replica_id_in_sync_group)


def test_a_worker_makes_values_for_its_own_replicas() -> None:
    strategy = ps.HostStrategy(replicas_per_worker=2, num_workers=3, worker_index=1)
    ids = strategy.distribute_values_from_function(lambda context: context.replica_id_in_sync_group)
    assert ids.values == (2, 3)


def test_local_results_of_a_structure_are_one_structure_per_replica(strategy_of) -> None:
    strategy = strategy_of(2)
    value = strategy.run(lambda: {"id": ps.get_replica_context().replica_id_in_sync_group})
    results = strategy.local_results({"own": value, "same": 7})
    assert [int(result["own"]["id"]) for result in results] == [0, 1]
    assert [result["same"] for result in results] == [7, 7]


def test_the_replica_context_exists_inside_run_only() -> None:
    with pytest.raises(ps.InvalidArgumentError, match=r"from within strategy\.run"):
        ps.get_replica_context()


def test_scopes_of_two_strategies_do_not_nest(strategy_of) -> None:
    one, other = strategy_of(1), ps.HostStrategy(2)
    with one.scope(), one.scope(), pytest.raises(ps.InvalidArgumentError, match="inside the scope of"), other.scope():
        pass
    with other.scope():
        pass


def test_host_strategy_checks_its_arguments() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="workers count from 0"):
        ps.HostStrategy(num_workers=2, worker_index=2)
    with pytest.raises(ps.InvalidArgumentError, match="replicas_per_worker"):
        ps.HostStrategy(0)
    with pytest.raises(ps.InvalidTypeError, match="num_workers"):
        ps.HostStrategy(num_workers="2")


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        ([], ps.InvalidArgumentError, "at least one"),
        (["cpu:0", "cpu:0"], ps.InvalidArgumentError, "each device once"),
        (["cpu:9"], ps.InvalidArgumentError, "cpu:0 to cpu:3"),
        (["abacus:0"], ps.InvalidArgumentError, "abacus"),
        ("cpu:0", ps.InvalidTypeError, "a list of devices"),
        ([0], ps.InvalidTypeError, "JAX devices or names"),
    ],
)
def test_mirrored_strategy_checks_its_devices(devices: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ps.MirroredStrategy(devices)


def test_a_value_that_jax_has_taken_apart_is_no_value_per_replica() -> None:
    """It is a pytree, and so `jax.tree.map` may do so; its repr raised an IndexError."""
    (step,) = ps.MirroredStrategy().distribute_dataset(ps.Dataset.range(8).batch(8))
    for function in (jnp.sum, jnp.ravel):
        taken_apart = jax.jit(lambda values, function=function: jax.tree.map(function, values))(step)
        assert repr(taken_apart).startswith("PerReplica of Array(")
        with pytest.raises(
            ps.InvalidTypeError, match="no value for each of 4 replicas any more: a function outside of"
        ):
            _ = taken_apart.values


def test_values_of_several_lines_are_printed_in_line() -> None:
    assert repr(ps.PerReplica([np.array([[1.0], [2.0]])])) == "PerReplica:{\n  0: array([[1.],\n            [2.]])\n}"


@pytest.mark.parametrize(
    ("doing", "use"),
    [
        ("'mean' of", lambda value: jax.jit(lambda batch: batch.mean())(value)),
        ("'shape' of", lambda value: value.shape),
        ("converting", jnp.asarray),
        ("converting", jax.jit(jnp.mean)),
    ],
    ids=["method", "attribute", "asarray", "function of JAX"],
)
def test_a_value_per_replica_is_no_array_of_jax(strategy_of, doing: str, use: Callable[[Any], Any]) -> None:
    (batch,) = strategy_of(2).distribute_dataset(ps.Dataset.range(4).batch(4))
    with pytest.raises(
        (AttributeError, TypeError), match=rf"{doing} a PerReplica .* ps\.jax\.loader\(dataset, sharding\)"
    ):
        use(batch)


def test_values_come_from_functions_alone() -> None:
    with pytest.raises(ps.InvalidTypeError, match=r"takes a function of a ps\.types\.ValueContext, got 3"):
        ps.HostStrategy(2).distribute_values_from_function(3)


@pytest.mark.slow
def test_keys_of_random_numbers_are_values_as_others_are(four: ps.MirroredStrategy) -> None:
    root = jax.random.key(0)
    keys = four.distribute_values_from_function(lambda one: jax.random.fold_in(root, one.replica_id_in_sync_group))
    drawn = four.local_results(four.run(jax.random.uniform, args=(keys,)))
    assert len({float(value) for value in drawn}) == 4
    assert len({float(value) for value in four.local_results(four.run(jax.random.uniform, args=(root,)))}) == 1
    split = four.run(lambda key: jax.random.split(key), args=(keys,))
    for joined in (
        four.gather(split, axis=0),
        four.local_results(four.run(lambda key: ps.get_replica_context().all_gather(key, -1), args=(split,)))[3],
    ):
        numbers = np.asarray(jax.random.key_data(joined))
        assert numbers[2:4].tolist() == np.asarray(jax.random.key_data(split.values[1])).tolist()


@pytest.mark.slow
def test_keys_are_carried_from_step_to_step_also_where_one_is_ragged(four: ps.MirroredStrategy) -> None:
    keys = four.distribute_values_from_function(lambda one: jax.random.key(one.replica_id_in_sync_group))
    for batch in four.distribute_dataset(ps.Dataset.range(10).batch(4)):
        keys = four.run(lambda key, rows: jax.random.fold_in(key, rows.size), args=(keys, batch))
    expected = [jax.random.key(number) for number in range(4)]
    for sizes in ([1] * 4, [1] * 4, [1, 1, 0, 0]):
        expected = [jax.random.fold_in(key, size) for key, size in zip(expected, sizes)]
    assert list(keys.values) == expected


@pytest.mark.slow
def test_keys_are_not_added_up(four: ps.MirroredStrategy) -> None:
    keys = four.distribute_values_from_function(lambda one: jax.random.key(one.replica_id_in_sync_group))
    with pytest.raises(ps.InvalidTypeError, match=r"strategy\.reduce takes numbers, got keys"):
        four.reduce("sum", keys)
    with pytest.raises(ps.InvalidTypeError, match="all_reduce takes numbers"):
        four.run(lambda key: ps.get_replica_context().all_reduce("sum", key), args=(keys,))
