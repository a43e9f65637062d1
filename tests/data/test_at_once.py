"""Functions that `map` calls once for a block: as many rows come back, and what they draw is the rows' own."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import check_conformance


class AtOnce:
    """A function of rows, and another of blocks, which need not agree."""

    def __init__(self, row: Any, block: Any) -> None:
        self.row, self.block = row, block

    def __call__(self, *arguments: Any) -> Any:
        return self.row(*arguments)

    def _map_block(self, *columns: Any) -> Any:
        return self.block(*columns)


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (lambda column: np.zeros(len(column) + 1), "returned 2 rows"),
        (lambda column: column[:0], "returned 0 rows"),
        (lambda column: (column, np.zeros(3)), "returned 3 rows"),
        (lambda column: np.float32(1), "returned a float32 without rows"),
        (lambda column: column.tolist(), "returned a list without rows"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_as_many_rows_come_back_as_were_given(block: Any, found: str, stream: bool) -> None:
    dataset = ps.Dataset.range(5)
    if stream:
        dataset = dataset.filter(lambda x: True)
    with pytest.raises(ps.ElementError, match=rf"AtOnce._map_block got 1 rows and {found}") as caught:
        next(iter(dataset.map(AtOnce(lambda x: x, block))))
    assert any("test_at_once.py" in note for note in caught.value.__notes__)


def test_tuples_and_dictionaries_come_as_columns_and_may_be_returned() -> None:
    calls = []

    def split(a: Any, b: Any) -> Any:
        calls.append(len(a))
        return {"sum": a + b, "first": a}

    dataset = ps.Dataset.from_tensor_slices((np.arange(50), np.arange(50))).map(AtOnce(split, split))
    assert [int(element["sum"]) for element in dataset] == list(range(0, 100, 2))
    assert len(calls) < 50
    twice = ps.Dataset.from_tensor_slices({"a": np.arange(5)}).map(AtOnce(None, lambda columns: columns["a"] * 2))
    assert [int(x) for x in twice] == [0, 2, 4, 6, 8]


class Draw:
    """A number by the generator of the row."""

    draws = True

    def __call__(self, x: Any, generator: np.random.Generator) -> Any:
        return np.float32(generator.random()) + x

    def _map_block(self, column: Any, generators: Iterator[np.random.Generator]) -> Any:
        numbers = [generator.random() for generator in generators]
        return np.array(numbers, np.float32) + column


def test_a_function_that_draws_gets_the_generators_of_its_rows() -> None:
    at_once = ps.Dataset.range(50).map(Draw(), seed=4)
    row_by_row = ps.Dataset.range(50).map(lambda x, generator: Draw()(x, generator), seed=4)
    assert list(at_once) == list(row_by_row)
    assert list(at_once.shuffle(50, seed=1)) == list(row_by_row.shuffle(50, seed=1))
    check_conformance(lambda: ps.Dataset.range(7).map(Draw(), seed=4))


def test_a_function_that_draws_needs_a_seed() -> None:
    with pytest.raises(ps.InvalidArgumentError, match=r"got Draw, which draws random numbers: give map\(..., seed="):
        ps.Dataset.range(5).map(Draw())
