"""Cost of always-on statistics: speed with them over speed without, by processor time and in turn."""

from functools import partial

import numpy as np

import penstock as ps
from benchmarks.rows import exhaust
from benchmarks.timing import Figure, processor_ratio


def measure() -> list[Figure]:
    """The figures of this file."""
    rows, without = np.zeros((200_000, 64), np.uint8), ps.Options(statistics=False)
    cases = {
        "range.batch(256)": ps.Dataset.range(4_000_000).batch(256),
        "64-byte rows, shuffle, batch(256)": ps.Dataset.from_tensor_slices(rows).shuffle(seed=1).batch(256),
        "range.map(lambda).batch(256)": ps.Dataset.range(100_000).map(lambda number: number + 1).batch(256),
        "range, one by one": ps.Dataset.range(200_000),
        "range.batch(256).prefetch(AUTOTUNE)": ps.Dataset.range(4_000_000).batch(256).prefetch(ps.AUTOTUNE),
    }
    return [
        processor_ratio(
            f"{name}: with statistics / without",
            partial(exhaust, dataset),
            partial(exhaust, dataset.with_options(without)),
            0.99,
            rounds=41,
        )
        for name, dataset in cases.items()
    ]


if __name__ == "__main__":
    for figure in measure():
        print(figure)
