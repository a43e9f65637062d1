"""A trainer as a process of its own: reads a job of a service, notes what it gets, and saves its state as it goes.

Every line that it writes is of JSON: `{"ready": true}` when it waits for a line on its standard input to begin, then
`{"restored": step}` once, and `{"step": number, "elements": [...]}` for each step.
Its state, with the number of steps done, is on disk after every `every` steps, and the one before it. With "checkpoint"
it is a `ps.Checkpoint` of the iterator and of a model, whose weight is the sum of all elements that it was trained on.
With "nothing" it saves nothing, and waits for another line after every `every` steps.
"""

import json
import os
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps


def slowly(x: int) -> int:
    time.sleep(0.003)
    return x


def dataset_of(kind: str) -> ps.Dataset:
    numbers = ps.Dataset.range(1200).map(slowly)
    if kind == "groups":
        return numbers.flat_map(lambda x: ps.Dataset.from_tensor_slices([3 * x, 3 * x + 1, 3 * x + 2]))
    if kind == "uneven groups":
        return numbers.flat_map(lambda x: ps.Dataset.range(60 * x, 60 * x + (0, 0, 50, 1)[x % 4]))
    if kind == "filtered":
        return numbers.filter(lambda x: x % 5 < 2)
    return numbers


def iterator_of(kind: str, address: str, arguments: dict[str, Any]) -> Any:
    transformation = ps.service.distribute(service=address, **arguments)
    if kind == "strategy":
        batches = dataset_of(kind).batch(5).apply(transformation)
        return iter(ps.HostStrategy(replicas_per_worker=2).distribute_dataset(batches))
    dataset = dataset_of(kind).apply(transformation)
    return iter(dataset.shuffle(50, seed=1).prefetch(10) if kind == "shuffled" else dataset)


def numbers_of(element: Any) -> list[int]:
    parts = element.values if isinstance(element, ps.PerReplica) else [element]
    return [int(x) for part in parts for x in np.ravel(part)]


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class States:
    """The iterator's last two states in a file, which goes on from the newest."""

    def __init__(self, directory: Path, iterator: Any) -> None:
        self._file = directory / "state"
        self._iterator = iterator
        self._saved: list[dict[str, Any]] = []

    def restore(self) -> int:
        if not self._file.exists():
            return 0
        self._saved = json.loads(self._file.read_text())
        self._iterator.load_state_dict(self._saved[-1]["iterator"])
        return int(self._saved[-1]["step"])

    def save(self, step: int, elements: list[int]) -> None:
        self._saved = [*self._saved[-1:], {"step": step, "iterator": self._iterator.state_dict()}]
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self._saved))
        os.replace(new, self._file)


class Nothing:
    """Saves nothing, and takes a step whenever it is told to."""

    def __init__(self, directory: Path, iterator: Any) -> None:
        pass

    def restore(self) -> int:
        return 0

    def save(self, step: int, elements: list[int]) -> None:
        sys.stdin.readline()


class Checkpoints:
    """The iterator and a model in a `ps.Checkpoint`."""

    def __init__(self, directory: Path, iterator: Any) -> None:
        self._directory = directory
        self._model = {"weight": np.zeros((), np.int64)}
        self._checkpoint = ps.Checkpoint(model=self._model, steps=0, iterator=iterator)

    def restore(self) -> int:
        latest = ps.latest_checkpoint(self._directory)
        if latest is None:
            return 0
        values = self._checkpoint.restore(latest)
        self._model = values["model"]
        return int(values["steps"])

    def save(self, step: int, elements: list[int]) -> None:
        self._model = {"weight": self._model["weight"] + sum(elements)}
        self._checkpoint.save(self._directory / "ckpt", model=self._model, steps=step)
        say(weight=int(self._model["weight"]))


SAVING: dict[str, Any] = {"state": States, "checkpoint": Checkpoints, "nothing": Nothing}


def main(directory: str, address: str, kind: str, saving: str, every: int, arguments: dict[str, Any]) -> None:
    say(ready=True)
    sys.stdin.readline()
    with iterator_of(kind, address, arguments) as iterator:
        saved = SAVING[saving](Path(directory), iterator)
        step = saved.restore()
        say(restored=step)
        since: list[int] = []
        while elements := [
            x for element in islice(iterator, 4 if kind == "strategy" else 20) for x in numbers_of(element)
        ]:
            step += 1
            since += elements
            say(step=step, elements=elements)
            if step % every == 0:
                saved.save(step, since)
                since = []
        saved.save(step, since)
        say(ended=step)


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]), json.loads(sys.argv[6]))
