"""Rows at random out of many files are decoded in one call, and are those that each file alone gives."""

import json

import numpy as np
import pyarrow.csv as pc
import pyarrow.json as pj
import pytest

import penstock as ps
from penstock.formats.writing import saved_files

FILES = 12


@pytest.fixture
def calls(monkeypatch):
    counted = []
    for module, name in ((pc, "read_csv"), (pj, "read_json"), (saved_files, "parse_example")):
        read = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, read=read, **more: counted.append(1) or read(*given, **more))
    return counted


def write(path, kind, start):
    rows = [{"n": start + row, "s": f"word,\n{row}" if row % 2 else f"w{row}"} for row in range(5)]
    if kind == "csv":
        text = "n,s\n" + "\n".join(f'{row["n"]},"{row["s"]}"' for row in rows)
    else:
        text = "\n".join(map(json.dumps, rows))
    path.write_bytes(b"\xef\xbb\xbf" * (start % 2) + text.encode())  # without an end of the last line


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_batch_is_decoded_in_one_call(tmp_path, calls, kind):
    for number in range(FILES):
        write(tmp_path / f"{number:02}.{kind}", kind, 5 * number)
    read = ps.CsvDataset if kind == "csv" else ps.JsonLinesDataset
    dataset = read(tmp_path / f"*.{kind}")
    calls.clear()
    (batch,) = dataset.shuffle(seed=1).batch(5 * FILES)
    assert len(calls) == 1
    order = np.argsort(batch["n"])
    assert batch["n"][order].tolist() == list(range(5 * FILES))
    assert batch["s"][order].tolist() == [f"word,\n{n % 5}" if n % 5 % 2 else f"w{n % 5}" for n in range(5 * FILES)]


@pytest.mark.parametrize("last", ['7,"open\n', "7\n", "x,y\n"])
def test_a_damaged_row_of_one_file_costs_itself_alone(tmp_path, last):
    for number in range(FILES):
        (tmp_path / f"{number:02}.csv").write_text(f'n,s\n{number},"a"\n' + last * (number == 5))
    rows = iter(ps.CsvDataset(tmp_path / "*.csv").shuffle(seed=1).with_options(ps.Options(on_error="skip")))
    assert sorted(int(row["n"]) for row in rows) == list(range(FILES))
    assert rows.errors.count == 1 and "05.csv', line 3: " in rows.errors.rows[0].error


def test_saved_examples_of_a_batch_are_parsed_in_one_call(tmp_path, calls):
    saved = ps.Dataset.range(60).map(lambda x: {"x": x, "words": np.array([f"w{x}"] * (int(x) % 3), object)})
    saved.save(tmp_path / "a", format="tfrecord", shards=FILES)
    dataset = ps.Dataset.load(tmp_path / "a").shuffle(seed=1)
    calls.clear()
    (batch,) = dataset.ragged_batch(60)
    assert len(calls) == 1
    assert sorted(batch["x"].tolist()) == list(range(60))
    assert [words.tolist() for words in batch["words"]] == [[f"w{x}"] * (x % 3) for x in batch["x"].tolist()]
