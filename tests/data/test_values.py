"""Values of Python, NumPy and libraries built on it, through datasets: as they were, or an error at their row."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import penstock as ps

Ways = dict[str, Callable[[list[Any]], ps.Dataset]]
WAYS: Ways = {
    "from_list": ps.Dataset.from_list,
    "from_generator": lambda rows: ps.Dataset.from_generator(lambda: iter(rows)),
    "from_source": ps.Dataset.from_source,
    "map": lambda rows: ps.Dataset.range(len(rows)).map(lambda n: rows[n]),
    "parallel map": lambda rows: ps.Dataset.range(len(rows)).map(lambda n: rows[n], num_parallel_calls=2),
}
in_every_way = pytest.mark.parametrize("made", WAYS.values(), ids=WAYS)


@dataclasses.dataclass
class Doubling:
    x: float

    def __post_init__(self) -> None:
        self.x = self.x * 2


@dataclasses.dataclass(frozen=True, slots=True)
class Squared:
    x: int
    squared: int = dataclasses.field(init=False)
    offset: dataclasses.InitVar[int]

    def __post_init__(self, offset: int) -> None:
        object.__setattr__(self, "squared", self.x**2 + offset)


class Point(NamedTuple):
    x: int
    y: int


class Diagonal(Point):
    def __new__(cls, x: int) -> "Diagonal":
        return super().__new__(cls, x, x)


@in_every_way
def test_what_the_constructor_of_a_class_did_to_an_element_is_done_once(
    made: Callable[[list[Any]], ps.Dataset],
) -> None:
    def same(element: Any) -> Any:
        return element

    doubled = made([Doubling(1.0), Doubling(2.0)]).map(same)
    assert [element.x for element in doubled] == [2, 4]
    assert [batch.x.tolist() for batch in doubled.ragged_batch(2)] == [[2, 4]]
    squared = made([Squared(3, 1), Squared(4, 1)])
    assert [(type(element), element.x, element.squared) for element in squared] == [(Squared, 3, 10), (Squared, 4, 17)]
    assert [batch.squared.tolist() for batch in squared.batch(2)] == [[10, 17]]
    diagonals = made([Diagonal(1), Diagonal(2)])
    assert list(diagonals) == [(1, 1), (2, 2)]
    assert {type(element) for element in diagonals} == {Diagonal}
