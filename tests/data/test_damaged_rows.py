"""Rows of CSV and JSON lines that cannot be read cost themselves alone, and few calls of Arrow's reader."""

import gzip
import re

import pyarrow.csv as pc
import pyarrow.json as pj
import pytest

import penstock as ps

COUNT = 2000
BAD = [3, 4, 900, *range(1000, 1100, 7), COUNT - 1]
KINDS = ["csv columns", "csv types", "csv nulls", "json types", "json text", "json nulls"]


def written(path, kind, bad):
    format, what = kind.split()
    with path.open("w") as file:
        file.write("a,b\n" * (format == "csv"))
        for number in range(COUNT):
            if format == "csv":
                row = {"columns": f"{number}", "types": f'x,"{number}\n"', "nulls": f",{number}"}[what]
                file.write((row if number in bad else f'{number},"{number}\n"') + "\n")
            else:
                row = {"types": '{"a": "x"}', "text": "x", "nulls": '{"a": null}'}[what]
                file.write((row if number in bad else f'{{"a": {number}}}') + "\n")


def dataset_of(path, kind, compression=None):
    types = {"a": int, "b": str} if kind.startswith("csv") else {"a": int}
    read = ps.CsvDataset if kind.startswith("csv") else ps.JsonLinesDataset
    return read(path, types=types, compression_type=compression)


@pytest.fixture
def calls(monkeypatch):
    counted = []
    for module, name in ((pc, "read_csv"), (pj, "read_json")):
        read = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, read=read, **more: counted.append(1) or read(*given, **more))
    return counted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_damaged_rows_are_left_out_by_few_calls(tmp_path, calls, kind, compression):
    path = tmp_path / "a"
    written(path, kind, BAD)
    if compression:
        path.write_bytes(gzip.compress(path.read_bytes()))
    rows = iter(dataset_of(path, kind, compression).with_options(ps.Options(on_error="skip")))
    calls.clear()
    assert [int(row["a"]) for row in rows] == sorted(set(range(COUNT)) - set(BAD))
    assert rows.errors.count == len(BAD)
    per_record = 2 if kind in ("csv columns", "csv types", "json types", "json text") else 1
    assert len(calls) <= (per_record + 1) * len(BAD) + 20
    lines = [1 + n * (2 if "csv" in kind else 1) + ("csv" in kind) for n in BAD]
    if kind == "csv columns":  # a damaged row has one line there, the others two
        lines = [2 + 2 * n - before for before, n in enumerate(BAD)]
    if kind == "csv nulls":
        lines = [2 + 2 * n - before for before, n in enumerate(BAD)]
    said = [row.error for row in rows.errors.rows]
    assert [int(re.search(r"a', line (\d+): ", error)[1]) for error in said] == lines


@pytest.mark.extended
@pytest.mark.parametrize("kind", KINDS)
def test_rows_before_a_damaged_one_come_first_and_those_behind_it_after(tmp_path, kind):
    written(tmp_path / "a", kind, BAD)
    rows, found = iter(dataset_of(tmp_path / "a", kind).batch(1).unbatch()), []
    while len(found) < 910:
        try:
            found.append(int(next(rows)["a"]))
        except ps.ElementError:
            found.append(None)
    assert found == [None if number in BAD else number for number in range(910)]
    state = rows.state_dict()
    again = iter(dataset_of(tmp_path / "a", kind).batch(1).unbatch())
    again.load_state_dict(state)
    assert int(next(again)["a"]) == 910
    shuffled = iter(dataset_of(tmp_path / "a", kind).shuffle(seed=1).with_options(ps.Options(on_error="skip")))
    assert sorted(int(row["a"]) for row in shuffled) == sorted(set(range(COUNT)) - set(BAD))


@pytest.mark.extended
def test_a_file_of_damaged_rows_alone_gives_none(tmp_path):
    for name, row in (("1.csv", "1,2\n"), ("2.csv", "1\n")):
        (tmp_path / name).write_text("a,b\n" + row * 500)
    rows = iter(ps.CsvDataset(tmp_path / "*.csv").with_options(ps.Options(on_error="skip")))
    assert len(list(rows)) == 500 and rows.errors.count == 500


def test_a_line_of_null_alone_is_an_error_of_its_row(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\nnull\n{"a": 2}\n')
    rows = iter(ps.JsonLinesDataset(tmp_path / "a.jsonl"))
    assert next(rows)["a"] == 1
    with pytest.raises(ps.ElementError, match="a.jsonl', line 2: "):
        next(rows)
    assert next(rows)["a"] == 2
    (tmp_path / "b.jsonl").write_text("null\n")
    with pytest.raises(ps.StorageError, match="b.jsonl': its first line is no JSON object, .*got null"):
        ps.JsonLinesDataset(tmp_path / "b.jsonl")
