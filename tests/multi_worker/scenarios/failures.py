"""What becomes of a worker when another one fails. Each case is run by itself."""

import os
import signal
import threading
from typing import Any

from scenarios.steps import said

import penstock as ps

OPTIONS = {"failure_timeout": 3}

rows = ps.Dataset.range


def _trained(strategy: Any, dataset: ps.Dataset, what_worker_1_does: Any = lambda step: None) -> Any:
    """A loop with a collective in every step; how many steps were done, and what ended it."""
    done = 0
    try:
        for number, step in enumerate(strategy.distribute_dataset(dataset)):
            if strategy._workers.index == 1:
                what_worker_1_does(number)
            int(strategy.reduce("SUM", strategy.run(lambda batch: batch.sum(), args=(step,))))
            done += 1
    except (ps.WorkerError, ValueError) as error:
        return {"done": done, "error": said(error)}
    return {"done": done, "error": None}


def _kill_oneself(number: int) -> None:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)


def killed(strategy: Any) -> Any:
    return _trained(strategy, rows(400).batch(4), _kill_oneself)


def killed_and_nobody_catches_it(strategy: Any) -> Any:
    for number, step in enumerate(strategy.distribute_dataset(rows(400).filter(lambda row: row != 3).batch(4))):
        if strategy._workers.index == 1:
            _kill_oneself(number)
        strategy.reduce("SUM", step, axis=0)


def coordinator_killed(strategy: Any) -> Any:
    for number, step in enumerate(strategy.distribute_dataset(rows(400).batch(4))):
        if strategy._workers.index == 0:
            _kill_oneself(number)
        strategy.reduce("SUM", step, axis=0)


def broken_row(strategy: Any) -> Any:
    def picky(row: Any) -> Any:
        if row == 27:
            raise ValueError("27 is no good")
        return row

    return _trained(strategy, rows(400).map(picky).batch(4))


def broken_row_of_unknown_length(strategy: Any) -> Any:
    """Every worker reads all rows, but only worker 1 cannot take one of them."""

    def picky(row: Any) -> Any:
        if row == 27 and strategy._workers.index == 1:
            raise ValueError("27 is no good")
        return row

    return _trained(strategy, rows(400).map(picky).filter(lambda row: True).batch(4))


def broken_program(strategy: Any) -> Any:
    for number, step in enumerate(strategy.distribute_dataset(rows(400).batch(4))):
        if strategy._workers.index == 1 and number == 3:
            raise RuntimeError("a mistake in the program")
        int(strategy.reduce("SUM", step, axis=0))


def different_datasets(strategy: Any) -> Any:
    try:
        strategy.distribute_dataset(rows(12).batch(4 + 2 * strategy._workers.index))
    except ps.WorkerError as error:
        return said(error)
    return None


def different_data(strategy: Any) -> Any:
    """The same nodes, but other rows."""
    last = 9 - 4 * strategy._workers.index
    dataset = ps.Dataset.from_generator(lambda: iter(range(last))).batch(4)
    seen = []
    try:
        for step in strategy.distribute_dataset(dataset):
            seen.append(strategy.local_results(step))
    except ps.WorkerError as error:
        return {"seen": seen, "error": said(error)}
    return {"seen": seen, "error": None}


def left_early(strategy: Any) -> Any:
    leaves = strategy._workers.index == 1
    options = ps.InputOptions(per_replica_buffer_size=0 if leaves else 2)
    seen = []
    try:
        for step in strategy.distribute_dataset(rows(40).filter(lambda row: row != 3).batch(4), options):
            seen.append(strategy.local_results(step))
            if leaves:
                break
    except ps.WorkerError as error:
        return {"seen": seen, "error": said(error)}
    return {"seen": seen, "error": None}


def out_of_reach(strategy: Any) -> Any:
    if strategy._workers.index == 1:
        raise RuntimeError("a mistake in the program")
    threading.Event().wait()  # as in a collective that nobody joins
