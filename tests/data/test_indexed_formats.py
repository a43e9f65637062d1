"""What holds for every format whose rows are read by number, on files that other libraries have written."""

import csv
import io
import json
import os
import struct
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_server import object_server
from past_errors import read_past_errors

import penstock as ps
from penstock.testing import check_conformance

WRITTEN = Path(__file__).parent / "written_by_others" / "numbers"


@dataclass(frozen=True)
class Kind:
    """A format: how its files are written and read, and what is lost when one is damaged."""

    write: Callable[[Path, range], None]
    """Write a file with these numbers."""
    read: Callable[[Any], ps.Dataset]
    """The numbers in files."""
    damage: Callable[[bytes], bytes] | None
    """Of a file of 100 numbers; None where any bytes are numbers."""
    lost: range
    """The numbers that are lost by that, counted from the file's first."""
    message: str
    """What is said of the first of them."""


def write_parquet(path, numbers):
    pq.write_table(pa.table({"x": list(numbers)}), path, row_group_size=32)


def damaged_parquet(content):
    group = pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(1).column(0)
    start = group.dictionary_page_offset or group.data_page_offset
    return content[:start] + b"\xff" * 40 + content[start + 40 :]


def write_lines(path, numbers):
    path.write_bytes(b"".join(b"%d\n" % number for number in numbers))


def written(extension):
    """Copies files of the same numbers that the format's own library has written: TensorFlow, MosaicML Streaming."""
    return lambda path, numbers: path.write_bytes((WRITTEN / f"{numbers[0] // 100}.{extension}").read_bytes())


def write_csv(path, numbers):
    """By Python's own writer; every third row has a line break in quotes."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["word", "x"])
        writer.writerows([f"w{number}," + "\n" * (number % 3 == 0), number] for number in numbers)


def write_json_lines(path, numbers):
    lines = [json.dumps({"word": f"w{number}\n", "x": number, "list": [number] * 2}) for number in numbers]
    path.write_text("\n".join(lines))


def write_array(path, numbers):
    with path.open("wb") as file:
        np.save(file, np.array([(-number, number) for number in numbers], np.int16))


def write_fields(path, numbers):
    with path.open("wb") as file:
        np.save(file, np.array([(number, number / 2) for number in numbers], [("x", ">i4"), ("y", "f8", (1,))]))


def damaged_mds(content):
    place = content.index(b"w140")
    return content[: place - 11] + b"\xff" + content[place - 10 :]


def write_array_records(path, numbers):
    writer = pytest.importorskip("array_record.python.array_record_module").ArrayRecordWriter(
        str(path), "group_size:1,uncompressed"
    )
    for number in numbers:
        writer.write(b"record %3d" % number)
    writer.close()


def write_tar(path, numbers):
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT if numbers[0] else tarfile.PAX_FORMAT) as archive:
        for number in numbers:
            folder = "long/" * (30 * (number % 3))
            for extension, content in (("cls", b"%d" % number), ("seg.txt", b"x" * number), ("jpg", b"\xff" * 600)):
                member = tarfile.TarInfo(f"{folder}{number}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def damaged_tar(content):
    return replaced(content, content.index(b"140" + bytes(500)), b"one")


def replaced(content, place, by):
    return content[:place] + by + content[place + len(by) :]


KINDS = {
    "parquet": Kind(
        write_parquet,
        lambda files: ps.ParquetDataset(files).map(lambda row: row["x"]),
        damaged_parquet,
        range(32, 64),
        "row group 1, rows 32 to 63, cannot be read",
    ),
    "text": Kind(
        write_lines,
        lambda files: ps.FilesDataset(files, "text").map(int),
        lambda content: content.replace(b"140\n", b"\xff\xff\xff\n"),
        range(40, 41),
        "line 41, at byte 160: expected UTF-8, got the byte 0xff",
    ),
    "tfrecord": Kind(
        written("tfrecord"),
        lambda files: ps.FilesDataset(files, "tfrecord").map(lambda record: int(record[6:])),
        lambda content: replaced(content, 27 * 40 + 20, b"?"),
        range(40, 41),
        "record 40 at byte 1080: the checksum of its 11 bytes of data is wrong",
    ),
    "csv": Kind(
        write_csv,
        lambda files: ps.CsvDataset(files).map(lambda row: row["x"]),
        lambda content: content.replace(b",140\r\n", b",one\r\n"),
        range(40, 41),
        "line 55: column 'x': CSV conversion error to int64: invalid value 'one': types={'x'",
    ),
    "csv with quotes in words": Kind(
        lambda path, numbers: path.write_text("".join(f'"a\n",5" pipe,{number}\n' for number in numbers)),
        lambda files: ps.CsvDataset(files, header=["a", "b", "x"]).map(lambda row: row["x"]),
        lambda content: content.replace(b",140\n", b",140,3\n"),
        range(40, 41),
        "line 81: CSV parse error: Expected 3 columns, got 4",
    ),
    "records of one length": Kind(
        lambda path, numbers: path.write_bytes(b"head" + struct.pack(f"<{len(numbers)}q", *numbers) + b"foot!"),
        lambda files: ps.FixedLengthRecordDataset(files, 8, 4, 5).map(lambda record: int.from_bytes(record, "little")),
        None,
        range(0),
        "",
    ),
    "npy": Kind(write_array, lambda files: ps.FilesDataset(files, "npy").map(lambda x: x[1]), None, range(0), ""),
    "npy with fields": Kind(
        write_fields, lambda files: ps.FilesDataset(files, "npy").map(lambda row: row["x"]), None, range(0), ""
    ),
    "mds": Kind(
        written("mds"),
        lambda files: ps.MdsDataset(files, ["x", "a"]).map(lambda row: row["x"] + row["a"].sum()),
        damaged_mds,
        range(40, 41),
        "sample 40: its columns do not fill it: it is damaged",
    ),
    "array record": Kind(
        write_array_records,
        lambda files: ps.ArrayRecordDataset(files).map(lambda record: int(record[7:])),
        lambda content: content.replace(b"record 140", b"record 14?"),
        range(40, 41),
        "record 40: Corrupted",
    ),
    "tar": Kind(
        write_tar,
        lambda files: ps.TarDataset(files, ["seg.txt", "cls"]).map(lambda row: row["cls"]),
        damaged_tar,
        range(40, 41),
        "/140': its 'cls' cannot be read: invalid literal for int() with base 10: b'one'",
    ),
    "json lines": Kind(
        write_json_lines,
        lambda files: ps.JsonLinesDataset(files).map(lambda row: row["list"][1]),
        lambda content: content.replace(b"[140, 140]", b"[140, 140"),
        range(40, 41),
        "line 41: JSON parse error",
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def files(kind, tmp_path_factory):
    """Three files with the numbers 0 to 299."""
    made = tmp_path_factory.mktemp(kind)
    for number in range(3):
        KINDS[kind].write(made / f"{number}.data", range(number * 100, number * 100 + 100))
    return made


def numbers(dataset):
    return [int(number) for number in dataset]


def test_rows_come_in_order_and_by_number(kind, files):
    dataset = KINDS[kind].read(files / "*.data")
    assert len(dataset) == 300 and numbers(dataset) == list(range(300))
    assert int(dataset[233]) == 233 and int(dataset[-1]) == 299
    assert numbers(dataset[98:103]) == [98, 99, 100, 101, 102]
    assert numbers(KINDS[kind].read([files / "2.data", files / "0.data"]).skip(99).take(2)) == [299, 0]
    assert numbers(KINDS[kind].read(ps.Dataset.list_files(str(files / "*.data")))) == list(range(300))


@pytest.mark.slow
def test_a_shuffle_is_one_of_all_rows_and_is_resumed_anywhere(kind, files):
    def make():
        return KINDS[kind].read(files / "*.data").shuffle(seed=4).batch(7)

    whole = [int(number) for batch in make() for number in batch]
    assert sorted(whole) == list(range(300)) and whole[:3] != [0, 1, 2]
    iterator = iter(make())
    taken = [int(number) for _ in range(20) for number in next(iterator)]
    other = iter(make())
    other.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
    assert taken + [int(number) for batch in other for number in batch] == whole
    iterator.close()


@pytest.mark.slow
def test_it_conforms(kind, files):
    check_conformance(lambda: KINDS[kind].read(files / "*.data")[94:110], limit=16)


@pytest.mark.parametrize("policy", ["DATA", "FILE", "FILE_RANGE", "AUTO"])
def test_workers_have_each_row_once(kind, files, policy):
    dataset = KINDS[kind].read(files / "*.data").batch(10).with_options(ps.Options(auto_shard_policy=policy))
    parts = [ps.HostStrategy(1, 2, worker).distribute_dataset(dataset) for worker in range(2)]
    assert sorted(int(x) for part in parts for step in part for x in step.values[0]) == list(range(300))
    assert ("DATA: rows of its files are read by index" if policy == "AUTO" else policy) in parts[0].explain()


@pytest.fixture(scope="module")
def service():
    """One for all formats: starting its processes costs more than reading through them."""
    with ps.service.local(2) as service:
        yield service.target


@pytest.mark.slow
def test_a_data_service_gives_each_row_once(kind, files, service):
    dataset = KINDS[kind].read(files / "*.data").shuffle(seed=2).batch(25)
    shared = dataset.apply(ps.service.distribute("distributed_epoch", service))
    assert [batch.tolist() for batch in shared] == [batch.tolist() for batch in dataset]


@pytest.fixture(scope="module")
def running():
    with object_server() as server:
        yield server


@pytest.mark.extended
def test_files_of_an_object_store(kind, files, running, monkeypatch):
    pytest.importorskip("obstore", reason="the extra cloud is not installed: pip install obstore")
    running.forget()
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    format = KINDS[kind]
    for number in range(3):
        running.objects[f"bucket/{kind}/{number}.data"] = (files / f"{number}.data").read_bytes()
    at = f"s3://bucket/{kind}"
    dataset = format.read(f"{at}/*.data")
    assert len(dataset) == 300 and numbers(dataset) == list(range(300))
    assert numbers(dataset) == numbers(format.read([f"{at}/{number}.data" for number in range(3)]))
    whole = [int(number) for batch in dataset.shuffle(seed=3).batch(7) for number in batch]
    assert sorted(whole) == list(range(300))
    iterator, other = (iter(dataset.shuffle(seed=3).batch(7)) for _ in range(2))
    taken = [int(number) for _ in range(20) for number in next(iterator)]
    other.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
    assert taken + [int(number) for batch in other for number in batch] == whole
    if format.damage is not None:
        running.objects[f"bucket/{kind}/1.data"] = format.damage((files / "1.data").read_bytes())
        skipping = iter(format.read(ps.Dataset.list_files(f"{at}/*")).ignore_errors())
        assert len(list(skipping)) == 300 - len(format.lost)
        assert f"{at}/1.data" in str(skipping.errors.rows[0])
    with pytest.raises(ps.StorageError, match=f"'{at}/none' cannot be read: there is no such file"):
        format.read(f"{at}/none")


def test_files_with_a_protocol_of_fsspec(kind, files):
    system = pytest.importorskip("fsspec").filesystem("memory")
    for number in range(3):
        system.pipe(f"/{kind}/{number}.data", (files / f"{number}.data").read_bytes())
    dataset = KINDS[kind].read(f"memory://{kind}/*.data")
    assert numbers(dataset) == list(range(300))
    assert sorted(numbers(dataset.shuffle(seed=3))) == list(range(300))
    system.rm(f"/{kind}", recursive=True)


@pytest.mark.slow
def test_rows_of_a_damaged_file_fail_and_those_behind_them_come(kind, files, tmp_path):
    format = KINDS[kind]
    if format.damage is None:
        return
    (tmp_path / "1.data").write_bytes(format.damage((files / "1.data").read_bytes()))
    paths = [files / "0.data", tmp_path / "1.data", files / "2.data"]
    got, errors = read_past_errors(format.read(paths), ps.StorageError, ps.ElementError)
    lost = range(100 + format.lost.start, 100 + format.lost.stop)
    assert got == [number for number in range(300) if number not in lost] and len(errors) == len(lost)
    assert format.message in str(errors[0]) and "1.data" in str(errors[0])
    assert f"element {lost[0]}" in "".join(errors[0].__notes__)
    skipping = iter(format.read(paths).ignore_errors())
    assert len(list(skipping)) == 300 - len(lost) and skipping.errors.count == len(lost)


REFUSED = {
    "parquet": "cannot be read as a Parquet file: Parquet magic bytes not found in footer",
    "records of one length": "has {size} bytes, which are no whole number of records of 8 bytes",
    "npy": r"is cut: its array of int16\(100, 2\) takes 528 bytes, and there are {size}",
    "npy with fields": "is cut: its array of .* takes 1328 bytes, and there are {size}",
    "mds": "is damaged or cut: its samples end at byte [0-9]+, and it has {size}",
    "array record": "cannot be read as an ArrayRecord file: it is damaged, cut",
}
"""What is said of cut files when the dataset is made, where they tell how many rows they have."""
CUT = {
    "tfrecord": "record 50 at byte 1350: the file is truncated: expected 12 more bytes from there",
    "csv with quotes in words": "line 101: a value in quotes is not closed",
    "tar": "sample 50: the archive is cut: 511 bytes are missing",
    "json lines": "line 51: JSON parse error",
}
"""What is said behind the rows before the cut. Text and CSV may end anywhere: their last value is what is there."""


def test_a_cut_file_is_refused_or_gives_the_rows_before_the_cut(kind, files, tmp_path):
    content = (files / "1.data").read_bytes()
    path = tmp_path / "1.data"
    path.write_bytes(content[: len(content) // 2 + (3 if kind == "json lines" else 1)])
    paths = [files / "0.data", path, files / "2.data"]
    if kind in REFUSED:
        with pytest.raises(ps.StorageError, match=f"1.data' {REFUSED[kind].format(size=path.stat().st_size)}"):
            KINDS[kind].read(paths)
        return
    got, errors = read_past_errors(KINDS[kind].read(paths), ps.StorageError, ps.ElementError)
    assert got[:149] == list(range(149)) and got[-100:] == list(range(200, 300)) and len(got) <= 251
    assert [CUT[kind] in str(error) and "1.data" in str(error) for error in errors] == ([True] if kind in CUT else [])


def test_a_file_that_is_not_there_and_a_directory_are_errors(kind, files, tmp_path):
    with pytest.raises(ps.StorageError, match="there is no file"):
        KINDS[kind].read(tmp_path / "none.data")
    with pytest.raises(ps.StorageError, match="is a directory"):
        KINDS[kind].read(tmp_path)
    with pytest.raises(ps.InvalidArgumentError, match="no file matches"):
        KINDS[kind].read(tmp_path / "*.none")


@contextmanager
def no_superuser():
    """A context without the superuser's right to read everything."""
    superuser = os.geteuid() == 0
    if superuser:
        os.seteuid(65534)
    try:
        yield
    finally:
        if superuser:
            os.seteuid(0)


def test_a_file_or_folder_that_may_not_be_read_is_named_with_the_reason(kind, files):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = folder / "1.data"
        path.write_bytes((files / "1.data").read_bytes())
        assert len(KINDS[kind].read(path)) == 100  # what reading needs is loaded then
        path.chmod(0)
        with no_superuser(), pytest.raises(ps.StorageError, match=f"'{path}' cannot be opened: Permission denied"):
            KINDS[kind].read(path)
        folder.chmod(0)
        with no_superuser(), pytest.raises(ps.StorageError, match=f"'{path}' cannot be opened: Permission denied"):
            KINDS[kind].read(path)
        with (
            no_superuser(),
            pytest.raises(ps.InvalidArgumentError, match=f"the permission to list '{folder}' is missi"),
        ):
            KINDS[kind].read(folder / "*.data")
        folder.chmod(0o755)


@pytest.mark.parametrize("pattern", ["*/*.txt", "**/*.txt", "**"])
def test_files_of_an_unlistable_folder_were_skipped_in_silence(pattern):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("a", "b"):
            (folder / part).mkdir(mode=0o755)
            (folder / part / "1.txt").touch(0o644)
        assert len(ps.Dataset.list_files(folder / pattern)) == len(ps.Dataset.from_text_folder(folder)) == 2
        (folder / "b").chmod(0)
        with no_superuser(), pytest.raises(ps.StorageError, match=r"list_files: '.*/b/?' cannot be listed: Permission"):
            ps.Dataset.list_files(folder / pattern)
        with no_superuser(), pytest.raises(ps.StorageError, match=r"from_text_folder: '.*/b' cannot be listed: Permis"):
            ps.Dataset.from_text_folder(folder)
        (folder / "b").chmod(0o755)


@pytest.mark.parametrize("change", ["written over", "cut"])
def test_a_file_that_changes_gives_no_other_rows(kind, files, tmp_path, change):
    path = tmp_path / "1.data"
    path.write_bytes((files / "1.data").read_bytes())
    dataset = KINDS[kind].read(path)
    assert int(dataset[3]) == 103
    if change == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        KINDS[kind].write(path, range(200, 300))
    os.utime(path, ns=(0, 0))
    got, errors = read_past_errors(dataset, ps.StorageError)
    assert set(got) <= set(range(100, 200)) and len(got) + len(errors) == 100  # some were decoded before
    assert all(f"'{path}' has changed since the dataset was made" in str(error) for error in errors)
