"""How many large rows a pipeline has in memory at a time: as many as its operators are told to hold, and a few more.

docs/design/data-memory.md says how many these are.
"""

import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.data.block import Block
from penstock.data.functions.in_threads import Calls
from penstock.data.node import Run
from penstock.data.streams.by_index import IndexStream
from penstock.data.streams.index_reading import Making, Pending
from penstock.runtime.callers import Bell, Callers, Work
from penstock.runtime.pacing import Demand
from penstock.runtime.threads import Threads
from penstock.structure import LEAF

ROW = 1 << 20
ROWS = 32
CALLS = 4
LARGE_ROW = 1 << 23
OVERTAKING = (1 << 26) // LARGE_ROW
"""So many rows may wait behind a call that takes longer: 64 MB."""


def rows(count: int = ROWS) -> ps.Dataset:
    def generate() -> Iterator[Any]:
        for number in range(count):
            yield np.full(ROW, number, np.uint8)

    return ps.Dataset.from_generator(generate, output_signature=ps.TensorSpec((ROW,), np.uint8))


def indexed(count: int = ROWS) -> ps.Dataset:
    return ps.Dataset.range(count).map(lambda number: np.full(ROW, number, np.uint8))


def first(row: Any) -> int:
    return int(np.ravel(row)[0])


# What is held, and the row that the loop holds, one that is made, and one that is copied.
HELD: dict[str, tuple[Callable[[], Any], int]] = {
    "a generator": (rows, 0),
    "map": (lambda: rows().map(lambda row: row ^ 1), 1),
    "filter": (lambda: rows().filter(lambda row: first(row) % 5 == 0), 1),
    "scan": (lambda: rows().scan(0, lambda state, row: (state, row)), 1),
    "skip": (lambda: rows().skip(ROWS - 4), 0),
    "shard": (lambda: rows().shard(16, 3), 1),
    "repeat": (lambda: rows(8).repeat(4), 2),
    "concatenate": (lambda: rows(16).concatenate(rows(16)), 2),
    "zip": (lambda: ps.Dataset.zip(rows(), rows()), 2 + 1),
    "prefetch(8)": (lambda: rows().prefetch(8), 8),
    "prefetch(AUTOTUNE)": (lambda: rows().prefetch(ps.AUTOTUNE), 2),
    "batch(8)": (lambda: rows().batch(8), 2 * 8),
    "batch(8) over an index": (lambda: indexed().batch(8), 2 * 8),
    "shuffle and batch(8) over an index": (lambda: indexed().shuffle(seed=1).batch(8), 2 * 8),
    "padded_batch(8)": (lambda: rows().padded_batch(8), 2 * 8),
    "batch(8).unbatch()": (lambda: rows().batch(8).unbatch(), 2 * 8),
    "batch(8).rebatch(12)": (lambda: rows().batch(8).rebatch(12), 2 * 12 + 2 * 8),
    "batch(8).prefetch(1)": (lambda: rows().batch(8).prefetch(1), 3 * 8),
    "shuffle(32)": (lambda: rows().shuffle(20, seed=1), 26),
    "windows of 8": (lambda: rows().window(8).flat_map(lambda window: window.batch(8)), 2 * 8),
    "group_by_window": (
        lambda: rows().group_by_window(lambda row: first(row) % 3, lambda _, group: group.batch(4), window_size=4),
        3 * 4 + 2 * 4,
    ),
    "flat_map": (lambda: ps.Dataset.range(10).flat_map(lambda _: rows(3)), 1),
    "interleave": (lambda: ps.Dataset.range(10).interleave(lambda _: rows(3), cycle_length=4), 4),
    "interleave, block_length 4": (
        lambda: ps.Dataset.range(4).interleave(lambda _: indexed(8), cycle_length=4, block_length=4),
        2 * 4,
    ),
    "interleave in 4 threads": (
        lambda: ps.Dataset.range(10).interleave(lambda _: rows(3), cycle_length=4, num_parallel_calls=4),
        4 * 4,
    ),
    "sample_from_datasets": (lambda: ps.Dataset.sample_from_datasets([rows(16), rows(16)], seed=1), 2),
    "cache": (lambda: rows().cache().repeat(2), ROWS + 4),
    "distribute_dataset": (lambda: ps.HostStrategy(2).distribute_dataset(rows().batch(8)), 4 * 8),
}


@pytest.mark.parametrize(("dataset", "held"), HELD.values(), ids=HELD)
def test_large_rows_are_held_as_far_as_operators_say(dataset: Callable[[], Any], held: int) -> None:
    iterable = dataset()
    tracemalloc.start()
    try:
        for _ in iterable:
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (held + 3.5) * ROW


class Called:
    """Makes large rows, and says how many were begun that nobody has taken."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._begun = self._ended = 0

    def __call__(self, row: Any) -> Any:
        with self._changed:
            self._begun += 1
        made = np.zeros(LARGE_ROW, np.uint8)
        with self._changed:
            self._ended += 1
            self._changed.notify_all()
        return made

    def ahead(self, taken: int) -> int:
        """Waits until no call runs."""
        with self._changed:
            self._changed.wait_for(lambda: self._begun == self._ended)
            return self._begun - taken


SOURCES: dict[str, Callable[[], ps.Dataset]] = {
    "index": lambda: ps.Dataset.range(ROWS),
    "generator": lambda: ps.Dataset.from_generator(lambda: iter(range(ROWS))),
    "batches": lambda: ps.Dataset.range(2 * ROWS).batch(2),
}
BATCH = 4


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("batch", [1, BATCH])
def test_a_parallel_map_makes_no_more_large_rows_than_may_wait(source: Callable[[], ps.Dataset], batch: int) -> None:
    called = Called()
    mapped = source().map(called, num_parallel_calls=CALLS)
    # Those that run, as many that wait for a thread, and as many that wait to be taken; each up to a whole batch.
    most = 3 * CALLS + 2 * (batch - 1) + OVERTAKING
    for number, _ in enumerate(mapped.batch(batch) if batch > 1 else mapped, 1):
        assert called.ahead(number * batch) <= most


def test_maps_above_each_other_make_no_more_large_rows_than_may_wait() -> None:
    lower, upper = Called(), Called()
    mapped = ps.Dataset.range(ROWS).map(lower, num_parallel_calls=CALLS).map(upper, num_parallel_calls=CALLS)
    for number, _ in enumerate(mapped, 1):
        assert upper.ahead(number) <= 3 * CALLS + OVERTAKING
        assert lower.ahead(number) <= 5 * CALLS + OVERTAKING


def test_the_first_large_result_makes_tasks_small_at_once() -> None:
    dataset = ps.Dataset.range(8).map(lambda number: (np.zeros(2 * ROW, np.uint8), number))
    node: Any = dataset.node
    threads, tasks = Threads(), []
    run = Run(node, 0, threads)
    callers = Callers(threads, run.bell, 1)
    rows = Block((np.arange(8),), LEAF, 8)
    results = node.results(run, 0, rows, range(8))

    def noted(start: int, stop: int) -> Any:
        tasks.append(stop - start)
        return results(start, stop)

    try:
        calls = Calls(run, node, callers, noted, range(8), None, None, lambda error, position: None)
        while not calls.done:
            rung = run.bell.rung
            if not calls.done:
                run.bell.wait(rung)
    finally:
        threads.stop()
    assert tasks == [1] * 8
    assert calls.nbytes == 8 * (2 * ROW + 8)


class ByHand(Callers):
    """Callers whose calls are made when the test says so."""

    def __init__(self, bell: Bell) -> None:
        super().__init__(Threads(), bell, CALLS)
        self.begun = 0
        self._added: deque[Work] = deque()

    @property
    def want_more(self) -> bool:
        return len(self._added) < 2 * CALLS

    def add(self, work: Work) -> None:
        self.begun += 1
        self._added.append(work)

    def finish(self) -> None:
        while self._added:
            self._added.popleft().call(0, 1)


class Call(Pending):
    """One row, made by hand."""

    tasks = rows = 1
    nbytes = 8

    def __init__(self, callers: Callers) -> None:
        super().__init__(callers)
        callers.add(Work(self._call, 1))

    def _call(self, start: int, stop: int) -> None:
        self.done = True

    def outcome(self) -> None:
        return None


def test_a_slow_consumer_leaves_no_more_results_than_calls() -> None:
    bell = Bell()
    callers = ByHand(bell)

    def make(positions: Any) -> Making:
        yield Call(callers)
        return Block((np.asarray(positions),), LEAF, len(positions)), None

    stream = IndexStream(make, 1000, bell, Demand())
    stream.run_ahead()
    for taken in range(1, 100):
        callers.finish()
        assert stream.pull(1, 1) is not None
        assert callers.begun - taken <= 3 * CALLS


@pytest.mark.parametrize("order", [lambda d: d.shuffle(seed=1), lambda d: d.select([5, 0, 7])])
def test_shuffled_rows_of_a_strided_array_were_read_by_a_copy_of_all(order):
    strided = np.zeros((10_000, 2, 256), np.float32)[:, 0]
    batches = order(ps.Dataset.from_tensor_slices(strided)).batch(3)
    next(iter(batches))
    tracemalloc.start()
    next(iter(batches))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < strided.nbytes / 4
