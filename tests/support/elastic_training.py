"""A small training that goes on from its newest checkpoint with any number of workers; test_elastic.py starts it.

Usage: elastic_training.py DIRECTORY STEPS_BETWEEN_CHECKPOINTS. The last worker writes a line per step to DIRECTORY/log:
a worker that kills itself in a step has then logged the step before.
A file DIRECTORY/kill-STEP-SHARE-SECONDS, made beforehand, lets one worker kill itself as many seconds after the
beginning of that step: the one whose number is that share of all of them.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import penstock as ps

ELEMENTS, EPOCHS, BATCH, RATE = 48, 2, 12, np.float32(0.01)


def features(number: Any) -> Any:
    """What is learned from; the target is its sum."""
    return np.float32(number) / np.float32(ELEMENTS) * np.arange(1, 4, dtype=np.float32) % 1


def train_step(weights: Any, numbers: Any, examples: Any) -> Any:
    def loss_of(weights: Any) -> Any:
        return jnp.sum((examples @ weights - examples.sum(axis=1)) ** 2) / BATCH

    loss, gradient = ps.get_replica_context().all_reduce("SUM", jax.value_and_grad(loss_of)(weights))
    return weights - RATE * gradient, loss, numbers


def main(directory: Path, every: int, pause: float = 0) -> None:
    strategy = ps.MultiWorkerMirroredStrategy()
    with strategy.scope():
        dataset = ps.Dataset.range(ELEMENTS).shuffle(ELEMENTS, seed=3).map(lambda x: (x, features(x)))
        iterator = iter(strategy.distribute_dataset(dataset.batch(BATCH).repeat(EPOCHS)))
        weights, step = np.zeros(3, np.float32), 0
        checkpoint = ps.Checkpoint(iterator=iterator, weights=weights, position=step)
        newest = ps.latest_checkpoint(directory / "ckpt")
        if newest is not None:
            values = checkpoint.restore(newest)
            weights, step = values["weights"], int(values["position"])
        workers, worker = strategy._workers.count, strategy._workers.index
        for numbers, examples in iterator:
            _kill_if_asked(directory, step, workers, worker)
            weights, loss, taken = strategy.run(train_step, args=(weights, numbers, examples))
            weights, loss = (np.asarray(strategy.local_results(value)[0]) for value in (weights, loss))
            everything = np.asarray(strategy.gather(taken, axis=0)).tolist()
            if worker == workers - 1:
                line = {"step": step, "elements": everything, "loss": float(loss), "workers": workers}
                with (directory / "log").open("a") as log:
                    log.write(json.dumps(line) + "\n")
            step += 1
            time.sleep(pause)
            if step % every == 0:
                checkpoint.save(directory / "ckpt", step=step, weights=weights, position=step)


def _kill_if_asked(directory: Path, step: int, workers: int, worker: int) -> None:
    for order in directory.glob(f"kill-{step}-*"):
        _, _, share, seconds = order.name.split("-")
        if int(float(share) * workers) == worker:
            order.unlink()
            if float(seconds) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL)).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
