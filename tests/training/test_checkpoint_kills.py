"""Real processes that are killed while they save: what is on disk afterwards can always be gone on from."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

SAVING = """
import os, sys
import numpy as np
import penstock as ps

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


def start(program: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


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
def test_a_kill_at_any_moment_leaves_the_last_complete_checkpoint(tmp_path: Path) -> None:
    moments = random.Random(7)
    unfinished = 0
    for round_number in range(8):
        mode = "asynchronous" if round_number % 2 else "synchronous"
        with start(SAVING, tmp_path / "ckpt", mode) as process:
            assert process.stdout is not None
            # An asynchronous save of before is complete when the next one begins, so two lines make one.
            said = [process.stdout.readline().strip() for _ in range(2)]
            time.sleep(moments.uniform(0, 0.1))
            process.kill()
            said += process.stdout.read().split()
        assert process.returncode == -signal.SIGKILL
        latest = ps.latest_checkpoint(tmp_path)
        assert latest is not None
        assert f"{tmp_path}/ckpt-{restored_count(latest)}" == latest
        surely = said[-1] if mode == "synchronous" else said[-2]
        assert int(latest.rpartition("-")[2]) >= int(surely.rpartition("-")[2])
        unfinished += any("tmp" in path.name for path in tmp_path.iterdir())
    assert unfinished >= 2  # otherwise no kill has met a save


TRAINING = """
import json, os, signal, sys
import jax, jax.numpy as jnp, numpy as np, optax
import penstock as ps

directory, killed_after, moment = sys.argv[1], int(sys.argv[2]), sys.argv[3]
EPOCHS, EXAMPLES, BATCH, EVERY = 3, 50, 8, 4

features = np.random.default_rng(1).random((EXAMPLES, 3), np.float32)
dataset = ps.Dataset.from_tensor_slices({"id": np.arange(EXAMPLES), "x": features})
dataset = dataset.shuffle(EXAMPLES, seed=3).batch(BATCH).repeat(EPOCHS).prefetch(2)
optimizer = optax.adam(0.05)

@jax.jit
def train_step(params, state, x):
    loss = lambda params: jnp.mean((jnp.tanh(x @ params["w"]) - x[:, 0] + params["b"]) ** 2)
    updates, state = optimizer.update(jax.grad(loss)(params), state)
    return optax.apply_updates(params, updates), state

def die(at):
    if step == killed_after and moment == at:
        os.kill(os.getpid(), signal.SIGKILL)

step, params, ledger = 0, {"w": jnp.ones(3), "b": jnp.zeros(())}, os.path.join(directory, "ledger")
state = optimizer.init(params)
with iter(dataset) as iterator:
    train = (params, state, step)
    checkpoint = ps.Checkpoint(train=train, iterator=iterator, max_to_keep=2, asynchronous=True)
    latest = ps.latest_checkpoint(directory)
    if latest is not None:
        params, state, step = checkpoint.restore(latest)["train"]
    # The history that survives: what was done after the checkpoint is done again.
    lines = [json.loads(line) for line in open(ledger)] if os.path.exists(ledger) else []
    with open(ledger, "w") as file:
        file.writelines(json.dumps(line) + "\\n" for line in lines if line["step"] <= step)
    for batch in iterator:
        params, state = train_step(params, state, batch["x"])
        step += 1
        with open(ledger, "a") as file:
            file.write(json.dumps({"step": step, "ids": batch["id"].tolist()}) + "\\n")
        die("before saving")
        if step % EVERY == 0:
            checkpoint.save(os.path.join(directory, "ckpt"), train=(params, state, step))
            die("while saving")
            checkpoint.wait()
            die("after saving")
    checkpoint.close()
np.savez(os.path.join(directory, "weights.npz"), **params)
"""


def train(directory: Path, killed_after: int = 0, moment: str = "never") -> int:
    with start(TRAINING, directory, killed_after, moment) as process:
        return process.wait()


def history(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "ledger").read_text().splitlines()]


@pytest.mark.slow
def test_a_training_run_that_is_killed_again_and_again_ends_with_the_same_weights(tmp_path: Path) -> None:
    quiet, stormy = tmp_path / "quiet", tmp_path / "stormy"
    quiet.mkdir()
    stormy.mkdir()
    assert train(quiet) == 0
    kills = [
        (2, "before saving"),
        (8, "while saving"),
        (12, "after saving"),
        (15, "before saving"),
    ]
    for killed_after, moment in kills:
        assert train(stormy, killed_after, moment) == -signal.SIGKILL
    assert train(stormy) == 0
    with np.load(quiet / "weights.npz") as expected, np.load(stormy / "weights.npz") as found:
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])
    steps = history(stormy)
    assert steps == history(quiet)
    assert [line["step"] for line in steps] == list(range(1, 22))
    for epoch in range(3):
        ids = [number for line in steps[epoch * 7 : epoch * 7 + 7] for number in line["ids"]]
        assert sorted(ids) == list(range(50))
