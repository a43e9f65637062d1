"""Cost of always-on statistics: that of a block, and speed with them over speed without, by processor time in turn.

A block costs an operator a microsecond or two, of which two readings of the clock are 0.1 µs and calls of Python the
rest, and the request for it as much. So the mark of 1 % is reached where a block takes a millisecond; where a block of
a hundred batches is a view of memory, and takes 0.1 ms, Python cannot reach it.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np

import penstock as ps
from benchmarks.rows import exhaust
from benchmarks.timing import Figure, processor_ratio
from penstock.statistics.collected import Statistics
from penstock.statistics.schema import Operator

_CALLS = 2000


def measure() -> list[Figure]:
    """The figures of this file."""
    rows, without = np.zeros((200_000, 64), np.uint8), ps.Options(statistics=False)
    copied = ps.Dataset.from_tensor_slices(rows).shuffle(seed=1).batch(256)
    cases = {
        "range.batch(256)": (ps.Dataset.range(4_000_000).batch(256), 0.96),
        "64-byte rows, shuffle, batch(256)": (copied, 0.96),
        "range.map(lambda).batch(256)": (ps.Dataset.range(100_000).map(lambda number: number + 1).batch(256), 0.99),
        "range, one by one": (ps.Dataset.range(200_000), 0.99),
        "range.batch(256).prefetch(AUTOTUNE)": (ps.Dataset.range(4_000_000).batch(256).prefetch(ps.AUTOTUNE), 0.96),
    }
    return [
        *_of_a_block(),
        *(
            processor_ratio(
                f"{name}: with statistics / without",
                partial(exhaust, dataset),
                partial(exhaust, dataset.with_options(without)),
                goal,
                rounds=41,
            )
            for name, (dataset, goal) in cases.items()
        ),
    ]


def _of_a_block() -> list[Figure]:
    """The least time that a block, and a request, costs more than nothing."""
    statistics = Statistics()
    meter = statistics.meter(("operator",), lambda: Operator("operator", "operator", ""))

    def request() -> None:
        statistics.ask()
        statistics.get(1)

    nothing = _least(lambda: _made(1, 2))
    block = _least(lambda: meter.measured(_made, 1, 2)) - nothing
    return [
        Figure("statistics of an operator's block", block, 1.5, at_least=False, unit="µs"),
        Figure("statistics of a request", _least(request) - nothing, 2.0, at_least=False, unit="µs"),
    ]


def _made(first: int, second: int) -> int:
    return first


def _least(work: Callable[[], object]) -> float:
    """Return the least microseconds of a call, of many rounds of many."""
    found = []
    for _ in range(100):
        begun = time.thread_time()
        for _ in range(_CALLS):
            work()
        found.append((time.thread_time() - begun) / _CALLS * 1e6)
    return min(found)


if __name__ == "__main__":
    for figure in measure():
        print(figure)
