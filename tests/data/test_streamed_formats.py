"""What holds for every format that is read from front to back, on files that other libraries have written."""

import csv
import gzip
import io
import json
import lzma
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from object_server import object_server
from past_errors import read_past_errors
from two_workers import two_workers

import penstock as ps

WRITTEN = Path(__file__).parent / "written_by_others"
ROWS = 100
"""Of each of three files."""


def lines(numbers):
    return b"".join(b"%d\n" % number for number in numbers)


def csv_rows(numbers):
    """By Python's own writer; every third row has a line break in quotes."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["word", "x"])
    writer.writerows([f"w{number}," + "\n" * (number % 3 == 0), number] for number in numbers)
    return text.getvalue().encode()


def json_lines(numbers):
    return b"".join(json.dumps({"word": f"w{number}\n", "x": number}).encode() + b"\n" for number in numbers)


def samples(numbers):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number in numbers:
            member = tarfile.TarInfo(f"{number:04}.cls")
            member.size = len(b"%d" % number)
            archive.addfile(member, io.BytesIO(b"%d" % number))
    return file.getvalue()


def records(numbers):
    """As TensorFlow has written them: b"record    0" and so on."""
    return (WRITTEN / "numbers" / f"{numbers[0] // ROWS}.tfrecord").read_bytes()


def integers(numbers):
    return np.array(numbers, "<i8").tobytes()


def zstd(content):
    return pa.compress(content, codec="zstd", asbytes=True)


@dataclass(frozen=True)
class Kind:
    """A format: what its files hold, how they are compressed, and how their numbers are read."""

    content: Callable[[range], bytes]
    pack: Callable[[bytes], bytes]
    compression: str | None
    read: Callable[[Any, Any], ps.Dataset]


def read_lines(files, compression):
    return ps.TextLineDataset(files, compression).map(int)


def read_csv(files, compression):
    return ps.CsvDataset(files, compression_type=compression).map(lambda row: row["x"])


def read_json(files, compression):
    return ps.JsonLinesDataset(files, compression_type=compression).map(lambda row: row["x"])


def read_tar(files, compression):
    return ps.TarDataset(files, compression_type=compression).map(lambda row: row["cls"])


def read_tfrecords(files, compression):
    return ps.TFRecordDataset(files, compression).map(lambda record: int(record[6:]))


def read_fixed(files, compression):
    records = ps.FixedLengthRecordDataset(files, 8, compression_type=compression)
    return records.map(lambda record: int.from_bytes(record, "little"))


KINDS = {
    "text": Kind(lines, bytes, None, read_lines),
    "text, gzip": Kind(lines, gzip.compress, "GZIP", read_lines),
    "text, zlib": Kind(lines, zlib.compress, "ZLIB", read_lines),
    "text, xz": Kind(lines, lzma.compress, "XZ", read_lines),
    "text, zstd": Kind(lines, zstd, "ZSTD", read_lines),
    "CSV, gzip": Kind(csv_rows, gzip.compress, "GZIP", read_csv),
    "CSV, xz": Kind(csv_rows, lzma.compress, "XZ", read_csv),
    "JSON lines, zstd": Kind(json_lines, zstd, "ZSTD", read_json),
    "tar, gzip": Kind(samples, gzip.compress, "GZIP", read_tar),
    "TFRecord": Kind(records, bytes, None, read_tfrecords),
    "TFRecord, gzip": Kind(records, gzip.compress, "GZIP", read_tfrecords),
    "TFRecord, zlib": Kind(records, zlib.compress, "ZLIB", read_tfrecords),
    "records of one length, xz": Kind(integers, lzma.compress, "XZ", read_fixed),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def files(kind, tmp_path_factory):
    """Three files with the numbers 0 to 299."""
    made = tmp_path_factory.mktemp("files")
    for number in range(3):
        content = KINDS[kind].content(range(number * ROWS, (number + 1) * ROWS))
        (made / f"{number}.data").write_bytes(KINDS[kind].pack(content))
    return made


def read(kind, files):
    return KINDS[kind].read(files, KINDS[kind].compression)


def numbers(dataset):
    return [int(number) for number in dataset]


def test_rows_come_in_order(kind, files):
    dataset = read(kind, files / "*.data")
    assert numbers(dataset) == list(range(300)) == numbers(dataset)
    assert numbers(read(kind, [files / "2.data", files / "0.data"]).skip(99).take(2)) == [299, 0]


def test_a_shuffle_in_a_buffer_is_resumed_in_the_middle(kind, files):
    def make():
        return read(kind, files / "*.data").shuffle(50, seed=4).batch(7)

    whole = [int(number) for batch in make() for number in batch]
    assert sorted(whole) == list(range(300)) != whole
    iterator, other = iter(make()), iter(make())
    taken = [int(number) for _ in range(20) for number in next(iterator)]
    other.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
    assert taken + [int(number) for batch in other for number in batch] == whole
    iterator.close()


@pytest.mark.parametrize("policy", ["DATA", "FILE"])
def test_workers_have_each_row_once(kind, files, policy):
    dataset = read(kind, files / "*.data").batch(10).with_options(ps.Options(auto_shard_policy=policy))
    parts = [ps.HostStrategy(1, 2, worker).distribute_dataset(dataset) for worker in range(2)]
    found = [[int(x) for step in part for x in step.values[0]] for part in parts]
    assert sorted(found[0] + found[1]) == list(range(300)) and found[0] and found[1]


@pytest.mark.slow
def test_a_data_service_gives_each_row_once(kind, files):
    dataset = read(kind, files / "*.data").batch(25)
    with two_workers() as service:
        shared = dataset.apply(ps.service.distribute("distributed_epoch", service))
        assert [batch.tolist() for batch in shared] == [batch.tolist() for batch in dataset]


@pytest.fixture(scope="module")
def running():
    with object_server() as server:
        yield server


@pytest.mark.slow
def test_files_of_an_object_store(kind, files, running, monkeypatch):
    pytest.importorskip("obstore", reason="the extra cloud is not installed: pip install obstore")
    running.forget()
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    for number in range(3):
        running.objects[f"bucket/{kind}/{number}.data"] = (files / f"{number}.data").read_bytes()
    far = f"s3://bucket/{kind}"
    assert numbers(read(kind, f"{far}/*.data")) == list(range(300))
    shuffled = read(kind, [f"{far}/{number}.data" for number in range(3)]).shuffle(50, seed=4).batch(7)
    whole, iterator, other = iter(shuffled), *(iter(ps.Dataset(shuffled.node)) for _ in range(2))
    taken = [int(number) for _ in range(20) for number in next(iterator)]
    other.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
    assert taken + [int(x) for batch in other for x in batch] == [int(x) for batch in whole for x in batch]
    iterator.close()
    running.objects[f"bucket/{kind}/1.data"] = cut(kind, files)
    got, errors = read_past_errors(read(kind, f"{far}/*.data"), ps.StorageError, ps.ElementError)
    assert len(errors) == 1 and f"{far}/1.data" in str(errors[0])
    assert got[:100] == list(range(100)) and got[-100:] == list(range(200, 300))


def cut(kind, files):
    """The second file without its end, of which what is left is damaged if that alone is no error."""
    whole = (files / "1.data").read_bytes()
    return whole[:-5] if KINDS[kind].compression else whole[: len(whole) // 2 - 1] + b"\xff"


def test_rows_before_a_cut_come_and_then_the_next_file(kind, files, tmp_path):
    (tmp_path / "1.data").write_bytes(cut(kind, files))
    cut_in_the_middle = read(kind, [files / "0.data", tmp_path / "1.data", files / "2.data"])
    got, errors = read_past_errors(cut_in_the_middle, ps.StorageError, ps.ElementError)
    assert len(errors) == 1 and f"{tmp_path / '1.data'}" in str(errors[0])
    assert got[:100] == list(range(100)) and got[-100:] == list(range(200, 300))
    assert got[100:-100] == list(range(100, 100 + len(got) - 200))


def test_a_compressed_file_that_is_not_said_to_be_one_is_told(kind, files):
    compression = KINDS[kind].compression
    if compression is None or compression == "ZLIB":  # which begins with nothing of its own
        return
    if kind.startswith("records of one length"):  # any bytes are records
        return
    with pytest.raises(ps.PenstockError, match=f"compressed.*compression_type=.{compression}"):
        list(KINDS[kind].read(files / "0.data", None))


@pytest.mark.parametrize(
    "make", [ps.CsvDataset, ps.JsonLinesDataset, ps.ParquetDataset, ps.TarDataset, ps.TFRecordDataset]
)
def test_a_picture_is_none_of_these(make, tmp_path):
    (tmp_path / "a.data").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4)
    with pytest.raises(ps.StorageError, match="a.data'"):
        list(make(tmp_path / "a.data"))


NAMED = {
    **{name: getattr(ps, name) for name in ("TextLineDataset", "TFRecordDataset", "CsvDataset", "JsonLinesDataset")},
    **{name: getattr(ps, name) for name in ("ParquetDataset", "TarDataset", "MdsDataset")},
    "FixedLengthRecordDataset": lambda files: ps.FixedLengthRecordDataset(files, 8),
    "FilesDataset": lambda files: ps.FilesDataset(files, "text"),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_list_without_files_is_one_error_of_every_reader(name):
    with pytest.raises(ps.InvalidArgumentError, match=f"^{name} takes at least one file, got none: the list .* empty$"):
        NAMED[name]([])
    nothing = ps.Dataset.from_list(["a"]).take(0)
    if name in ("TextLineDataset", "TFRecordDataset"):  # a part of names for a worker that gets none
        assert list(NAMED[name](nothing)) == []
    else:
        with pytest.raises(ps.InvalidArgumentError, match=f"^{name} takes at least one file, got none"):
            NAMED[name](nothing)


@pytest.mark.slow
def test_what_tensorflow_has_written_is_read_compressed_too(tmp_path):
    records = list(ps.TFRecordDataset(WRITTEN / "examples.tfrecord"))
    for number in range(2):
        (tmp_path / f"{number}.data").write_bytes(gzip.compress((WRITTEN / "examples.tfrecord").read_bytes()))
    dataset = ps.TFRecordDataset(tmp_path / "*.data", "GZIP")
    assert list(dataset) == records * 2
    iterator, other = iter(dataset), iter(dataset)
    taken = [next(iterator) for _ in range(15)]
    other.load_state_dict(iterator.state_dict())
    assert taken + list(other) == records * 2
    for policy in ("DATA", "FILE"):
        shared = dataset.batch(4).with_options(ps.Options(auto_shard_policy=policy))
        parts = [ps.HostStrategy(1, 2, worker).distribute_dataset(shared) for worker in range(2)]
        assert sorted(x for part in parts for step in part for x in step.values[0]) == sorted(records * 2)
