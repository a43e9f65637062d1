"""A shuffle over a stream holds one buffer of rows, whatever these are."""

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps


@pytest.mark.slow
def test_one_buffer_of_large_rows_is_in_memory() -> None:
    rows, buffer, nbytes = 1200, 512, 20_000

    def images() -> Iterator[Any]:
        for number in range(rows):
            yield np.full(nbytes, number % 251, np.uint8)

    dataset = ps.Dataset.from_generator(images).shuffle(buffer, seed=1)
    next(iter(dataset))
    tracemalloc.start()
    try:
        seen = [int(row[0]) for row in dataset]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sorted(seen) == sorted(number % 251 for number in range(rows))
    assert peak < 1.3 * buffer * nbytes


KINDS: dict[str, Callable[[int], Any]] = {
    "rows of unequal length": lambda i: np.arange(i % 3),
    "rows that become unequal": lambda i: np.arange(3 if i < 20 else i % 3),
    "strings": lambda i: "x" * i,
    "fixed-width strings": lambda i: np.str_("x" * (i + 1)),
    "tuples": lambda i: (i, np.full(2, i), f"{i}"),
}


@pytest.mark.parametrize("row", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("buffer", [1, 7, 40, 100])
def test_rows_of_every_kind_come_in_the_order_of_their_numbers(row: Callable[[int], Any], buffer: int) -> None:
    count = 41
    order = [int(i) for i in ps.Dataset.range(count).filter(lambda _: True).shuffle(buffer, seed=3)]
    shuffled = list(ps.Dataset.from_generator(lambda: map(row, range(count))).shuffle(buffer, seed=3))
    assert sorted(order) == list(range(count))
    assert [repr(element) for element in shuffled] == [
        repr(element) for element in (list(ps.Dataset.from_generator(lambda: map(row, range(count))))[i] for i in order)
    ]


@pytest.mark.slow
def test_finite_data_is_shuffled_whole_above_an_endless_source() -> None:
    stream = ps.Dataset.range(10).filter(lambda x: True)
    for dataset, times in (
        (ps.Dataset.counter().map(lambda x: x).take_while(lambda x: x < 10), 1),
        (ps.Dataset.zip(stream, ps.Dataset.counter().shuffle(5)).map(lambda one, _: one), 1),
        (ps.Dataset.sample_from_datasets([stream, stream], seed=3), 2),
    ):
        for size in (10**9, ps.UNKNOWN_CARDINALITY):
            assert sorted(int(x) for x in dataset.shuffle(size, seed=1)) == sorted(times * list(range(10)))
