"""Where a distributed iterator is: at every boundary, in the middle of batches, after failures, on other workers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

Policy = ps.AutoShardPolicy
Steps = list[list[list[int]]]


def rows_of(step: Any) -> list[list[int]]:
    return [rows.tolist() for rows in step.values]


def check_every_boundary(distributed: ps.types.DistributedDataset, expected: Steps) -> None:
    """A state at any place, and after the end, continues with what came there; it is plain data."""
    with iter(distributed) as steps:
        states = [steps.state_dict()]
        for step, rows in zip(steps, expected, strict=True):
            assert rows_of(step) == rows
            states.append(steps.state_dict())
        states.append(steps.state_dict())
    assert states[-1] is not None
    for done, state in enumerate(states):
        with iter(distributed) as resumed:
            resumed.load_state_dict(json.loads(json.dumps(state)))
            assert resumed.state_dict() == state
            assert [rows_of(step) for step in resumed] == expected[done:]
    with iter(distributed) as resumed:  # forwards and back again
        for done in (len(expected), 0, len(expected) // 2):
            resumed.load_state_dict(states[done])
            assert [rows_of(step) for step in resumed] == expected[done:]


@pytest.fixture(params=[0, 1, 3])
def options(request: pytest.FixtureRequest) -> ps.InputOptions:
    return ps.InputOptions(per_replica_buffer_size=request.param)


@pytest.mark.parametrize("streamed", [False, True])
def test_global_batches_resume_at_every_boundary(options, streamed) -> None:
    dataset = ps.Dataset.range(11).filter(lambda x: True) if streamed else ps.Dataset.range(11)
    distributed = ps.HostStrategy(2, 2, 1).distribute_dataset(dataset.batch(4), options)
    check_every_boundary(distributed, [[[2], [3]], [[6], [7]], [[10], []]])


def test_batches_of_ones_own_resume_in_the_middle_of_a_batch(options) -> None:
    dataset = ps.Dataset.range(10).batch(7).with_options(ps.Options(auto_shard_policy=Policy.OFF))
    distributed = ps.HostStrategy(1, 3, 1).distribute_dataset(dataset, options)
    check_every_boundary(distributed, [[[0, 1, 2]], [[3, 4, 5]], [[6]], [[7]], [[8]], [[9]]])


def test_a_worker_that_has_run_dry_resumes_among_its_empty_steps(options) -> None:
    dataset = ps.Dataset.range(5).shard(ps.SHARD_HINT, ps.SHARD_HINT).batch(2)
    dataset = dataset.with_options(ps.Options(auto_shard_policy=Policy.HINT))
    for worker, expected in enumerate([[[[0]], [[2]], [[4]]], [[[1]], [[3]], [[]]]]):
        check_every_boundary(ps.HostStrategy(1, 2, worker).distribute_dataset(dataset, options), expected)


def test_files_resume_in_the_middle_of_a_batch(options, tmp_path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text("".join(f"{line}\n" for line in range(6 * number, 6 * number + 6)))
    names = [str(tmp_path / "0.txt"), str(tmp_path / "1.txt")]
    distributed = ps.HostStrategy(1, 2, 1).distribute_dataset(ps.TextLineDataset(names).map(int).batch(4), options)
    check_every_boundary(distributed, [[[6, 7]], [[8, 9]], [[10]], [[11]]])


@pytest.mark.parametrize("streamed", [False, True])
def test_elements_of_one_pipeline_resume_at_every_boundary(options, streamed) -> None:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        dataset = ps.Dataset.range(9).filter(lambda x: True) if streamed else ps.Dataset.range(9)
        return dataset.shuffle(9, seed=3).batch(2)

    rows = [batch.tolist() for batch in dataset_fn(ps.InputContext())]
    distributed = ps.HostStrategy(2).distribute_datasets_from_function(dataset_fn, options)
    check_every_boundary(distributed, [rows[0:2], rows[2:4], [rows[4], []]])


def per_replica(options: ps.InputOptions) -> ps.InputOptions:
    return ps.InputOptions(
        per_replica_buffer_size=options.per_replica_buffer_size,
        replication_mode=ps.types.InputReplicationMode.PER_REPLICA,
    )


def test_elements_of_several_pipelines_resume_at_every_boundary(options) -> None:
    distributed = ps.HostStrategy(2).distribute_datasets_from_function(
        lambda context: ps.Dataset.range(8 + context.input_pipeline_id).shard(2, context.input_pipeline_id).batch(3),
        per_replica(options),
    )
    check_every_boundary(distributed, [[[0, 2, 4], [1, 3, 5]], [[6], [7]]])


def test_pipelines_of_unequal_length_resume_when_one_has_ended(options) -> None:
    distributed = ps.HostStrategy(2).distribute_datasets_from_function(
        lambda context: ps.Dataset.range(2 + 2 * context.input_pipeline_id).batch(1), per_replica(options)
    )
    check_every_boundary(distributed, [[[0], [0]], [[1], [1]], [[], [2]], [[], [3]]])


# Failures


def failing_at(*numbers: int) -> Callable[[Any], Any]:
    def picky(batch: Any) -> Any:
        if any(number in batch for number in numbers):
            raise KeyError(f"{batch.tolist()}")
        return batch

    return picky


def outcomes(steps: ps.types.DistributedIterator) -> list[Any]:
    found: list[Any] = []
    while True:
        try:
            found.append(rows_of(next(steps)))
        except StopIteration:
            return found
        except KeyError as error:
            found.append(error.args[0])


@pytest.mark.parametrize("streamed", [False, True])
def test_a_failing_element_in_the_middle_of_a_step_costs_itself_alone(options, streamed) -> None:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        numbers = ps.Dataset.range(8).filter(lambda x: True) if streamed else ps.Dataset.range(8)
        return numbers.batch(1).map(failing_at(1, 4, 7))

    distributed = ps.HostStrategy(2).distribute_datasets_from_function(dataset_fn, options)
    with iter(distributed) as steps:
        assert outcomes(steps) == ["[1]", [[0], [2]], "[4]", [[3], [5]], "[7]", [[6], []]]


def test_a_failing_element_of_one_replicas_pipeline_costs_itself_alone(options) -> None:
    distributed = ps.HostStrategy(2).distribute_datasets_from_function(
        lambda context: (
            ps.Dataset.range(10 * context.input_pipeline_id, 10 * context.input_pipeline_id + 3)
            .batch(1)
            .map(failing_at(1, 12))
        ),
        per_replica(options),
    )
    with iter(distributed) as steps:
        assert outcomes(steps) == [[[0], [10]], "[1]", [[2], [11]], "[12]"]


def test_a_state_after_a_failure_in_the_middle_of_a_step_loses_nothing(options) -> None:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        return ps.Dataset.range(6).batch(1).map(failing_at(3))

    distributed = ps.HostStrategy(2).distribute_datasets_from_function(dataset_fn, options)
    with iter(distributed) as steps:
        assert rows_of(next(steps)) == [[0], [1]]
        with pytest.raises(KeyError):
            next(steps)
        state = steps.state_dict()
        assert outcomes(steps) == [[[2], [4]], [[5], []]]
    with iter(distributed) as resumed:
        resumed.load_state_dict(state)
        # The element before the one that failed was not handed out: both come again.
        assert outcomes(resumed) == ["[3]", [[2], [4]], [[5], []]]


def test_a_failing_batch_costs_the_steps_of_that_batch_alone(options) -> None:
    dataset = ps.Dataset.range(12).batch(4).map(failing_at(5))
    distributed = ps.HostStrategy(1, 2).distribute_dataset(
        dataset.with_options(ps.Options(auto_shard_policy=Policy.OFF)), options
    )
    with iter(distributed) as steps:
        assert outcomes(steps) == [[[0, 1]], [[2, 3]], "[4, 5, 6, 7]", [[8, 9]], [[10, 11]]]


def test_a_state_after_a_failed_batch_is_behind_it(options) -> None:
    distributed = ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(6).batch(2).map(failing_at(2)), options)
    with iter(distributed) as steps:
        assert rows_of(next(steps)) == [[0], [1]]
        with pytest.raises(KeyError):
            next(steps)
        state = steps.state_dict()
    with iter(distributed) as resumed:
        resumed.load_state_dict(state)
        assert outcomes(resumed) == [[[4], [5]]]


# States that do not fit


def state_of(distributed: ps.types.DistributedDataset) -> dict[str, Any]:
    with iter(distributed) as steps:
        next(steps)
        return steps.state_dict()


def refused(distributed: ps.types.DistributedDataset, state: Any, message: str) -> None:
    """The state is refused, and the iterator goes on as if nothing had happened."""
    with iter(distributed) as undisturbed:
        expected = [rows_of(step) for step in undisturbed]
    with iter(distributed) as steps:
        assert rows_of(next(steps)) == expected[0]
        with pytest.raises(ps.StateMismatchError, match=message):
            steps.load_state_dict(state)
        assert [rows_of(step) for step in steps] == expected[1:]


def lines(directory: Path) -> ps.Dataset:
    for number in range(3):
        (directory / f"{number}.txt").write_text("1\n2\n3\n4\n")
    return ps.TextLineDataset([str(directory / f"{number}.txt") for number in range(3)]).map(int).batch(4)


def under(policy: ps.AutoShardPolicy, dataset: ps.Dataset) -> ps.Dataset:
    return dataset.with_options(ps.Options(auto_shard_policy=policy))


def test_a_state_of_ones_own_data_is_for_that_worker_of_as_many(tmp_path, options) -> None:
    dataset = lines(tmp_path)
    state = state_of(ps.HostStrategy(1, 2, 0).distribute_dataset(dataset, options))
    for strategy, message in [
        (ps.HostStrategy(1, 2, 1), "of worker 0 of 2, which reads data of its own; this is worker 1 of 2: under"),
        (ps.HostStrategy(1, 3, 0), r"of worker 0 of 2,.*this is worker 0 of 3: under AutoShardPolicy\.DATA a state"),
    ]:
        refused(strategy.distribute_dataset(dataset, options), state, message)


def test_a_state_of_global_batches_is_not_for_ones_own_data_and_the_reverse(tmp_path) -> None:
    dataset = lines(tmp_path)
    by_file = ps.HostStrategy(2, 2, 0).distribute_dataset(dataset)
    by_data = ps.HostStrategy(2, 2, 0).distribute_dataset(under(Policy.DATA, dataset))
    refused(by_file, state_of(by_data), "of global batches, but here every worker reads data of its own: restore it")
    refused(by_data, state_of(by_file), "expected the result of state_dict|data of its own")


def test_a_state_of_a_function_is_for_as_many_pipelines() -> None:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        return ps.Dataset.range(8).batch(2)

    strategy = ps.HostStrategy(2)
    one = strategy.distribute_datasets_from_function(dataset_fn)
    several = strategy.distribute_datasets_from_function(dataset_fn, per_replica(ps.InputOptions()))
    refused(one, state_of(several), "of 2 datasets on this worker, here are 1")
    refused(several, state_of(one), "of 1 datasets on this worker, here are 2")


@pytest.mark.parametrize("state", [None, 3, {}, {"worker": [0, 1]}, {"version": 1}, [1, 2]])
def test_what_is_no_state_is_refused(state) -> None:
    strategy = ps.HostStrategy(2)
    off = under(Policy.OFF, ps.Dataset.range(8).batch(2))
    refused(strategy.distribute_dataset(ps.Dataset.range(8).batch(2)), state, "state")
    refused(strategy.distribute_dataset(off), state, "state")
    refused(strategy.distribute_datasets_from_function(lambda context: ps.Dataset.range(8).batch(2)), state, "state")


def test_a_state_of_divided_data_is_not_for_a_function_and_the_reverse() -> None:
    strategy = ps.HostStrategy(2, 2, 0)
    divided = strategy.distribute_dataset(under(Policy.OFF, ps.Dataset.range(8).batch(2)))
    made = strategy.distribute_datasets_from_function(lambda context: ps.Dataset.range(8).batch(2))
    refused(divided, state_of(made), "has no dataset, steps_of_batch: distribute_dataset")
    refused(made, state_of(divided), "has no datasets: distribute_dataset, distribute_datasets_from_function and")


def test_a_single_worker_has_states_of_global_batches_under_any_policy() -> None:
    dataset = under(Policy.OFF, ps.Dataset.range(8).batch(2))
    alone = ps.HostStrategy(2).distribute_dataset(dataset)
    with iter(alone) as steps, iter(dataset) as plain:
        next(steps)
        plain.load_state_dict(steps.state_dict())
        assert [batch.tolist() for batch in plain] == [[2, 3], [4, 5], [6, 7]]
    several = ps.HostStrategy(2, 2, 0).distribute_dataset(dataset)
    refused(alone, state_of(several), "of worker 0 of 2, which reads data of its own, but here all workers share")
    refused(several, state_of(alone), "of global batches, but here every worker reads data of its own")


def test_a_state_within_an_own_batch_fits_only_as_many_replicas() -> None:
    dataset = under(Policy.OFF, ps.Dataset.range(14).batch(7))
    with iter(ps.HostStrategy(2, 2, 0).distribute_dataset(dataset)) as steps:
        assert rows_of(next(steps)) == [[0, 1], [2, 3]]
        middle = steps.state_dict()
        assert rows_of(next(steps)) == [[4, 5], [6]]
        end = steps.state_dict()
    # Of three replicas the first step would have been six rows.
    others = ps.HostStrategy(3, 2, 0).distribute_dataset(dataset)
    refused(others, middle, "in the middle of a batch that was cut for 2 replicas on each worker, here are 3")
    with iter(others) as resumed:
        resumed.load_state_dict(end)
        assert [rows_of(step) for step in resumed] == [[[7, 8], [9, 10], [11, 12]], [[13], [], []]]


def test_a_functions_state_fits_its_replicas_where_workers_count_steps() -> None:
    def distributed(replicas: int, workers: int) -> ps.types.DistributedDataset:
        strategy = ps.HostStrategy(replicas, workers)
        return strategy.distribute_datasets_from_function(lambda context: ps.Dataset.range(8).batch(1))

    refused(distributed(4, 2), state_of(distributed(2, 2)), "of 2 replicas on each worker, here are 4")
    with iter(distributed(4, 1)) as resumed:
        resumed.load_state_dict(state_of(distributed(2, 1)))
        assert [rows_of(step) for step in resumed] == [[[2], [3], [4], [5]], [[6], [7], [], []]]
