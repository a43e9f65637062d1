"""Real worker processes: a scenario runs in all of them, and the tests look at what each has seen."""

import io
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.launch import launch

# These run in the workers, where the scenarios find each other by names that do not exist here.
collect_ignore = ["scenarios", "worker.py", "keras_training.py"]

WORKER = Path(__file__).parent / "worker.py"
# Keeps the status of every worker: the launcher's own is that of the first one that failed.
KEEP_STATUS = '"$@"; status=$?; echo $status > status-$PENSTOCK_WORKER_INDEX; exit $status'

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


def run_workers(directory: Path, *arguments: str, workers: int, devices: int, given: Any = None) -> Ended:
    """Run a scenario, or one case of it, in a directory with some files and, as JSON, what is `given`."""
    if given is not None:
        (directory / "given.json").write_text(json.dumps(given))
    for name, numbers in FILES.items():
        (directory / name).write_text("".join(f"{number}\n" for number in numbers))
        with ps.TFRecordWriter(directory / name.replace(".txt", ".tfrecord")) as writer:
            for number in numbers:
                writer.write(str(number).encode())
    script = f"cd {directory}; {KEEP_STATUS}"
    command = ["sh", "-c", script, "sh", sys.executable, "-W", "error", str(WORKER), *arguments]
    # The workers leave this directory, and must find the same penstock from there.
    environment = os.environ | {"PYTHONPATH": str(Path(ps.__file__).parents[1])}
    output, errors = io.BytesIO(), io.BytesIO()
    begin = time.monotonic()
    launch(
        command,
        num_workers=workers,
        devices_per_worker=devices,
        environment=environment,
        grace_seconds=30,
        stdout=output,
        stderr=errors,
    )
    seconds = time.monotonic() - begin
    kept = [directory / f"status-{worker}" for worker in range(workers)]
    statuses = [int(path.read_text()) if path.exists() else None for path in kept]
    # stdout is JAX's own: its collectives tell there whom they have met.
    told = [directory / f"seen-{worker}.json" for worker in range(workers)]
    seen = [json.loads(path.read_text()) if path.exists() else None for path in told]
    return Ended(statuses, errors.getvalue().decode(), seconds, seen)


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Ended]:
    """Runs a scenario, or one case of it, which may end as it likes."""

    def run(name: str, *case: str, workers: int = 2, devices: int = 1, given: Any = None) -> Ended:
        directory = tmp_path_factory.mktemp(f"{name}-{workers}x{devices}-")
        return run_workers(directory, name, *case, workers=workers, devices=devices, given=given)

    return run


@pytest.fixture(scope="session")
def scenario(workers: Callable[..., Ended]) -> Callable[..., Ended]:
    """Runs all cases of a scenario, once for each number of workers and devices, and without a word of complaint."""
    ended: dict[Any, Ended] = {}

    def run(name: str, count: int = 2, devices: int = 2, given: Any = None) -> Ended:
        key = name, count, devices
        if key not in ended:
            ended[key] = workers(name, workers=count, devices=devices, given=given)
        assert (ended[key].errors, ended[key].statuses) == ("", [0] * count)
        return ended[key]

    return run
