"""`penstock convert`: files of one format as those of another, as a stranger would ask for it."""

import json
import os
import signal
import tarfile
import textwrap
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forked import run

import penstock as ps
from penstock.cli import main
from penstock.testing import assert_same_elements


@pytest.fixture
def people(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{number},{number / 4},name {number}\n" for number in range(100))
    (tmp_path / "people.csv").write_text("id,height,name\n" + rows)


@pytest.mark.usefixtures("people")
def test_a_csv_file_becomes_a_parquet_file(capsys):
    assert main(["convert", "people.csv", "people.parquet"]) == 0
    table = pq.read_table("people.parquet")
    assert table.to_pylist()[7] == {"id": 7, "height": 1.75, "name": "name 7"}
    assert capsys.readouterr().out.startswith("wrote people.parquet: 1 file, ")
    assert sorted(os.listdir()) == ["people.csv", "people.parquet"]


def test_columns_in_the_names_of_folders_are_converted_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder, x in (("year=2023/month=01", 1), ("year=2024/month=10", 2)):
        Path("sales", folder).mkdir(parents=True)
        pq.write_table(pa.table({"x": [x]}), f"sales/{folder}/part.parquet")
    assert main(["convert", "sales", "sales.parquet"]) == 0, capsys.readouterr().err
    assert main(["inspect", "sales"]) == 0
    assert "'year': int64, 'month': text" in capsys.readouterr().out
    assert pq.read_table("sales.parquet").to_pylist() == [
        {"x": 1, "year": 2023, "month": "01"},
        {"x": 2, "year": 2024, "month": "10"},
    ]


def test_deleted_rows_of_a_delta_table_are_not_converted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("table", "_delta_log").mkdir(parents=True)
    Path("table", "_delta_log", "00000000000000000000.json").touch()
    pq.write_table(pa.table({"x": [1]}), "table/part.parquet")
    for command in (
        ["convert", "table", "out.parquet"],
        ["convert", "table/*.parquet", "a.parquet"],
        ["inspect", "table"],
    ):
        assert main(command) != 0
        assert "is a table of Delta, whose files also have rows that were deleted" in capsys.readouterr().err
    assert os.listdir() == ["table"]
    assert main(["inspect", "table/part.parquet"]) == 0


def test_columns_of_folders_of_csv_files_are_not_left_out_in_silence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("sales/year=2023").mkdir(parents=True)
    Path("sales/year=2023/part.csv").write_text("x\n1\n")
    assert main(["convert", "sales", "sales.parquet"]) == 0
    assert "alone: ['year'] left out" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("people")
def test_files_go_through_all_formats_and_come_back(capsys):
    steps = ["people.csv", "a.parquet", "b.tfrecord", "shards", "c.tar", "d", "e.parquet"]
    more = {
        "b.tfrecord": ["--float32"],
        "shards": ["--format", "tfrecord", "--shards", "3"],
        "d": ["--format", "penstock"],
    }
    for source, target in pairwise(steps):
        assert main(["convert", source, target, *more.get(target, [])]) == 0, capsys.readouterr().err
    table = pq.read_table("e.parquet")
    assert table["id"].to_pylist() == list(range(100))
    assert sorted(name for name in os.listdir("shards") if name[0] != "_") == [
        f"part-0000{number}.tfrecord" for number in range(3)
    ]
    with tarfile.open("c.tar") as archive:
        assert archive.extractfile("00000-000000007.name").read() == b"name 7"


def test_shards_of_mds_become_files_that_can_be_written(tmp_path):
    written = Path(__file__).parent / "data" / "written_by_others" / "mosaic"
    assert main(["convert", str(written), str(tmp_path / "out"), "--format", "penstock"]) == 0
    assert_same_elements(ps.Dataset.load(tmp_path / "out"), ps.MdsDataset(written))


def test_what_is_missing_in_a_table_is_masked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x,y\n1,2\n,3\n")
    assert main(["convert", "a.csv", "a.parquet"]) == 1
    assert "mask_nulls=['x'] makes zeros" in capsys.readouterr().err
    assert main(["convert", "a.csv", "a.parquet", "--mask-nulls", "x"]) == 0
    assert pq.read_table("a.parquet").to_pylist()[1] == {"x": 0, "x_is_valid": False, "y": 3}
    assert main(["convert", "a.parquet", "b.npy", "--mask-nulls", "z"]) == 2
    assert "cannot mask 'z'" in capsys.readouterr().err


def test_lists_of_unequal_length_and_of_objects_are_converted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"n": [5, 6], "words": [], "deep": [[1], [2, 3]], "m": []},
        {"n": [5], "words": ["a"], "deep": [[4]], "m": [{"role": "user", "tools": None, "parts": []}]},
        {"n": [], "words": ["b", "c"], "deep": [], "m": [{"role": None, "tools": ["t"], "parts": [{"x": 0.5}]}, None]},
    ]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["convert", "a.jsonl", "a.parquet"]) == 0
    assert pq.read_table("a.parquet").to_pylist() == rows
    assert main(["convert", "a.parquet", "b", "--format", "parquet", "--rows-per-shard", "2"]) == 0
    for dataset in (ps.Dataset.load("b"), ps.JsonLinesDataset("a.jsonl")):
        found = list(dataset)
        assert [row["m"].tolist() for row in found] == [row["m"] for row in rows]
        assert [row["words"].tolist() for row in found] == [row["words"] for row in rows]
        assert [[inner.tolist() for inner in row["deep"]] for row in found] == [row["deep"] for row in rows]
        assert found[2]["n"].dtype == np.int64 and found[1]["deep"][0].dtype == np.int64


@pytest.mark.usefixtures("people")
def test_what_cannot_be_converted_is_told(capsys, tmp_path):
    refused = {
        ("people.csv", "out"): (2, "add --format for a directory, one of parquet, tfrecord"),
        ("people.csv", "people.csv"): (2, "'people.csv' does not end as a format that is written (.parquet, .tfrecord"),
        ("people.csv", "x.tar", "--format", "npy"): (2, "'x.tar' ends as tar, and --format says npy"),
        ("people.csv", "x.tfrecord"): (1, "got float64 in 'height'"),
        ("missing.csv", "x.parquet"): (2, "no file matches 'missing.csv'"),
        (".", "x.parquet"): (2, "several formats: text ('./note.txt'), CSV ('./people.csv')"),
    }
    (tmp_path / "note.txt").write_text("hello\n")
    for arguments, (status, message) in refused.items():
        assert main(["convert", *arguments]) == status, arguments
        assert message in capsys.readouterr().err
    assert main(["convert", "note.txt", "people.parquet"]) == 0
    assert main(["convert", "people.csv", "people.parquet"]) == 1
    assert "exists: remove it first" in capsys.readouterr().err


def test_files_without_rows_make_no_file_that_nobody_can_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("x,y")
    for target in ("a.parquet", "a.npy", "a.tar", "a.tfrecord"):
        assert main(["convert", "a.csv", target]) == 2
        assert "convert: there is no row, and so no file" in capsys.readouterr().err
    assert os.listdir() == ["a.csv"]


@pytest.mark.slow
def test_examples_are_parsed_unless_raw(tmp_path, capsys):
    with ps.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(20):
            features = {"id": number, "ids": np.arange(number % 3), "name": f"n{number}", "xy": np.float32([number, 1])}
            writer.write(ps.serialize_example(features))
    assert main(["convert", str(tmp_path / "a.tfrecord"), str(tmp_path / "a.parquet")]) == 0
    row = pq.read_table(tmp_path / "a.parquet").to_pylist()[5]
    assert row == {"id": 5, "ids": [0, 1], "name": b"n5", "xy": [5.0, 1.0]}
    assert main(["convert", str(tmp_path / "a.tfrecord"), str(tmp_path / "raw.parquet"), "--raw"]) == 0
    assert pq.read_table(tmp_path / "raw.parquet").schema == pa.schema({"value": pa.binary()})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "workers"),
    [("SIGKILL", []), pytest.param("SIGINT", ["--workers", "2"], marks=pytest.mark.extended)],
    ids=["killed", "Ctrl-C, workers"],
)
def test_an_interrupted_conversion_resumes(tmp_path, sent, workers):
    pq.write_table(pa.table({"x": range(1000)}), tmp_path / "a.parquet")
    program = f"""
        import os, signal, sys
        from penstock.cli import main
        from penstock.data.saving.save import ShardNotes
        add = ShardNotes.add

        def dying(self, number, description):
            add(self, number, description)
            if number == 3:
                os.kill(os.getpid(), signal.{sent})

        ShardNotes.add = dying
        sys.exit(main(sys.argv[1:]))
    """
    arguments = ["convert", str(tmp_path / "a.parquet"), str(tmp_path / "out"), "--format", "npy", "--shards", "8"]
    arguments += workers
    ended = {"SIGKILL": -signal.SIGKILL, "SIGINT": 130}
    assert run("-c", textwrap.dedent(program), *arguments).returncode == ended[sent]
    complete = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out.unfinished").glob("*.npy")}
    noted = [f"part-{path.stem}.npy" for path in (tmp_path / "out.unfinished" / "_save").glob("0*.json")]
    assert "part-00003.npy" in noted and not (tmp_path / "out").exists()
    assert main(arguments) == 0
    again = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.npy")}
    assert all(again[name] == complete[name] for name in noted)  # they were not written again
    assert_same_elements(ps.Dataset.load(tmp_path / "out"), ps.ParquetDataset(tmp_path / "a.parquet"))


def test_help_says_what_a_stranger_needs(capsys):
    with pytest.raises(SystemExit):
        main(["convert", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "SRC DST",
        "penstock convert people.csv people.parquet",
        "continued by the same command",
        "--float32",
    ):
        assert words in said
