"""Time that a map's parallel calls wait for each other, with any operators above and below it.

The function only sleeps, so other work on the machine hardly moves these figures. The ideal is what its calls take when
as many of them as were asked for always run.
"""

import time
from collections.abc import Callable, Iterable
from heapq import heapreplace
from itertools import islice

import numpy as np

import penstock as ps
from benchmarks.timing import Figure, seconds

ROWS = 120
CALLS = 8
SECONDS = 0.02
TAIL = 10
"""One call in so many takes so many times as long, where the tail is heavy."""


def measure() -> list[Figure]:
    """The figures of this file."""
    return [*above(), *below(), *heavy_tails(), *first_elements(), *distributed(), *in_data_workers()]


def slow(x: np.int64) -> np.ndarray:
    """A call of equal length for every element; two numbers, so that what is above it may take them apart."""
    time.sleep(SECONDS)
    return np.full(2, x)


def now_and_then(x: np.int64) -> np.ndarray:
    """Variant of `slow`: one call in ten takes ten times as long."""
    number = int(np.min(x)) // (4 if np.ndim(x) else 1)
    time.sleep(SECONDS * (TAIL if number % TAIL == 3 else 1))
    return np.full(2, np.min(x))


def _length(row: np.ndarray) -> int:
    return 1 + int(row[0]) % 30


def _key(row: np.ndarray) -> int:
    return int(row[0]) % 3


ABOVE: dict[str, Callable[[ps.Dataset], Iterable[object]]] = {
    "nothing": lambda d: d,
    "prefetch(2)": lambda d: d.prefetch(2),
    "prefetch(AUTOTUNE)": lambda d: d.prefetch(ps.AUTOTUNE),
    "flat_map": lambda d: d.flat_map(ps.Dataset.from_tensor_slices),
    "unbatch": lambda d: d.unbatch(),
    "group_by_window": lambda d: d.group_by_window(_key, lambda key, rows: rows.batch(4), window_size=4),
    "bucket_by_sequence_length": lambda d: d.bucket_by_sequence_length(_length, [10, 20], [4, 4, 4]),
    "a streaming shuffle(16)": lambda d: d.scan(0, lambda s, x: (s, x)).shuffle(16, seed=1),
    "batch(4)": lambda d: d.batch(4),
    "batch(4).prefetch(2)": lambda d: d.batch(4).prefetch(2),
    "interleave": lambda d: d.interleave(ps.Dataset.from_tensor_slices, cycle_length=4),
    "rebatch under distribute": lambda d: ps.HostStrategy(2).distribute_dataset(d.batch(4).rebatch(8)),
}


def _over(kind: str, rows: int = ROWS) -> ps.Dataset:
    if kind == "from_generator":
        return ps.Dataset.from_generator(lambda: iter(range(rows)), output_signature=ps.TensorSpec((), np.int64))
    return ps.Dataset.range(4 * rows).batch(4) if kind == "batch(4)" else ps.Dataset.range(rows)


def _figure(question: str, items: Iterable[object], ideal: float) -> Figure:
    ratios = sorted(seconds(lambda: [None for _ in items]) / ideal for _ in range(3))
    return Figure(f"{CALLS} calls of 20 ms, {question} / ideal", ratios[1], 1.5, at_least=False)


def above() -> list[Figure]:
    """One operator above a map over what is read by index, and over a generator."""
    ideal = ROWS * SECONDS / CALLS
    figures = [
        _figure(f"{name} above, over {kind}", build(_over(kind).map(slow, num_parallel_calls=CALLS)), ideal)
        for kind in ("range", "from_generator")
        for name, build in ABOVE.items()
    ]
    for kind in ("range", "from_generator"):
        epochs = _over(kind, 6).map(slow, num_parallel_calls=CALLS).batch(4).repeat(ROWS // 6)
        figures.append(_figure(f"repeat of epochs of 6 above, over {kind}", epochs, ideal))
    return figures


def below() -> list[Figure]:
    """The most common pipeline of all."""
    mapped = _over("batch(4)").map(slow_batch, num_parallel_calls=CALLS).prefetch(2)
    return [_figure("batch(4) below and prefetch(2) above", mapped, ROWS * SECONDS / CALLS)]


def slow_batch(x: np.ndarray) -> np.ndarray:
    """Variant of `slow` for a batch."""
    time.sleep(SECONDS)
    return x


def _taking_turns(calls: list[float]) -> float:
    """Time that calls of these seconds take if each begins, in order, when one of eight threads is free."""
    free = [0.0] * CALLS
    for call in calls:
        heapreplace(free, free[0] + call)
    return max(free)


def heavy_tails() -> list[Figure]:
    """One call in ten takes ten times as long."""
    ideal = _taking_turns([SECONDS * (TAIL if number % TAIL == 3 else 1) for number in range(ROWS)])
    return [
        _figure(
            f"1 of 10 ten times as long, {name} above, over {kind}",
            ABOVE[name](_over(kind).map(now_and_then, num_parallel_calls=CALLS)),
            ideal,
        )
        for kind in ("range", "from_generator", "batch(4)")
        for name in ("nothing", "prefetch(2)", "batch(4)")
        if kind != "batch(4)" or name != "batch(4)"
    ]


def distributed() -> list[Figure]:
    """Steps for two replicas, over the borders of epochs too."""
    ideal, strategy = ROWS * SECONDS / CALLS, ps.HostStrategy(2)
    figures = []
    for kind in ("range", "from_generator"):
        mapped = _over(kind, 12).map(slow, num_parallel_calls=CALLS).batch(4).repeat(ROWS // 12)
        question = f"distribute_dataset over epochs of 12, over {kind}"
        figures.append(_figure(question, strategy.distribute_dataset(mapped), ideal))
    return figures


def in_data_workers() -> list[Figure]:
    """One worker process, by pass of each kind. Opening the pass is in the time."""
    ideal = ROWS * SECONDS / CALLS
    passes = {
        "rows": ps.Dataset.range(ROWS).map(slow, num_parallel_calls=CALLS),
        "groups": ps.Dataset.range(2 * ROWS).filter(is_even).map(slow, num_parallel_calls=CALLS),
        "a sequence": _over("from_generator").map(slow, num_parallel_calls=CALLS),
    }
    with ps.service.local(num_workers=1) as service:
        return [
            _figure(
                f"in a data worker, {kind}",
                mapped.apply(ps.service.distribute("distributed_epoch", service.target)),
                ideal,
            )
            for kind, mapped in passes.items()
        ]


def is_even(x: np.int64) -> bool:
    """Every second number."""
    return bool(x % 2 == 0)


def first_elements() -> list[Figure]:
    """Time of the first element."""
    figures = []
    for kind in ("range", "from_generator", "batch(4)"):
        for name in ("nothing", "prefetch(2)", "batch(4)"):
            mapped = ABOVE[name](_over(kind).map(slow_batch, num_parallel_calls=CALLS))
            took = sorted(seconds(lambda items=mapped: list(islice(items, 1))) for _ in range(3))[1]
            question = f"the first element, {name} above, over {kind} / one call"
            figures.append(Figure(question, took / SECONDS, 1.5, at_least=False))
    return figures
