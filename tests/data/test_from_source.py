"""Collections of other libraries are read by index, in the largest pieces that they offer."""

import json
import pickle
import threading
from types import SimpleNamespace

import h5py
import numpy as np
import pyarrow as pa
import pytest
from two_workers import two_workers

import penstock as ps


class Rows:
    """Rows by number, of which one fails."""

    def __init__(self, length=20, bad=None):
        self.length, self.bad, self.read = length, bad, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read.append(index)
        if index == self.bad:
            raise ValueError(f"row {index} is bad")
        return {"number": index, "name": f"row {index}"}


class Blocks(Rows):
    """Rows that can be had in lists, and only so."""

    def __getitem__(self, index):
        raise AssertionError("read one by one")

    def __getitems__(self, indices):
        self.read.append(indices)
        return [(index, [float(index)] * 3) for index in indices]


def numbers(dataset):
    return [int(row["number"]) for row in dataset]


class Tensor(SimpleNamespace):
    """An array without `__len__`, as of zarr, whose dtype may be no dtype of NumPy's, as of PyTorch."""

    def __getitem__(self, rows):
        return self.values[rows]


def test_an_array_of_another_library_is_read_by_slices():
    values = np.arange(6).reshape(3, 2)
    dataset = ps.Dataset.from_source(Tensor(values=values, dtype=object(), shape=(3, 2)))
    assert dataset.element_spec == ps.TensorSpec((2,), np.int64) and dataset[-1].tolist() == [4, 5]
    unknown = Tensor(values={}, dtype="bfloat16 of theirs", shape=(3, 2))
    with pytest.raises(ps.InvalidTypeError, match="array of bfloat16 of theirs, which NumPy does not take"):
        ps.Dataset.from_source(unknown)


def test_an_array_whose_library_names_each_chunk_is_read_by_slices():
    """As dask and xarray do: the length of a chunk was taken for a number."""
    values = np.arange(10).reshape(5, 2)
    dataset = ps.Dataset.from_source(Tensor(values=values, dtype=values.dtype, shape=(5, 2), chunks=((2, 3), (2,))))
    assert [row.tolist() for row in dataset.shuffle(seed=1)] != [row.tolist() for row in dataset] == values.tolist()


@pytest.mark.parametrize("rows", [pa.table({"a": [1, 2], "b": [3, 4]}), pa.array([1, 2])], ids=["table", "array"])
def test_the_columns_of_a_table_are_not_taken_for_its_rows(rows):
    with pytest.raises(
        ps.InvalidTypeError, match="from_source.* got a .*: from_tensor_slices takes tables and columns"
    ):
        ps.Dataset.from_source(rows)


def test_rows_that_have_to_be_computed_are_told_how():
    lazy = SimpleNamespace(collect=lambda: None, __arrow_c_stream__=None)
    with pytest.raises(ps.InvalidTypeError, match=r"from_arrow takes rows that are there, .*: call .collect\(\) on it"):
        ps.Dataset.from_arrow(lazy)


def test_only_rows_that_are_needed_are_read():
    rows = Rows(1_000_000)
    dataset = ps.Dataset.from_source(rows)
    assert len(dataset) == 1_000_000
    assert numbers(dataset.shuffle(seed=3).skip(500_000).take(3)) == numbers(dataset.shuffle(seed=3)[500_000:500_003])
    assert len(rows.read) <= 12
    assert rows.read[:3] == rows.read[-3:]


def test_a_row_that_fails_takes_its_place_alone():
    iterator = iter(ps.Dataset.from_source(Rows(bad=7)).map(lambda row: row["number"]))
    assert [next(iterator) for _ in range(7)] == list(range(7))
    with pytest.raises(ValueError, match="row 7 is bad") as raised:
        next(iterator)
    assert "in from_source(Rows) at" in raised.value.__notes__[0] and "element 7" in raised.value.__notes__[0]
    state = json.loads(json.dumps(iterator.state_dict()))
    assert list(iterator) == list(range(8, 20))
    iterator.load_state_dict(state)
    assert list(iterator) == list(range(8, 20))
    left = ps.Dataset.from_source(Rows(bad=7)).shuffle(seed=1).ignore_errors()
    assert sorted(numbers(left)) == [number for number in range(20) if number != 7]


def test_blocks_are_asked_for_where_a_collection_has_them():
    rows = Blocks()
    batch = ps.Dataset.from_source(rows).shuffle(seed=1).batch(20).get_single_element()
    np.testing.assert_array_equal(batch[0][:, None] * np.ones(3), batch[1])
    assert len(rows.read) <= 2  # one row may be looked at for what rows are

    class Short(Blocks):
        def __getitems__(self, indices):
            return super().__getitems__(indices)[:-1]

    with pytest.raises(ps.ElementError, match="a list of 1 rows, got 0 of them"):
        next(iter(ps.Dataset.from_source(Short())))


def test_arrays_on_disk_are_read_by_chunks(tmp_path):
    values = np.arange(1000).reshape(100, 10)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("chunked", data=values, chunks=(7, 10))
        file.create_dataset("whole", data=values.astype(np.float32))
        file.create_dataset("words", data=["a", "bc"])
    with h5py.File(tmp_path / "a.h5") as file:
        for name, dtype in (("chunked", np.int64), ("whole", np.float32)):
            dataset = ps.Dataset.from_source(file[name])
            assert dataset.element_spec == ps.TensorSpec((10,), dtype)
            np.testing.assert_array_equal(np.stack(list(dataset)), values)
            batch = dataset.shuffle(seed=2).batch(100).get_single_element()
            assert not np.array_equal(batch, values)
            np.testing.assert_array_equal(batch[np.argsort(batch[:, 0])], values)
            np.testing.assert_array_equal(np.stack(list(dataset.repeat(2).shard(3, 1))), np.tile(values, (2, 1))[1::3])
        assert list(ps.Dataset.from_source(file["words"])) == [b"a", b"bc"]


def zarr_array(folder):
    """Written and read by TensorStore."""
    tensorstore = pytest.importorskip("tensorstore", reason="TensorStore is not installed")
    store = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(folder / "z")}}
    array = tensorstore.open(store, create=True, dtype="int64", shape=[100]).result()
    array.write(np.arange(100)).result()
    return array


def numpy_array(folder):
    np.save(folder / "a.npy", np.arange(100))
    return np.load(folder / "a.npy", mmap_mode="r")


def hdf5_array(folder):
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = np.arange(100)
    return h5py.File(folder / "a.h5")["x"]


@pytest.mark.parametrize("make", [zarr_array, numpy_array, hdf5_array])
def test_arrays_on_disk_are_shuffled_resumed_and_divided(make, tmp_path):
    dataset = ps.Dataset.from_source(make(tmp_path)).shuffle(seed=4).batch(7)
    iterator, other, whole = (iter(dataset.with_options(ps.Options(seed=1))) for _ in range(3))
    taken = [int(x) for _ in range(5) for x in next(iterator)]
    other.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
    expected = [int(x) for batch in whole for x in batch]
    assert taken + [int(x) for batch in other for x in batch] == expected
    assert sorted(expected) == list(range(100)) != expected
    by_row = dataset.with_options(ps.Options(auto_shard_policy="DATA"))
    parts = [ps.HostStrategy(1, 2, worker).distribute_dataset(by_row) for worker in range(2)]
    assert sorted(int(x) for part in parts for step in part for x in step.values[0]) == list(range(100))
    with pytest.raises(ps.InvalidArgumentError, match=r"from_source\(.* reads no files; use AutoShardPolicy.DATA"):
        ps.HostStrategy(1, 2, 0).distribute_dataset(dataset.with_options(ps.Options(auto_shard_policy="FILE")))
    with two_workers() as service:
        if make is hdf5_array:  # an open file
            with pytest.raises(ps.InvalidTypeError, match="cannot be given .* make it where it is used"):
                dataset.apply(ps.service.distribute("distributed_epoch", service))
            return
        shared = dataset.apply(ps.service.distribute("distributed_epoch", service))
        assert [int(x) for batch in shared for x in batch] == expected


class Frames:
    """A data set as Hugging Face's: Arrow columns on request, and rows that are never asked for."""

    def __init__(self, table, form=None, features=None):
        self._table, self.features = table, features or {}
        self.format, self.column_names = {"type": form}, table.column_names

    def __len__(self):
        return len(self._table)

    def with_format(self, form):
        return Frames(self._table, form)

    def __getitem__(self, rows):
        if self.format["type"] == "arrow":
            return self._table[rows] if isinstance(rows, slice) else self._table.take(rows)
        return {name: f"decoded {value}" for name, value in self._table.slice(rows, 1).to_pylist()[0].items()}


class Image:
    decode_example = None


def test_hugging_face_gives_columns_unless_something_is_decoded():
    table = pa.table({"x": pa.array(range(8), pa.int32()), "t": list("abcdefgh")})
    dataset = ps.Dataset.from_source(Frames(table))
    assert [(int(row["x"]), row["t"]) for row in dataset[2:4]] == [(2, "c"), (3, "d")]
    assert sorted(int(row["x"]) for row in dataset.shuffle(seed=1)) == list(range(8))
    assert dataset[0]["x"].dtype == np.int32
    for decoded in (Image(), [Image()], {"inner": Image()}):
        assert ps.Dataset.from_source(Frames(table, features={"x": decoded}))[3] == {"x": "decoded 3", "t": "decoded d"}
    assert ps.Dataset.from_source(Frames(table, form="numpy"))[3] == {"x": "decoded 3", "t": "decoded d"}


class Mapped(Frames):
    """The same with a table of chunks in sight, of which some rows were selected."""

    def __init__(self, table, chosen=None):
        super().__init__(table)
        self.data = SimpleNamespace(table=table)
        self._indices = chosen and SimpleNamespace(table=pa.table({"indices": pa.array(chosen, pa.uint64())}))

    def __len__(self):
        return len(self._table) if self._indices is None else len(self._indices.table)

    def with_format(self, form):
        return self

    def __getitem__(self, rows):
        raise AssertionError("its rows are read from the table")


def test_rows_of_a_hugging_face_table_are_gathered_from_its_chunks():
    kinds = pa.schema(
        {
            "number": pa.float32(),
            "equal": pa.list_(pa.int16()),
            "ragged": pa.large_list(pa.float64()),
            "matrix": pa.list_(pa.list_(pa.int32(), 2), 2),
            "text": pa.string(),
            "inner": pa.struct({"a": pa.int64()}),
        }
    )
    rows = [
        {
            "number": row / 2,
            "equal": [row, -row, 3],
            "ragged": [row] * (row % 4),
            "matrix": [[row, 1], [2, row]],
            "text": f"row {row}",
            "inner": {"a": row},
        }
        for row in range(40)
    ]
    sizes = (7, 0, 1, 20, 12)
    ends = np.cumsum(sizes)
    table = pa.concat_tables(
        pa.Table.from_pylist(rows[: end + 1], kinds).slice(end - size, size)
        for size, end in zip(sizes, ends, strict=True)
    )
    selected = list(range(39, 3, -1))

    def plain(row):
        return {name: plain(leaf) if isinstance(leaf, dict) else leaf.tolist() if name != "text" else leaf
                for name, leaf in row.items()}  # fmt: skip

    for chosen in (None, selected):
        expected = rows if chosen is None else [rows[row] for row in chosen]
        dataset = pickle.loads(pickle.dumps(ps.Dataset.from_source(Mapped(table, chosen))))
        assert [plain(row) for row in dataset] == expected
        assert [plain(row) for row in dataset[5:30]] == expected[5:30]
        shuffled = dataset.shuffle(seed=3)
        numbers = [int(number) for number in ps.Dataset.range(len(expected)).shuffle(seed=3)]
        assert [plain(row) for row in shuffled] == [expected[number] for number in numbers]
        assert [plain(row) for row in dataset.shard(3, 1)] == expected[1::3]
    even = Mapped(table.select(["equal", "matrix"]))
    batch = next(iter(ps.Dataset.from_source(even).shuffle(seed=1).batch(30)))
    assert (batch["equal"].shape, batch["equal"].dtype, batch["matrix"].shape) == ((30, 3), np.int16, (30, 2, 2))


def test_a_chunk_without_rows_may_have_no_memory():
    kind = pa.list_(pa.int32())
    bare = pa.Array.from_buffers(kind, 0, [None, None], children=[pa.array([], pa.int32())])
    table = pa.table({"x": pa.chunked_array([bare, pa.array([[1, 2], [3]], kind)])})
    assert [row["x"].tolist() for row in ps.Dataset.from_source(Mapped(table))] == [[1, 2], [3]]


def test_a_null_of_a_hugging_face_table_comes_after_the_rows_before():
    rows = iter(ps.Dataset.from_source(Mapped(pa.table({"x": pa.chunked_array([[1, 2], [3, None, 5]])}))))
    assert [next(rows)["x"] for _ in range(3)] == [1, 2, 3]
    with pytest.raises(ps.InvalidArgumentError, match=r"from_source takes columns without nulls.* at \['x'\]"):
        next(rows)
    assert next(rows)["x"] == 5


def test_rows_of_different_kinds_are_refused():
    dataset = ps.Dataset.from_source([1, 2, "three", 4])
    iterator = iter(dataset)
    assert [next(iterator), next(iterator)] == [1, 2]
    with pytest.raises(ps.ElementError, match="from_source gave object after int64; all its rows must be of one kind"):
        next(iterator)
    assert next(iterator) == 4


def test_stop_iteration_of_a_collection_is_an_error():
    class Ends(Rows):
        def __getitem__(self, index):
            if index == 3:
                raise StopIteration
            return index

    iterator = iter(ps.Dataset.from_source(Ends(5)))
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ps.ElementError, match="__getitem__ raised StopIteration"):
        next(iterator)
    assert list(iterator) == [4]


@pytest.mark.parametrize("given", [5, "abc", {"a": [1]}, iter([]), {1}, (x for x in [1]), ps.Dataset.range(3)])
def test_what_is_no_collection_is_refused(given):
    with pytest.raises(ps.InvalidTypeError, match=r"from_source\(source=...\) takes a collection"):
        ps.Dataset.from_source(given)


def test_threads_of_a_map_read_rows_of_one_collection():
    seen = set()

    def name(row):
        seen.add(threading.get_ident())
        return row["name"]

    dataset = ps.Dataset.from_source(Rows(64)).map(name, num_parallel_calls=4)
    assert list(dataset) == [f"row {number}" for number in range(64)]


def test_arrow_data_with_nulls():
    table = pa.table({"a": [1, None], "l": [[1, 2], None], "s": ["x", None], "whole": [1.5, 2.5]})
    with pytest.raises(ps.InvalidArgumentError, match=r"from_arrow takes columns without nulls.*mask_nulls=True"):
        ps.Dataset.from_arrow(table)
    first, second = ps.Dataset.from_arrow(table, mask_nulls=True)
    assert set(first) == {"a", "a_is_valid", "l", "l_is_valid", "s", "s_is_valid", "whole"}
    assert (first["a"], first["l"].tolist(), first["s"], first["whole"], first["a_is_valid"]) == (
        1,
        [1, 2],
        "x",
        1.5,
        True,
    )
    assert (second["a"], second["l"].tolist(), second["s"], second["l_is_valid"]) == (0, [], "", False)
    named = ps.Dataset.from_arrow(table.drop(["l", "s"]), mask_nulls=["whole", "a"])
    assert [bool(row["whole_is_valid"]) for row in named] == [True, True]
    for names, message in ((["b"], "no such column"), (["a"], "a column 'a_is_valid' already")):
        with pytest.raises(ps.InvalidArgumentError, match=message):
            ps.Dataset.from_arrow(table.append_column("a_is_valid", pa.array([1, 2])), mask_nulls=names)


def test_arrow_data_comes_from_readers_and_batches_and_is_not_copied():
    table = pa.table({"x": np.arange(4.0)})
    for data in (table, table.to_batches()[0], table.to_reader(), table.to_batches()):
        if isinstance(data, list):
            with pytest.raises(ps.InvalidTypeError, match="takes a table of Arrow .* got list"):
                ps.Dataset.from_arrow(data)
        else:
            assert [row["x"] for row in ps.Dataset.from_arrow(data)] == [0, 1, 2, 3]
    column = ps.Dataset.from_arrow(table).batch(4).get_single_element()["x"]
    assert np.shares_memory(column, table["x"].chunk(0).to_numpy())
    with pytest.raises(ps.InvalidTypeError, match="takes a table, got a column"):
        ps.Dataset.from_arrow(pa.array([1, 2]))


def test_elements_and_parts_by_number():
    dataset = ps.Dataset.range(10).map(lambda x: x * x)
    assert [dataset[0], dataset[-1], dataset[np.int64(3)]] == [0, 81, 9]
    assert list(dataset[2:4]) == [4, 9]
    assert list(dataset[::4]) == [0, 16, 64] and list(dataset[-3:-1]) == [49, 64] and list(dataset[:-8]) == [0, 1]
    assert list(dataset[5:2]) == [] and list(dataset[8:]) == [64, 81]
    assert list(ps.Dataset.range(10).filter(lambda x: x % 2)[1:3]) == [3, 5]
    for number in (10, -11):
        with pytest.raises(IndexError, match=rf"dataset\[{number}\]: .* has 10 elements"):
            dataset[number]
    with pytest.raises(ps.InvalidArgumentError, match="read in order"):
        ps.Dataset.range(10).filter(lambda x: x % 2)[1]
    with pytest.raises(ps.InvalidArgumentError, match="forward, got a step of -1"):
        dataset[::-1]
    with pytest.raises(ps.InvalidTypeError, match="dataset"):
        dataset["a"]
    with pytest.raises(ps.InvalidTypeError, match="has no length"):
        ps.Dataset.range(10).filter(lambda x: x % 2)[-2:]


def test_a_map_that_works_in_place_does_not_change_the_users_file(tmp_path):
    np.save(tmp_path / "rows.npy", np.ones((4, 2)))
    rows = np.lib.format.open_memmap(tmp_path / "rows.npy", mode="r+")

    def doubled(row):
        row *= 2
        return row

    with pytest.raises(ValueError, match="read-only"):
        list(ps.Dataset.from_source(rows).map(doubled))
    assert [row.tolist() for row in ps.Dataset.from_source(rows).map(lambda row: row.copy()).map(doubled)] == [
        [2, 2]
    ] * 4
    rows.flush()
    assert (np.load(tmp_path / "rows.npy") == 1).all()
