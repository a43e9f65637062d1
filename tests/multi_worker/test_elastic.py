"""Workers are killed under `penstock launch`, and the steps that count are those of an undisturbed run."""

import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import elastic_training
import numpy as np
import pytest
from elastic_training import BATCH, ELEMENTS, EPOCHS, RATE, features

from penstock.launch import launch

STEPS = ELEMENTS * EPOCHS // BATCH


def trained(directory: Path, kills: list[str], *, workers: int, min_workers: int, every: int) -> tuple[list[dict], str]:
    """All lines of the log, and what the launcher said."""
    for kill in kills:
        (directory / f"kill-{kill}").touch()
    errors = io.BytesIO()
    program = elastic_training.__file__
    status = launch(
        [sys.executable, program, str(directory), str(every)],
        num_workers=workers,
        min_workers=min_workers,
        max_restarts=len(kills),
        devices_per_worker=1,
        environment=os.environ,
        stdout=io.BytesIO(),
        stderr=errors,
    )
    said = errors.getvalue().decode()
    assert status == 0, said
    assert not list(directory.glob("kill-*")), "a kill did not happen"
    lines = [json.loads(line) for line in (directory / "log").read_text().splitlines()]
    return lines, "\n".join(line for line in said.splitlines() if line.startswith("penstock: "))


def assert_as_undisturbed(lines: list[dict]) -> None:
    """Every element of every epoch once in the steps that count; repeated steps have the same; losses are NumPy's."""
    counted = {line["step"]: line for line in lines}
    assert sorted(counted) == list(range(STEPS))
    for line in lines:
        assert line["elements"] == counted[line["step"]]["elements"]
    weights = np.zeros(3, np.float32)
    for epoch in range(EPOCHS):
        taken = []
        for step in range(epoch * STEPS // EPOCHS, (epoch + 1) * STEPS // EPOCHS):
            elements = counted[step]["elements"]
            examples = np.stack([features(number) for number in elements])
            error = examples @ weights - examples.sum(axis=1)
            losses = [line["loss"] for line in lines if line["step"] == step]
            assert losses == pytest.approx([float(np.sum(error**2) / BATCH)] * len(losses), rel=1e-4)
            weights = weights - RATE * (2 * error @ examples / BATCH)
            taken += elements
        assert sorted(taken) == list(range(ELEMENTS))


@pytest.mark.extended
def test_a_lost_worker_costs_the_steps_since_the_checkpoint(tmp_path: Path) -> None:
    lines, said = trained(tmp_path, ["6-0.5-0"], workers=2, min_workers=1, every=5)
    assert said == "penstock: worker 1 failed first: ended by SIGKILL. Restart 1 of 1, with 1 worker(s)"
    assert [(line["step"], line["workers"]) for line in lines] == [(n, 2) for n in range(6)] + [
        (n, 1) for n in (5, 6, 7)
    ]
    assert_as_undisturbed(lines)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(20))
def test_kills_at_random_steps(seed: int, tmp_path: Path) -> None:
    drawn = random.Random(seed)
    workers = drawn.choice([2, 3])
    steps = drawn.sample(range(STEPS), drawn.choice([1, 1, 2]))
    kills = [f"{step}-{drawn.random():.3f}-{drawn.choice([0, 0.01, 0.05])}" for step in steps]
    lines, said = trained(tmp_path, kills, workers=workers, min_workers=1, every=drawn.choice([1, 2, 3]))
    assert said.count("Restart") <= len(kills)  # one group may be hit twice, or done before it is hit
    assert_as_undisturbed(lines)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [2, 5])
def test_a_lost_node_of_ray(step: int, tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="Ray Train is not installed", exc_type=ImportError)
    program = Path(elastic_training.__file__).parent / "elastic_on_ray.py"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, program, tmp_path, str(step)], check=True, env=environment)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {line["workers"] for line in lines} == {2, 3}
    assert_as_undisturbed(lines)
