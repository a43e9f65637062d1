"""Tables and columns of other libraries come through `from_tensor_slices` with their values, or are refused."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps

LARGE = 2**60 + 1


class Spoken:
    """A frame of a library that penstock does not know: it speaks Arrow's protocol, and offers NumPy an array too."""

    def __init__(self, data):
        self._data = data
        self.columns = data.column_names

    def __arrow_c_stream__(self, requested_schema=None):
        return self._data.__arrow_c_stream__(requested_schema)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._data)


def elements(value):
    return list(ps.Dataset.from_tensor_slices(value))


@pytest.mark.parametrize("kind", [lambda table: table, Spoken, lambda table: table.to_batches()[0]])
def test_a_table_is_a_dictionary_of_columns_and_not_flattened(kind):
    table = pa.table({"id": [1, LARGE], "name": ["a", "bcd"], "score": [0.5, float("nan")]})
    first, second = elements(kind(table))
    assert first == {"id": 1, "name": "a", "score": 0.5}
    assert (second["id"], second["name"], np.isnan(second["score"])) == (LARGE, "bcd", True)
    assert type(second["id"]) is np.int64


@pytest.mark.parametrize(
    "make", [lambda values: pa.array(values), lambda values: pa.chunked_array([values[:1], values[1:]])]
)
def test_integers_with_nulls_are_not_rounded_in_silence(make):
    column = make([1, None, LARGE])
    with pytest.raises(ps.InvalidArgumentError, match=r"without nulls, got 1 of 3 at \['n'\] \(int64\).*is_valid"):
        ps.Dataset.from_tensor_slices({"n": column})
    for use in (ps.Dataset.from_tensors, lambda value: list(ps.Dataset.range(1).map(lambda x: value))):
        with pytest.raises(ps.ElementError, match="arrays have no nulls, got .*fill_null"):
            use(column)
    masked = elements({"n": column.fill_null(0), "n_is_valid": column.is_valid()})
    assert [(int(row["n"]), bool(row["n_is_valid"])) for row in masked] == [(1, True), (0, False), (LARGE, True)]
    assert elements(column.drop_null()) == [1, LARGE]


def test_nulls_inside_of_a_table_are_named_by_their_column():
    nested = pa.array([{"x": 1, "l": [1, None]}, {"x": 2, "l": []}])
    with pytest.raises(ps.InvalidArgumentError, match=r"got 1 of 2 at \['s'\]\['l'\]"):
        ps.Dataset.from_tensor_slices(pa.table({"s": nested}))


def test_numbers_in_one_piece_are_not_copied():
    table = pa.table({"x": np.arange(100), "y": np.arange(100.0)})
    columns = ps.Dataset.from_tensor_slices(table).node.columns
    assert [np.shares_memory(column, table[name].chunk(0).to_numpy()) for column, name in zip(columns, "xy")] == [
        True
    ] * 2


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 3)])
def test_lists_of_one_length_are_rows_of_an_array_that_is_not_copied(kind):
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    table = pa.table({"x": pa.array(values.tolist(), kind)})
    dataset = ps.Dataset.from_arrow(table.slice(1))
    (column,) = dataset.node.columns
    np.testing.assert_array_equal(column, values[1:])
    assert np.shares_memory(column, table["x"].chunk(0).values.to_numpy())
    assert dataset.element_spec == {"x": ps.TensorSpec((3,), np.float32)} and not dataset.element_spec["x"].assumed


def test_the_type_of_nested_lists_does_not_depend_on_other_rows():
    even, uneven = [[[1, 2], [3, 4]]] * 2, [[[1, 2], [3]]] * 2
    for rows in (even, uneven):
        (row, _) = ps.Dataset.from_arrow(pa.table({"x": rows}))
        assert row["x"].dtype == object and [inner.tolist() for inner in row["x"]] == rows[0]
    matrices = pa.table({"x": pa.array(even, pa.list_(pa.list_(pa.int64(), 2)))})
    assert [row["x"].tolist() for row in ps.Dataset.from_arrow(matrices)] == even


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        (pa.array([True, False]), [True, False]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (pa.array([b"a"]), [b"a"]),
        (pa.array([[1, 2], [3]]), [[1, 2], [3]]),
        (pa.array([[0], [1, 2], [3]])[1:], [[1, 2], [3]]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), [[1, 2], [3, 4]]),
        (pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int8(), 2), 1)), [[[1, 2]], [[3, 4]]]),
        (pa.array([{"x": 1, "y": "a"}]), [{"x": 1, "y": "a"}]),
        (pa.array([], pa.int32()), []),
        (pa.array([], pa.list_(pa.int32())), []),
    ],
)
def test_columns_of_each_type(column, rows):
    def plain(value):
        return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value

    found = elements(column)
    assert [
        {key: plain(leaf) for key, leaf in row.items()} if isinstance(row, dict) else plain(row) for row in found
    ] == rows


def test_a_column_that_numpy_has_no_place_for_is_named():
    table = pa.table({"price": pa.array([1, 2], pa.decimal128(5, 2))})
    with pytest.raises(
        ps.InvalidTypeError, match=r"decimal128\(5, 2\) at \['price'\]: cast .*column.cast\(pa.float64\("
    ):
        ps.Dataset.from_tensor_slices(table)
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(ps.InvalidArgumentError, match=r"different names, got \['a'\]"):
        ps.Dataset.from_tensor_slices(twice)


@pytest.mark.parametrize("table", [pa.table({"a": [1]}), Spoken(pa.table({"a": [1]}))])
def test_a_table_as_one_element_is_refused(table):
    with pytest.raises(ps.ElementError, match="a table is no array.*from_tensor_slices takes it"):
        ps.Dataset.from_tensors(table)


def test_tables_and_arrays_stand_together():
    table, labels = pa.table({"a": [1, 2]}), np.array([7, 8])
    assert elements((table, labels)) == [({"a": 1}, 7), ({"a": 2}, 8)]
    with pytest.raises(ps.InvalidArgumentError, match="of one length"):
        ps.Dataset.from_tensor_slices((table, labels[:1]))


class Query(Spoken):
    """A polars LazyFrame, say."""

    def collect(self):
        return self._data


def test_a_query_is_refused_with_the_way_to_its_rows():
    query = Query(pa.table({"a": [1, 2]}))
    with pytest.raises(
        ps.InvalidTypeError, match=r"got a Query, whose rows have to be computed: call \.collect\(\) on it"
    ):
        elements(query)
    assert [row["a"] for row in elements(query.collect())] == [1, 2]


def test_a_table_without_columns_is_refused_by_name():
    with pytest.raises(
        ps.InvalidArgumentError, match=r"takes a table with columns of values, got a Table without any$"
    ):
        elements(pa.table({}))
    with pytest.raises(ps.InvalidArgumentError, match=r"got a Table without any at \['x'\]"):
        elements({"x": pa.table({}), "y": [1]})
    assert elements(pa.table({"a": pa.array([], pa.int64())})) == []


class Labelled:
    """An array with names of its axes, as xarray has them: it speaks Arrow too, as one column of all its numbers."""

    def __init__(self, values):
        self.values, self.shape, self.dtype, self.dims = values, values.shape, values.dtype, ("time", "x")

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    def __arrow_c_stream__(self, requested_schema=None):
        return pa.chunked_array([self.values.reshape(-1)]).__arrow_c_stream__(requested_schema)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return type(self)(self.values[index])


@dataclasses.dataclass
class Stored:
    """An array that is a dataclass, as those of zarr are."""

    values: np.ndarray
    path: str = "where"

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


@pytest.mark.parametrize("made", [Labelled, Stored])
def test_what_is_an_array_is_an_array_first(made):
    values = np.arange(24.0).reshape(6, 4)
    row = ps.TensorSpec((4,), np.float64)
    assert ps.Dataset.from_tensor_slices(made(values)).element_spec == row
    assert ps.Dataset.from_tensor_slices({"a": made(values)}).element_spec == {"a": row}
    assert ps.Dataset.from_tensors(made(values)).element_spec == ps.TensorSpec((6, 4), np.float64)
    assert ps.Dataset.from_list([made(values), made(values)]).element_spec.shape == (6, 4)
    mapped = ps.Dataset.range(6).map(lambda x: {"row": made(values[int(x)])}).batch(6)
    assert next(iter(mapped))["row"].tolist() == values.tolist()
    if made is Labelled:
        assert [row.tolist() for row in ps.Dataset.from_source(made(values))] == values.tolist()


class Sparse:
    shape, dtype, ndim = (3, 3), np.dtype(np.float64), 2

    def toarray(self):
        return np.eye(3)

    def __len__(self):
        raise TypeError("sparse array length is ambiguous")

    def __getitem__(self, index):
        return self


@pytest.mark.parametrize("take", ["from_tensor_slices", "from_tensors", "from_source"])
def test_a_sparse_matrix_is_refused_with_what_to_do(take):
    with pytest.raises(ps.ElementError, match=r"a sparse matrix is no array, got a Sparse.*dense by .toarray\(\)"):
        getattr(ps.Dataset, take)(Sparse())
    with pytest.raises(ps.ElementError, match="make it dense"):
        list(ps.Dataset.range(3).map(lambda x: Sparse()))
