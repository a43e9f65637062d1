"""Rows at random out of many small files: each file is decoded once, and rows are those that it alone gives."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.formats import gathered_rows
from penstock.formats.records import record_files
from penstock.formats.tables import parquet, table_records
from penstock.formats.writing import row_files

FILES, ROWS = 20, 5


def save(path, format):
    rows = {"n": np.arange(FILES * ROWS), "s": np.array([f"w{n}" for n in range(FILES * ROWS)], object)}
    ps.Dataset.from_tensor_slices(rows).save(path, format=format, shards=FILES)
    return ps.Dataset.load(path)


@pytest.fixture
def reads(monkeypatch):
    counted = []
    for kind in (record_files.RecordFiles, parquet.ParquetFiles):
        read = kind.read_columns
        monkeypatch.setattr(
            kind, "read_columns", lambda own, name, rows, read=read: counted.append(name) or read(own, name, rows)
        )
    together = parquet.ParquetFiles.read_pieces

    def read_pieces(own, pieces):
        found = together(own, pieces)
        counted.extend(name for name, _ in pieces if found)
        return found

    monkeypatch.setattr(parquet.ParquetFiles, "read_pieces", read_pieces)
    return counted


@pytest.mark.parametrize("format", ["penstock", "tfrecord", "parquet", "tar"])
def test_shuffled_rows_of_many_files_are_all_there(tmp_path, format):
    rows = save(tmp_path / "a", format).shuffle(seed=1)
    assert sorted((int(row["n"]), str(row["s"])) for row in rows) == [(n, f"w{n}") for n in range(FILES * ROWS)]


def test_each_file_is_decoded_once_in_all_epochs(tmp_path, reads):
    for number in range(FILES):
        (tmp_path / f"{number:02}.txt").write_text("".join(f"{number} {row}\n" for row in range(ROWS)))
    lines = ps.FilesDataset(tmp_path / "*.txt", "text").shuffle(seed=1).batch(10)
    for _ in range(2):
        found = [line for batch in lines for line in batch.tolist()]
        assert sorted(found) == sorted(f"{number} {row}" for number in range(FILES) for row in range(ROWS))
    assert len(set(reads)) == FILES and len(reads) <= FILES + 1  # the first one also shows how large rows are


def test_saved_rows_of_many_files_are_decoded_together(tmp_path, monkeypatch):
    decoded = []
    decode = row_files.decode_columns
    monkeypatch.setattr(row_files, "decode_columns", lambda batch: decoded.append(batch.num_rows) or decode(batch))
    batches = save(tmp_path / "a", "penstock").shuffle(seed=1).batch(FILES * ROWS)
    for _ in range(2):
        (batch,) = batches
        assert sorted(zip(batch["n"].tolist(), batch["s"].tolist())) == sorted(
            (n, f"w{n}") for n in range(len(batch["n"]))
        )
    assert decoded == [ROWS, FILES * ROWS]  # the first file alone shows how large rows are


def test_saved_files_of_other_kinds_of_rows_are_decoded_by_themselves(tmp_path):
    values = [f"w{n}" if n < 50 else f"w{n}".encode() for n in range(FILES * ROWS)]
    ps.Dataset.from_tensor_slices(np.array(values, object)).save(tmp_path / "a", shards=FILES)
    rows = ps.Dataset.load(tmp_path / "a").shuffle(seed=1).batch(7)
    assert sorted((row for batch in rows for row in batch.tolist()), key=str) == sorted(values, key=str)


def test_a_damaged_file_among_saved_ones_costs_its_rows_alone(tmp_path):
    save(tmp_path / "a", "penstock")
    path = tmp_path / "a" / "part-00007.rows"
    content = bytearray(path.read_bytes())
    content[-70] ^= 1
    path.write_bytes(content)
    rows = iter(ps.Dataset.load(tmp_path / "a").shuffle(seed=1).with_options(ps.Options(on_error="skip")))
    assert sorted(int(row["n"]) for row in rows) == [n for n in range(FILES * ROWS) if n // ROWS != 7]
    assert rows.errors.count == ROWS and "part-00007.rows is damaged from byte" in rows.errors.rows[0].error


def test_small_parquet_files_are_decoded_together_but_for_damaged_ones(tmp_path, monkeypatch):
    decoded = []
    decode = parquet.as_columns
    monkeypatch.setattr(parquet, "as_columns", lambda table, **how: decoded.append(len(table)) or decode(table, **how))
    for number in range(FILES):
        pq.write_table(pa.table({"n": range(ROWS * number, ROWS * number + ROWS)}), tmp_path / f"{number:02}.parquet")
    batches = ps.ParquetDataset(tmp_path / "*.parquet").shuffle(seed=1).batch(FILES * ROWS)
    decoded.clear()
    assert sorted(next(iter(batches))["n"].tolist()) == list(range(FILES * ROWS))
    assert decoded == [ROWS, FILES * ROWS]
    content = bytearray((tmp_path / "07.parquet").read_bytes())
    content[4:30] = bytes(26)
    (tmp_path / "07.parquet").write_bytes(content)
    rows = iter(ps.ParquetDataset(tmp_path / "*.parquet").shuffle(seed=1).with_options(ps.Options(on_error="skip")))
    assert sorted(int(row["n"]) for row in rows) == [n for n in range(FILES * ROWS) if n // ROWS != 7]
    assert rows.errors.count == ROWS and "07.parquet': row group 0, " in rows.errors.rows[0].error


def test_more_files_do_not_make_the_specification_of_rows_again(tmp_path, monkeypatch):
    made = []
    rows = table_records.TableRecords.rows
    monkeypatch.setattr(table_records.TableRecords, "rows", lambda own, table: made.append(1) or rows(own, table))
    for number in range(FILES):
        (tmp_path / f"{number:02}.csv").write_text(f"n\n{number}\n")
    ps.CsvDataset(tmp_path / "00.csv")
    of_one, made[:] = len(made), []
    assert len(ps.CsvDataset(tmp_path / "*.csv")) == FILES
    assert len(made) == of_one


def test_rows_in_order_are_not_gathered(tmp_path, monkeypatch):
    monkeypatch.setattr(gathered_rows.GatheredRows, "read", None)
    for number in range(FILES):
        (tmp_path / f"{number:02}.txt").write_text(f"{number}\n" * ROWS)
    lines = ps.FilesDataset(tmp_path / "*.txt", "text")
    assert [line for batch in lines.batch(7) for line in batch.tolist()] == [
        str(number) for number in range(FILES) for _ in range(ROWS)
    ]


def test_a_damaged_row_among_many_files_costs_itself_alone(tmp_path):
    for number in range(FILES):
        (tmp_path / f"{number:02}.csv").write_text(f"n\n{number}\n" + "x\n" * (number == 5))
    rows = iter(ps.CsvDataset(tmp_path / "*.csv").shuffle(seed=1).with_options(ps.Options(on_error="skip")))
    assert sorted(int(row["n"]) for row in rows) == list(range(FILES))
    assert rows.errors.count == 1 and "05.csv', line 3: " in rows.errors.rows[0].error


def test_files_of_other_shapes_are_read_by_themselves(tmp_path):
    for number in range(FILES):
        pq.write_table(pa.table({"x": [[number] * (2 + number % 2)] * ROWS}), tmp_path / f"{number:02}.parquet")
    batches = ps.ParquetDataset(tmp_path / "*.parquet").shuffle(seed=1).ragged_batch(FILES)
    found = sorted(tuple(row.tolist()) for batch in batches for row in batch["x"])
    assert found == sorted((number,) * (2 + number % 2) for number in range(FILES) for _ in range(ROWS))


def test_objects_that_users_may_change_are_made_anew(tmp_path):
    for number in range(FILES):
        line = json.dumps({"messages": [{"role": "user", "n": number}]})
        (tmp_path / f"{number:02}.jsonl").write_text(f"{line}\n" * ROWS)
    dataset = ps.JsonLinesDataset(tmp_path / "*.jsonl").shuffle(seed=1)
    for _ in range(2):
        for row in dataset:
            assert row["messages"][0]["role"] == "user"
            row["messages"][0]["role"] = "changed"


def test_arrays_that_are_kept_are_read_only(tmp_path):
    for number in range(FILES):
        pq.write_table(
            pa.table({"x": [[number] * (row + 1) for row in range(ROWS)]}), tmp_path / f"{number:02}.parquet"
        )
    for row in ps.ParquetDataset(tmp_path / "*.parquet").shuffle(seed=1):
        assert not row["x"].flags.writeable


def test_rows_of_later_files_may_be_much_larger(tmp_path, monkeypatch, reads):
    monkeypatch.setattr(gathered_rows, "_MOST_BYTES", 50_000)
    lengths = [400_000 if number == 9 else 10 for number in range(FILES)]
    for number, length in enumerate(lengths):
        pq.write_table(pa.table({"s": ["x" * length]}), tmp_path / f"{number:02}.parquet")
    rows = ps.ParquetDataset(tmp_path / "*.parquet").shuffle(seed=1).batch(FILES)
    for _ in range(3):
        assert sorted(map(len, next(iter(rows))["s"].tolist())) == sorted(lengths)
    assert len(reads) >= 3 * FILES  # what is larger than all caches may be is not kept
