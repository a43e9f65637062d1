"""Real processes that are killed while they save: what is on disk afterwards can always be gone on from."""

import json
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import Forked
from forked_workers import Workers, run_workers

import penstock as ps

SAVING = """
import os, sys, warnings
import numpy as np
import penstock as ps

warnings.simplefilter("error")
prefix = sys.argv[1]
count = 0
with iter(ps.Dataset.counter()) as iterator:
    values = {"large": np.zeros(200_000), "small": np.zeros(3)}
    asynchronous = sys.argv[2] == "asynchronous"
    checkpoint = ps.Checkpoint(values=values, count=0, iterator=iterator, max_to_keep=2, asynchronous=asynchronous)
    latest = ps.latest_checkpoint(os.path.dirname(prefix))
    if latest is not None:
        count = checkpoint.restore(latest)["count"]
    while True:
        assert next(iterator) == count
        count += 1
        values = {name: np.full(value.shape, float(count)) for name, value in values.items()}
        print(checkpoint.save(prefix, values=values, count=count), flush=True)
"""


def restored_count(path: str) -> int:
    """The count of a checkpoint all of whose objects are from one save."""
    values = {"large": np.zeros(200_000), "small": np.zeros(3)}
    with iter(ps.Dataset.counter()) as iterator:
        restored = ps.Checkpoint(values=values, count=0, iterator=iterator).restore(path)
        assert next(iterator) == restored["count"]
    for value in restored["values"].values():
        assert (value == restored["count"]).all()
    return int(restored["count"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "surely_unfinished"),
    [pytest.param(2, 1, id="twice"), pytest.param(12, 4, id="again and again", marks=pytest.mark.long)],
)
def test_a_kill_at_any_moment_leaves_the_last_complete_checkpoint(
    tmp_path: Path, rounds: int, surely_unfinished: int
) -> None:
    moments = random.Random(7)
    program, directory = tmp_path / "saving.py", tmp_path / "run"
    program.write_text(SAVING)
    directory.mkdir()
    unfinished = 0
    for round_number in range(rounds):
        mode = "asynchronous" if round_number % 2 else "synchronous"
        process = Forked(str(program), str(directory / "ckpt"), mode, pipes=("stdout",), training=True)
        assert process.stdout is not None
        # An asynchronous save of before is complete when the next one begins, so two lines make one.
        said = [process.stdout.readline().strip() for _ in range(2)]
        time.sleep(moments.uniform(0, 0.1))
        process.kill()
        said += process.communicate()[0].split()
        assert process.returncode == -signal.SIGKILL
        latest = ps.latest_checkpoint(directory)
        assert latest is not None
        assert f"{directory}/ckpt-{restored_count(latest)}" == latest
        surely = said[-1] if mode == "synchronous" else said[-2]
        assert int(latest.rpartition("-")[2]) >= int(surely.rpartition("-")[2])
        unfinished += any("tmp" in path.name for path in directory.iterdir())
    assert unfinished >= surely_unfinished  # otherwise no kill has met a save


@dataclass(frozen=True)
class Kill:
    """When a training run is killed, on which of its workers, and after which steps the next one may go on."""

    step: int
    moment: str
    goes_on_after: tuple[int, ...]
    worker: int | None = None


KILLS = [
    Kill(2, "before saving", (0,)),  # nothing is saved yet
    Kill(5, "before the step", (3,)),
    Kill(9, "while saving", (6, 9)),
    Kill(12, "after saving", (12,)),
]
KILL_OF_ONE = Kill(5, "before saving", (3,), worker=1)


def train(*directories: Path, kind: str, workers: int, replicas: int, kill: Kill | None = None) -> Workers:
    """Trains in one directory after the other, and is killed in the last of them."""
    arguments = (
        ["-", "-", "-"] if kill is None else [kill.step, kill.moment, "-" if kill.worker is None else kill.worker]
    )
    program = Path(__file__).with_name("jax_run.py" if kind == "jax" else "keras_run.py")
    command = map(str, [program, kind, *arguments, *directories])
    grace_seconds = 0.5 if kill else 30
    return run_workers(*command, workers=workers, devices=replicas // workers, grace_seconds=grace_seconds)


def train_and_die(*directories: Path, kind: str, workers: int, replicas: int, kill: Kill) -> None:
    ended = train(*directories, kind=kind, workers=workers, replicas=replicas, kill=kill)
    assert ended.statuses[kill.worker or 0] == -signal.SIGKILL, ended.errors


def complete(directory: Path, kind: str, workers: int, replicas: int) -> None:
    ended = train(directory, kind=kind, workers=workers, replicas=replicas)
    assert ended.statuses == [0] * workers, ended.errors


def history(directory: Path, worker: int) -> tuple[list[int], list[dict[str, Any]]]:
    """After which steps a worker's processes went on, and the steps that its final weights are made of.

    A process that is killed loses what it did after its last complete checkpoint: the weights have never been made of
    that. The next process says after which step it goes on, and what its ledger holds of later steps is superseded.
    It takes the same steps again.
    """
    began, steps = [], []
    for line in map(json.loads, (directory / f"ledger-{worker}").read_text().splitlines()):
        if "after" in line:
            began.append(line["after"])
            lost, steps = steps[line["after"] :], steps[: line["after"]]
            continue
        assert line["step"] == len(steps) + 1
        steps.append(line)
        if lost:
            assert line == lost.pop(0)
    return began, steps


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "workers", "replicas", "kills"),
    [
        pytest.param("jax", 1, 1, [KILLS[2]], id="jax"),
        pytest.param("jax", 1, 1, KILLS, id="jax, long", marks=pytest.mark.long),
        pytest.param(
            "keras, any number of replicas", 2, 2, [KILL_OF_ONE], id="keras on two workers", marks=pytest.mark.extended
        ),
        pytest.param("keras", 1, 4, KILLS, id="keras on four replicas, long", marks=pytest.mark.long),
        pytest.param("keras", 2, 4, [KILL_OF_ONE, KILLS[2]], id="keras on two workers, long", marks=pytest.mark.long),
    ],
)
def test_a_training_killed_repeatedly_ends_with_equal_weights(
    tmp_path: Path, kind: str, workers: int, replicas: int, kills: list[Kill]
) -> None:
    quiet, stormy = tmp_path / "quiet", tmp_path / "stormy"
    quiet.mkdir()
    stormy.mkdir()
    for number, kill in enumerate(kills):
        # The processes of the first kill have trained to the end before: they need not be started for that alone.
        directories = [stormy] if number else [quiet, stormy]
        train_and_die(*directories, kind=kind, workers=workers, replicas=replicas, kill=kill)
    complete(stormy, kind, workers, replicas)
    shares = []
    for worker in range(workers):
        with np.load(quiet / f"result-{worker}.npz") as expected, np.load(stormy / f"result-{worker}.npz") as found:
            for name in expected:
                np.testing.assert_array_equal(found[name], expected[name])
        began, steps = history(stormy, worker)
        assert began[0] == 0
        for after, kill in zip(began[1:], kills, strict=True):
            assert after in kill.goes_on_after
        assert ([0], steps) == history(quiet, worker)
        shares.append([step["ids"] for step in steps])
    assert len(shares[0]) == 14
    for epoch in range(2):
        ids = [number for share in shares for step in share[epoch * 7 : epoch * 7 + 7] for number in step]
        assert sorted(ids) == list(range(50))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_training_run_goes_on_with_other_numbers_of_workers_and_replicas(tmp_path: Path) -> None:
    kind = "keras, any number of replicas"
    quiet, moving = tmp_path / "quiet", tmp_path / "moving"
    quiet.mkdir()
    moving.mkdir()
    complete(quiet, kind, workers=1, replicas=1)
    first, second = (Kill(step, "after saving", (step,)) for step in (6, 9))
    train_and_die(moving, kind=kind, workers=2, kill=first, replicas=4)
    train_and_die(moving, kind=kind, workers=1, kill=second, replicas=2)
    complete(moving, kind, workers=1, replicas=1)
    with np.load(quiet / "result-0.npz") as expected, np.load(moving / "result-0.npz") as found:
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)
    _, alone = history(quiet, 0)
    began, steps = history(moving, 0)
    assert began == [0, 6, 9]
    shares = [step["ids"] for step in steps]
    for number, step in enumerate(history(moving, 1)[1]):
        shares[number] += step["ids"]
    assert shares == [step["ids"] for step in alone]
    np.testing.assert_allclose([step["loss"] for step in steps], [step["loss"] for step in alone], rtol=1e-4)
