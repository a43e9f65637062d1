"""Real worker processes: a scenario runs in all of them, and the tests look at what each has seen."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from forked_workers import run_workers

import penstock as ps

WORKER = Path(__file__).parent / "worker.py"

# Text files with a number in each line.
FILES = {
    "0-5.txt": range(6),
    "6-11.txt": range(6, 12),
    "long.txt": range(12),
    "short.txt": range(100, 103),
    "empty.txt": range(0),
    "one.txt": range(200, 201),
}


@dataclass(frozen=True)
class Ended:
    """What became of the workers: one status for each, what they wrote to stderr, and the seconds until all had ended.

    The status is None of a worker that had to be ended. `seen` holds for each worker what every case of its scenario
    gave; None for a worker that could not tell.
    """

    statuses: list[int | None]
    errors: str
    seconds: float
    seen: list[Any]

    def of(self, case: str) -> list[Any]:
        """What a case gave on each worker."""
        return [seen[case] for seen in self.seen]

    def joined(self, case: str) -> list[Any]:
        """The steps of a case with the shares of the replicas of all workers, which took equally many."""
        return [list(chain(*parts)) for parts in zip(*self.of(case), strict=True)]


def run_scenario(
    directory: Path, *arguments: str, workers: int, devices: int, given: Any = None, host: str = "127.0.0.1"
) -> Ended:
    """Run a scenario, or one case of it, in a directory with some files and, as JSON, what is `given`."""
    if given is not None:
        (directory / "given.json").write_text(json.dumps(given))
    for name, numbers in FILES.items():
        (directory / name).write_text("".join(f"{number}\n" for number in numbers))
        with ps.TFRecordWriter(directory / name.replace(".txt", ".tfrecord")) as writer:
            for number in numbers:
                writer.write(str(number).encode())
    begin = time.monotonic()
    ended = run_workers(str(WORKER), *arguments, workers=workers, devices=devices, directory=directory, host=host)
    seconds = time.monotonic() - begin
    told = [directory / f"seen-{worker}.json" for worker in range(workers)]
    seen = [json.loads(path.read_text()) if path.exists() else None for path in told]
    return Ended(ended.statuses, ended.errors, seconds, seen)


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ended]:
    """Runs a scenario, or one case of it, which may end as it likes."""

    def run(name: str, *case: str, workers: int = 2, devices: int = 1, **more: Any) -> Ended:
        directory = tmp_path_factory.mktemp(f"{name}-{workers}x{devices}-")
        return run_scenario(directory, name, *case, workers=workers, devices=devices, **more)

    return run


@pytest.fixture(scope="session")
def scenario(workers: Callable[..., Ended]) -> Callable[..., Ended]:
    """Runs all cases of a scenario, once for each number of workers and devices, and without a word of complaint."""
    ended: dict[Any, Ended] = {}

    def run(name: str, count: int = 2, devices: int = 2, given: Any = None) -> Ended:
        key = name, count, devices
        if key not in ended:
            ended[key] = workers(name, workers=count, devices=devices, given=given)
        assert (ended[key].errors, ended[key].statuses) == ("", [0] * count), ended[key].errors
        return ended[key]

    return run
