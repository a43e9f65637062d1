"""Files of lines and of records: what is in them, what is damaged in them, and where a state enters them."""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import pathlib
import re
import struct
import subprocess
import sys
import zlib

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from forked import run
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.data.iterator import blocks_of
from penstock.formats.records.record_format import CHUNK_BYTES
from penstock.formats.records.text_lines import TextLines
from penstock.formats.records.tfrecord import TFRecords
from penstock.testing import check_conformance

PACK = {None: lambda data: data, "": lambda data: data, "GZIP": gzip.compress, "ZLIB": zlib.compress}
SEVERAL = [b"", b"a", b"\0" * 40, b"word " * 9, bytes(range(256)), b"\n", b"last"]


def masked(data):
    """The checksum of the format's definition."""
    value = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data):
    """A record, byte by byte from the format's definition."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def written(path, content):
    path.write_bytes(content)
    return str(path)


def small_chunks(size):
    """Files read `size` bytes at a time."""
    patch = pytest.MonkeyPatch()
    # The first line imports it, so that it does not take the size of these tests for its own.
    patch.setattr("penstock.data.operators.read_files.CHUNK_BYTES", size)
    patch.setattr("penstock.formats.records.record_format.CHUNK_BYTES", size)
    patch.setattr("penstock.formats.records.tfrecord._SKIP_BYTES", size)
    patch.setattr("penstock.formats.opening.SMALL_BYTES", size)
    patch.setattr("penstock.formats.compression._RAW_BYTES", size)
    patch.setattr("penstock.formats.compression._PIECE_BYTES", size)
    return patch


@pytest.fixture(params=[1, 7, 64, CHUNK_BYTES])
def chunk(request):
    """The suites below at several chunk sizes: nothing may depend on it."""
    patch = small_chunks(request.param)
    yield request.param
    patch.undo()


def drain(iterator):
    """All elements, with the error in place of those that failed."""
    found = []
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except ps.PenstockError as error:
            found.append(error)


def shown(found):
    return [type(entry).__name__ if isinstance(entry, Exception) else entry for entry in found]


LINES = {
    b"": [],
    b"\n": [""],
    b"one": ["one"],
    b"one\ntwo\n": ["one", "two"],
    b"one\r\ntwo\r\n": ["one", "two"],
    b"one\n\n\nfour": ["one", "", "", "four"],
    b"a\rb\r\r\nc\r": ["a\rb\r", "c\r"],
    "caf\xe9\n\u2028 \x85 \x0b\n\U0001f600".encode(): ["caf\xe9", "\u2028 \x85 \x0b", "\U0001f600"],
    b"x" * 300 + b"\nshort\n" + b"y" * 200: ["x" * 300, "short", "y" * 200],
}


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
@pytest.mark.parametrize("content", LINES)
def test_lines_are_what_stands_between_newlines(tmp_path, chunk, content, compression):
    path = written(tmp_path / "a", PACK[compression](content))
    assert list(ps.TextLineDataset(path, compression)) == LINES[content]
    assert TextLines().count(path, compression or "") == len(LINES[content])


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
def test_records_are_read_as_the_format_defines_them(tmp_path, chunk, compression):
    path = written(tmp_path / "a", PACK[compression](b"".join(map(record, SEVERAL))))
    assert list(ps.TFRecordDataset(path, compression)) == SEVERAL
    assert TFRecords().count(path, compression or "") == len(SEVERAL)


def test_the_checksum_is_crc_32c():
    assert google_crc32c.value(b"123456789") == 0xE3069283
    assert record(b"") == bytes(8) + bytes.fromhex("29039807") + bytes.fromhex("d8ea82a2")


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
def test_the_writer_writes_what_the_format_defines(tmp_path, compression):
    path = tmp_path / "a"
    with ps.TFRecordWriter(path, compression) as writer:
        for data in SEVERAL:
            writer.write(data)
            writer.flush()
    unpack = {None: bytes, "GZIP": gzip.decompress, "ZLIB": zlib.decompress}[compression]
    assert unpack(path.read_bytes()) == b"".join(map(record, SEVERAL))


@pytest.mark.slow
@given(
    records=st.lists(st.binary(max_size=60), max_size=12),
    chunk=st.integers(1, 200),
    compression=st.sampled_from([None, "GZIP", "ZLIB"]),
    start=st.integers(0, 13),
)
def test_what_was_written_is_read_at_any_chunk_size(tmp_path_factory, records, chunk, compression, start):
    path = tmp_path_factory.mktemp("files") / "a"
    with ps.TFRecordWriter(path, compression) as writer:
        for data in records:
            writer.write(data)
    patch = small_chunks(chunk)
    try:
        assert list(ps.TFRecordDataset(path, compression)) == records
        ranged = ps.Dataset.from_tensors((str(path), start, -1))
        assert list(ps.TFRecordDataset(ranged, compression)) == records[start:]
        assert TFRecords().count(str(path), compression or "") == len(records)
    finally:
        patch.undo()


@pytest.mark.slow
@given(text=st.text(max_size=80), chunk=st.integers(1, 100))
def test_lines_are_those_of_python_at_any_chunk_size(tmp_path_factory, text, chunk):
    content = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
    path = written(tmp_path_factory.mktemp("files") / "a", content)
    expected = [line.removesuffix("\n") for line in io.StringIO(content.decode().replace("\r\n", "\n"), newline="\n")]
    patch = small_chunks(chunk)
    try:
        assert list(ps.TextLineDataset(path)) == expected
        assert TextLines().count(path, "") == len(expected)
    finally:
        patch.undo()


def test_records_of_one_length_in_turn_are_found_up_to_the_first_other(tmp_path):
    lengths = [5] * 100 + [7] + [5] * 9 + [0] * 300 + [3, 3, 4] * 20 + [6] * 9
    records = [bytes([number % 251]) * length for number, length in enumerate(lengths)]
    path = tmp_path / "a.tfrecord"
    data = b"".join(map(record, records))
    path.write_bytes(data)
    assert list(ps.TFRecordDataset(path)) == records
    path.write_bytes(data[:-3])
    assert drain(iter(ps.TFRecordDataset(path)))[:-1] == records[:-1]
    for at in (60, 105, 300):
        begin = len(b"".join(map(record, records[:at])))
        for byte in (0, 9):
            damaged = bytearray(data)
            damaged[begin + byte] ^= 1
            path.write_bytes(damaged)
            *found, error = drain(iter(ps.TFRecordDataset(path)))
            assert found == records[:at]
            assert f"record {at} at byte {begin}: the checksum of its length is wrong" in str(error)


def test_a_failing_writer_leaves_nothing_and_a_running_one_shows_nothing(tmp_path):
    path = tmp_path / "a"
    with pytest.raises(ZeroDivisionError), ps.TFRecordWriter(path) as writer:
        writer.write(bytes([1 // 0]))
    assert os.listdir(tmp_path) == []
    writer = ps.TFRecordWriter(path)
    writer.write(memoryview(b"one"))
    writer.flush()
    assert not path.exists()
    writer.close()
    writer.close()
    assert os.listdir(tmp_path) == ["a"]
    assert list(ps.TFRecordDataset(path)) == [b"one"]
    for refused in (lambda: writer.write(b"two"), writer.flush):
        with pytest.raises(ps.errors.ClosedError, match="closed"):
            refused()
    with ps.TFRecordWriter(path) as writer, pytest.raises(ps.InvalidTypeError, match=r"takes bytes, got str"):
        writer.write("text")
    assert list(ps.TFRecordDataset(path)) == []


def test_files_of_several_names_come_one_after_the_other(tmp_path, chunk):
    names = [written(tmp_path / name, name.encode()) for name in "abc"]
    names.insert(1, written(tmp_path / "nothing", b""))
    for files in (names, tuple(map(pathlib.Path, names)), ps.Dataset.from_tensor_slices(names)):
        assert list(ps.TextLineDataset(files)) == ["a", "b", "c"]
    assert list(ps.TextLineDataset(ps.Dataset.from_tensor_slices(np.array(names)))) == ["a", "b", "c"]
    assert list(ps.TextLineDataset(sorted(tmp_path.glob("[ab]")))) == ["a", "b"]
    assert ps.TextLineDataset(names).cardinality() == ps.UNKNOWN_CARDINALITY
    assert ps.TFRecordDataset(names).element_spec == ps.TensorSpec((), object)


@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize("bounds", [(2, 5), (0, 0), (3, -1), (6, 99), (99, -1), (0, 7)])
def test_a_range_of_a_file_is_those_records_of_it(tmp_path, chunk, bounds, compression):
    start, stop = bounds
    path = written(tmp_path / "a", PACK[compression](b"".join(map(record, SEVERAL))))
    ranges = ps.Dataset.from_tensor_slices(([path, path], [start] * 2, [stop] * 2))
    expected = SEVERAL[start : None if stop < 0 else stop] * 2
    assert list(ps.TFRecordDataset(ranges, compression)) == expected
    if chunk == 7:
        check_conformance(lambda: ps.TFRecordDataset(ranges, compression))


def test_records_are_passed_over_by_seeking(tmp_path):
    path = tmp_path / "a"
    with ps.TFRecordWriter(path) as writer:
        for number in range(9):
            writer.write(bytes([number]) * (5 * CHUNK_BYTES // 4))
    reader = TFRecords().open(str(path), "")
    read = []
    source = reader._bytes.read
    reader._bytes.read = lambda count: [piece := source(count), read.append(len(piece))][0]
    assert reader.skip(7) == 7
    assert sum(read) < CHUNK_BYTES
    assert reader.number == 7
    columns, _ = reader.read(5)
    assert columns[0][0][:1] == b"\7"
    reader.close()


def damaged(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_damaged_data_costs_its_record(tmp_path, chunk):
    parts = list(map(record, SEVERAL))
    parts[3] = damaged(parts[3], 20)
    paths = [written(tmp_path / "a", b"".join(parts)), written(tmp_path / "b", record(b"next"))]
    found = drain(iter(ps.TFRecordDataset(paths)))
    assert shown(found) == [*SEVERAL[:3], "StorageError", *SEVERAL[4:], b"next"]
    place = sum(map(len, parts[:3]))
    assert str(found[3]) == f"{paths[0]!r}, record 3 at byte {place}: the checksum of its 45 bytes of data is wrong"
    assert found[3].__notes__[0].startswith("penstock: in TFRecordDataset() at ") and __file__ in found[3].__notes__[0]
    assert TFRecords().count(paths[0], "") == len(SEVERAL)


@pytest.mark.parametrize("count", [1, 5, 15, 16, 40])
def test_the_records_before_a_damaged_one_come_first_however_many_there_are(tmp_path, count):
    path, record = tmp_path / "damaged.tfrecord", b"a record"
    with ps.TFRecordWriter(path) as writer:
        for _ in range(count):
            writer.write(record)
    whole = path.read_bytes()
    size = len(whole) // count
    for damaged in range(count):
        path.write_bytes(whole[: damaged * size + 12] + b"A" + whole[damaged * size + 13 :])
        iterator = iter(ps.TFRecordDataset(str(path)))
        assert [next(iterator) for _ in range(damaged)] == damaged * [record]
        with pytest.raises(ps.StorageError, match=f"record {damaged} at byte .* of its 8 bytes of data is wrong"):
            next(iterator)
        assert list(iterator) == (count - damaged - 1) * [record]


def test_a_damaged_length_costs_the_rest_of_its_file(tmp_path, chunk):
    parts = list(map(record, SEVERAL))
    parts[3] = damaged(parts[3], 1)
    paths = [written(tmp_path / "a", b"".join(parts)), written(tmp_path / "b", record(b"next"))]
    found = drain(iter(ps.TFRecordDataset(paths)))
    assert shown(found) == [*SEVERAL[:3], "StorageError", b"next"]
    place = sum(map(len, parts[:3]))
    assert f"{paths[0]!r}, record 3 at byte {place}: the checksum of its length is wrong" in str(found[3])
    with pytest.raises(ps.StorageError, match="record 3"):
        TFRecords().count(paths[0], "")


@pytest.mark.parametrize("left", [1, 4, 11, 12, 13, 60])
def test_a_truncated_file_gives_its_whole_records_first(tmp_path, chunk, left):
    whole = b"".join(map(record, SEVERAL[:3]))
    paths = [written(tmp_path / "a", whole + record(SEVERAL[3])[:left]), written(tmp_path / "b", record(b"next"))]
    found = drain(iter(ps.TFRecordDataset(paths)))
    assert shown(found) == [*SEVERAL[:3], "StorageError", b"next"]
    assert f"{paths[0]!r}, record 3 at byte {len(whole)}: the file is truncated" in str(found[3])
    with pytest.raises(ps.StorageError, match="truncated"):
        TFRecords().count(paths[0], "")


def test_a_length_that_was_never_written_takes_no_memory(tmp_path):
    length = struct.pack("<Q", 1 << 62)
    path = written(tmp_path / "a", length + struct.pack("<I", masked(length)) + b"little")
    (error,) = drain(iter(ps.TFRecordDataset(path)))
    assert "truncated" in str(error)


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_truncated_compressed_data_gives_its_whole_records_first(tmp_path, compression):
    records = [os.urandom(300) for _ in range(40)]
    packed = PACK[compression](b"".join(map(record, records)))
    paths = [written(tmp_path / "a", packed[: len(packed) // 2]), written(tmp_path / "b", PACK[compression](b""))]
    *whole, error = drain(iter(ps.TFRecordDataset(paths, compression)))
    assert 15 <= len(whole) < 25
    assert whole == records[: len(whole)]
    assert f"{paths[0]!r} is truncated: it ends after" in str(error)


def test_compressed_parts_one_after_the_other_are_one_file(tmp_path, chunk):
    content = gzip.compress(b"a\nb") + gzip.compress(b"") + gzip.compress(b"c\nd") + bytes(600)
    assert list(ps.TextLineDataset(written(tmp_path / "a", content), "GZIP")) == ["a", "bc", "d"]


def test_the_wrong_compression_is_named(tmp_path):
    packed = written(tmp_path / "a", gzip.compress(record(b"x")))
    plain = written(tmp_path / "b", record(b"x"))
    with pytest.raises(ps.StorageError, match=r"is compressed: give compression_type='GZIP'"):
        list(ps.TFRecordDataset(packed))
    for compression in ("GZIP", "ZLIB"):
        with pytest.raises(ps.StorageError, match=r"damaged, or its compression is not the given compression_type"):
            list(ps.TFRecordDataset(plain, compression))
    assert list(ps.TFRecordDataset(packed, "gzip")) == [b"x"]
    with pytest.raises(
        ps.InvalidArgumentError, match=r"takes None, '', 'GZIP', 'ZLIB', 'BZ2', 'XZ' or 'ZSTD', got 'zip'"
    ):
        ps.TFRecordDataset(packed, "zip")
    with pytest.raises(ps.InvalidArgumentError, match=r"TFRecordWriter\(compression_type"):
        ps.TFRecordWriter(tmp_path / "c", "zip")


def test_a_line_that_is_not_utf_8_costs_itself(tmp_path, chunk):
    path = written(tmp_path / "a", b"one\ntw\xff\ncaf\xc3\nfour\n\xe9")
    found = drain(iter(ps.TextLineDataset([path, path])))
    assert shown(found) == ["one", "ElementError", "ElementError", "four", "ElementError"] * 2
    place = f"{path!r}, line 2, at byte 4"
    assert str(found[1]).startswith(f"{place}: expected UTF-8, got the byte 0xff (invalid start byte): ")
    assert f"{path!r}, line 5, at byte 18: expected UTF-8" in str(found[4])
    assert "ps.TextLineDataset(..., encoding='latin-1')" in str(found[1])
    whole = ["one", "tw\xff", "caf\xc3", "four", "\xe9"]
    assert list(ps.TextLineDataset(path, encoding="latin-1")) == whole
    with pytest.raises(ps.InvalidArgumentError, match=r"encoding=...\) takes an encoding that keeps ASCII.*'utf-16'"):
        ps.TextLineDataset(path, encoding="utf-16")
    with pytest.raises(
        ps.InvalidArgumentError, match=r"encoding=...\) takes an encoding that Python knows, got 'rose'"
    ):
        ps.TextLineDataset(path, encoding="rose")


def test_a_text_in_utf_16_is_told_as_one_and_read_when_converted(tmp_path):
    path = written(tmp_path / "a", "one\nzwölf\n".encode("utf-16"))
    with pytest.raises(ps.ElementError, match="line 1, .*; it is UTF-16: convert it, as by: iconv -f UTF-16 -t UTF-8"):
        list(ps.TextLineDataset(path))
    written(tmp_path / "a", (tmp_path / "a").read_bytes().decode("utf-16").encode())  # what the error advises
    assert list(ps.TextLineDataset(path)) == ["one", "zwölf"]


def test_a_missing_file_is_refused_at_the_call_or_named_when_it_is_met(tmp_path):
    there, missing = written(tmp_path / "a", b"one"), str(tmp_path / "missing")
    for files in (missing, [there, missing]):
        with pytest.raises(ps.StorageError, match=f"TextLineDataset: there is no file '{missing}'"):
            ps.TextLineDataset(files)
    with pytest.raises(ps.StorageError, match=r"is a directory: name its files, as by the pattern '.*/\*\*'"):
        ps.TextLineDataset(tmp_path)
    assert list(ps.TextLineDataset(tmp_path / "**")) == ["one"]  # what the error advises
    found = drain(iter(ps.TextLineDataset(ps.Dataset.from_tensor_slices([missing, there, str(tmp_path), there]))))
    assert shown(found) == ["StorageError", "one", "StorageError", "one"]
    assert str(found[0]) == f"{missing!r} cannot be opened: No such file or directory"


@pytest.mark.parametrize("files", [3, b"name", {"a": 1}, [b"name"], [3], ps.Dataset.range(3), None])
def test_something_else_than_names_is_refused(files):
    with pytest.raises(ps.InvalidTypeError, match=r"TFRecordDataset takes .*name"):
        ps.TFRecordDataset(files)


def test_a_name_that_is_no_string_costs_itself(tmp_path):
    path = written(tmp_path / "a", b"one")
    found = drain(iter(ps.TextLineDataset(ps.Dataset.from_generator(lambda: iter([path, b"x", path])))))
    assert shown(found) == ["one", "InvalidTypeError", "one"]
    assert "expected the name of a file as a string" in str(found[1])


def test_a_failure_of_the_names_is_theirs(tmp_path):
    path = written(tmp_path / "a", b"one")
    iterator = iter(ps.TextLineDataset(ps.Dataset.range(3).map(lambda x: [path, path][1 // (1 - int(x))])))
    assert next(iterator) == "one"
    with pytest.raises(ZeroDivisionError) as caught:
        next(iterator)
    assert len(caught.value.__notes__) == 1 and "in map(" in caught.value.__notes__[0]
    assert list(iterator) == ["one"]


def failing_files(tmp_path):
    parts = list(map(record, SEVERAL))
    worse = [*parts[:2], damaged(parts[3], 1), *parts[3:]]
    parts[2] = damaged(parts[2], 20)
    written(tmp_path / "1 damaged data", b"".join(parts))
    written(tmp_path / "2 damaged length", b"".join(worse))
    written(tmp_path / "3 nothing", b"")
    written(tmp_path / "4 truncated", b"".join(parts)[:-3])
    written(tmp_path / "5 whole", record(b"end"))
    return ps.Dataset.list_files(str(tmp_path / "*")).concatenate(ps.Dataset.from_tensors(str(tmp_path / "missing")))


@pytest.mark.slow
def test_a_state_taken_next_to_an_error_meets_it_once(tmp_path, chunk):
    def make():
        return ps.TFRecordDataset(failing_files(tmp_path)).prefetch(2)

    with iter(make()) as iterator:
        expected = shown(drain(iterator))
    assert expected.count("StorageError") == 5
    for given_before in range(len(expected) + 1):
        with iter(make()) as iterator:
            for _ in range(given_before):
                with contextlib.suppress(ps.StorageError):
                    next(iterator)
            state = json.loads(json.dumps(iterator.state_dict()))
        with iter(make()) as resumed:
            resumed.load_state_dict(state)
            assert shown(drain(resumed)) == expected[given_before:], given_before


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_files_conform_at_any_chunk_size(tmp_path, chunk, compression):
    pack = PACK[compression]
    for name, content in {"a": b"one\r\ntwo\n", "b": b"", "c": b"3\n\n" + b"4" * 99}.items():
        written(tmp_path / f"{name}.txt", pack(content))
        written(tmp_path / f"{name}.rec", pack(b"".join(map(record, content.split(b"\n")))))
    for make, ending in ((ps.TextLineDataset, "txt"), (ps.TFRecordDataset, "rec")):
        check_conformance(lambda make=make, ending=ending: make(sorted(tmp_path.glob(f"*.{ending}")), compression))


SCRIPT = """
import json, sys
import penstock as ps
names = ps.Dataset.list_files(sys.argv[1], shuffle=True, seed=4)
iterator = iter(names.interleave(ps.TextLineDataset, cycle_length=2, block_length=3).batch(2))
state = json.loads(sys.argv[2])
if state:
    iterator.load_state_dict(state)
found = [next(iterator).tolist() for _ in range(int(sys.argv[3]))]
print(json.dumps([found, iterator.state_dict()]))
"""


@pytest.mark.slow
def test_a_fresh_process_continues_in_the_middle_of_the_files(tmp_path):
    for name in "abc":
        written(tmp_path / name, "".join(f"{name}{number}\n" for number in range(10)).encode())

    def in_a_process(state, count):
        done = run("-c", SCRIPT, str(tmp_path / "*"), json.dumps(state), str(count))
        return json.loads(done.stdout)

    expected, _ = in_a_process(None, 15)
    first, state = in_a_process(None, 7)
    assert len(json.dumps(state)) < 1000
    assert first + in_a_process(state, 8)[0] == expected
    assert sorted(line for lines in expected for line in lines) == [
        f"{name}{number}" for name in "abc" for number in range(10)
    ]


@pytest.mark.slow
def test_a_state_enters_a_file_at_its_byte(tmp_path):
    path = written(tmp_path / "a", b"".join(b"line %07d\n" % number for number in range(300_000)))
    iterator = iter(ps.TextLineDataset(path))
    for _ in range(200_001):
        last = next(iterator)
    assert last == "line 0200000"
    state = iterator.state_dict()
    iterator.close()
    _, number, offset = state["position"][0]
    assert offset == number * 13 and number <= 200_001
    before = offset - 1  # the end of the line before tells that one begins there
    (tmp_path / "a").write_bytes(b"\0" * before + (tmp_path / "a").read_bytes()[before:])
    with iter(ps.TextLineDataset(path)) as resumed:
        resumed.load_state_dict(state)
        assert next(resumed) == "line 0200001"
    (tmp_path / "a").write_bytes(b"")
    resumed = iter(ps.TextLineDataset(path))
    with pytest.raises(ps.StorageError, match="was longer when the state was saved"):
        resumed.load_state_dict(state)
    resumed.close()


def test_a_file_is_closed_when_its_iterator_ends_or_is_forgotten(tmp_path):
    paths = [written(tmp_path / name, b"one\n" + b"x" * CHUNK_BYTES) for name in "ab"]

    def opened():
        return [name for name in map(str, pathlib.Path("/proc/self/fd").iterdir()) if str(tmp_path) in real(name)]

    def real(name):
        return os.readlink(name) if os.path.lexists(name) else ""

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("this system does not list open files")
    iterator = iter(ps.TextLineDataset(paths))
    next(iterator)
    assert len(opened()) == 1
    for _ in range(3):  # how many of them come in one block depends on how long they take
        next(iterator)
        assert len(opened()) <= 1
    assert next(iterator, None) is None
    assert opened() == []
    iterator = iter(ps.TextLineDataset(paths))
    next(iterator)
    iterator.close()
    assert opened() == []
    iterator = iter(ps.TextLineDataset(paths))
    next(iterator)
    del iterator
    assert opened() == []
    small = iter(ps.TextLineDataset(written(tmp_path / "c", b"one\ntwo\n")))
    next(small)
    assert opened() == [], "a small file is read as a whole"
    small.close()


def test_list_files_gives_sorted_names_each_once(tmp_path):
    for name in ("b.txt", "a.txt", "c.csv", "d [1].txt"):
        (tmp_path / name).touch()
    (tmp_path / "directory.txt").mkdir()
    (tmp_path / "directory.txt" / "e.txt").touch()

    def listed(*patterns, **arguments):
        dataset = ps.Dataset.list_files([str(tmp_path / pattern) for pattern in patterns], **arguments)
        return [str(pathlib.Path(name).relative_to(tmp_path)) for name in dataset]

    assert listed("*.txt") == ["a.txt", "b.txt", "d [1].txt"]
    assert listed("*.csv", "[ab].txt", "a*") == ["a.txt", "b.txt", "c.csv"]
    assert listed("**/*.txt")[-1] == "directory.txt/e.txt"
    assert listed("*.txt", shuffle=False) == listed("*.txt")
    dataset = ps.Dataset.list_files(tmp_path / "*.txt", shuffle=True, seed=3)
    orders = {tuple(dataset) for _ in range(12)}
    assert len(orders) > 1 and {tuple(sorted(order)) for order in orders} == {
        tuple(ps.Dataset.list_files(tmp_path / "*.txt"))
    }
    assert len(dataset) == 3 and type(next(iter(dataset))) is str
    assert dataset.node.name == "shuffle" and dataset.node.input.label == "list_files(3 names)"


def test_each_real_directory_is_listed_once_whatever_links_lead_to_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x", "y/z", ".hidden"):
        pathlib.Path("d", name).mkdir(parents=True)
        pathlib.Path("d", name, "f.txt").touch()
    for link, target in (("x/up", ".."), ("x/up2", ".."), ("y/to_x", "../x"), ("x/to_y", "../y"), ("x/me", "me")):
        os.symlink(target, pathlib.Path("d", link))
    pathlib.Path("d/._f.txt").touch()
    pathlib.Path("d/.DS_Store").touch()
    for pattern in ("d/**/*.txt", "d/**", "**/*.txt", "**", "./d/**", "d//**/f.txt", "*/**/f.txt", "d/x/up/**/f*"):
        names = list(ps.Dataset.list_files(pattern))
        assert [os.path.realpath(name) for name in names] == [
            str(tmp_path / "d" / name) for name in ("x/f.txt", "y/z/f.txt")
        ]
    assert list(ps.Dataset.list_files(tmp_path / "**")) == [
        str(tmp_path / "d" / name) for name in ("x/f.txt", "y/z/f.txt")
    ]
    assert list(ps.Dataset.list_files(["d/.*", "d/y/to_x/*.txt"])) == ["d/.DS_Store", "d/._f.txt", "d/y/to_x/f.txt"]
    assert list(ps.Dataset.list_files(pathlib.Path("d").glob("*/*.txt"))) == ["d/.hidden/f.txt", "d/x/f.txt"]


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_the_byte_order_mark_of_a_text_is_no_part_of_its_first_line(tmp_path, compression):
    content = "\ufeffname\r\n\ufeffsecond\n".encode()
    (tmp_path / "a.txt").write_bytes(gzip.compress(content) if compression else content)
    lines = ["name", "\ufeffsecond"]
    assert list(ps.TextLineDataset(tmp_path / "a.txt", compression)) == lines
    assert check_conformance(lambda: ps.TextLineDataset(tmp_path / "a.txt", compression)) == lines
    if not compression:
        assert list(ps.FilesDataset(tmp_path / "a.txt", "text")) == lines
        assert [ps.FilesDataset(tmp_path / "a.txt", "text")[number] for number in (1, 0)] == lines[::-1]
        assert list(ps.Dataset.from_text_folder(tmp_path, label_mode=None)) == ["name\r\n\ufeffsecond\n"]


def test_list_files_refuses_at_the_call(tmp_path):
    (tmp_path / "a.txt").touch()
    for patterns in (tmp_path / "*.csv", [tmp_path / "*.txt", tmp_path / "*.csv"]):
        with pytest.raises(ps.InvalidArgumentError, match=r"no file matches '.*\*\.csv'"):
            ps.Dataset.list_files(patterns)
    with pytest.raises(ps.InvalidArgumentError, match="at least one pattern"):
        ps.Dataset.list_files([])
    with pytest.raises(ps.InvalidArgumentError, match="needs shuffle=True"):
        ps.Dataset.list_files(tmp_path / "*", seed=3)
    with pytest.raises(ps.InvalidTypeError, match="takes a pattern"):
        ps.Dataset.list_files(3)
    with pytest.raises(ps.InvalidArgumentError, match=r"it is a directory; '.*/\*' matches its files$"):
        ps.Dataset.list_files(tmp_path)


def test_files_with_a_protocol_are_read_through_fsspec():
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    try:
        for name in "ba":
            memory.pipe(f"/penstock/{name}.rec.gz", gzip.compress(record(name.encode()) + record(b"x")))
        names = ps.Dataset.list_files("memory://penstock/*.gz")
        assert list(names) == ["memory://penstock/a.rec.gz", "memory://penstock/b.rec.gz"]
        assert check_conformance(lambda: ps.TFRecordDataset(names, "GZIP")) == [b"a", b"x", b"b", b"x"]
        assert list(ps.TFRecordDataset("memory://penstock/b.rec.gz", "GZIP")) == [b"b", b"x"]
        with pytest.raises(ps.StorageError, match="'memory://penstock/none' cannot be read: there is no such file"):
            list(ps.TFRecordDataset("memory://penstock/none"))
        with pytest.raises(ps.InvalidArgumentError, match="no file matches 'memory://penstock/none"):
            ps.Dataset.list_files("memory://penstock/none*")
        with pytest.raises(ps.InvalidArgumentError, match="takes a local path"):
            ps.TFRecordWriter("memory://penstock/a")
    finally:
        memory.rm("/penstock", recursive=True)


@pytest.mark.parametrize("use", [ps.Dataset.list_files, lambda name: list(ps.TextLineDataset(name))])
def test_without_the_client_of_a_protocol_the_error_says_what_to_install(use, monkeypatch):
    pytest.importorskip("fsspec")
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(
        ps.errors.MissingExtraError, match=r"'abfs://box/a\*' needs .* \(Install adlfs .*\[cloud\]'"
    ) as raised:
        use("abfs://box/a*")
    assert raised.value.name == "adlfs"


@pytest.mark.parametrize("use", [ps.Dataset.list_files, lambda name: list(ps.TextLineDataset(name))])
def test_a_protocol_that_nobody_knows_is_said(use):
    pytest.importorskip("fsspec")
    with pytest.raises(ps.InvalidArgumentError, match="'gopher://a' has a protocol that fsspec does not know"):
        use("gopher://a")


@pytest.mark.slow
def test_without_obstore_and_fsspec_a_protocol_says_what_to_install():
    script = """
import sys
sys.modules["fsspec"] = sys.modules["obstore"] = None
import penstock as ps
ps.Dataset.list_files("s3://bucket/*")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "need obstore, and some protocols fsspec: pip install 'penstock-data[cloud]'" in done.stderr


def test_explain_says_what_is_held(tmp_path):
    path = written(tmp_path / "a", b"one")
    expected = "TFRecordDataset(compression_type='GZIP')  stream, unknown  holds 1 MB of one file; "
    expected += "a state within one is resumed by decompressing it from its start\n  files(1 name)"
    assert ps.TFRecordDataset(path, "GZIP").explain().startswith(expected)


def test_a_file_that_is_cut_off_while_it_is_read_ended_in_silence(tmp_path):
    path = tmp_path / "lines"
    path.write_text("".join(f"{number:>99}\n" for number in range(30_000)))
    iterator = iter(ps.TextLineDataset(path))
    assert int(next(iterator)) == 0
    os.truncate(path, 50)
    with pytest.raises(ps.StorageError, match="lines' was cut off while it was read: it had 3000000 bytes"):
        list(iterator)


def test_a_compressed_file_that_was_not_called_so_is_told(tmp_path):
    path = tmp_path / "lines.gz"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    with pytest.raises(ps.ElementError, match='it looks like a file compressed by GZIP: give compression_type="GZIP"'):
        list(ps.TextLineDataset(path))


@pytest.mark.extended
def test_xz_files_are_read_and_damaged_ones_are_errors(tmp_path):
    lines = "".join(f"line {number}\n" for number in range(300_000)).encode()  # more than a piece
    packed = lzma.compress(lines, preset=0)
    path = written(tmp_path / "a.xz", packed + bytes(8) + packed)
    dataset = ps.TextLineDataset(path, "xz")
    assert list(dataset.batch(300_000).map(len)) == [300_000] * 2 and next(iter(dataset.skip(299_999))) == "line 299999"
    check_conformance(lambda: ps.TextLineDataset(path, "XZ").skip(599_995), limit=10)
    # One piece of input gives many of output.
    zeros = written(tmp_path / "zeros.xz", lzma.compress(bytes(1 << 24) + b"\n"))
    (line,) = ps.TextLineDataset(zeros, "XZ")
    assert len(line) == 1 << 24
    for name, data, message in (
        ("cut", packed[:-9], "is truncated: it ends after 3488890 decompressed bytes"),
        ("other", gzip.compress(lines), "is damaged, or its compression is not .* after 0 decompressed bytes"),
        (
            "changed",
            packed[: len(packed) // 2] + b"????" + packed[len(packed) // 2 + 4 :],
            "is damaged, or its .* after [0-9]+ decompressed bytes",
        ),
    ):
        with pytest.raises(ps.StorageError, match=f"{name}' {message}"):
            list(ps.TextLineDataset(written(tmp_path / name, data), "XZ"))


@pytest.mark.extended
def test_zstandard_files_are_read_and_a_cut_one_is_an_error(tmp_path):
    lines = "".join(f"line {number}\n" for number in range(300_000)).encode()  # more than a piece
    packed = pa.compress(lines, codec="zstd", asbytes=True)
    path = written(tmp_path / "a.zst", packed + packed)
    dataset = ps.TextLineDataset(path, "zstd")
    assert list(dataset.batch(300_000).map(len)) == [300_000] * 2 and next(iter(dataset.skip(299_999))) == "line 299999"
    check_conformance(lambda: ps.TextLineDataset(path, "ZSTD").skip(599_995), limit=10)
    path = written(tmp_path / "cut.zst", packed[:-9])
    with pytest.raises(ps.StorageError, match="cut.zst' is damaged, or its compression is not .*Truncated"):
        list(ps.TextLineDataset([path], "ZSTD"))
    with pytest.raises(ps.InvalidArgumentError, match="TFRecordWriter.*takes None, '', 'GZIP' or 'ZLIB', got 'ZSTD'"):
        ps.TFRecordWriter(tmp_path / "b", "ZSTD")


def test_rows_before_the_damage_of_a_zstandard_file_are_given(tmp_path):
    lines = "".join(f"line {number} {number * 7919 % 100_003}\n" for number in range(60_000)).encode()
    packed = pa.compress(lines, codec="zstd", asbytes=True)
    for damaged, least in ((packed[: len(packed) // 2], 20_000), (packed + b"garbage", 60_000)):
        path = written(tmp_path / "damaged.zst", damaged)
        with pytest.raises(ps.StorageError, match=r"after (\d+) decompressed bytes") as error:
            list(ps.TextLineDataset(path, "ZSTD"))
        whole = lines[: int(re.search(r"after (\d+)", str(error.value))[1])].decode().split("\n")[:-1]
        assert len(whole) >= least and list(ps.TextLineDataset(path, "ZSTD").ignore_errors()) == whole


def test_files_compressed_by_bzip2_are_read_and_known(tmp_path):
    path = written(tmp_path / "a.txt.bz2", bz2.compress(b"rose\n") + bz2.compress(b"lily\n"))
    assert list(ps.TextLineDataset(path, "BZ2")) == ["rose", "lily"]
    table = written(tmp_path / "a.jsonl.bz2", bz2.compress(b'{"a": 1}\n'))
    assert list(ps.JsonLinesDataset(table, compression_type="bz2")) == [{"a": 1}]
    for read in (ps.JsonLinesDataset, ps.CsvDataset, ps.TarDataset, lambda name: list(ps.TextLineDataset(name))):
        with pytest.raises((ps.StorageError, ps.ElementError), match="BZ2"):
            read(table)
    cut = written(tmp_path / "cut.bz2", bz2.compress(b"rose\n" * 100)[:-3])
    with pytest.raises(ps.StorageError, match="cut.bz2' is truncated"):
        list(ps.TextLineDataset(cut, "BZ2"))
    assert list(ps.TextLineDataset(written(tmp_path / "text", b"BZh is a sign\n"))) == ["BZh is a sign"]


def test_records_cut_in_their_first_header_cost_themselves_alone(tmp_path):
    with ps.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write(b"rose")
    whole = (tmp_path / "a.tfrecord").read_bytes()
    for size in (1, 8, 11, 12):
        cut = written(tmp_path / "cut.tfrecord", whole[:size])
        among = ps.FilesDataset([cut, tmp_path / "a.tfrecord"], "tfrecord")
        assert list(among.ignore_errors()) == [b"rose"]
        with pytest.raises(ps.StorageError, match="cut.tfrecord', record 0 at byte 0: the file is truncated"):
            list(among)


def test_arrays_whose_values_have_no_bytes_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3, "V1"))
    content = (tmp_path / "a.npy").read_bytes()
    for kind in (b"|V0", b"<U0"):
        path = written(tmp_path / "b.npy", content.replace(b"|V1", kind))
        with pytest.raises(ps.StorageError, match="b.npy' cannot be read .* have no bytes"):
            ps.FilesDataset(path, "npy")


def test_a_state_among_many_files_names_the_next_one(tmp_path):
    for number in range(70):
        (tmp_path / f"{number:02}.txt").write_text(f"{number}\n")
    dataset = ps.TextLineDataset(str(tmp_path / "*.txt"))
    for count in (0, 1, 63, 64, 65, 70):
        iterator = iter(dataset)
        assert [next(iterator) for _ in range(count)] == [str(number) for number in range(count)]
        resumed = iter(dataset)
        resumed.load_state_dict(iterator.state_dict())
        assert list(resumed) == [str(number) for number in range(count, 70)]


def test_small_files_are_read_together_and_states_within_are_met_again(tmp_path):
    names = []
    for number in range(6):
        names.append(tmp_path / f"{number}.txt")
        names[-1].write_text("".join(f"{number}.{line}\n" for line in range(number % 3 + 1)))
    names[3].write_bytes(b"3.0\n\xff\n3.2\n")
    dataset = ps.TextLineDataset(names)
    expected = [
        "0.0",
        "1.0",
        "1.1",
        "2.0",
        "2.1",
        "2.2",
        "3.0",
        "ElementError",
        "3.2",
        "4.0",
        "4.1",
        "5.0",
        "5.1",
        "5.2",
    ]
    assert shown(drain(iter(dataset))) == expected
    iterator = iter(dataset)
    for position in range(len(expected)):
        resumed = iter(dataset)
        resumed.load_state_dict(iterator.state_dict())
        assert shown(drain(resumed)) == expected[position:]
        with contextlib.suppress(ps.ElementError):
            next(iterator)


def test_the_rows_of_many_small_files_come_in_few_blocks(tmp_path):
    names = []
    for number in range(300):
        names.append(tmp_path / f"{number}.txt")
        names[-1].write_text(f"a {number}\nb {number}\n")
    blocks = [len(block) for block in blocks_of(iter(ps.TextLineDataset(names)))]
    assert sum(blocks) == 600
    assert len(blocks) < 60


def resumed_at(iterator, state):
    iterator.load_state_dict(state)
    return iterator


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_a_state_gave_the_rest_of_a_line_of_another_file(tmp_path, compression):
    def lines(*names):
        return ps.TextLineDataset([str(tmp_path / name) for name in names], compression)

    def write(name, content):
        data = content.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if compression else data)

    write("a", "one\ntwo\n\nthree\nfour")
    write("b", "another one\nanother two\n")
    with iter(lines("a", "b")) as iterator:
        states = [iterator.state_dict()]
        states += [iterator.state_dict() for _ in iterator]
    expected = ["one", "two", "", "three", "four", "another one", "another two"]
    for count, state in enumerate(states):
        with iter(lines("a", "b")) as resumed:
            resumed.load_state_dict(state)
            assert list(resumed) == expected[count:]
    with iter(lines("b", "a")) as other, pytest.raises(ps.StateMismatchError, match=r"with other data or arguments"):
        other.load_state_dict(states[2])
    write("a", "one\ntwo\n\nthree\nfour and more\n")
    with iter(lines("a", "b")) as longer:
        longer.load_state_dict(states[4])
        assert next(longer) == "four and more"
    write("a", "another one\nanother two\n")
    for state in states:
        if (state["position"][0] or [0, 0, 0])[2] == 4:  # others say how many lines of the file to pass over
            replaced = iter(lines("a", "b"))
            with pytest.raises(ps.StorageError, match="a': no line begins at byte 4"):
                list(resumed_at(replaced, state))
            replaced.close()
