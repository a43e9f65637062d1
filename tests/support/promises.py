"""What a coordinator promises, on whichever engine its workers and servers run."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import optax
import pytest

import penstock as ps


def counter(coordinator: ps.ClusterCoordinator) -> ps.parameter_server.ServerVariables:
    """Variables on both servers, of which each push of ones adds one to all."""
    return coordinator.strategy.create_variables({"w": np.zeros((3, 2), np.float32), "b": 0.0}, optax.sgd(-1.0))


def pushes_are_applied_in_every_shard_and_arguments_and_results_travel(coordinator: ps.ClusterCoordinator) -> None:
    variables = counter(coordinator)

    def add(scale, *, offset):
        variables.push({"w": np.full((3, 2), scale), "b": offset})
        variables.push({"w": np.full((3, 2), scale), "b": offset})
        return {"read": variables.read()["b"], "scale": scale}

    value = coordinator.schedule(add, args=(2.0,), kwargs={"offset": 0.5})
    assert coordinator.fetch([value, 7]) == [{"read": 0.0, "scale": 2.0}, 7]  # its own pushes come when it has ended
    coordinator.join()
    assert coordinator.done()
    assert variables.read()["w"].tolist() == [[4.0, 4.0]] * 3
    assert variables.read()["b"] == 1.0


def the_first_error_cancels_the_rest_and_is_raised_once(coordinator: ps.ClusterCoordinator, tmp_path: Path) -> None:
    variables = counter(coordinator)
    scheduled, failed = tmp_path / "scheduled", tmp_path / "failed"

    def keep_a_worker():
        while not failed.exists():
            time.sleep(0.01)

    def fail():
        while not scheduled.exists():  # otherwise `schedule` raises the error, and waits for the other worker
            time.sleep(0.01)
        variables.push({"w": np.ones((3, 2)), "b": 1.0})
        raise KeyError("lost key")

    values = [coordinator.schedule(function) for function in (keep_a_worker, fail, *[lambda: 1] * 50)]
    scheduled.touch()
    with pytest.raises(KeyError) as raised:
        values[1].fetch()
    assert "in fail" in raised.value.__notes__[0]
    failed.touch()
    with pytest.raises(KeyError, match="lost key"):
        coordinator.join()
    with pytest.raises(ps.errors.CancelledError, match="another one has failed"):
        values[-1].fetch()
    coordinator.join()
    assert variables.read()["b"] == 0.0
    assert coordinator.schedule(lambda: 2).fetch() == 2


def killed_workers_apply_every_update_once_and_read_on_where_they_were(coordinator: ps.ClusterCoordinator) -> None:
    variables = counter(coordinator)
    dataset = coordinator.create_per_worker_dataset(
        lambda context: ps.Dataset.range(10_000).shard(context.num_input_pipelines, context.input_pipeline_id)
    )
    iterator = iter(dataset)

    def step(elements):
        element = next(elements)
        variables.push({"w": np.ones((3, 2)), "b": 1.0})
        return int(element)

    values = []
    for worker in (0, 1):
        values += [coordinator.schedule(step, args=(iterator,)) for _ in range(100)]
        values[-50].fetch()
        os.kill(coordinator.worker_processes[worker], signal.SIGKILL)
    coordinator.join()
    read = coordinator.fetch(values)
    assert variables.read()["b"] == 200.0
    assert variables.read()["w"].tolist() == [[200.0, 200.0]] * 3
    for remainder in (0, 1):  # of each worker a prefix, without a gap and nothing twice
        own = sorted(element for element in read if element % 2 == remainder)
        assert own == list(range(remainder, remainder + 2 * len(own), 2))
