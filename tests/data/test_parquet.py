"""Parquet files: columns, filters, nulls, and what is wrong with files. `test_indexed_formats.py` has the rest."""

import datetime
import decimal
import pickle
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from past_errors import read_past_errors

import penstock as ps
from penstock.testing import check_conformance


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Three files with the numbers 0 to 299 in row groups of 32."""
    made = tmp_path_factory.mktemp("parquet")
    for number in range(3):
        x = np.arange(number * 100, number * 100 + 100)
        table = pa.table({"x": x, "word": [f"w{value}" for value in x], "list": [[value] * (value % 3) for value in x]})
        pq.write_table(table, made / f"{number}.parquet", row_group_size=32)
    return made


def xs(dataset):
    return [int(row["x"]) for row in dataset]


def test_rows_are_dictionaries_and_come_by_number(directory):
    dataset = ps.ParquetDataset(directory / "*.parquet")
    assert len(dataset) == 300 and xs(dataset) == list(range(300))
    assert dataset[233]["word"] == "w233" and dataset[-1]["list"].tolist() == [299, 299]
    assert xs(dataset[98:103]) == [98, 99, 100, 101, 102]
    kinds = {name: spec.dtype for name, spec in dataset.element_spec.items()}
    assert kinds == {"x": np.int64, "word": object, "list": np.int64}  # one column of lists is enough to look at a row
    words = ps.ParquetDataset([directory / "2.parquet", directory / "0.parquet"], ["word"])
    assert words.element_spec == {"word": ps.TensorSpec((), object)}
    assert [row["word"] for row in words.skip(99).take(2)] == ["w299", "w0"]
    assert xs(ps.ParquetDataset(ps.Dataset.list_files(directory / "*.parquet"))) == list(range(300))
    assert xs(ps.FilesDataset(directory / "1.parquet", "parquet")) == list(range(100, 200))


def test_lists_of_one_length_in_one_group_and_of_another_in_the_next(tmp_path):
    rows = [[1, 2], [3, 4], [5], [6], [7, 8, 9], []]
    pq.write_table(pa.table({"x": rows}), tmp_path / "lists.parquet", row_group_size=2)
    lists = ps.ParquetDataset(tmp_path / "lists.parquet")
    assert [row["x"].tolist() for row in lists] == rows
    assert [x.tolist() for x in next(iter(lists.ragged_batch(6)))["x"]] == rows
    assert [row["x"].tolist() for row in lists.shuffle(seed=4)] != rows
    assert [x.tolist() for batch in lists.take(4).batch(2) for x in batch["x"]] == rows[:4]


def test_a_length_in_the_type_of_a_list_is_known_without_reading(tmp_path):
    kinds = {"x": pa.list_(pa.float32(), 2), "s": pa.struct([("y", pa.list_(pa.list_(pa.int8(), 3), 2))])}
    rows = [{"x": [n, n], "s": {"y": [[n] * 3] * 2}} for n in range(5)]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(kinds)), tmp_path / "fixed.parquet", row_group_size=2)
    dataset = ps.ParquetDataset(tmp_path / "fixed.parquet")
    assert dataset.element_spec == {"s": {"y": ps.TensorSpec((2, 3), np.int8)}, "x": ps.TensorSpec((2,), np.float32)}
    assert not dataset.element_spec["x"].assumed
    assert dataset.batch(5).get_single_element()["s"]["y"].tolist() == [[[n] * 3] * 2 for n in range(5)]


@pytest.mark.slow
def test_it_conforms(directory):
    for make in (
        lambda: ps.ParquetDataset(directory / "*.parquet")[94:110],
        lambda: ps.ParquetDataset(directory / "0.parquet", filter=pc.field("x") > 50).shuffle(8, seed=1).take(14),
    ):
        check_conformance(make, limit=16)


def test_a_filter_keeps_rows_by_number(directory):
    even = pc.bit_wise_and(pc.field("x"), 1) == 0
    dataset = ps.ParquetDataset(directory / "*.parquet", ["word"], filter=even & (pc.field("x") >= 150))
    expected = [f"w{x}" for x in range(150, 300, 2)]
    assert len(dataset) == 75 and [row["word"] for row in dataset] == expected
    assert sorted(row["word"] for row in dataset.shuffle(seed=1)) == sorted(expected)
    assert len(ps.ParquetDataset(directory / "*.parquet", filter=pc.field("x") < 0)) == 0


def test_what_is_wrong_is_said_when_the_dataset_is_made(directory, tmp_path):
    first = directory / "0.parquet"
    (tmp_path / "cut.parquet").write_bytes(first.read_bytes()[:-20])
    pq.write_table(pa.table({"x": [1.5], "word": ["a"], "list": [[1]]}), tmp_path / "other.parquet")
    more = pq.read_table(first).append_column("more", pa.array([{"a": 1}] * 100))
    pq.write_table(more, tmp_path / "more.parquet")
    for make, kind, message in (
        (lambda: ps.ParquetDataset(first, ["y"]), ps.InvalidArgumentError, r"has no column 'y'; its columns are \['x'"),
        (lambda: ps.ParquetDataset(first, "x"), ps.InvalidTypeError, "lists of names, got a string"),
        (lambda: ps.ParquetDataset(first, []), ps.InvalidArgumentError, "at least one column"),
        (
            lambda: ps.ParquetDataset(first, filter=pc.field("y") > 1),
            ps.InvalidArgumentError,
            "does not fit .*FieldRef",
        ),
        (lambda: ps.ParquetDataset(first, filter="x > 1"), ps.InvalidArgumentError, "does not fit"),
        (lambda: ps.ParquetDataset(tmp_path / "none.parquet"), ps.StorageError, "there is no file"),
        (lambda: ps.ParquetDataset(directory), ps.StorageError, "is a directory"),
        (lambda: ps.ParquetDataset(directory / "*.pq"), ps.InvalidArgumentError, "no file matches"),
        (lambda: ps.ParquetDataset(tmp_path / "cut.parquet"), ps.StorageError, "cannot be read as a Parquet file"),
        (lambda: ps.ParquetDataset(__file__), ps.StorageError, "cannot be read as a Parquet file"),
        (
            lambda: ps.ParquetDataset([first, tmp_path / "other.parquet"], ["x"]),
            ps.StorageError,
            "other.parquet' has float64 in its column 'x', and '.*' int64: types={'x': ...} reads both as one type",
        ),
        (
            lambda: ps.ParquetDataset([first, tmp_path / "more.parquet"]),
            ps.StorageError,
            r"more.parquet' has a column 'more', and '.*' has only \['x', 'word', 'list'\]: name those .* by columns=",
        ),
        (
            lambda: ps.ParquetDataset([tmp_path / "more.parquet", first]),
            ps.StorageError,
            "more.parquet' has a column 'more', and '.*' has only",
        ),
        (
            lambda: ps.ParquetDataset(first, types={"none": int}),
            ps.InvalidArgumentError,
            r"types=...\): .* has no column 'none'",
        ),
        (
            lambda: ps.ParquetDataset(first, types=["x"]),
            ps.InvalidTypeError,
            r"types=...\) takes a dictionary of types by column, got \['x'\]",
        ),
        (
            lambda: ps.ParquetDataset(first, types={"x": "bfloat16"}),
            ps.InvalidTypeError,
            "got 'bfloat16' for 'x': give one near to it, such as np.float32, and convert by map",
        ),
        (
            lambda: ps.ParquetDataset(tmp_path / "more.parquet", types={"more": int}),
            ps.InvalidTypeError,
            r"types=...\) does not fit .*: column 'more' as int64: Unsupported cast from struct",
        ),
        (
            lambda: ps.ParquetDataset(ps.Dataset.list_files(directory / "*.parquet", shuffle=True)),
            ps.InvalidArgumentError,
            "in one order.*shuffle its rows",
        ),
        (
            lambda: ps.FilesDataset(first, "parkett"),
            ps.InvalidArgumentError,
            r"no format 'parkett'; there are .*'parquet'",
        ),
        (lambda: ps.FilesDataset(first, int), ps.InvalidTypeError, "a ps.files.FileFormat or the name of one"),
    ):
        with pytest.raises(kind, match=message):
            make()


def test_nulls_are_errors_or_masked(tmp_path):
    pq.write_table(pa.table({"x": [1, None, 3]}), tmp_path / "a.parquet")
    with pytest.raises(ps.StorageError, match=r"row group 0, rows 0 to 2, .*without nulls, got 1 of 3"):
        list(ps.ParquetDataset(tmp_path / "a.parquet"))
    masked = ps.ParquetDataset(tmp_path / "a.parquet", mask_nulls=["x"])
    assert [(int(row["x"]), bool(row["x_is_valid"])) for row in masked] == [(1, True), (0, False), (3, True)]
    with pytest.raises(ps.InvalidArgumentError, match="no such column"):
        ps.ParquetDataset(tmp_path / "a.parquet", mask_nulls=["y"])


def test_columns_of_types_that_numpy_does_not_have_are_converted(tmp_path):
    prices = pa.array([decimal.Decimal("1.50"), decimal.Decimal("-2.25")], pa.decimal128(10, 2))
    table = pa.table(
        {
            "price": prices,
            "wide": prices.cast(pa.decimal256(40, 2)),
            "at": pa.array([datetime.time(0, 1), datetime.time(2)], pa.time32("ms")),
            "list": pa.FixedSizeListArray.from_arrays(prices, 1),
            "id": pa.array([1, 300]),
            "pairs": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=1)
    for name, kind, advice in (
        ("price", "decimal128", "types={'price': np.float64} converts it, and columns="),
        ("wide", "decimal256", "types={'wide': np.float64} converts it"),
        ("at", "time32", "types={'at': np.int32} converts it"),
        ("list", "decimal128", "give another type for the column by types={'list': ...}, or skip it"),
    ):
        for mask_nulls in ([], [name]):
            with pytest.raises(ps.InvalidTypeError, match=f"got {kind}.*: {advice}"):
                ps.ParquetDataset(path, [name], mask_nulls=mask_nulls)
    types = {"price": np.float64, "wide": str, "at": "int32", "list": pa.list_(pa.float32(), 1), "id": np.float32}
    dataset = ps.ParquetDataset(path, [*types], types)
    assert {name: (spec.shape, spec.dtype.name) for name, spec in dataset.element_spec.items()} == {
        "at": ((), "int32"),
        "id": ((), "float32"),
        "list": ((1,), "float32"),
        "price": ((), "float64"),
        "wide": ((), "object"),
    }
    sent = pickle.loads(pickle.dumps(dataset))[1]
    assert {**sent, "list": sent["list"].tolist()} == {
        "at": 7_200_000,
        "id": 300,
        "list": [-2.25],
        "price": -2.25,
        "wide": "-2.25",
    }
    assert ps.ParquetDataset(path, ["price"], {"price": int}, filter=pc.field("price") > prices[0]).cardinality() == 0
    assert ps.ParquetDataset(path, ["id"], {"id": float}).fingerprint() != ps.ParquetDataset(path, ["id"]).fingerprint()
    iterator = iter(ps.ParquetDataset(path, ["id"], {"id": np.int8}))
    assert next(iterator)["id"] == 1
    with pytest.raises(
        ps.StorageError, match="row group 1, rows 1 to 1, .*: column 'id' as int8: Integer value 300 not in range"
    ):
        next(iterator)


def test_a_wrong_checksum_costs_its_row_group(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"x": np.arange(300.0), "y": np.arange(300)})
    plain = {"use_dictionary": False, "compression": "none"}
    pq.write_table(table, path, row_group_size=100, write_page_checksum=True, **plain)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)
    got, errors = read_past_errors(ps.ParquetDataset(path).map(lambda row: int(row["y"])), ps.StorageError)
    assert got == [*range(100), *range(200, 300)] and len(errors) == 100
    assert "a.parquet': row group 1, rows 100 to 199, cannot be read" in str(errors[0])
    assert "CRC checksum verification failed" in str(errors[0])
    assert len(list(ps.ParquetDataset(path, ["y"]))) == 300
    with pytest.raises(ps.StorageError, match="a.parquet' cannot be read: .*CRC checksum verification failed"):
        ps.ParquetDataset(path, ["y"], filter=pc.field("x") + 1 > 5)


def test_explain_says_what_a_row_at_random_costs(tmp_path):
    pq.write_table(pa.table({"x": np.arange(30_000)}), tmp_path / "large.parquet")
    pq.write_table(pa.table({"x": np.arange(30_000)}), tmp_path / "small.parquet", row_group_size=1000)
    large = ps.ParquetDataset(tmp_path / "large.parquet")
    found = re.search(r"a row at random decodes up to 30,000 rows: shuffle\(clump=(\d+)\) dec", large.explain())
    assert found is not None and 200 < int(found[1]) < 2000
    assert "mixes the rows of 9 of 1 groups" in large.shuffle(clump=9).explain()
    assert "at random" not in ps.ParquetDataset(tmp_path / "small.parquet").explain()


class Words(ps.files.FileFormat):
    """Words of four bytes."""

    def count(self, name):
        with open(name, "rb") as file:
            return len(file.read()) // 4

    def read(self, name, rows):
        with open(name, "rb") as file:
            data = file.read()
        if b"!" in data:
            return [data]
        return {"word": [data[row * 4 : row * 4 + 4] for row in rows]}


def test_a_format_of_ones_own(tmp_path):
    (tmp_path / "a").write_bytes(b"roseblue")
    (tmp_path / "b").write_bytes(b"skin")
    ps.files.register_format("words of four", Words)
    ps.files.register_format("words of four", Words)
    dataset = ps.FilesDataset([tmp_path / "a", tmp_path / "b"], "words of four")
    assert [row["word"] for row in dataset] == [b"rose", b"blue", b"skin"]
    assert sorted(row["word"] for row in dataset.shuffle(seed=1)) == [b"blue", b"rose", b"skin"]
    with pytest.raises(ps.InvalidArgumentError, match="there is a format 'parquet' already"):
        ps.files.register_format("parquet", Words)
    with pytest.raises(ps.InvalidTypeError, match="takes a class of ps.files.FileFormat"):
        ps.files.register_format("other", Words())
    (tmp_path / "c").write_bytes(b"bad!bad!")
    with pytest.raises(ps.ElementError, match=r"Words.read must give 2 rows for 2 numbers, got 1|1 rows for 1 numbers"):
        list(ps.FilesDataset(tmp_path / "c", Words()).batch(2))


@pytest.mark.parametrize("rows", [range(100, 200), range(7)], ids=["of the same size", "shorter"])
def test_a_file_that_is_written_over_is_an_error_and_never_other_rows(tmp_path, rows):
    def write(numbers):  # without statistics and compression, so that equally many rows are equally many bytes
        table = pa.table({"x": np.array(numbers)})
        pq.write_table(table, path, row_group_size=10, use_dictionary=False, compression="none", write_statistics=False)

    path = tmp_path / "a.parquet"
    write(range(100))
    iterator = iter(ps.ParquetDataset(path))
    assert [int(next(iterator)["x"]) for _ in range(5)] == [0, 1, 2, 3, 4]
    write(rows)
    with pytest.raises(ps.StorageError, match=r"a\.parquet' has changed since the dataset was made"):
        list(iterator)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_words_that_are_repeated_are_decoded_once_each(tmp_path, kind):
    words = [f"word {number % 7}" for number in range(3000)]
    pq.write_table(pa.table({"word": pa.array(words, kind)}), tmp_path / "words.parquet", row_group_size=1000)
    batch = next(iter(ps.ParquetDataset(tmp_path / "words.parquet").batch(3000)))
    assert batch["word"].tolist() == words
    assert len(set(map(id, batch["word"]))) == 7


def test_words_that_all_differ_are_read_as_they_are(tmp_path):
    words = [f"word {number}" for number in range(3000)]
    pq.write_table(pa.table({"word": words}), tmp_path / "words.parquet", row_group_size=1000)
    assert next(iter(ps.ParquetDataset(tmp_path / "words.parquet").batch(3000)))["word"].tolist() == words


def test_nulls_among_repeated_words_are_errors_filled_and_left_out(tmp_path):
    words = ["a", "b", None] * 1000
    file = tmp_path / "words.parquet"
    pq.write_table(pa.table({"word": words}), file)
    with pytest.raises(ps.StorageError, match=r"got 1000 of 3000 at \['word'\] \(string\)"):
        next(iter(ps.ParquetDataset(file).batch(3000)))
    masked = next(iter(ps.ParquetDataset(file, mask_nulls=["word"]).batch(3000)))
    assert masked["word"].tolist() == ["a", "b", ""] * 1000
    assert masked["word_is_valid"].tolist() == [True, True, False] * 1000
    kept = next(iter(ps.ParquetDataset(file, filter=pc.field("word").is_valid()).batch(2000)))
    assert kept["word"].tolist() == ["a", "b"] * 1000
    as_bytes = next(iter(ps.ParquetDataset(file, types={"word": pa.binary()}, mask_nulls=["word"]).batch(3000)))
    assert as_bytes["word"].tolist() == [b"a", b"b", b""] * 1000


def test_columns_in_the_names_of_folders(tmp_path):
    for folder, x in (("year=2023/city=New%20York", 1), ("year=2024/city=__HIVE_DEFAULT_PARTITION__", 2)):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.table({"x": [x, 10 * x]}), tmp_path / folder / "part-0.parquet")
    files, types = tmp_path / "**/*.parquet", {"year": np.int32, "city": str}
    dataset = ps.ParquetDataset(files, partitions=types, mask_nulls=["city"])
    rows = [(int(row["x"]), row["year"], row["city"], bool(row["city_is_valid"])) for row in dataset]
    assert rows == [
        (1, 2023, "New York", True),
        (10, 2023, "New York", True),
        (2, 2024, "", False),
        (20, 2024, "", False),
    ]
    assert dataset.element_spec["year"] == ps.TensorSpec((), np.int32)
    later = ps.ParquetDataset(files, ["year"], partitions=types, filter=(pc.field("year") > 2023) & (pc.field("x") > 2))
    assert [int(row["year"]) for row in later] == [2024]
    for partitions, kind, message in (
        ({"month": int}, ps.InvalidArgumentError, "is in no folder such as 'month=...'"),
        ({"city": int}, ps.StorageError, "the folder 'city=New York' names no int64"),
    ):
        with pytest.raises(kind, match=message):
            ps.ParquetDataset(files, partitions=partitions)


def test_columns_of_tensors_are_arrays_of_their_shape(tmp_path):
    tensors = np.arange(12, dtype=np.int16).reshape(3, 2, 2)
    kind = pa.fixed_shape_tensor(pa.int64(), (2, 2), permutation=[1, 0])
    turned = pa.ExtensionArray.from_storage(kind, pa.array([[1, 2, 3, 4]] * 3, pa.list_(pa.int64(), 4)))
    table = pa.table({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(tensors), "turned": turned})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    dataset = ps.ParquetDataset(tmp_path / "a.parquet")
    assert dataset.element_spec["x"] == ps.TensorSpec((2, 2), np.int16)
    assert [row["x"].tolist() for row in dataset] == tensors.tolist()
    assert dataset[2]["turned"].tolist() == [[1, 3], [2, 4]]
