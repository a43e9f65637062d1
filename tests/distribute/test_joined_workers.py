"""An iterator that goes on with an epoch which another number of workers has begun, each with files of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

import penstock as ps


@pytest.fixture
def dataset(tmp_path: Path) -> ps.Dataset:
    files = [tmp_path / f"{number}.txt" for number in range(3)]
    for number, file in enumerate(files):
        file.write_text("".join(f"{4 * number + line}\n" for line in range(4)))
    return ps.TextLineDataset(list(map(str, files))).map(int).batch(4)


def rows_of(steps: Any) -> list[list[list[int]]]:
    return [[rows.tolist() for rows in step.values] for step in steps]


def states_after_one_step(dataset: ps.Dataset) -> list[dict[str, Any]]:
    """Of two workers: the first reads the files 0 and 2, the second file 1."""
    states = []
    for worker, first in enumerate([[0, 1], [4, 5]]):
        with iter(ps.HostStrategy(1, 2, worker).distribute_dataset(dataset)) as steps:
            assert rows_of([next(steps)]) == [[first]]
            states.append(json.loads(json.dumps(steps.state_dict())))
    return states


def test_one_worker_goes_on_with_the_steps_of_two(dataset: ps.Dataset) -> None:
    distributed = ps.HostStrategy(2).distribute_dataset(dataset)
    with iter(distributed) as steps:
        steps._load_states_of_workers(states_after_one_step(dataset))
        assert rows_of([next(steps)]) == [[[2, 3], [6, 7]]]
        state = json.loads(json.dumps(steps.state_dict()))
        assert (len(state["workers"]), steps.errors.count) == (2, 0)
        explained = steps.explain()
        assert [f"shard(num_shards=2, index={worker})" in explained for worker in range(2)] == [True, True]
        assert rows_of(steps) == [[[8], [9]], [[10], [11]]]
    with iter(distributed) as resumed:
        resumed._load_states_of_workers(state["workers"])
        assert rows_of(resumed) == [[[8], [9]], [[10], [11]]]


def test_as_many_workers_take_the_states_of_their_own(dataset: ps.Dataset) -> None:
    states = states_after_one_step(dataset)
    for worker, rest in enumerate([[[[2, 3]], [[8, 9]], [[10, 11]]], [[[6, 7]]]]):
        with iter(ps.HostStrategy(1, 2, worker).distribute_dataset(dataset)) as steps:
            steps._load_states_of_workers(states)
            assert rows_of(steps) == rest


def test_a_closed_iterator_takes_no_states(dataset: ps.Dataset) -> None:
    steps = iter(ps.HostStrategy(2).distribute_dataset(dataset))
    steps.close()
    with pytest.raises(ps.ClosedError, match="this distributed iterator was closed"):
        steps._load_states_of_workers(states_after_one_step(dataset))
