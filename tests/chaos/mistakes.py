"""Trials of workers that train together, of which one makes a mistake: all of them end, and are told who made it."""

import os
import random
import re
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mistaken import MISTAKES, ROWS, STEPS
from waits import Wait

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
from forked import Forked

_SECONDS = 60.0
"""Until all others have ended: far more than the `failure_timeout` of three seconds, for a machine with other work."""
_SILENT = ("stay", "stop")
"""After these the worker does not end by itself."""
_TOLD = re.compile(r"worker \d of \d|Terminating process because the JAX distributed service")
"""Each of the others says this at its end; JAX may be faster where worker 0 is the one that ends."""


@dataclass(frozen=True)
class Mistake:
    """One trial.

    Attributes:
        kind: what one of the workers does alone.
        worker: which of them.
        step: after which step.
        length: whether the length of the dataset is "known".
    """

    seed: int
    kind: str
    workers: int
    worker: int
    step: int
    length: str

    def __str__(self) -> str:
        return f"{self.kind} on worker {self.worker} of {self.workers} after step {self.step}, {self.length} length"


def draw_mistake(seed: int) -> Mistake:
    """The trial of a seed."""
    rng, kinds = random.Random(seed), list(MISTAKES)
    workers = rng.randint(2, 3)
    length = rng.choice(("known", "unknown"))
    return Mistake(seed, kinds[seed % len(kinds)], workers, rng.randrange(workers), rng.randrange(6), length)


class MistakeTrial:
    """The workers of a trial, which all end with it.

    Args:
        folder: where they write what they get and what they say.

    Attributes:
        happened: the kind of the mistake.
    """

    def __init__(self, mistake: Mistake, folder: Path) -> None:
        self._mistake = mistake
        self._folder = folder
        self.happened = {f"mistake {mistake.kind}"}

    def run(self) -> list[Wait]:
        """Let it happen.

        Raises:
            AssertionError: one of the others goes on for ever, is told nothing, or computes something else.
        """
        mistake = self._mistake
        processes = [self._start(index) for index in range(mistake.workers)]
        with ThreadPoolExecutor(mistake.workers) as pool:
            said = [pool.submit(process.communicate, 2 * _SECONDS) for process in processes]
            try:
                late = self._late(processes)
            finally:
                for process in processes:
                    process.kill()
        errors = [one.result()[1] for one in said]
        for index, error in enumerate(errors):
            (self._folder / f"worker-{index}.log").write_text(error)
        assert not late, f"still at it after {_SECONDS:.0f} s: workers {late}"
        self._check([process.returncode or 0 for process in processes], errors)
        return []

    def _start(self, index: int) -> Forked:
        own = {"PENSTOCK_WORKER_INDEX": str(index), "PENSTOCK_NUM_WORKERS": str(self._mistake.workers)}
        own["PENSTOCK_COORDINATOR_ADDRESS"] = f"127.0.0.1:{_port(self._mistake.seed)}"
        own["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1"
        mistake = self._mistake
        return Forked(
            str(Path(__file__).parent / "mistaken.py"),
            *map(str, (mistake.kind, mistake.worker, mistake.step, mistake.length)),
            pipes=("stdout", "stderr"),
            env=os.environ | own,
            directory=self._folder,
            training=True,
        )

    def _late(self, processes: Sequence[Forked]) -> list[int]:
        """Wait until all have ended that must; gives those that have not."""
        must = [
            index
            for index in range(self._mistake.workers)
            if index != self._mistake.worker or self._mistake.kind not in _SILENT
        ]
        until = time.monotonic() + _SECONDS
        while (late := [index for index in must if processes[index].poll() is None]) and time.monotonic() < until:
            time.sleep(0.05)
        return late

    def _check(self, statuses: Sequence[int], errors: Sequence[str]) -> None:
        right = [sum(range(ROWS * step, ROWS * (step + 1))) for step in range(STEPS)]
        for index, (status, error) in enumerate(zip(statuses, errors, strict=True)):
            sums: list[int] = []
            with suppress(FileNotFoundError):
                sums = [int(line) for line in (self._folder / f"sums-{index}").read_text().split()]
            assert sums == right[: len(sums)], f"worker {index} computed {sums}"
            if index == self._mistake.worker:
                continue
            whole = status == 0 and len(sums) == STEPS and not error  # as if there had been no mistake
            told = status in (1, -signal.SIGABRT) and _TOLD.search(error)
            assert whole or told, f"worker {index} ended with status {status}: {error[-300:]}"


def _port(seed: int) -> int:
    """A port that trials at the same time do not share."""
    return 21000 + seed % 9000
