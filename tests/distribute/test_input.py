"""Distributed input: how batches are cut, what goes wrong with which words, and where an iterator is."""

from typing import Any

import numpy as np
import pytest

import penstock as ps


def steps_of(strategy: Any, dataset: ps.Dataset, **options: Any) -> list[list[list[int]]]:
    """Each step as the rows of each replica."""
    with iter(strategy.distribute_dataset(dataset, ps.InputOptions(**options))) as steps:
        return [[np.asarray(rows).tolist() for rows in strategy.local_results(step)] for step in steps]


@pytest.mark.parametrize(
    ("length", "replicas", "expected"),
    [
        (6, 2, [[[0, 1], [2, 3]], [[4], [5]]]),
        (4, 5, [[[0], [1], [2], [3], []]]),
        (8, 3, [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []]]),
        (9, 4, [[[0], [1], [2], [3]], [[4], [5], [6], [7]], [[8], [], [], []]]),
        (5, 1, [[[0, 1, 2, 3]], [[4]]]),
        (0, 2, []),
    ],
)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_are_cut_by_the_one_rule(strategy_of, length, replicas, expected, prefetch) -> None:
    if replicas > 4 and strategy_of is not ps.HostStrategy:
        strategy_of = ps.HostStrategy  # as many devices do not exist here
    assert (
        steps_of(strategy_of(replicas), ps.Dataset.range(length).batch(4), per_replica_buffer_size=prefetch) == expected
    )


def test_empty_shares_keep_dtype_and_trailing_shape(strategy_of) -> None:
    images = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    strategy = strategy_of(4)
    (step,) = strategy.distribute_dataset(ps.Dataset.from_tensor_slices({"image": images}).batch(4))
    assert [rows.shape for rows in step["image"].values] == [(1, 3, 4), (0, 3, 4), (0, 3, 4), (0, 3, 4)]
    assert {rows.dtype for rows in step["image"].values} == {np.dtype(np.float32)}


def test_a_single_replica_gets_bare_arrays_of_the_structure(strategy_of) -> None:
    dataset = ps.Dataset.from_tensor_slices({"x": np.arange(3), "y": (np.ones(3), np.zeros((3, 2)))}).batch(3)
    (step,) = strategy_of(1).distribute_dataset(dataset)
    assert np.asarray(step["x"]).tolist() == [0, 1, 2]
    assert step["y"][1].shape == (3, 2)


@pytest.mark.parametrize("replicas", [1, 2])
def test_strings_stay_in_host_memory(strategy_of, replicas: int) -> None:
    strategy = strategy_of(replicas)
    dataset = ps.Dataset.from_tensor_slices(({"word": np.array(["a", "b", "c", "d"], object)}, np.arange(4))).batch(4)
    (step,) = strategy.distribute_dataset(dataset)
    words = [result[0]["word"] for result in strategy.local_results(step)]
    assert all(isinstance(rows, np.ndarray) and rows.dtype == object for rows in words)
    assert [word for rows in words for word in rows] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("worker", "expected"), [(0, [[0, 1], [4, 5], [8, 9]]), (1, [[2, 3], [6, 7], [10, 11]])])
def test_workers_take_their_own_slices_of_every_batch(worker: int, expected: list[list[int]]) -> None:
    strategy = ps.HostStrategy(num_workers=2, worker_index=worker)
    steps = list(strategy.distribute_dataset(ps.Dataset.range(12).batch(4)))
    assert [[rows.tolist() for rows in step.values] for step in steps] == [[rows] for rows in expected]


def test_each_iteration_starts_anew(strategy_of) -> None:
    distributed = strategy_of(2).distribute_dataset(ps.Dataset.range(4).batch(2))
    assert distributed.cardinality() == 2
    assert len(list(distributed)) == len(list(distributed)) == 2


def test_the_specification_of_a_step() -> None:
    full = ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(8).batch(4, drop_remainder=True))
    assert full.element_spec.values == (ps.TensorSpec((2,), np.int64),) * 2
    partial = ps.HostStrategy(3).distribute_dataset(ps.Dataset.range(8).batch(4, drop_remainder=True))
    assert partial.element_spec.values[0].shape == (None,)
    alone = ps.HostStrategy().distribute_dataset(ps.Dataset.range(8).batch(4, drop_remainder=True))
    assert alone.element_spec == ps.TensorSpec((4,), np.int64)


def test_what_cannot_be_distributed_is_refused_at_the_call(strategy_of) -> None:
    strategy = strategy_of(2)
    with pytest.raises(ps.InvalidTypeError, match=r"takes a ps\.Dataset, got list"):
        strategy.distribute_dataset([1, 2])
    with pytest.raises(ps.InvalidTypeError, match="distributed already"):
        strategy.distribute_dataset(strategy.distribute_dataset(ps.Dataset.range(4).batch(2)))
    with pytest.raises(ps.ElementError, match=r"scalar.*add \.batch"):
        strategy.distribute_dataset(ps.Dataset.range(4))
    with pytest.raises(ps.InvalidTypeError, match=r"input_options=\.\.\."):
        strategy.distribute_dataset(ps.Dataset.range(4).batch(2), {"prefetch": 1})
    with pytest.raises(ps.InvalidArgumentError, match="per_replica_buffer_size"):
        ps.InputOptions(per_replica_buffer_size=-1)


def test_scalars_without_end_go_to_the_replicas_one_by_one(strategy_of) -> None:
    distributed = strategy_of(2).distribute_datasets_from_function(lambda context: ps.Dataset.counter(5))
    assert distributed.element_spec.values == (ps.TensorSpec((), np.int64),) * 2
    with iter(distributed) as steps:
        assert [[int(value) for value in next(steps).values] for _ in range(2)] == [[5, 6], [7, 8]]
    words = ps.Dataset.from_tensor_slices(["a", "b"]).repeat()
    with iter(strategy_of(2).distribute_datasets_from_function(lambda context: words)) as steps:
        assert [str(value) for value in next(steps).values] == ["a", "b"]


def test_scalars_that_end_go_to_a_single_replica_only(strategy_of) -> None:
    (*values,) = strategy_of(1).distribute_datasets_from_function(lambda context: ps.Dataset.range(3))
    assert [int(value) for value in values] == [0, 1, 2]
    mapped = ps.Dataset.range(4).map(lambda row: row)  # its specification is not known beforehand
    steps = iter(strategy_of(2).distribute_datasets_from_function(lambda context: mapped))
    with steps, pytest.raises(ps.ElementError, match="hold a scalar"):
        next(steps)


def test_leaves_of_unequal_length_are_refused(strategy_of) -> None:
    dataset = ps.Dataset.from_tensors((np.zeros(3), np.zeros(4)))
    with pytest.raises(ps.ElementError, match=r"same number of rows, got \[0\]: 3, \[1\]: 4: .* need \.batch\("):
        strategy_of(2).distribute_dataset(dataset)


@pytest.mark.parametrize("signature", [None, {"x": ps.TensorSpec((None,), np.int64), "y": ps.TensorSpec((), np.int64)}])
def test_a_scalar_beside_the_rows_of_a_batch_is_told_to_have_one_for_each(strategy_of, signature) -> None:
    dataset = ps.Dataset.range(8).batch(4).map(lambda rows: {"x": rows, "y": 3}, output_signature=signature)
    with pytest.raises(ps.ElementError, match=r"a scalar at \['y'\] beside the rows of other leaves: give it a value"):
        steps_of(strategy_of(2), dataset)


def test_integers_that_a_device_would_cut_down_are_refused(four) -> None:
    dataset = ps.Dataset.from_tensor_slices(np.array([1, 2**40])).batch(2)
    with pytest.raises(ps.InvalidArgumentError, match=r"int64 values from 1 to 1099511627776.*jax_enable_x64"):
        next(iter(four.distribute_dataset(dataset)))


def test_the_end_is_reported_again_and_again(strategy_of) -> None:
    steps = iter(strategy_of(2).distribute_dataset(ps.Dataset.range(2).batch(2)))
    steps.get_next()
    for _ in range(2):
        with pytest.raises(ps.OutOfRangeError, match="no further step"):
            steps.get_next()
        with pytest.raises(StopIteration):
            next(steps)
    assert list(steps) == []


def test_a_closed_iterator_says_so(strategy_of) -> None:
    steps = iter(strategy_of(2).distribute_dataset(ps.Dataset.range(8).batch(2)))
    next(steps)
    state = steps.state_dict()
    steps.close()
    steps.close()
    with pytest.raises(ps.errors.ClosedError, match="was closed"):
        next(steps)
    with pytest.raises(ps.errors.ClosedError, match="was closed"):
        steps.load_state_dict(state)


def test_input_is_not_read_inside_run(strategy_of) -> None:
    strategy = strategy_of(2)
    steps = iter(strategy.distribute_dataset(ps.Dataset.range(8).batch(2)))
    with steps, pytest.raises(ps.InvalidArgumentError, match=r"inside strategy\.run"):
        strategy.run(lambda: next(steps))


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_state_resumes_at_every_boundary(strategy_of, prefetch: int) -> None:
    strategy, options = strategy_of(2), ps.InputOptions(per_replica_buffer_size=prefetch)
    dataset = ps.Dataset.range(22).shuffle(22, seed=3).batch(4)
    with iter(strategy.distribute_dataset(dataset, options)) as steps:
        states, expected = [steps.state_dict()], []
        for step in steps:
            states.append(steps.state_dict())
            expected.append([np.asarray(rows).tolist() for rows in step.values])
        states.append(steps.state_dict())
    assert len(expected) == 6
    for done, state in enumerate(states):
        with iter(strategy.distribute_dataset(dataset, options)) as resumed:
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
            rest = [[np.asarray(rows).tolist() for rows in step.values] for step in resumed]
        assert rest == expected[done:]


def test_a_running_iterator_can_be_set_back(strategy_of) -> None:
    with iter(strategy_of(2).distribute_dataset(ps.Dataset.range(12).batch(2))) as steps:
        next(steps)
        state = steps.state_dict()
        wanted = np.asarray(next(steps).values[0]).tolist()
        next(steps)
        steps.load_state_dict(state)
        assert np.asarray(next(steps).values[0]).tolist() == wanted


def test_a_state_serves_another_number_of_replicas() -> None:
    dataset = ps.Dataset.range(12).batch(4)
    with iter(ps.HostStrategy(2).distribute_dataset(dataset)) as steps:
        next(steps)
        state = steps.state_dict()
    with iter(ps.HostStrategy(4).distribute_dataset(dataset)) as resumed:
        resumed.load_state_dict(state)
        assert [rows.tolist() for rows in next(resumed).values] == [[4], [5], [6], [7]]


def test_a_state_of_another_dataset_leaves_the_iteration_as_it_was(strategy_of) -> None:
    strategy = strategy_of(2)
    with iter(strategy.distribute_dataset(ps.Dataset.range(9).batch(3))) as other:
        next(other)
        state = other.state_dict()
    with iter(strategy.distribute_dataset(ps.Dataset.range(12).batch(2))) as steps:
        next(steps)
        with pytest.raises(ps.StateMismatchError):
            steps.load_state_dict(state)
        assert [np.asarray(rows).tolist() for rows in next(steps).values] == [[2], [3]]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_an_exception_comes_at_its_step_and_iteration_goes_on(strategy_of, prefetch: int) -> None:
    def picky(batch):
        if 4 in batch:
            raise KeyError("four")
        return batch

    dataset = ps.Dataset.range(8).batch(2).map(picky)
    with iter(strategy_of(2).distribute_dataset(dataset, ps.InputOptions(per_replica_buffer_size=prefetch))) as steps:
        first = [np.asarray(next(steps).values[0]).tolist() for _ in range(2)]
        with pytest.raises(KeyError, match="four"):
            next(steps)
        assert first == [[0], [2]]
        assert [np.asarray(step.values[0]).tolist() for step in steps] == [[6]]


def test_operators_of_datasets_are_pointed_to_where_they_belong() -> None:
    steps = ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(4).batch(2))
    with pytest.raises(AttributeError, match="has no map: use map of the ps.Dataset, before it is distributed"):
        steps.map(abs)
    with pytest.raises(AttributeError, match="a distributed dataset has no mapp$"):
        steps.mapp(abs)


def test_a_distributed_dataset_is_shown_with_its_dataset_and_workers() -> None:
    assert repr(ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(8).batch(4))) == (
        "<penstock.DistributedDataset of <penstock.Dataset batch(batch_size=4), cardinality 2> for "
        "StrategyWorkers(count=1, index=0, replicas=2)>"
    )


def test_batches_without_an_array_are_refused() -> None:
    distributed = ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(4).map(lambda x: ()).batch(2))
    with iter(distributed) as steps, pytest.raises(ps.ElementError, match=r"at least one array, got .* structure \(\)"):
        next(steps)


def test_a_function_that_ends_the_program_ends_it_where_the_step_is_taken() -> None:
    def leave(x: int) -> None:
        raise SystemExit("asked to")

    dataset = ps.Dataset.range(4).map(leave).batch(2)
    options = ps.InputOptions(per_replica_buffer_size=1)
    steps = iter(ps.HostStrategy(2).distribute_dataset(dataset, options))
    with steps, pytest.raises(SystemExit, match="asked to"):
        next(steps)


@pytest.mark.parametrize("kind", ["global batches", "own batches", "function", "function per replica"])
def test_every_kind_of_input_says_what_it_reads(kind: str) -> None:
    dataset = ps.Dataset.range(8).map(abs, num_parallel_calls=2).batch(4)
    strategy = ps.HostStrategy(2, 2, 0)
    if kind.startswith("function"):
        mode = (
            ps.types.InputReplicationMode.PER_REPLICA
            if kind.endswith("replica")
            else ps.types.InputReplicationMode.PER_WORKER
        )
        options = ps.InputOptions(replication_mode=mode)
        distributed = strategy.distribute_datasets_from_function(lambda context: dataset, options)
    else:
        policy = ps.AutoShardPolicy.DATA if kind.startswith("global") else ps.AutoShardPolicy.OFF
        distributed = strategy.distribute_dataset(dataset.with_options(ps.Options(auto_shard_policy=policy)))
    with iter(distributed) as steps:
        next(steps)
        explained = steps.explain()
    assert explained.count("range(start=0, stop=8, step=1)") == (2 if kind.endswith("replica") else 1)
    assert explained.count("2 calls may run") == (2 if kind.endswith("replica") else 1)
