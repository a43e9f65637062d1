"""Tables of Delta Lake, made by deltalake: versions, deletes, partitions, columns that came later."""

import glob
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as ps
from penstock.service.wire.definitions import from_bytes, to_bytes
from penstock.testing import check_conformance

deltalake = pytest.importorskip("deltalake", reason="the extra delta is not installed: pip install deltalake")
delete_rows_of_delta = pytest.importorskip("delta_deletes", exc_type=ImportError).delete_rows_of_delta


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Version 0 has a = 0 to 9 in two partitions, in version 1 two rows of them are deleted, version 2 has two more."""
    made = str(tmp_path_factory.mktemp("delta") / "a täble")
    rows = pa.table({"a": range(10), "city": ["x y", "b/c"] * 5})
    features = {"delta.enableDeletionVectors": "true"}
    deltalake.write_deltalake(made, rows, partition_by=["city"], configuration=features)
    delete_rows_of_delta(made, 1, [1, 3], path="city=b")  # a = 3 and 7
    later = pa.table({"a": [100, 101], "city": ["x y", None], "word": ["p", "q"]})
    deltalake.write_deltalake(made, later, mode="append", schema_mode="merge")
    return made


def rows_of(dataset):
    return sorted((int(row["a"]), row["city"], row["word"]) for row in dataset)


def test_partitions_deletes_and_columns_that_came_later(path):
    dataset = ps.DeltaDataset(path, mask_nulls=["city", "word"])
    assert list(dataset[0]) == ["a", "city", "word", "city_is_valid", "word_is_valid"]
    old = [(a, "b/c" if a % 2 else "x y", "") for a in (0, 1, 2, 4, 5, 6, 8, 9)]
    assert rows_of(dataset) == [*old, (100, "x y", "p"), (101, "", "q")]
    assert rows_of(dataset.shuffle(seed=1)) == rows_of(dataset) == rows_of(dataset.shuffle(clump=2, seed=1))
    assert [bool(row["word_is_valid"]) for row in dataset] == [False] * 8 + [True] * 2
    assert {int(row["a"]) for row in dataset if not row["city_is_valid"]} == {101}


def test_a_null_of_a_column_that_came_later_is_an_error_with_advice(path):
    with pytest.raises(ps.StorageError, match=r"DeltaDataset takes columns without nulls.*mask_nulls=\['word'\]"):
        list(ps.DeltaDataset(path, columns=["word"]))
    assert len(list(ps.DeltaDataset(path, columns=["word"], filter=pc.field("word").is_valid()))) == 2


def test_deleted_rows_are_not_read_by_a_pattern_of_files(path):
    for files in (f"{path}/**/*.parquet", ps.Dataset.list_files(f"{path}/**/*.parquet").take(1)):
        with pytest.raises(ps.InvalidArgumentError, match=r"ps\.DeltaDataset\('.*a täble'\) reads") as refused:
            ps.ParquetDataset(files)
    advised = eval(re.search(r"ps\.DeltaDataset\('[^']*'\)", str(refused.value))[0])
    assert len(advised) == 10
    assert len(ps.ParquetDataset(glob.glob(f"{path}/**/*.parquet", recursive=True), ["a"])) == 12


def test_a_version_gives_the_rows_that_it_had(path):
    assert [len(ps.DeltaDataset(path, version)) for version in (0, 1, 2, None)] == [10, 8, 10, 10]
    assert sorted(int(row["a"]) for row in ps.DeltaDataset(path, 0)) == list(range(10))
    table = deltalake.DeltaTable(path, version=1)
    assert sorted(int(row["a"]) for row in ps.DeltaDataset(table)) == [0, 1, 2, 4, 5, 6, 8, 9]
    assert "DeltaDataset(version=1, 8 rows)" in ps.DeltaDataset(table).explain()
    assert ps.DeltaDataset(path, 1).fingerprint() != ps.DeltaDataset(path, 0).fingerprint()


def test_data_workers_get_the_plan_and_not_the_table(path, tmp_path):
    table = shutil.copytree(path, tmp_path / "table")
    dataset = ps.DeltaDataset(table, 2, mask_nulls=True).shuffle(seed=1)
    sent = to_bytes(dataset.node, dataset.options())
    shutil.rmtree(table / "_delta_log")
    assert [int(row["a"]) for row in ps.Dataset(*from_bytes(sent))] == [int(row["a"]) for row in dataset]


def test_the_newest_version_is_fixed_when_the_dataset_is_made(path, tmp_path):
    grown = shutil.copytree(path, tmp_path / "table")
    dataset = ps.DeltaDataset(grown, columns=["a"])
    before = [int(row["a"]) for row in dataset]
    deltalake.write_deltalake(grown, pa.table({"a": [7], "city": ["z"], "word": ["r"]}), mode="append")
    assert [int(row["a"]) for row in dataset] == before and len(ps.DeltaDataset(grown)) == 11


def test_a_state_of_another_version_is_refused_and_names_both(path):
    first = iter(ps.DeltaDataset(path, 0).shuffle(seed=1))
    taken = [int(next(first)["a"]) for _ in range(4)]
    state = first.state_dict()
    rest = iter(ps.DeltaDataset(path, 0).shuffle(seed=1))
    rest.load_state_dict(state)
    assert sorted([*taken, *(int(row["a"]) for row in rest)]) == list(range(10))
    newer = iter(ps.DeltaDataset(path).shuffle(seed=1))
    with pytest.raises(
        ps.StateMismatchError,
        match=r"was DeltaDataset\(version=0, 10 rows\), here it is DeltaDataset\(version=2, 10 rows\) .*"
        "; 2 rows were added between them, and 2 removed",
    ):
        newer.load_state_dict(state)


def test_a_filter_over_partitions_and_columns(path):
    city, a = pc.field("city"), pc.field("a")
    for filter, expected in (
        (city == "b/c", [1, 5, 9]),
        ((city == "x y") & (a > 4), [6, 8, 100]),
        (city.is_null(), [101]),
        (pc.field("word") == "p", [100]),
        (city == "nowhere", []),
    ):
        assert sorted(int(row["a"]) for row in ps.DeltaDataset(path, columns=["a"], filter=filter)) == expected
    only = ps.DeltaDataset(path, columns=["city"], filter=a >= 100, mask_nulls=True)
    assert sorted(row["city"] for row in only) == ["", "x y"]
    with pytest.raises(ps.InvalidArgumentError, match=r"DeltaDataset\(filter=...\) does not fit"):
        ps.DeltaDataset(path, filter=pc.field("b") > 1)


def test_a_type_that_became_wider_is_that_of_the_table(tmp_path):
    deltalake.write_deltalake(tmp_path, pa.table({"x": pa.array([1, 2], pa.int32())}))
    log = tmp_path / "_delta_log" / "00000000000000000000.json"
    log.write_text(log.read_text().replace(r"\"type\":\"integer\"", r"\"type\":\"long\""))
    assert ps.DeltaDataset(tmp_path).element_spec == {"x": ps.TensorSpec((), np.int64)}
    assert [row["x"].dtype for row in ps.DeltaDataset(tmp_path, filter=pc.field("x") > 1)] == [np.int64]


def test_files_that_a_vacuum_removed_are_named_with_their_version(path, tmp_path):
    table = shutil.copytree(path, tmp_path / "table")
    deltalake.DeltaTable(table).optimize.compact()
    deltalake.DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(ps.StorageError, match="at version=2 is gone, as after a vacuum.*read a newer version"):
        ps.DeltaDataset(table, 2)
    assert len(ps.DeltaDataset(table)) == 10


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda path: ps.DeltaDataset(path, 9), ps.StorageError, "cannot be opened at version 9"),
        (lambda path: ps.DeltaDataset(path + "no"), ps.StorageError, "cannot be opened"),
        (lambda path: ps.DeltaDataset(3), ps.InvalidTypeError, "deltalake.DeltaTable or where one lies, got 3"),
        (lambda path: ps.DeltaDataset(path, columns=["b"]), ps.InvalidArgumentError, "no column 'b'; its columns are"),
        (
            lambda path: ps.DeltaDataset(deltalake.DeltaTable(path), 1),
            ps.InvalidArgumentError,
            r"is at version 2: call table.load_as_version\(1\)",
        ),
    ],
)
def test_what_is_wrong_is_said_when_the_dataset_is_made(path, make, kind, message):
    with pytest.raises(kind, match=message):
        make(path)


def test_a_table_whose_files_name_columns_otherwise_is_refused(path, tmp_path):
    table = shutil.copytree(path, tmp_path / "table")
    log = table / "_delta_log" / "00000000000000000000.json"
    log.write_text(log.read_text().replace('"configuration":{', '"configuration":{"delta.columnMapping.mode":"name",'))
    with pytest.raises(
        ps.InvalidArgumentError, match=r"uses \['columnMapping'\], which is not read.*from_arrow_stream"
    ):
        ps.DeltaDataset(table, 0)


def test_deletes_beyond_the_end_of_a_file_are_damage(path, tmp_path):
    table = shutil.copytree(path, tmp_path / "table")
    delete_rows_of_delta(table, 3, [2, 17], path="city=b")
    with pytest.raises(ps.StorageError, match="is damaged at version 3.*mask length 18 exceeds numRecords 5"):
        ps.DeltaDataset(table)


@pytest.mark.slow
def test_it_conforms(path):
    check_conformance(lambda: ps.DeltaDataset(path, mask_nulls=True).shuffle(seed=1), limit=40)
