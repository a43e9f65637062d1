"""What functions of single elements may return one after the other, and what becomes of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock as ps
from penstock.structure import flatten


class Pair(NamedTuple):
    """A record of two leaves."""

    image: Any
    label: Any


@dataclass
class Box:
    """A record of two leaves, and one that can be changed."""

    image: Any
    label: Any


KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "tuple": lambda image, label: (image, label),
    "dictionary": lambda image, label: {"label": label, "image": image},
    "named tuple": Pair,
    "dataclass": Box,
    "nested": lambda image, label: ({"image": image, "nothing": None}, Pair(label, ())),
}
VALUES: dict[str, Callable[[int], Any]] = {
    "integers": int,
    "floats": float,
    "truth values": lambda x: x % 3 == 0,
    "numbers of NumPy": np.float64,
    "strings": str,
    "bytes": lambda x: str(x).encode(),
    "arrays": lambda x: np.full(3, x),
    "arrays of unequal length": lambda x: np.full(1 + x % 3, x),
    "arrays without axes": np.array,
    "lists": lambda x: [x, x + 1],
}
ROWS = 700  # more than are collected at a time


@pytest.fixture(params=[None, 3], ids=["in this thread", "in three threads"])
def parallel(request: pytest.FixtureRequest) -> Any:
    """How many calls may run at a time."""
    return request.param


def leaves(element: Any) -> Iterator[Any]:
    """The leaves of an element of one of the kinds, as plain data with their dtypes."""
    for part in flatten(element)[0]:
        yield getattr(part, "dtype", type(part)), getattr(part, "tolist", lambda part=part: part)()


@cache
def leaves_alone(label: str) -> list[list[Any]]:
    """The leaves of all elements, made alone."""
    source = ps.Dataset.range(ROWS)
    images = source.map(lambda x: np.full(2, x))
    labels = [element for (element,) in source.map(lambda x: (VALUES[label](int(x)),))]
    return [sorted(leaves(pair), key=str) for pair in zip(images, labels, strict=True)]


def in_turn() -> Iterator[Any]:
    """Each container of each value in this thread or in three, in turn; the other way in the extended tests."""
    for number, (kind, label) in enumerate(product(KINDS, VALUES)):
        for place, calls in enumerate((None, 3)):
            other = (number + number // len(VALUES) + place) % 2  # the next container begins with the other way
            yield pytest.param(kind, label, calls, marks=pytest.mark.extended if other else ())


@pytest.mark.parametrize(("kind", "label", "parallel"), list(in_turn()))
def test_containers_hold_what_their_leaves_alone_would_be(kind: str, label: str, parallel: int | None) -> None:
    make, value = KINDS[kind], VALUES[label]
    found = ps.Dataset.range(ROWS).map(lambda x: make(np.full(2, x), value(int(x))), num_parallel_calls=parallel)
    assert [sorted(leaves(element), key=str) for element in found] == leaves_alone(label)


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_may_return_one_buffer_again_and_again(kind: str) -> None:
    buffer, holder = np.zeros(2, np.int64), {"label": 0, "image": None}

    def reuse(x: np.int64) -> Any:
        buffer[:] = x
        if kind != "dictionary":
            return KINDS[kind](buffer, int(x))
        holder.update(image=buffer, label=int(x))
        return holder

    found = [[value for _, value in leaves(element)] for element in ps.Dataset.range(ROWS).map(reuse)]
    assert [sorted(pair, key=str) for pair in found] == [sorted([[x, x], x], key=str) for x in range(ROWS)]


@pytest.mark.parametrize("kind", ["leaf", "single", "triple", *KINDS])
def test_a_buffer_that_comes_after_numbers_is_copied_too(kind: str) -> None:
    make = {"leaf": lambda a, b: b, "single": lambda a, b: (b,), "triple": lambda a, b: (a, b, a), **KINDS}[kind]
    buffer = np.zeros((), np.int64)

    def reuse(x: np.int64) -> Any:
        buffer[...] = x
        return make(x, buffer if x % 100 > 50 else x)

    expected = [make(np.int64(x), np.int64(x)) for x in range(ROWS)]
    assert list(ps.Dataset.range(ROWS).map(reuse)) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("row", [1, 5, 300, 699])
def test_another_dtype_is_an_error_after_the_rows_before_it(kind: str, row: int, parallel: int | None) -> None:
    def late(x: np.int64) -> Any:
        return KINDS[kind](int(x), 0.5 if x == row else int(x))

    iterator = iter(ps.Dataset.range(ROWS).map(late, num_parallel_calls=parallel))
    for _ in range(row):
        next(iterator)
    with pytest.raises(ps.ElementError, match="float32.* after it had returned .*int64"):
        next(iterator)
    assert len(list(iterator)) == ROWS - row - 1


@pytest.mark.parametrize("odd", [(1,), (1, 2, 3), [1, 2], {"a": 1}, (1, (2, 3)), (1, None)])
def test_another_structure_is_an_error_after_the_rows_before_it(odd: Any, parallel: int | None) -> None:
    iterator = iter(ps.Dataset.range(9).map(lambda x: odd if x == 4 else (1, 2), num_parallel_calls=parallel))
    assert [next(iterator) for _ in range(4)] == [(1, 2)] * 4
    with pytest.raises(ps.ElementError, match="structure"):
        next(iterator)
    assert len(list(iterator)) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_comes_after_the_rows_before_it(kind: str, parallel: int | None) -> None:
    def fail(x: np.int64) -> Any:
        if x in (0, 300):
            raise KeyError("image")
        return KINDS[kind](np.full(2, x), int(x))

    iterator = iter(ps.Dataset.range(ROWS).map(fail, num_parallel_calls=parallel))
    with pytest.raises(KeyError, match="image"):
        next(iterator)
    assert len([next(iterator) for _ in range(299)]) == 299
    with pytest.raises(KeyError, match="image"):
        next(iterator)
    assert len(list(iterator)) == ROWS - 301


@pytest.mark.parametrize("limit", [2**31, -(2**31) - 1])
def test_an_integer_beyond_the_promised_dtype_is_an_error_at_its_row(limit: int, parallel: int | None) -> None:
    promised = (ps.TensorSpec((), "int32"), ps.TensorSpec((), "float32"))
    dataset = ps.Dataset.range(9).map(
        lambda x: (limit if x == 4 else int(x), 2**24 + 1), output_signature=promised, num_parallel_calls=parallel
    )
    iterator = iter(dataset)
    assert [next(iterator) for _ in range(4)] == [(x, np.float32(2**24)) for x in range(4)]
    with pytest.raises(ps.ElementError, match="output_signature"):
        next(iterator)
    assert len(list(iterator)) == 4


def test_floats_that_float32_would_make_infinite_are_an_error_at_their_row(parallel: int | None) -> None:
    iterator = iter(ps.Dataset.range(9).map(lambda x: (x, 1e39 if x == 4 else np.inf), num_parallel_calls=parallel))
    assert [next(iterator) for _ in range(4)] == [(x, np.inf) for x in range(4)]
    with pytest.raises(ps.ElementError, match="infinite"):
        next(iterator)
    assert len(list(iterator)) == 4


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["alone", "in a tuple"])
@pytest.mark.parametrize("wrong", [1e39, 2**64])
def test_a_number_without_a_dtype_is_an_error_at_its_row(kind: str, wrong: Any, parallel: int | None) -> None:
    rows = 40  # in blocks of growing size, whose rows are taken in pieces of growing size: it is the first of some

    def late(x: np.int64, row: int) -> Any:
        value = wrong if x == row else type(wrong)(1)
        return value if kind == "alone" else (x, value)

    for row in (1, 2, 9, 16, 17, 25):
        iterator = iter(ps.Dataset.range(rows).map(lambda x, row=row: late(x, row), num_parallel_calls=parallel))
        assert len([next(iterator) for _ in range(row)]) == row
        with pytest.raises((ps.ElementError, OverflowError)) as raised:
            next(iterator)
        assert raised.value.__notes__[-1].endswith(f"element {row}")
        assert len(list(iterator)) == rows - row - 1


def test_a_map_of_single_rows_after_blocks_ends_where_they_do():
    def make(size):
        rows = ps.Dataset.from_generator(lambda: (np.full(size, i, np.float32) for i in range(9)))
        grouped = rows.group_by_window(lambda x: int(x[0]) % 2, lambda key, window: window, window_size=2)
        mapped = grouped.map(lambda x: (x, int(x[0])))
        return mapped.group_by_window(lambda x, number: 0, lambda key, window: window, window_size=2)

    for size in (10, 1000, 4000):
        assert [int(number) for _, number in make(size)] == [0, 2, 1, 3, 4, 6, 5, 7, 8]
        assert [int(number) for _, number in make(size).ignore_errors()] == [0, 2, 1, 3, 4, 6, 5, 7, 8]
