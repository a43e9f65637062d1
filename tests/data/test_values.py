"""Values of Python, NumPy and libraries built on it, through datasets: as they were, or an error at their row."""

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
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


@in_every_way
def test_masked_values_do_not_come_back_as_numbers(made: Callable[[list[Any]], ps.Dataset]) -> None:
    rows = [np.ma.array([1, 2], mask=[False, False]), np.ma.array([3, 4], mask=[False, True])]
    assert list(map(np.ndarray.tolist, made(rows[:1]))) == [[1, 2]]
    assert [type(row) for row in made(rows[:1])] == [np.ndarray]
    with pytest.raises(ps.ElementError, match=r"arrays have no masks.*array\.filled\(0\)"):
        list(made(rows))


def test_nulls_in_columns_of_masked_arrays_do_not_come_back_as_numbers() -> None:
    column = np.ma.array([1, 2, 3], mask=[False, True, False])  # as fetchnumpy() of DuckDB gives them
    with pytest.raises(ps.ElementError, match="arrays have no masks"):
        ps.Dataset.from_tensor_slices({"x": column})
    with pytest.raises(ps.ElementError, match="arrays have no masks"):
        list(ps.Dataset.from_source(column))
    named = np.ma.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")], mask=[(True, False)])
    with pytest.raises(ps.ElementError, match="arrays have no masks"):
        ps.Dataset.from_tensors(named)
    assert [row.tolist() for row in ps.Dataset.from_tensor_slices(column.filled(0)).batch(3)] == [[1, 0, 3]]


@in_every_way
def test_matrices_are_batched_as_arrays(made: Callable[[list[Any]], ps.Dataset]) -> None:
    with pytest.warns(PendingDeprecationWarning):
        rows = [np.matrix([[1, 2], [3, 4]]), np.matrix([[5, 6], [7, 8]])]
    (batch,) = made(rows).batch(2)
    assert type(batch) is np.ndarray
    assert batch.tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


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


@in_every_way
def test_integers_that_int64_cannot_hold_are_an_error_that_names_them(made: Callable[[list[Any]], ps.Dataset]) -> None:
    with pytest.raises(ps.ElementError, match=r"int64, which cannot hold 9223372036854775808: use numpy\.uint64"):
        list(made([1, 2**63]))
    with pytest.raises(ps.ElementError, match=r"int64, which cannot hold \[-1, 9223372036854775809\]"):
        list(made([[-1, 2**63 + 1]]))
    assert [row.tolist() for row in made([[2**63 + 1, 2**63]])] == [[2**63 + 1, 2**63]]  # uint64, as NumPy has it


def test_large_integers_take_the_declared_dtype_without_rounding() -> None:
    signature = ps.TensorSpec((2,), np.uint64)
    rows = ps.Dataset.from_generator(lambda: iter([[1, 2**63 + 1]]), signature)
    assert [row.tolist() for row in rows] == [[1, 2**63 + 1]]
    with pytest.raises(ps.ElementError, match="output_signature cannot hold what the function gave"):
        list(ps.Dataset.from_generator(lambda: iter([[-1, 2**63 + 1]]), signature))


@in_every_way
@pytest.mark.parametrize("row", [[1, "a"], [True, b"a\0"], [("a\0", 1), ("b", 2)], [(1.5, "a")]], ids=repr)
def test_numbers_beside_strings_in_a_list_stay_numbers(made: Callable[[list[Any]], ps.Dataset], row: Any) -> None:
    (found,) = made([row])
    assert found.dtype == object
    assert found.tolist() == [list(entry) if isinstance(entry, tuple) else entry for entry in row]


@in_every_way
def test_lists_of_integers_and_floats_are_float32_whichever_comes_first(
    made: Callable[[list[Any]], ps.Dataset],
) -> None:
    rows = [[1, 2.5], [2.5, 1], [True, 0.5]]
    assert [(row.dtype, row.tolist()) for row in made(rows)] == [(np.float32, row) for row in rows]
    (exact,) = made([[1, np.float64(0.1)]])
    assert exact.tolist() == [1, 0.1]


@in_every_way
def test_an_array_of_an_object_without_axes_is_the_object(made: Callable[[list[Any]], ps.Dataset]) -> None:
    rows = [np.array(b"a", object), np.array(b"b", object)]  # as string tensors of TensorFlow become
    assert list(map(repr, made(rows))) == ["b'a'", "b'b'"]
    assert [batch.tolist() for batch in made(rows).batch(2)] == [[b"a", b"b"]]


@in_every_way
def test_an_empty_list_counts_as_float64(made: Callable[[list[Any]], ps.Dataset]) -> None:
    assert [(row.dtype, row.shape) for row in made([[], []])] == [(np.float64, (0,))] * 2


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.uint64])
def test_integers_of_numpy_are_seeds_as_pythons_are(kind: type) -> None:
    """Reading raised 'Python int too large to convert to C long', since NumPy's arithmetic overflows."""

    def drawn(seed: Any) -> list[Any]:
        numbers = ps.Dataset.range(9)
        mixed = ps.Dataset.sample_from_datasets([numbers, numbers], seed=seed)
        noise = numbers.map(lambda x, generator: int(x) + int(generator.integers(100)), seed=seed)
        kept = numbers.rejection_resample(lambda x: x % 2, [0.2, 0.8], seed=seed)
        rooted = numbers.shuffle().with_options(ps.Options(seed=seed))
        files = ps.Dataset.list_files(f"{Path(__file__).parent}/*.py", shuffle=True, seed=seed)
        datasets = [numbers.shuffle(seed=seed), numbers.shuffle(3, seed=seed), mixed, noise, kept, rooted, files]
        iterators = list(map(iter, [*datasets, ps.Dataset.random(seed=seed).take(3)]))
        elements = [list(iterator) for iterator in iterators]
        return [elements, json.dumps([iterator.state_dict()["nodes"] for iterator in iterators])]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert drawn(kind(5)) == drawn(5)


def test_windows_take_integers_of_numpy_without_a_sign() -> None:
    windows = ps.Dataset.timeseries_windows(np.arange(10), None, np.uint8(3), np.uint64(2))
    assert [window.tolist() for window in windows] == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8]]


def test_integers_of_numpy_count_shards_and_requests(tmp_path: Path) -> None:
    numbers = ps.Dataset.range(6)
    numbers.save(tmp_path / "shards", shards=np.int64(2))  # type: ignore[arg-type]
    numbers.save(tmp_path / "rows", rows_per_shard=np.uint8(4))  # type: ignore[arg-type]
    assert [list(ps.Dataset.load(tmp_path / name)) for name in ("shards", "rows")] == [list(range(6))] * 2
    with (
        ps.service.DispatchServer(ps.service.DispatcherConfig()) as dispatcher,
        ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=dispatcher.target)),
    ):
        read = ps.service.distribute(
            "parallel_epochs",
            dispatcher.target,
            job_name="numbers",
            consumer_index=np.int64(0),
            num_consumers=np.int64(1),
            max_outstanding_requests=np.int64(2),
        )
        assert list(numbers.apply(read)) == list(range(6))


@pytest.mark.parametrize("number", [np.array([1, 2]), np.True_, np.float64(2), None, "2"], ids=repr)
def test_what_is_no_integer_is_refused_by_its_argument(number: Any) -> None:
    """NumPy said 'only integer scalar arrays can be converted to a scalar index', without saying which argument."""
    with pytest.raises(ps.InvalidTypeError, match=r"batch\(batch_size=\.\.\.\) takes an integer, got "):
        ps.Dataset.range(3).batch(number)
    with pytest.raises(ps.InvalidTypeError, match=r"at\(index=\.\.\.\) takes an integer, got "):
        ps.Dataset.range(3).at(number)
