"""Shards of MosaicML Streaming: what `test_indexed_formats.py` does not have for all formats."""

import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps

WRITTEN = Path(__file__).parent / "written_by_others"


def shard_of(path, columns, samples):
    """Byte by byte, as the format is described; `columns` are (name, encoding, size)."""
    names, encodings, sizes = zip(*columns, strict=True)
    head = json.dumps({"column_names": names, "column_encodings": encodings, "column_sizes": sizes}).encode()
    rows = []
    for values in samples:
        lengths = [len(value) for value, size in zip(values, sizes, strict=True) if size is None]
        rows.append(struct.pack(f"<{len(lengths)}I", *lengths) + b"".join(values))
    edges = np.cumsum([4 * (len(rows) + 2) + len(head), *map(len, rows)])
    path.write_bytes(struct.pack("<I", len(rows)) + edges.astype("<u4").tobytes() + head + b"".join(rows))
    return path


def test_encodings(tmp_path):
    columns = [
        ("any", "ndarray", None),
        ("dtype", "ndarray:float32", None),
        ("fixed", "ndarray:uint16:2,1", 4),
        ("i", "int", 8),
        ("f", "float16", 2),
        ("j", "json", None),
        ("image", "jpeg", None),
    ]
    any_array = bytes([17, 2 << 2 | 1]) + struct.pack("<2H3h", 1, 3, -1, 0, 1)
    row = (any_array, b"\x04\x02" + struct.pack("<2f", 0.5, 2), struct.pack("<2H", 3, 4), struct.pack("<q", -7))
    path = shard_of(tmp_path / "a.mds", columns, [(*row, np.float16(1.5).tobytes(), b'{"a": 1}', b"\xff\xd8")] * 2)
    found = ps.MdsDataset(path)[1]
    assert found["any"].tolist() == [[-1, 0, 1]] and found["any"].dtype == np.int16
    assert found["dtype"].tolist() == [0.5, 2] and found["fixed"].tolist() == [[3], [4]]
    assert (found["i"], found["f"], found["j"], found["image"]) == (-7, 1.5, '{"a": 1}', b"\xff\xd8")
    some = ps.MdsDataset(path, ["i", "f", "j"])
    assert some.element_spec == {
        "f": ps.TensorSpec((), np.float16),
        "i": ps.TensorSpec((), np.int64),
        "j": ps.TensorSpec((), object),
    }


def test_what_mosaicml_streaming_has_written():
    dataset = ps.MdsDataset(WRITTEN / "mosaic")
    assert len(dataset) == 30
    for number, row in enumerate(dataset):
        assert (row["x"], row["word"], row["blob"], row["f"]) == (number, f"w{number}", b"b" * (number % 4), number / 2)
        assert row["a"].tolist() == list(range(number % 3 + 1)) and row["any"].tolist() == [[number, -number]]
        assert row["fixed"].tolist() == [number, number + 1] and json.loads(row["j"]) == {"n": number}
        assert (row["a"].dtype, row["any"].dtype, row["fixed"].dtype) == (np.int16, np.int32, np.uint16)
    shuffled = [int(row["x"]) for row in ps.MdsDataset(WRITTEN / "mosaic").shuffle(seed=1)]
    assert sorted(shuffled) == list(range(30)) != shuffled


def test_a_directory_is_read_by_its_index(tmp_path):
    shards = []
    for number in (1, 0):
        shard_of(tmp_path / f"{number}.mds", [("x", "uint8", 1)], [(bytes([number]),)])
        shards.append({"raw_data": {"basename": f"{number}.mds"}, "zip_data": None})
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    assert [int(row["x"]) for row in ps.MdsDataset(tmp_path)] == [1, 0]
    shards[0] = {"raw_data": {"basename": "2.mds"}, "zip_data": {"basename": "2.mds.zstd"}}
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    shard_of(tmp_path / "2.mds", [("x", "uint8", 1)], [(bytes([x]),) for x in range(50)])
    with pa.CompressedOutputStream(tmp_path / "2.mds.zstd", "zstd") as packed:
        packed.write((tmp_path / "2.mds").read_bytes())
    (tmp_path / "2.mds").unlink()
    dataset = ps.MdsDataset(tmp_path)
    assert [int(row["x"]) for row in dataset] == [*range(50), 0]
    assert sorted(int(row["x"]) for row in dataset.shuffle(seed=1)) == [0, *range(50)]


@pytest.mark.parametrize("name", ["../other.mds", "/etc/hostname", "a/../../other.mds", "s3://bucket/other.mds"])
def test_an_index_names_no_file_outside_of_its_directory(tmp_path, name):
    shard_of(tmp_path / "other.mds", [("x", "uint8", 1)], [(bytes([1]),)])
    (tmp_path / "data").mkdir()
    index = {"version": 2, "shards": [{"raw_data": {"basename": name}, "zip_data": None}]}
    (tmp_path / "data" / "index.json").write_text(json.dumps(index))
    with pytest.raises(ps.StorageError, match="leads out of the directory"):
        ps.MdsDataset(tmp_path / "data")


def test_what_is_wrong_is_said_when_the_dataset_is_made(tmp_path):
    path = shard_of(tmp_path / "a.mds", [("x", "pkl", None), ("y", "int8", 1)], [(b"x", b"y")])
    (tmp_path / "cut.mds").write_bytes(path.read_bytes()[:-1])
    (tmp_path / "text.mds").write_bytes(b"rose" * 9)
    (tmp_path / "empty.mds").write_bytes(b"")
    (tmp_path / "packed.mds.zstd").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    (tmp_path / "json.mds").write_bytes(path.read_bytes().replace(b"column_names", b"column_naems"))
    assert ps.MdsDataset(path, ["y"])[0] == {"y": ord("y")}
    for make, kind, message in (
        (
            lambda: ps.MdsDataset(path),
            ps.InvalidArgumentError,
            "'x' .* encoded as 'pkl', which is not read.*skip it",
        ),
        (lambda: ps.MdsDataset(path, ["z"]), ps.InvalidArgumentError, r"no column 'z'; its columns are \['x', 'y'\]"),
        (lambda: ps.MdsDataset(path, "y"), ps.InvalidTypeError, "got a string"),
        (lambda: ps.MdsDataset(path, []), ps.InvalidArgumentError, "at least one column"),
        (lambda: ps.MdsDataset(tmp_path / "cut.mds"), ps.StorageError, "damaged or cut: its samples end at byte"),
        (lambda: ps.MdsDataset(tmp_path / "text.mds"), ps.StorageError, "cannot be read as a shard of MDS"),
        (
            lambda: ps.MdsDataset(tmp_path / "packed.mds.zstd"),
            ps.StorageError,
            "packed.mds.zstd' .*(damaged|unpacked)",
        ),
        (lambda: ps.MdsDataset(tmp_path / "empty.mds"), ps.StorageError, "cannot be read as a shard of MDS"),
        (lambda: ps.MdsDataset(tmp_path / "json.mds"), ps.StorageError, "shard of MDS: .*`column_names`"),
    ):
        with pytest.raises(kind, match=message):
            make()


@pytest.mark.parametrize(("size", "value"), [(2, b"ab"), (-4, b"abcdefgh"), (None, b"abcd")])
def test_columns_that_overlap_are_damage(tmp_path, size, value):
    path = shard_of(tmp_path / "a.mds", [("x", "int64", size), ("y", "str", None)], [(value, b"longer than that")])
    with pytest.raises(ps.StorageError, match="a.mds'.* (is damaged|cannot be read as a shard of MDS)"):
        list(ps.MdsDataset(path))


@pytest.mark.parametrize(
    "head",
    [
        b'{"column_names": [["x"]], "column_encodings": ["int8"], "column_sizes": [1]}',
        b'{"column_names": ["x"], "column_encodings": [8], "column_sizes": [1]}',
        b'{"column_names": ["x"], "column_encodings": ["bytes"], "column_sizes": [1180591620717411303424]}',
        b'{"column_names": ["x", "y"], "column_encodings": ["int8", "int8"], "column_sizes": [1]}',
        b'{"column_names": ["x", "x"], "column_encodings": ["int8", "int8"], "column_sizes": [1, 1]}',
        b"[" * 100_000,
        b'{"column_names": ["x"], "column_encodings": ["ndarray:rose"], "column_sizes": [null]}',
    ],
    ids=["names", "encodings", "huge", "fewer", "twice", "deep", "no dtype"],
)
def test_a_head_of_other_types_is_damage_with_the_name_of_the_file(tmp_path, head):
    begin = 12 + len(head)
    path = tmp_path / "a.mds"
    path.write_bytes(np.array([1, begin, begin + 5], "<u4").tobytes() + head + b"\1\0\0\0a")
    with pytest.raises(ps.StorageError, match="a.mds'"):
        list(ps.MdsDataset(path))
