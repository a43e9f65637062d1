"""Cost for each row of operators that take rows from several places, against tf.data in turn, by processor time.

The datasets and functions do next to nothing, so these figures are the operators' own. Batches of 256 are read on both
sides.
"""

import os
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

import penstock as ps
from benchmarks.rows import exhaust
from benchmarks.timing import Figure, processor_seconds

ROWS = 102_400
CHAIN = 10_000
BATCH = 256
ROUNDS = 5

Epoch = Callable[[str], float]


def measure() -> list[Figure]:
    """The figures of this file."""
    with tensorflow() as theirs:
        return [*interleaved(theirs), *grouped(theirs), *chained()]


def interleaved(theirs: Epoch | None) -> Iterator[Figure]:
    """A row of each of 4, 64 and 256 datasets in turn: what cannot fail, and what may."""
    for member in ("range", "map", "filter"):
        for cycle in (4, 64, 256):
            dataset = ps.Dataset.range(cycle).interleave(_member(member, ROWS // cycle), cycle, 1).batch(BATCH)
            question = f"interleave of {cycle} datasets by {member}, a row in turn"
            yield from _compared(question, dataset, theirs, f"interleave {member} {cycle} {ROWS}", goal=10)


def grouped(theirs: Epoch | None) -> Iterator[Figure]:
    """Windows of rows of equal keys."""
    for keys, size in ((10, 32), (100, 8)):
        windows = ps.Dataset.range(ROWS).group_by_window(
            lambda x, keys=keys: x % keys,  # type: ignore[misc]  # a default binds it
            lambda _, window, size=size: window.batch(size),  # type: ignore[misc]
            window_size=size,
        )
        question = f"group_by_window of {keys} keys, {size} rows in each"
        case = f"group {keys} {size} {ROWS}"
        yield from _compared(question, windows.unbatch().batch(BATCH), theirs, case, goal=40)


def chained() -> Iterator[Figure]:
    """Time in which 10,000 operators are built, and read."""
    members = [ps.Dataset.range(number, number + 1).filter(lambda x: x >= 0) for number in range(CHAIN)]
    chains: dict[str, Callable[[ps.Dataset, int], ps.Dataset]] = {
        "concatenate": lambda dataset, number: dataset.concatenate(members[number]),
        "take over a stream": lambda dataset, number: dataset.take(number),
    }
    for name, step in chains.items():

        def build(step: Callable[[ps.Dataset, int], ps.Dataset] = step) -> ps.Dataset:
            return reduce(step, range(1, CHAIN), members[0])

        dataset = build()
        for word, work in (("built", build), ("read", lambda dataset=dataset: exhaust(dataset))):
            times = sorted(processor_seconds(work) for _ in range(3))
            yield Figure(f"{CHAIN:,} {name}, {word}", times[1], 5, False, "s", (times[0], times[-1]))


def _member(kind: str, rows: int) -> Callable[[int], ps.Dataset]:
    numbers = ps.Dataset.range(rows)
    made = {
        "range": numbers,
        "map": numbers.map(lambda x: x + 1),
        "filter": numbers.filter(lambda x: x >= 0),
    }[kind]
    return lambda _: made


def _compared(question: str, dataset: ps.Dataset, theirs: Epoch | None, case: str, goal: float) -> Iterator[Figure]:
    """Microseconds a row, and tf.data's time over ours, the two in turn."""
    exhaust(dataset)
    times, ratios = [], []
    for _ in range(ROUNDS):
        times.append(processor_seconds(lambda: exhaust(dataset)))
        if theirs is not None:
            ratios.append(theirs(case) / times[-1])
    rows = sorted(seconds / ROWS * 1e6 for seconds in times)
    yield Figure(question, statistics.median(rows), goal, False, "µs a row", (rows[0], rows[-1]))
    if ratios:
        yield Figure(f"{question} / tf.data", statistics.median(ratios), 2, spread=(min(ratios), max(ratios)))


@contextmanager
def tensorflow() -> Iterator[Epoch | None]:
    """Measure the seconds of an epoch in TensorFlow; None where no Python was named that has it."""
    python = os.environ.get("PENSTOCK_BENCH_TENSORFLOW")
    if not python:
        yield None
        return
    program = Path(__file__).with_name("operators_in_tensorflow.py")
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        [python, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as child:

        def epoch(case: str) -> float:
            assert child.stdin is not None
            assert child.stdout is not None
            print(case, file=child.stdin, flush=True)
            return float(child.stdout.readline())

        yield epoch
        assert child.stdin is not None
        child.stdin.close()


if __name__ == "__main__":
    for figure in measure():
        print(figure)
