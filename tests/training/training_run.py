"""Training runs, of which tests kill the last: `jax_run.py KIND STEP MOMENT WORKER DIRECTORY...`, or `keras_run.py`.

A run saves as it goes, in its directory, and goes on from the newest checkpoint there. That in the last directory kills
itself, or only one worker of several, at a moment of a step, unless the step is "-".

Every worker keeps a ledger. A run that begins to train writes a line with the step that it goes on after; then each
step gets a line with the ids of the examples that it used.
"""

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps

EPOCHS, EXAMPLES, BATCH, STEPS_PER_SAVE = 2, 50, 8, 3

kind, fatal_step, fatal_moment, fatal_worker, *directories = sys.argv[1:]


class Run:
    """One training from its beginning, or from the newest checkpoint, to its end or its death.

    Args:
        training: makes what is trained on a dataset.
        directory: where its checkpoints, ledgers and results are.
        fatal: whether it is the one that kills itself.
    """

    def __init__(self, training: Callable[[ps.Dataset], Any], directory: str, fatal: bool) -> None:
        self._training = training
        self._directory = Path(directory)
        self._worker = os.environ["PENSTOCK_WORKER_INDEX"]
        self._fatal = fatal and fatal_worker in ("-", self._worker)
        self._step = 0

    def train(self) -> None:
        training = self._training(dataset())
        checkpoint = ps.Checkpoint(
            **training.objects, step=0, iterator=training.iterator, max_to_keep=2, asynchronous=True
        )
        latest = ps.latest_checkpoint(self._directory)
        if latest is not None:
            values = checkpoint.restore(latest)
            self._step = values["step"]
            training.restored(values)
        self._write({"after": self._step})
        for batch in training.iterator:
            self._reached("before the step")
            loss = training.step(batch)
            self._step += 1
            self._write({"step": self._step, "ids": training.ids(batch), "loss": loss})
            self._reached("before saving")
            if self._step % STEPS_PER_SAVE == 0:
                checkpoint.save(self._directory / "ckpt", step=self._step, **training.values())
                self._reached("while saving")
                checkpoint.wait()
                self._reached("after saving")
        training.iterator.close()
        checkpoint.close()
        results = map(np.asarray, training.result())
        np.savez(self._directory / f"result-{self._worker}.npz", *results)

    def _write(self, line: dict[str, Any]) -> None:
        with open(self._directory / f"ledger-{self._worker}", "a") as ledger:
            ledger.write(json.dumps(line) + "\n")

    def _reached(self, moment: str) -> None:
        if self._fatal and (str(self._step), moment) == (fatal_step, fatal_moment):
            os.kill(os.getpid(), signal.SIGKILL)


def dataset() -> ps.Dataset:
    features = np.random.default_rng(1).random((EXAMPLES, 3), np.float32)
    examples = ps.Dataset.from_tensor_slices({"id": np.arange(EXAMPLES), "x": features})
    return examples.shuffle(EXAMPLES, seed=3).batch(BATCH).repeat(EPOCHS).prefetch(2)


def run(kinds: Mapping[str, Callable[[ps.Dataset], Any]]) -> None:
    """Train in all directories, one after the other."""
    warnings.simplefilter("error")
    for directory in directories:
        Run(kinds[kind], directory, fatal=directory == directories[-1]).train()
