"""Data sets of Lance, made by pylance: versions, deletes, columns that came later."""

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.service.wire.definitions import from_bytes, to_bytes
from penstock.testing import check_conformance

lance = pytest.importorskip("lance", reason="the extra lance is not installed: pip install pylance")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Version 1 has a = 0 to 9, version 2 two rows more, version 3 lacks a = 3, and version 4 has a column b."""
    made = str(tmp_path_factory.mktemp("lance") / "rows.lance")
    kinds = pa.schema([("a", pa.int64()), ("word", pa.string()), ("v", pa.list_(pa.float32(), 2))])
    for mode, numbers in (("create", range(10)), ("append", (100, 101))):
        rows = {"a": numbers, "word": [f"w{a}" for a in numbers], "v": [[a, a] for a in numbers]}
        data = lance.write_dataset(pa.table(rows, schema=kinds), made, mode=mode)
    data.delete("a = 3")
    data.add_columns({"b": "nullif(a, 5)"})
    return made


def numbers(dataset):
    return [int(row["a"]) for row in dataset]


def test_rows_by_number_without_those_deleted(path):
    dataset = ps.LanceDataset(path, 3)
    assert numbers(dataset) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 100, 101]
    assert dataset[9]["word"] == "w100" and dataset[-1]["v"].tolist() == [101, 101]
    assert sorted(numbers(dataset.shuffle(seed=1))) == numbers(dataset) != numbers(dataset.shuffle(seed=1))
    assert dataset.element_spec["v"] == ps.TensorSpec((2,), np.float32)
    assert numbers(dataset.select([2, 2, 0])) == [2, 2, 0]


def test_a_version_is_fixed_and_stands_in_the_state(path):
    assert [len(ps.LanceDataset(path, version)) for version in (1, 2, 3, None)] == [10, 12, 11, 11]
    assert len(ps.LanceDataset(lance.dataset(path, version=1))) == 10
    assert len(ps.LanceDataset(lance.dataset(path), version=1)) == 10
    assert "LanceDataset(version=4, 11 rows)" in ps.LanceDataset(path).explain()
    iterator = iter(ps.LanceDataset(path, 1))
    next(iterator)
    state = iterator.state_dict()
    again = iter(ps.Dataset(*from_bytes(to_bytes(ps.LanceDataset(path, 1).node, ps.Options()))))
    again.load_state_dict(state)
    assert numbers(again) == list(range(1, 10))
    with pytest.raises(
        ps.StateMismatchError, match=r"version=1, 10 rows\), here it is LanceDataset\(version=2, 12.*; 2 rows .* 0 rem"
    ):
        iter(ps.LanceDataset(path, 2)).load_state_dict(state)


def test_a_filter_in_sql_and_masked_nulls(path):
    filtered = ps.LanceDataset(path, columns=["word"], filter="a > 8 and word != 'w100'")
    assert [row["word"] for row in filtered] == ["w9", "w101"]
    masked = ps.LanceDataset(path, columns=["b"], mask_nulls=True)
    assert [int(row["b"]) for row in masked if not row["b_is_valid"]] == [0]
    with pytest.raises(ps.InvalidArgumentError, match=r"LanceDataset takes columns without nulls.*mask_nulls=\['b'\]"):
        list(ps.LanceDataset(path))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda path: ps.LanceDataset(path, 9), ps.StorageError, "cannot be opened at version 9, which may have been"),
        (lambda path: ps.LanceDataset(path + "no"), ps.StorageError, "cannot be opened"),
        (lambda path: ps.LanceDataset(3), ps.InvalidTypeError, "lance.LanceDataset or where one lies, got 3"),
        (lambda path: ps.LanceDataset(path, columns=["c"]), ps.InvalidArgumentError, "no column 'c'; its columns are"),
        (lambda path: ps.LanceDataset(path, filter="c > 1"), ps.InvalidArgumentError, "'c > 1'.* does not fit"),
    ],
)
def test_what_is_wrong_is_said_when_the_dataset_is_made(path, make, kind, message):
    with pytest.raises(kind, match=message):
        make(path)


def test_rows_that_are_gone_name_the_version(path, tmp_path):
    data = lance.write_dataset(pa.table({"a": range(4)}), tmp_path / "gone.lance")
    dataset = ps.LanceDataset(data)
    for file in (tmp_path / "gone.lance" / "data").iterdir():
        file.unlink()
    with pytest.raises(ps.StorageError, match=r"gone.lance', version=1: rows 0 to 0 cannot be read"):
        list(dataset)


@pytest.mark.slow
def test_it_conforms(path):
    check_conformance(lambda: ps.LanceDataset(path, 3).shuffle(seed=1), limit=40)
