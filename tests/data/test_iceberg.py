"""Tables of Iceberg in a catalogue of SQLite: snapshots, deletes, renamed and added columns."""

import re

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.testing import check_conformance

pytest.importorskip("pyiceberg", reason="the extra iceberg is not installed: pip install 'pyiceberg[sql-sqlite]'")
sql = pytest.importorskip("pyiceberg.catalog.sql")
types = pytest.importorskip("pyiceberg.types")
delete_rows_of_iceberg = pytest.importorskip("iceberg_deletes").delete_rows_of_iceberg
expressions = pytest.importorskip("pyiceberg.expressions")
StaticTable = pytest.importorskip("pyiceberg.table").StaticTable


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    folder = tmp_path_factory.mktemp("iceberg")
    made = sql.SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/a wärehouse")
    made.create_namespace("db")
    yield made
    made.close()


@pytest.fixture(scope="module")
def table(catalog):
    """First a = 0 to 9; then columns were renamed, added and widened, two rows more, and two of the old deleted."""
    made = catalog.create_table("db.people", pa.schema([("a", pa.int32()), ("city", pa.string()), ("n", pa.int64())]))
    made.append(pa.table({"a": pa.array(range(10), pa.int32()), "city": ["x", "y"] * 5, "n": range(10)}))
    old = next(iter(made.scan().plan_files())).file.file_path
    with made.update_schema() as change:
        change.update_column("a", types.LongType())
        change.delete_column("n")
        change.rename_column("city", "town")
    with made.update_schema() as change:
        change.add_column("city", types.StringType())  # another than the first one of that name
    made.append(pa.table({"a": [100, 101], "town": ["z", "z"], "city": ["p", "q"]}))
    return delete_rows_of_iceberg(made, {old: [3, 7]})


def numbers(dataset):
    return sorted(int(row["a"]) for row in dataset)


def test_columns_are_known_by_their_numbers_whatever_their_names_were(table):
    dataset = ps.IcebergDataset(table, mask_nulls=True)
    assert numbers(dataset) == [0, 1, 2, 4, 5, 6, 8, 9, 100, 101]
    assert {(int(row["a"]), row["town"], row["city"]) for row in dataset if row["a"] in (0, 1, 100)} == {
        *((0, "x", ""), (1, "y", ""), (100, "z", "p"))
    }
    assert [bool(row["city_is_valid"]) for row in dataset].count(True) == 2
    assert dataset[0]["a"].dtype == np.int64
    assert numbers(dataset.shuffle(seed=1)) == numbers(dataset)


def test_a_snapshot_gives_the_rows_and_columns_that_it_had(table):
    first, second, third = (snapshot.snapshot_id for snapshot in table.snapshots())
    oldest = ps.IcebergDataset(table, first)
    assert list(oldest[0]) == ["a", "city", "n"] and numbers(oldest) == list(range(10))
    assert len(ps.IcebergDataset(table, second, ["a"])) == 12
    newest = ps.IcebergDataset(table, columns=["a"])
    assert f"IcebergDataset(snapshot_id={third}, 10 rows)" in newest.explain()
    iterator = iter(ps.IcebergDataset(table, second, ["a"]))
    next(iterator)
    with pytest.raises(
        ps.StateMismatchError,
        match=f"snapshot_id={second}, 12 rows.*snapshot_id={third}, 10 rows.*; 0 rows.*and 2 removed",
    ):
        iter(newest).load_state_dict(iterator.state_dict())


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("a >= 8", [8, 9, 100, 101]),
        ("town = 'y' and a < 6", [1, 5]),
        ("city = 'q'", [101]),
        ("city is null and a > 5", [6, 8, 9]),
        (expressions.In("a", [0, 3, 100]), [0, 100]),
    ],
)
def test_a_filter_of_pyiceberg_is_applied_to_every_row(table, filter, expected):
    assert numbers(ps.IcebergDataset(table, columns=["a"], filter=filter)) == expected


def test_files_without_numbers_go_by_the_names_that_columns_had(catalog, tmp_path):
    pa.parquet.write_table(pa.table({"x": [1, 2], "word": ["p", "q"]}), tmp_path / "added.parquet")
    table = catalog.create_table("db.added", pa.schema([("x", pa.int64()), ("word", pa.string())]))
    table.add_files([f"file://{tmp_path}/added.parquet"])
    with table.update_schema() as change:
        change.rename_column("word", "text")
    table.append(pa.table({"x": [3], "text": ["r"]}))
    assert sorted(row["text"] for row in ps.IcebergDataset(table)) == ["p", "q", "r"]


def test_a_struct_whose_field_was_renamed_is_refused_by_name(catalog):
    table = catalog.create_table("db.structs", pa.schema([("x", pa.int64()), ("s", pa.struct([("old", pa.int64())]))]))
    table.append(pa.table({"x": [1], "s": [{"old": 5}]}))
    with table.update_schema() as change:
        change.rename_column(("s", "old"), "new")
    table.append(pa.table({"x": [2], "s": [{"new": 6}]}))
    with pytest.raises(ps.InvalidArgumentError, match=r"column 's' of .* has fields under other names"):
        ps.IcebergDataset(table)
    assert [int(row["x"]) for row in ps.IcebergDataset(table, table.snapshots()[0].snapshot_id)] == [1]


def test_a_struct_that_got_a_field_is_null_there(catalog):
    table = catalog.create_table("db.wider", pa.schema([("s", pa.struct([("x", pa.int64())]))]))
    table.append(pa.table({"s": [{"x": 5}]}))
    with table.update_schema() as change:
        change.add_column(("s", "y"), types.LongType())
    table.append(pa.table({"s": [{"x": 6, "y": 7}]}))
    rows = [row["s"] for row in ps.IcebergDataset(table, mask_nulls=True)]
    assert sorted((int(s["x"]), int(s["y"]), bool(s["y_is_valid"])) for s in rows) == [(5, 0, False), (6, 7, True)]


def test_deletes_by_equality_are_refused(catalog):
    table = catalog.create_table("db.equal", pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": [1, 2]}))
    deleted = delete_rows_of_iceberg(table, {"x": [1]}, equality=True)
    with pytest.raises(ps.StorageError, match="'db.equal' cannot be read at snapshot .*equality deletes"):
        ps.IcebergDataset(deleted)
    assert len(ps.IcebergDataset(deleted, deleted.snapshots()[0].snapshot_id)) == 2


def test_deletes_beyond_the_end_of_a_file_are_damage(catalog):
    table = catalog.create_table("db.beyond", pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": [1, 2]}))
    (task,) = table.scan().plan_files()
    deleted = delete_rows_of_iceberg(table, {task.file.file_path: [0, 5]})
    with pytest.raises(ps.StorageError, match="row 5 of .* is deleted, and it has 2 rows"):
        ps.IcebergDataset(deleted)


def test_what_is_wrong_is_said_when_the_dataset_is_made(catalog, table):
    empty = catalog.create_table("db.empty", pa.schema([("a", pa.int64())]))
    for make, kind, message in (
        (lambda: ps.IcebergDataset("db.people"), ps.InvalidTypeError, r"catalog.load_table gives it, got 'db.people'"),
        (lambda: ps.IcebergDataset(empty), ps.InvalidArgumentError, "'db.empty' has no snapshot"),
        (lambda: ps.IcebergDataset(table, 5), ps.InvalidArgumentError, r"has no such snapshot \(any more\); it has \["),
        (lambda: ps.IcebergDataset(table, filter="b > 1"), ps.InvalidArgumentError, r"filter=...\) does not fit"),
        (lambda: ps.IcebergDataset(table, filter="a > 900"), ps.InvalidArgumentError, "or none that the filter keeps"),
        (lambda: ps.IcebergDataset(table, columns=["n"]), ps.InvalidArgumentError, "has no column 'n'"),
    ):
        with pytest.raises(kind, match=message):
            make()


@pytest.mark.slow
def test_it_conforms(table):
    check_conformance(lambda: ps.IcebergDataset(table, mask_nulls=True).shuffle(seed=1), limit=40)


def test_deleted_rows_are_not_read_by_a_pattern_of_files(table):
    data = table.location().removeprefix("file://")
    with pytest.raises(ps.InvalidArgumentError, match=r"is a table of Iceberg.*ps\.IcebergDataset") as refused:
        ps.ParquetDataset(f"{data}/**/*.parquet")
    newest = re.search(r"StaticTable.from_metadata\('([^']*)'\)", str(refused.value))[1]
    assert numbers(ps.IcebergDataset(StaticTable.from_metadata(newest), mask_nulls=True)) == numbers(
        ps.IcebergDataset(table, mask_nulls=True)
    )
