"""What becomes of a worker when another one fails. Each case is run by itself."""

import os
import signal
import sys
import threading
from typing import Any

import penstock as ps

OPTIONS = {"failure_timeout_seconds": 3}

rows = ps.Dataset.range


def _kill_oneself(number: int) -> None:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)


def killed(strategy: Any) -> Any:
    steps = iter(strategy.distribute_dataset(rows(400).filter(lambda row: row != 3).batch(4)))
    try:
        for number, step in enumerate(steps):
            if strategy._workers.index == 1:
                _kill_oneself(number)
            strategy.reduce("SUM", step, axis=0)
    except ps.WorkerError:
        sys.stderr.write(f"{steps.report()}\n")
        raise


def coordinator_killed(strategy: Any) -> Any:
    for number, step in enumerate(strategy.distribute_dataset(rows(400).batch(4))):
        if strategy._workers.index == 0:
            _kill_oneself(number)
        strategy.reduce("SUM", step, axis=0)


def extra_call(strategy: Any) -> None:
    """Worker 0 looks at a sum alone. Devices paired that with the next step of the other, whose numbers were wrong."""
    for number, step in enumerate(strategy.distribute_dataset(rows(4000).batch(4))):
        total = strategy.run(lambda batch: ps.get_replica_context().all_reduce("SUM", batch.sum()), args=(step,))
        if strategy._workers.index == 0 and number == 3:
            strategy.reduce("SUM", total)


def absent_from_a_step(strategy: Any) -> None:
    """Worker 1 leaves its loop, keeps the iterator, and goes on with something else."""
    iterator = iter(strategy.distribute_dataset(rows(4000).batch(4)))
    for number, step in enumerate(iterator):
        strategy.reduce("SUM", step, axis=0)
        if strategy._workers.index == 1 and number == 3:
            threading.Event().wait()


def out_of_reach(strategy: Any) -> Any:
    if strategy._workers.index == 1:
        raise RuntimeError("a mistake in the program")
    threading.Event().wait()  # as in a collective that nobody joins
