"""Cost of reading each element of a shared job exactly once: leases, acknowledgements, a journal of them.

Leases and acknowledgements cannot be switched off. So a shared job is compared with the same dataset read alone, which
asks the dispatcher for nothing; and a dispatcher that keeps a journal with one that does not. Elements come from worker
processes on this machine, in the order in which they arrive. The ways take turns, and the best time of each counts.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

import penstock as ps
from benchmarks.timing import Figure, best_in_turn

WORKERS, ROUNDS = 2, 9
BATCHES = 3000
BATCH, IMAGE = 85, (64, 64, 3)  # 1.04 MB
ELEMENTS = 500_000


def measure() -> list[Figure]:
    """The figures of this file."""
    with ExitStack() as stack:
        forgetful = stack.enter_context(service())
        keeping = stack.enter_context(service("--work-dir", stack.enter_context(tempfile.TemporaryDirectory())))
        return [
            *figures("batches of 1 MB", images(), forgetful, keeping, 1.2),
            *figures("small elements", ps.Dataset.range(ELEMENTS), forgetful, keeping, 1.2),
        ]


def figures(what: str, dataset: ps.Dataset, forgetful: str, keeping: str, goal: float) -> list[Figure]:
    """The time of a shared job over that of reading alone, and with a journal over that without."""
    alone = dataset.apply(ps.service.distribute("distributed_epoch", forgetful, ordered=False))
    shared = dataset.apply(ps.service.distribute("distributed_epoch", forgetful, job_name=what))
    kept = dataset.apply(ps.service.distribute("distributed_epoch", keeping, job_name=what))
    times = best_in_turn([lambda: exhaust(alone), lambda: exhaust(shared), lambda: exhaust(kept)], ROUNDS)
    return [
        Figure(f"{what}: a shared job with a journal / read alone", times[2] / times[0], goal, False),
        Figure(f"{what}: a shared job with a journal / without one", times[2] / times[1], goal, False),
    ]


def images() -> ps.Dataset:
    """Batches of 1 MB, gathered from a pool in an order that cannot be had by views."""
    pool = np.random.default_rng(0).integers(0, 256, (256, *IMAGE), np.uint8)
    return ps.Dataset.from_tensor_slices(pool).repeat().shuffle(256, seed=1).take(BATCH * BATCHES).batch(BATCH)


def exhaust(dataset: ps.Dataset) -> float:
    """Seconds of an epoch."""
    start = time.perf_counter()
    for _ in dataset:
        pass
    return time.perf_counter() - start


@contextmanager
def service(*arguments: str) -> Iterator[str]:
    """A dispatcher with these arguments and its workers, each a process; gives its address."""
    with ExitStack() as stack:
        address = stack.enter_context(process("dispatcher", "--port", "0", *arguments))
        for _ in range(WORKERS):
            stack.enter_context(process("worker", "--dispatcher", address, "--quiet"))
        yield address


@contextmanager
def process(*arguments: str) -> Iterator[str]:
    """A command of penstock's; gives the address that it greets with."""
    command = [sys.executable, "-m", "penstock", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        try:
            assert started.stdout is not None
            yield started.stdout.readline().split("://")[1].split(",")[0].strip()
        finally:
            started.kill()
