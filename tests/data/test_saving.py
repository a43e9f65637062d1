"""What `save` writes in formats of others: read back as it was by `load`, and by independent readers of each format."""

import io
import json
import os
import tarfile

import numpy as np
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.testing import assert_same_elements

FORMATS = ("penstock", "parquet", "npy", "tfrecord", "tar")


def rows(count, **more):
    """Rows of all kinds that every format but npy holds."""

    def row(x):
        n = int(x)
        return {
            "id": n * 1000 - 5,
            "weights": np.arange(3, dtype=np.float32) + n,
            "word": f"word {n}",
            "bytes": bytes([n % 256, 0]) * (n % 3),
            "flag": n % 2 == 0,
            "image": np.full((2, 3), n, np.uint8),
            **{name: value(n) for name, value in more.items()},
        }

    return ps.Dataset.range(count).map(row)


def numbers(count):
    return ps.Dataset.range(count).map(lambda x: {"id": x, "weights": np.full((2, 2), x, np.float64)})


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shards", [None, 3])
def test_load_gives_what_was_saved(format, shards, tmp_path):
    dataset = numbers(50) if format == "npy" else rows(50)
    dataset.save(tmp_path / "saved", format=format, shards=shards)
    loaded = ps.Dataset.load(tmp_path / "saved")
    assert_same_elements(loaded, dataset)
    assert_same_elements(loaded.shuffle(seed=3), dataset.shuffle(seed=3))
    assert loaded.cardinality() == 50
    assert os.listdir(tmp_path) == ["saved"]
    assert len(list((tmp_path / "saved").glob("*-*"))) == (shards or 1)


def columns_of(dataset):
    (batch,) = dataset.batch(10_000)
    return batch


def test_parquet_files_are_read_by_arrow_with_small_row_groups(tmp_path):
    dataset = ps.Dataset.range(5000).map(lambda x: {"id": x, "pair": (x, np.full(3, x, np.int16)), "word": str(x)})
    dataset.save(tmp_path / "saved", format="parquet", shards=2)
    table = pq.read_table(tmp_path / "saved")  # as a directory: what begins with an underscore is passed over
    assert table["id"].to_pylist() == list(range(5000))
    assert table["pair"].to_pylist()[7] == {"0": 7, "1": [7, 7, 7]}
    assert table["word"].to_pylist()[4999] == "4999"
    metadata = pq.ParquetFile(tmp_path / "saved" / "part-00000.parquet").metadata
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [2000, 500]
    assert_same_elements(ps.Dataset.load(tmp_path / "saved"), dataset)


def test_numpy_files_are_read_by_numpy(tmp_path):
    ps.Dataset.range(7).map(lambda x: x * 2).save(tmp_path / "plain", format="npy", shards=2)
    parts = [np.load(tmp_path / "plain" / f"part-0000{number}.npy") for number in range(2)]
    assert [part.tolist() for part in parts] == [[0, 2, 4], [6, 8, 10, 12]]
    numbers(5).save(tmp_path / "fields", format="npy")
    found = np.load(tmp_path / "fields" / "part-00000.npy", mmap_mode="r")
    assert found["id"].tolist() == [0, 1, 2, 3, 4] and found["weights"].shape == (5, 2, 2)
    assert_same_elements(ps.FilesDataset(str(tmp_path / "fields" / "*.npy"), "npy"), numbers(5))


def test_tar_archives_are_read_by_tarfile(tmp_path):
    dataset = ps.Dataset.range(4).map(
        lambda x: {"__key__": f"{'n' * 120}/{int(x)}", "jpg": b"\xff" * int(x), "cls": x, "txt": f"é{int(x)}", "w": [x]}
    )
    dataset.save(tmp_path / "saved", format="tar")
    with tarfile.open(tmp_path / "saved" / "part-00000.tar") as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive}
    assert list(found)[:4] == [f"{'n' * 120}/0.{ending}" for ending in ("cls", "jpg", "txt", "w.npy")]
    assert found[f"{'n' * 120}/3.cls"] == b"3" and found[f"{'n' * 120}/3.txt"].decode() == "é3"
    assert np.load(io.BytesIO(found[f"{'n' * 120}/2.w.npy"])).tolist() == [2]
    assert_same_elements(ps.Dataset.load(tmp_path / "saved"), dataset)
    first = ps.TarDataset(tmp_path / "saved" / "part-00000.tar")[3]
    assert (int(first["cls"]), first["jpg"], first["txt"]) == (3, b"\xff\xff\xff", "é3")


def test_records_are_bytes_or_examples(tmp_path):
    words = ps.Dataset.from_tensor_slices([b"one", b"", b"three"])
    words.save(tmp_path / "bytes", format="tfrecord")
    assert list(ps.TFRecordDataset(tmp_path / "bytes" / "part-00000.tfrecord")) == [b"one", b"", b"three"]
    rows(9).save(tmp_path / "rows", format="tfrecord")
    features = {"id": ps.TensorSpec((), np.int64), "weights": ps.TensorSpec((3,)), "word": ps.TensorSpec((), object)}
    records = ps.TFRecordDataset(tmp_path / "rows" / "part-00000.tfrecord").batch(9).get_single_element()
    parsed = ps.parse_example(records, features)
    assert parsed["id"].tolist() == [n * 1000 - 5 for n in range(9)]
    assert parsed["weights"][8].tolist() == [8, 9, 10] and parsed["word"][3] == b"word 3"


@pytest.mark.parametrize("format", ["tfrecord", "tar"])
def test_the_index_of_offsets_is_written_with_the_file_and_moves_along(format, tmp_path, monkeypatch):
    rows(20).save(tmp_path / "saved", format=format)
    os.rename(tmp_path / "saved", tmp_path / "moved")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    assert_same_elements(ps.Dataset.load(tmp_path / "moved"), rows(20))
    file = tmp_path / "moved" / f"part-00000.{format}"
    found = ps.TarDataset(file) if format == "tar" else ps.FilesDataset(file, "tfrecord")
    assert len(found) == 20 and not (tmp_path / "cache").exists()
    file.write_bytes(file.read_bytes()[::-1])  # of the same length: the index is not believed
    with pytest.raises(ps.StorageError):
        list(ps.TarDataset(file) if format == "tar" else ps.FilesDataset(file, "tfrecord"))


@pytest.mark.parametrize("format", ["parquet", "tfrecord", "tar"])
def test_rows_of_unequal_length_can_be_saved(format, tmp_path):
    def row(x):
        return {"ids": np.arange(int(x) % 4), "pairs": np.ones((int(x) % 3, 2), np.float32)}

    spec = {"ids": ps.TensorSpec((None,), np.int64), "pairs": ps.TensorSpec((None, 2), np.float32)}
    dataset = ps.Dataset.range(13).map(row, output_signature=spec)
    dataset.save(tmp_path / "saved", format=format, shards=2)
    assert_same_elements(ps.Dataset.load(tmp_path / "saved"), dataset)


def test_batches_with_a_short_last_one_are_rows_of_unequal_length(tmp_path):
    dataset = ps.Dataset.range(10).batch(4)
    dataset.save(tmp_path / "saved", format="parquet")
    assert_same_elements(ps.Dataset.load(tmp_path / "saved"), dataset)


@pytest.mark.parametrize(
    ("format", "value", "says"),
    [
        ("parquet", np.complex64(1), "no type for complex64, of .*'x'.*penstock's own format"),
        ("parquet", np.datetime64("2026", "Y"), "no type for datetime64"),
        ("npy", "text", "hold numbers in one shape"),
        ("tfrecord", np.float64(1), "got float64 in 'x'"),
        ("tfrecord", np.datetime64("2026-01-01"), "got datetime64"),
        ("tar", np.array(["a", "b"], object), "strings and bytes by themselves"),
        ("parquet", object(), "cannot store objects of type object"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_at_the_call(format, value, says, tmp_path):
    column = np.empty(3, object)
    column[:] = [value] * 3
    dataset = ps.Dataset.range(3).map(lambda x: {"x": value})
    with pytest.raises(ps.InvalidTypeError, match=says):
        dataset.save(tmp_path / "saved", format=format)
    assert os.listdir(tmp_path) == []


def test_rows_that_do_not_fit_the_first_one_are_told(tmp_path):
    with pytest.raises(ps.ElementError, match=r"shape \(2,\).*first one said \(1,\).*output_signature"):
        ps.Dataset.range(3).map(lambda x: {"x": np.zeros(1 + int(x))}).save(tmp_path / "saved", format="parquet")
    with pytest.raises(ps.ElementError, match="names without dots that differ"):
        ps.Dataset.range(3).map(lambda x: {"__key__": "same", "x": x}).save(tmp_path / "saved", format="tar")
    assert os.listdir(tmp_path) == []


def test_arguments_that_cannot_be(tmp_path):
    numbers = ps.Dataset.range(3)
    with pytest.raises(ps.InvalidArgumentError, match=r"save\(format=...\) takes one of .*'parquet'.*got 'csv'"):
        numbers.save(tmp_path / "saved", format="csv")
    with pytest.raises(ps.InvalidArgumentError, match=r"shards=2.*only reading filter.*rows_per_shard"):
        numbers.filter(lambda x: True).save(tmp_path / "saved", shards=2)
    with pytest.raises(ps.InvalidArgumentError, match="got both"):
        numbers.save(tmp_path / "saved", shards=2, rows_per_shard=1)


def test_a_stream_is_cut_by_its_rows(tmp_path):
    dataset = ps.Dataset.range(100).filter(lambda x: x % 3 == 0)
    dataset.save(tmp_path / "saved", format="npy", rows_per_shard=10)
    parts = sorted((tmp_path / "saved").glob("*.npy"))
    assert [len(np.load(part)) for part in parts] == [10, 10, 10, 4]
    assert_same_elements(ps.Dataset.load(tmp_path / "saved"), dataset)


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_can_be_saved(format, tmp_path):
    ps.Dataset.range(0).save(tmp_path / "saved", format=format, shards=2)
    assert list(ps.Dataset.load(tmp_path / "saved")) == []


def test_a_file_that_was_changed_is_an_error(tmp_path):
    numbers(9).save(tmp_path / "saved", format="npy")
    file = tmp_path / "saved" / "part-00000.npy"
    os.truncate(file, 200)
    with pytest.raises(ps.StorageError, match="not as it was saved: it had .* bytes, and has 200"):
        ps.Dataset.load(tmp_path / "saved")
    manifest = tmp_path / "saved" / "_dataset.json"
    manifest.write_text(manifest.read_text().replace('"rows": 9', '"rows": 8'))
    with pytest.raises(ps.StorageError, match=r"_dataset\.json is damaged"):
        ps.Dataset.load(tmp_path / "saved")
