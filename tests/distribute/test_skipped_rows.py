"""Rows that are left out, as a strategy's workers see them: the same on each that shares global batches."""

import json

import numpy as np
import pytest

import penstock as ps


def failing(x):
    if int(x) in (1, 6, 7):
        raise ValueError(f"no {x}")
    return x


def steps(dataset, worker=0, workers=1, **options):
    strategy = ps.HostStrategy(1, num_workers=workers, worker_index=worker)
    skipping = dataset.with_options(ps.Options(on_error="skip", seed=1, **options))
    return iter(strategy.distribute_dataset(skipping))


@pytest.mark.parametrize("policy", [ps.AutoShardPolicy.DATA, ps.AutoShardPolicy.AUTO])
def test_every_worker_leaves_out_the_same_rows_and_counts_all(policy):
    dataset = ps.Dataset.range(12).map(failing).batch(4)
    iterators = [steps(dataset, worker, 2, auto_shard_policy=policy) for worker in range(2)]
    found = [[step.values[0].tolist() for step in one] for one in iterators]
    assert found == [[[0, 2], [5, 8], [11]], [[3, 4], [9, 10], []]]
    assert iterators[0].errors == iterators[1].errors
    assert iterators[0].errors.count == 3


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["index", "stream"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_batch_that_cannot_be_made_is_left_out_by_all_and_resumed(workers, stream):
    def together(dataset, count, state=None):
        """The rows of each step over so many workers, and what the first worker's state was before it."""
        iterators = [
            steps(dataset, worker, count, auto_shard_policy=ps.AutoShardPolicy.DATA) for worker in range(count)
        ]
        for iterator in iterators if state is not None else ():
            iterator.load_state_dict(state)
        states, found = [iterators[0].state_dict()], []
        for parts in zip(*iterators, strict=True):
            values = [part if count == 1 else part.values[0] for part in parts]
            found.append(np.concatenate(values)[:, 0].tolist())
            states.append(iterators[0].state_dict())
        assert {iterator.errors.count for iterator in iterators} == {1}
        return found, states

    for place in (0, 2, 5):  # the first batch, one between others, and the last, which is a part of one
        rows = ps.Dataset.range(33).map(lambda x, odd=6 * place + 2: np.full(3 if x == odd else 2, x))
        dataset = (rows.filter(lambda x: True) if stream else rows).batch(6)
        expected = [list(range(start, min(start + 6, 33))) for start in range(0, 33, 6) if start != 6 * place]
        found, states = together(dataset, workers)
        assert found == expected
        for given, state in enumerate(states):
            resumed, _ = together(dataset, workers % 3 + 1, json.loads(json.dumps(state)))
            assert resumed == expected[given:]


def test_by_file_each_worker_counts_its_own_rows(tmp_path):
    for name, numbers in {"a": range(6), "b": range(6, 12)}.items():
        (tmp_path / name).write_text("".join(f"{number}\n" for number in numbers))
    dataset = ps.TextLineDataset([tmp_path / "a", tmp_path / "b"]).map(lambda line: failing(int(line))).batch(4)
    iterators = [steps(dataset, worker, 2) for worker in range(2)]
    found = [[step.values[0].tolist() for step in one] for one in iterators]
    assert found == [[[0, 2], [3, 4], [5]], [[8, 9], [10, 11]]]
    assert [one.errors.count for one in iterators] == [1, 2]


def test_errors_are_those_of_the_step_handed_out_and_in_the_state():
    dataset = ps.Dataset.range(12).map(failing).batch(3)
    iterator = steps(dataset)
    counts, states, found = [0], [iterator.state_dict()], []
    for step in iterator:
        found.append(step.tolist())
        counts.append(iterator.errors.count)
        states.append(iterator.state_dict())
    assert found == [[0, 2, 3], [4, 5, 8], [9, 10, 11]]
    assert counts == [0, 1, 3, 3]
    for given, state in enumerate(states):
        resumed = steps(dataset)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert resumed.errors.count == counts[given]
        assert resumed.state_dict() == state
        assert [step.tolist() for step in resumed] == found[given:]
        assert resumed.errors.count == 3


@pytest.mark.slow
def test_too_many_skipped_rows_end_the_steps():
    iterator = steps(ps.Dataset.range(12).map(failing).batch(3), max_errors=1)
    assert next(iterator).tolist() == [0, 2, 3]
    with pytest.raises(ps.errors.TooManySkippedError, match="max_errors=1"):
        next(iterator)


def test_steps_of_a_function_count_over_all_its_datasets():
    strategy = ps.HostStrategy(2)
    options = ps.Options(on_error="skip")
    made = lambda context: ps.Dataset.range(8).map(failing).batch(2).with_options(options)  # noqa: E731
    iterator = iter(strategy.distribute_datasets_from_function(made))
    assert len(list(iterator)) == 2
    assert iterator.errors.count == 3
