"""Generators: elements like the first are taken the short way, and nothing that differs gets through by it."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock as ps
from penstock.data.iterator import blocks_of
from penstock.structure import flatten, map_structure


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Labelled:
    image: Any
    label: Any


def generated(values: list[Any], signature: Any = None) -> ps.Dataset:
    return ps.Dataset.from_generator(lambda: iter(values), signature)


SEQUENCES = {
    "integers": [1, 2, np.int64(3), 4],
    "wide integers": [0, 2**30, -(2**30), 2**30 - 1, -(2**63), 2**63 - 1, 5],
    "floats": [0.1, 2.5, float("nan"), float("inf"), np.float32(0.1), -1e-46],
    "truth": [True, np.bool_(False), False],
    "strings": ["a", "", "c\0", "a" * 100],
    "bytes": [b"a", b"b\0"],
    "numpy": [np.uint8(3), np.uint8(255), np.uint8(0)],
    "arrays": [np.arange(3), np.arange(3) * 2, np.arange(3, dtype=np.int64)[::-1]],
    "unequal arrays": [np.arange(3), np.arange(2), np.arange(3), np.int64(7)],
    "no axes": [np.array(3), np.array(4), np.int64(5), 6],
    "lists": [[1, 2], [3, 4], np.array([5, 6])],
    "pairs": [(1, 0.5), (2, 1.5), (np.int64(3), 2.5)],
    "dictionaries": [{"a": 1, "b": "x"}, {"b": "y", "a": 2}],
    "named tuples": [Point(1, "a"), Point(2, "b")],
    "dataclasses": [Labelled(np.zeros(2), 1), Labelled(np.ones(2), 2)],
    "nested": [(1, {"a": (2.5, None)}), (2, {"a": (3.5, None)})],
    "features and label": [({"x": np.arange(3) + n, "y": n / 2}, str(n)) for n in range(4)],
    "pairs of unequal arrays": [(np.arange(n % 3), n) for n in (2, 2, 0, np.int64(4), 5)],
    "named tuples within": [{"a": Point(n, np.arange(2)), "b": (n,)} for n in range(3)],
    "empty containers": [((), {}, n) for n in range(3)],
    "nothing": [() for _ in range(3)],
    "pairs of floats": [(float("nan"), 1.0), (float("inf"), 2.0), (-float("inf"), float("nan")), (1e-46, 0.1)],
}


def described(element: Any) -> str:
    return (
        repr(element) + repr(ps.TensorSpec.from_tensor(element)) if isinstance(element, np.ndarray) else repr(element)
    )


@pytest.mark.parametrize("values", SEQUENCES.values(), ids=SEQUENCES)
def test_elements_are_the_same_alone_and_in_blocks(values: list[Any]) -> None:
    alone = list(generated(values))
    parts = [list(generated(values).skip(number).take(1)) for number in range(len(values))]
    together = list(generated(values).prefetch(8))
    blocks = [row for block in blocks_of(iter(generated(values).take(100))) for row in block.rows()]
    expected = list(map(described, alone))
    assert [described(part) for (part,) in parts] == list(map(described, together)) == expected
    assert list(map(described, blocks)) == expected
    assert [type(value) for value in alone] == [type(value) for value in blocks]


CALLS = pytest.mark.parametrize("calls", [None, ps.AUTOTUNE])


@CALLS
@pytest.mark.parametrize("values", SEQUENCES.values(), ids=SEQUENCES)
def test_results_are_the_same_alone_and_in_blocks(values: list[Any], calls: int | None) -> None:
    def mapped(function: Any) -> list[str]:
        results = generated(values).map(function, num_parallel_calls=calls)
        in_blocks = [row for block in blocks_of(iter(results)) for row in block.rows()]
        assert list(map(described, results)) == list(map(described, in_blocks))
        return list(map(described, results))

    assert mapped(lambda *row: row[0] if len(row) == 1 else row) == list(map(described, generated(values)))
    assert len(mapped(lambda *row: {"row": row, "drawn": 1})) == len(values)


@CALLS
@pytest.mark.parametrize("taken", [0, 1, 2, 5, 8])
def test_maps_of_a_generator_resume_and_fail_as_in_blocks(taken: int, calls: int | None) -> None:
    def fails(x: Any) -> Any:
        return next(iter(())) if x == 3 else 12 // int(x - 5)

    def noise(x: Any, generator: np.random.Generator) -> int:
        return int(x) + generator.integers(1 << 40)

    def tried(iterator: Iterator[Any]) -> Any:
        try:
            return next(iterator)
        except (ps.InvalidTypeError, ZeroDivisionError) as error:
            return [type(error), *error.__notes__]

    def noisy(rows: ps.Dataset) -> ps.Dataset:
        return rows.map(fails, num_parallel_calls=calls).map(noise, seed=1, num_parallel_calls=calls)

    iterator, by_index = iter(noisy(generated(list(range(9))))), iter(noisy(ps.Dataset.range(9).skip(0)))
    expected = [tried(by_index) for _ in range(9)]
    given = [tried(iterator) for _ in range(taken)]
    state = iterator.state_dict()
    resumed = iter(noisy(generated(list(range(9)))))
    resumed.load_state_dict(state)
    assert (
        expected
        == given + [tried(iterator) for _ in range(taken, 9)]
        == given + [tried(resumed) for _ in range(taken, 9)]
    )
    assert next(iterator, None) is next(resumed, None) is None


@CALLS
def test_a_map_of_a_generator_runs_it_only_to_the_asked_element(calls: int | None) -> None:
    done: list[str] = []

    def numbers() -> Iterator[int]:
        for number in range(3):
            done.append(f"read {number}")
            yield number

    rows = iter(
        ps.Dataset.from_generator(numbers).map(lambda x: done.append(f"called {x}") or x, num_parallel_calls=calls)
    )
    assert [int(next(rows)) for _ in range(2)] == [0, 1]
    assert done == ["read 0", "called 0", "read 1", "called 1"]


@pytest.mark.parametrize("signature", [None, ps.TensorSpec((2,), "int64")])
def test_a_buffer_that_is_yielded_again_and_again_is_copied(signature: Any) -> None:
    def count() -> Iterator[Any]:
        buffer = np.zeros(2, np.int64)
        for number in range(4):
            buffer[:] = number
            yield buffer

    dataset = ps.Dataset.from_generator(count, signature)
    assert [row.tolist() for row in list(dataset)] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert [batch[:, 0].tolist() for batch in dataset.batch(3)] == [[0, 1, 2], [3]]


def test_numbers_take_the_dtype_of_the_signature_as_numpy_rounds_them() -> None:
    halves = generated([0.1, 1, 2**53 + 1, 16777217], ps.TensorSpec((), "float32"))
    assert (
        list(halves)
        == [np.float32(x) for x in (0.1, 1, 2**53 + 1, 16777217)]
        == halves.batch(4).get_single_element().tolist()
    )
    small = generated([1, 2, 255], ps.TensorSpec((), "uint8"))
    assert [type(value) for value in small] == [np.uint8] * 3


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    ("values", "signature", "message"),
    [
        ([1, 2, 2.5, 4], None, r"yielded float32 after int64.*"),
        ([1, 2, (3, 4), 4], None, r"yielded \(int64, int64\) after int64"),
        ([(1, 2), (1, 2), (3,), (4, 4)], None, r"yielded \(int64,\) after \(int64, int64\)"),
        ([(1, 2), (1, 2), (3, 4.5), (4, 4)], None, r"yielded \(int64, float32\) after \(int64, int64\)"),
        ([{"a": 1}, {"a": 2}, {"b": 3}, {"a": 4}], None, r"yielded \{'b': int64\} after \{'a': int64\}"),
        ([1, 2, 256, 4], ps.TensorSpec((), "uint8"), r"does not fit output_signature"),
        (
            [np.zeros(2), np.zeros(2), np.zeros(3), np.zeros(2)],
            ps.TensorSpec((2,), "float64"),
            r"does not fit output_sig",
        ),
        ([1.0, 2.0, 1e300, 4.0], None, r"float32, and 1e\+300 would become infinite"),
    ],
)
def test_what_is_unlike_the_first_fails_at_its_place(
    values: list[Any], signature: Any, message: str, batched: bool
) -> None:
    dataset = generated(values, signature)
    iterator = iter(dataset.take(4).prefetch(4) if batched else dataset)
    next(iterator), next(iterator)
    with pytest.raises(ps.ElementError, match=message) as raised:
        next(iterator)
    assert "element 2" in "".join(raised.value.__notes__)
    state = iterator.state_dict()
    assert len(list(iterator)) == 1
    resumed = iter(dataset.take(4).prefetch(4) if batched else dataset)
    resumed.load_state_dict(state)
    assert len(list(resumed)) == 1


def test_numbers_after_one_out_of_bounds_come_in_order() -> None:
    def numbers() -> Iterator[Any]:
        yield from (1, 2, np.uint8(3), 300, 4, -1, 5)
        yield np.array(6, np.uint8)
        raise ValueError("the end")

    dataset = ps.Dataset.from_generator(numbers, ps.TensorSpec((), "uint8"))
    together = iter(dataset.ignore_errors().batch(20))
    assert [batch.tolist() for batch in together] == [[1, 2, 3, 4, 5, 6]]
    assert together.errors.count == 3
    iterator = iter(dataset.batch(3))
    assert next(iterator).tolist() == [1, 2, 3]
    told = []
    states = [iterator.state_dict()]
    for message in ("does not fit output_signature", "the end"):
        with pytest.raises((ps.ElementError, ValueError), match=message) as raised:
            next(iterator)
        told.append(raised.value.__notes__[0].rsplit(", ")[-1])
        states.append(iterator.state_dict())
    assert told == ["element 3", "element 8"]
    outcomes = [ps.ElementError, ValueError, None]
    for number, state in enumerate(states):
        resumed = iter(dataset.batch(3))
        resumed.load_state_dict(state)
        assert [_outcome(resumed) for _ in outcomes[number:]] == outcomes[number:]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0.5, 1.5, float("nan"), 2.5, float("inf"), -3.5], "float32"),
        ([0.5, 3e38, -3.4e38, 1e-46], "float32"),
        ([0.5, 1e300, -1e308, float("-inf")], "float64"),
        ([1, 2**62, -(2**63), 2**63 - 1], "int64"),
        ([1, 2**53 + 1, 16777217, -5], "float32"),
        ([True, False, True], "bool"),
        ([1, 2**64 - 1, 0], "uint64"),
    ],
)
def test_numbers_in_a_batch_are_those_that_come_alone(values: list[Any], dtype: str) -> None:
    dataset = generated(values * 3, ps.TensorSpec((), dtype))
    alone = list(dataset)
    (batch,) = dataset.batch(3 * len(values))
    assert batch.dtype == dtype
    assert repr(list(batch)) == repr(alone)


def test_an_array_without_axes_is_taken_as_the_generator_yielded_it() -> None:
    def numbers() -> Iterator[Any]:
        yield from (1, 2)
        changing = np.array(0)
        for number in (3, 4, 5):
            changing[()] = number
            yield changing
        yield 6

    (batch,) = ps.Dataset.from_generator(numbers).batch(6)
    assert batch.tolist() == [1, 2, 3, 4, 5, 6]


PAIRED: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda x: (x, np.full(2, 7)),
    "dictionary": lambda x: {"x": x, "y": np.full(2, 7)},
    "named tuple": lambda x: Point(x, np.full(2, 7)),
    "nested": lambda x: ({"x": x}, (np.full(2, 7), "z")),
}


@pytest.mark.parametrize("make", PAIRED.values(), ids=PAIRED)
def test_a_number_out_of_bounds_in_a_container_fails_at_its_place(make: Callable[[Any], Any]) -> None:
    def rows() -> Iterator[Any]:
        yield from map(make, (1, 2, np.uint8(3), 300, 4, -1, 5))
        raise ValueError("the end")

    def signature(x: Any) -> Any:
        return ps.TensorSpec.from_tensor(x) if isinstance(x, (np.ndarray, np.generic)) else ps.TensorSpec((), object)

    dataset = ps.Dataset.from_generator(rows, map_structure(signature, make(np.uint8(1))))
    together = iter(dataset.ignore_errors().batch(20))
    (batch,) = together
    assert flatten(batch)[0][0].tolist() == [1, 2, 3, 4, 5]
    assert flatten(batch)[0][1].tolist() == [[7, 7]] * 5
    assert [row.position for row in together.errors.rows] == [3, 5, 7]
    iterator = iter(dataset.batch(3))
    assert flatten(next(iterator))[0][0].tolist() == [1, 2, 3]
    for kind, place in ((ps.ElementError, 3), (ValueError, 7)):
        resumed = iter(dataset.batch(3))
        resumed.load_state_dict(iterator.state_dict())
        for one in (iterator, resumed):
            with pytest.raises(kind) as raised:
                next(one)
            assert raised.value.__notes__[0].endswith(f"element {place}")
    assert list(iterator) == list(resumed) == []


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("make", PAIRED.values(), ids=PAIRED)
def test_a_container_is_taken_as_the_generator_yielded_it(make: Callable[[Any], Any], batched: bool) -> None:
    kept = []

    def rows() -> Iterator[Any]:
        changing = np.zeros((), np.int64)
        for number in range(6):
            changing[()] = number
            row = make(changing if number > 2 else number)
            kept.append(row)
            yield row
            flatten(row)[0][1][:] = -1

    dataset = ps.Dataset.from_generator(rows)
    elements = dataset.batch(6).unbatch() if batched else dataset
    given = [flatten(element)[0] for element in elements]
    assert [(int(leaves[0]), leaves[1].tolist()) for leaves in given] == [(n, [7, 7]) for n in range(6)]
    assert len(kept) == 6


def _outcome(iterator: Iterator[Any]) -> Any:
    """The next element as a list, what comes in its place, or None at the end."""
    try:
        found = next(iterator, None)
    except (ps.ElementError, ValueError) as error:
        return type(error)
    return None if found is None else found.tolist()


def test_restoring_runs_a_generator_no_further_and_checks_one_element() -> None:
    yielded = []

    def numbers() -> Iterator[Any]:
        for number in itertools.count():
            yielded.append(number)
            if number == 3:
                raise ValueError("the third")
            yield number

    iterator = iter(ps.Dataset.from_generator(numbers))
    assert [next(iterator), next(iterator)] == [0, 1]
    assert yielded == [0, 1]
    state = iterator.state_dict()
    yielded.clear()
    resumed = iter(ps.Dataset.from_generator(numbers))
    resumed.load_state_dict(state)
    assert yielded == [0, 1]
    assert next(resumed) == 2
    with pytest.raises(ValueError, match="the third") as raised:
        next(resumed)
    assert "element 3" in raised.value.__notes__[0]
    after = resumed.state_dict()
    assert list(resumed) == []
    again = iter(ps.Dataset.from_generator(numbers))
    again.load_state_dict(after)
    assert list(again) == []


def test_a_closed_iterator_gives_no_further_element_of_a_generator() -> None:
    iterator = iter(generated([1, 2, 3]))
    next(iterator)
    iterator.close()
    with pytest.raises(ps.errors.ClosedError):
        next(iterator)


@pytest.mark.parametrize("taken", [0, 1, 2, 3, 5, 6])
def test_windows_of_a_generator_equal_those_of_an_index(taken: int) -> None:
    def key(x: Any) -> Any:
        return next(iter(())) if x == 5 else 12 // int(x - 7) % 2

    def tried(iterator: Iterator[Any]) -> Any:
        try:
            return next(iterator).tolist()
        except (ps.InvalidTypeError, ZeroDivisionError) as error:
            return [type(error), *error.__notes__]

    def windows(rows: ps.Dataset) -> ps.Dataset:
        return rows.group_by_window(key, lambda key, window: window.batch(2), 4)

    iterator, resumed = iter(windows(generated(list(range(15))))), iter(windows(generated(list(range(15)))))
    by_index = iter(windows(ps.Dataset.range(15)))
    expected = [tried(by_index) for _ in range(9)]
    given = [tried(iterator) for _ in range(taken)]
    resumed.load_state_dict(iterator.state_dict())
    assert expected == given + [tried(iterator) for _ in range(taken, 9)]
    assert expected == given + [tried(resumed) for _ in range(taken, 9)]
    assert next(iterator, None) is next(resumed, None) is next(by_index, None) is None


def test_a_window_reads_a_generator_only_to_its_last_element() -> None:
    done: list[str] = []

    def numbers() -> Iterator[int]:
        for number in range(9):
            done.append(f"read {number}")
            yield number

    def key(x: Any) -> Any:
        done.append(f"key of {x}")
        return x % 2

    windows = iter(ps.Dataset.from_generator(numbers).group_by_window(key, lambda key, window: window.batch(2), 2))
    assert next(windows).tolist() == [0, 2]
    assert done == [f"{what} {number}" for number in range(3) for what in ("read", "key of")]
    assert next(windows).tolist() == [1, 3]
    assert done[6:] == ["read 3", "key of 3"]
