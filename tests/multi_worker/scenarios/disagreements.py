"""Workers that cannot go on together. Their strategy is of no use afterwards, so each case makes one of its own.

The first case shows that this is possible; after the last one worker 1 ends.
"""

import asyncio
import os
import shutil
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from scenarios.steps import said, steps_of

import penstock as ps

NEEDS_STRATEGY = False

rows = ps.Dataset.range


def _with_a_strategy(case: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(case)
    def run(_: None) -> Any:
        strategy = ps.MultiWorkerMirroredStrategy(failure_timeout_seconds=5)
        seen = case(strategy)
        return {"worker": strategy._workers.index, **seen}

    return run


def _trained(strategy: Any, dataset: ps.Dataset) -> Any:
    """A loop with a collective in every step; how many steps were done, and what ended it.

    What is read far ahead fails long before its step.
    """
    done = 0
    try:
        for step in strategy.distribute_dataset(dataset, ps.InputOptions(per_replica_buffer_size=8)):
            int(strategy.reduce("SUM", strategy.run(lambda batch: batch.sum(), args=(step,))))
            done += 1
    except (ps.WorkerError, ValueError, asyncio.CancelledError) as error:
        return {"done": done, "error": said(error)}
    return {"done": done, "error": None}


@_with_a_strategy
def two_strategies(strategy: Any) -> Any:
    second = ps.MultiWorkerMirroredStrategy()
    dataset = rows(6).filter(lambda row: row != 4).batch(4)
    seen = [steps_of(one, dataset) for one in (strategy, second, strategy)]
    second.close()
    return {"seen": [*seen, steps_of(strategy, dataset)], "strategy": repr(strategy)}


@_with_a_strategy
def broken_row(strategy: Any) -> Any:
    def picky(row: Any) -> Any:
        if row == 27:
            raise ValueError("27 is no good")
        return row

    return _trained(strategy, rows(400).map(picky).batch(4))


@_with_a_strategy
def broken_row_of_unknown_length(strategy: Any) -> Any:
    """Every worker reads all rows, but only worker 1 cannot take one of them."""

    def picky(row: Any) -> Any:
        if row == 27 and strategy._workers.index == 1:
            raise ValueError("27 is no good")
        return row

    return _trained(strategy, rows(400).map(picky).filter(lambda row: True).batch(4))


@_with_a_strategy
def row_that_fits_no_device(strategy: Any) -> Any:
    """Row 27 is too large for 32 bits, in which JAX keeps it; worker 1 goes on for a while after its error."""
    seen = _trained(strategy, rows(400).map(lambda row: np.where(row == 27, 1 << 40, row)).batch(4))
    return seen | {"after": steps_of(ps.HostStrategy(), rows(8).batch(4))}


@_with_a_strategy
def cancelled_row(strategy: Any) -> Any:
    """Worker 1's function raises what is no `Exception`, as cancelled tasks and panics in Rust are."""

    def picky(row: Any) -> Any:
        if row == 27 and strategy._workers.index == 1:
            raise asyncio.CancelledError("27 was cancelled")
        return row

    return _trained(strategy, rows(400).map(picky).batch(4))


@_with_a_strategy
def different_datasets(strategy: Any) -> Any:
    try:
        strategy.distribute_dataset(rows(12).batch(4 + 2 * strategy._workers.index))
    except ps.WorkerError as error:
        return {"error": said(error)}
    return {"error": None}


@_with_a_strategy
def own_rows(strategy: Any) -> Any:
    """Each worker takes every second row, or file, itself."""
    rank = strategy._workers.index
    names = ["0-5.txt", "6-11.txt", "long.txt", "short.txt"]
    copies = f"copies-{rank}"
    os.makedirs(copies, exist_ok=True)
    for name in names[rank::2]:
        shutil.copy(name, copies)
    given = {
        "filter": rows(20).filter(lambda row: row % 2 == rank),
        "array": ps.Dataset.from_tensor_slices(np.arange(20)[rank::2]),
        "strings": ps.Dataset.from_list([str(row) for row in range(20)][rank::2]),
        "list": ps.Dataset.from_source(list(range(20))[rank::2]),
        "files": ps.TextLineDataset(names[rank::2]),
        "rows of files": ps.FilesDataset(names[rank::2], "text"),
        "order": ps.FilesDataset(names[:: 1 - 2 * rank], "text"),
        "generator": ps.Dataset.from_generator(lambda: iter(range(rank, 20, 2))),
        "pattern": ps.TextLineDataset(f"{copies}/*.txt"),
    }

    def refusal(dataset: ps.Dataset) -> str:
        return str(_refusal(lambda: strategy.distribute_dataset(dataset.batch(2)))[1])

    return {"told": {name: refusal(one) for name, one in given.items()}}


@_with_a_strategy
def other_settings(strategy: Any) -> Any:
    """Threads, reading ahead and what maps do may differ."""
    other = strategy._workers.index == 1

    def times(row: Any) -> Any:
        return row * (10 if other else 1)

    dataset = rows(1, 9)
    dataset = dataset.map(lambda row: times(row), num_parallel_calls=2).prefetch(3) if other else dataset.map(times)
    return {"seen": steps_of(strategy, dataset.batch(4))}


@_with_a_strategy
def own_datasets(strategy: Any) -> Any:
    mine = rows(12).shard(2, strategy._workers.index).batch(4)
    return {"seen": steps_of(strategy, mine.with_options(ps.Options(auto_shard_policy="OFF")))}


def _refusal(call: Callable[[], Any]) -> Any:
    try:
        call()
    except Exception as error:
        return said(error)
    return None


@_with_a_strategy
def absent(strategy: Any) -> Any:
    """Worker 1 does not distribute a dataset: it waits elsewhere, without a limit of its own."""
    strategy._control.call_seconds = 0.5
    if strategy._workers.index == 1:
        return {"error": _refusal(lambda: strategy._control.gather("elsewhere", 1, int, closed=lambda: False))}
    return {"error": _refusal(lambda: strategy.distribute_dataset(rows(12).batch(4)))}


@_with_a_strategy
def another_call(strategy: Any) -> Any:
    if strategy._workers.index == 1:
        return {"error": _refusal(lambda: strategy.distribute_datasets_from_function(lambda _: rows(12).batch(4)))}
    return {"error": _refusal(lambda: strategy.distribute_dataset(rows(12).batch(4)))}


@_with_a_strategy
def refused_by_one(strategy: Any) -> Any:
    """Worker 1 gives rows that are no batches, then other options; in the end both give the same."""
    own = rows(8) if strategy._workers.index == 1 else rows(8).batch(4)
    options = ps.InputOptions(partial_batch="drop" if strategy._workers.index == 1 else "ragged")
    return {
        "error": _refusal(lambda: strategy.distribute_dataset(own)),
        "options": _refusal(lambda: strategy.distribute_dataset(rows(8).batch(4), options)),
        "seen": steps_of(strategy, rows(8).batch(4)),
    }


@_with_a_strategy
def another_epoch(strategy: Any) -> Any:
    """Worker 1 leaves its loop after a step, and begins again."""
    steps = strategy.distribute_dataset(rows(64).shuffle(seed=1).batch(8))
    with iter(steps) as iterator:
        next(iterator)
        if strategy._workers.index == 0:
            return {"error": _refusal(lambda: [list(iterator), strategy.distribute_dataset(rows(8).batch(4))])}
    return {"error": _refusal(lambda: list(steps))}


@_with_a_strategy
def extra_iter(strategy: Any) -> Any:
    steps = strategy.distribute_dataset(rows(64).shuffle(seed=1).batch(8))
    if strategy._workers.index == 1:
        iter(steps)
    return {"error": _refusal(lambda: list(steps))}


@_with_a_strategy
def row_of_one_host(strategy: Any) -> Any:
    """A row that fails on worker 1 alone, and another one on both."""

    def picky(row: Any) -> Any:
        if row == 2 or (row == 13 and strategy._workers.index == 1):
            raise OSError("this copy is damaged")
        return row

    def pair(row: Any) -> ps.Dataset:
        return ps.Dataset.from_tensor_slices([row, row]).map(picky).ignore_errors(log=False)

    skip = ps.Options(on_error="skip")
    given = {
        "ending": rows(40).map(picky).with_options(skip).batch(4, drop_remainder=True),
        "without end": rows(40).map(picky).ignore_errors(log=False).repeat().batch(4),
        "after the batch": rows(40).batch(1).map(picky).with_options(skip).unbatch().repeat().batch(4),
        "of inner datasets": rows(40).flat_map(pair).repeat().batch(4),
    }
    return {name: _refused_at(strategy, dataset) for name, dataset in given.items()}


def _refused_at(strategy: Any, dataset: ps.Dataset) -> Any:
    """The steps before an error, and that."""
    seen = []
    try:
        with iter(strategy.distribute_dataset(dataset)) as steps:
            seen.extend(strategy.local_results(next(steps)) for _ in range(9))
    except ps.WorkerError as error:
        return seen, str(error)
    return seen, None


@_with_a_strategy
def different_data(strategy: Any) -> Any:
    """The same nodes, but other rows."""
    last = [9 - 4 * strategy._workers.index]  # of what may change, only its kind is compared
    dataset = ps.Dataset.from_generator(lambda: iter(range(*last))).batch(4)
    seen = []
    try:
        seen.extend(strategy.local_results(step) for step in strategy.distribute_dataset(dataset))
    except ps.WorkerError as error:
        return {"seen": seen, "error": said(error)}
    return {"seen": seen, "error": None}


@_with_a_strategy
def left_early(strategy: Any) -> Any:
    """Worker 1 takes one step, and its program ends."""
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
