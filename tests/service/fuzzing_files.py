"""What reads files of others, as functions of bytes: damaged ones raise an error of penstock's, or nothing."""

import gzip
import io
import itertools
import json
import shutil
import tarfile
import tempfile
import wave
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from penstock.cli.file_kinds import dataset_of, kind_of

_MOST_ROWS = 50
_FEATURES = {"i": ps.TensorSpec((), np.int64), "f": ps.TensorSpec((None,), np.float32), "s": ps.TensorSpec((), object)}
_numbers = itertools.count()
_written_by_others = Path(__file__).parent.parent / "data" / "written_by_others"
_scratch = Path(tempfile.mkdtemp(prefix="penstock-fuzz-")) / "file"


def _rows(read: Callable[[Path], Iterable[Any]], content: bytes) -> None:
    """Read the rows of a file, also behind those that fail."""
    _scratch.write_bytes(content)
    with suppress(ps.PenstockError):
        rows = iter(read(_scratch))
        for _ in range(_MOST_ROWS):
            with suppress(ps.PenstockError, StopIteration):
                next(rows)


def _value(read: Callable[[bytes], Any], content: bytes) -> None:
    with suppress(ps.PenstockError):
        read(content)


def _parsed(content: bytes) -> Any:
    """An Example by itself, and as one of a batch."""
    with suppress(ps.PenstockError):
        ps.parse_example(content, _FEATURES, {"i": 7})
    return ps.parse_example([content, content], _FEATURES, {"i": 7})


def _documents(path: Path) -> Any:
    """Documents whose index is damaged."""
    shutil.copy(path, path.with_suffix(".idx"))
    path.with_suffix(".bin").write_bytes(bytes(range(12)))
    return ps.FilesDataset(path.with_suffix(".bin"), "megatron")


def _tokens(path: Path) -> Iterator[Any]:
    """The documents, and then the rows of one length, of a file of tokens or an array of them."""
    for rows in (ps.text.TokenFiles(eos=0), ps.text.TokenFiles("int32", length=2, stride=1)):
        with suppress(ps.PenstockError):
            yield from ps.FilesDataset(path, rows)


def _tokens_of_documents(path: Path) -> Any:
    """Documents whose tokens are damaged."""
    path.with_suffix(".idx").write_bytes(_megatron())
    path.rename(path.with_suffix(".bin"))
    return ps.FilesDataset(path.with_suffix(".bin"), "megatron")


def _lance_folder() -> tuple[Path, Path]:
    """A data set of Lance's that is made anew, and the file of its rows."""
    import lance  # noqa: PLC0415  # an extra

    folder = _scratch.with_suffix(".lance")
    lance.write_dataset(pa.table({"x": range(20), "s": ["rose", "violet"] * 10}), folder, mode="overwrite")
    return folder, max(folder.glob("data/*"), key=lambda file: file.stat().st_mtime_ns)


def _lance(path: Path) -> Any:
    """Rows of Lance's whose file is damaged."""
    folder, file = _lance_folder()
    shutil.copy(path, file)
    return ps.LanceDataset(folder)


def _saved(path: Path) -> Any:
    """Rows in penstock's own format whose file is damaged, though not in length."""
    folder = _scratch.with_suffix(".saved")
    shutil.rmtree(folder, ignore_errors=True)
    whole, content = _saved_rows(folder), path.read_bytes()
    (folder / "part-00000.rows").write_bytes((content + whole)[: len(whole)])
    return ps.Dataset.load(folder)


def _saved_rows(folder: Path) -> bytes:
    rows = {"x": np.arange(20), "s": np.array(["rose", "violet"] * 10, object), "l": np.ones((20, 2), np.float32)}
    ps.Dataset.from_tensor_slices(rows).save(folder)
    return (folder / "part-00000.rows").read_bytes()


def _compressed_mds(path: Path) -> Any:
    """A shard that is damaged where it is compressed."""
    folder = path.with_suffix(".mds")
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder / "a.mds.zstd")
    raw = {"basename": "a.mds", "bytes": len(_mds()), "hashes": {}}
    about = {"raw_data": raw, "zip_data": {"basename": "a.mds.zstd", "bytes": 1}, "samples": 2, "compression": "zstd"}
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [about]}))
    return ps.MdsDataset(folder)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "npy_files": partial(_rows, lambda path: ps.FilesDataset(path, "npy")),
    "text_files": partial(_rows, lambda path: ps.FilesDataset(path, "text")),
    "tfrecord_files": partial(_rows, lambda path: ps.FilesDataset(path, "tfrecord")),
    "compressed_files": partial(_rows, lambda path: ps.TFRecordDataset(path, "GZIP")),
    "tar_files": partial(_rows, ps.TarDataset),
    "mds_files": partial(_rows, ps.MdsDataset),
    "compressed_mds_files": partial(_rows, _compressed_mds),
    "megatron_indexes": partial(_rows, _documents),
    "megatron_files": partial(_rows, _tokens_of_documents),
    "files_of_tokens": partial(_rows, _tokens),
    "lance_files": partial(_rows, _lance),
    "saved_rows": partial(_rows, _saved),
    "array_record_files": partial(_rows, ps.ArrayRecordDataset),
    "parquet_files": partial(_rows, ps.ParquetDataset),
    "parquet_files_with_masks": partial(_rows, partial(ps.ParquetDataset, mask_nulls=True)),
    "arrow_files": partial(_rows, lambda path: dataset_of(kind_of(str(path)), [str(path)], True)),
    "csv_files": partial(_rows, ps.CsvDataset),
    "json_lines_files": partial(_rows, ps.JsonLinesDataset),
    "json_lines_files_with_masks": partial(_rows, partial(ps.JsonLinesDataset, mask_nulls=True)),
    "examples": partial(_value, _parsed),
    "sequence_examples": partial(
        _value, lambda content: ps.tfrecord.parse_sequence_example(content, _FEATURES, _FEATURES)
    ),
    "images": partial(_value, ps.image.decode),
    "recordings": partial(_value, ps.audio.decode),
    "videos": partial(_value, ps.video.decode),
}


def _npy() -> list[bytes]:
    arrays = [
        np.arange(6.0).reshape(3, 2),
        np.asfortranarray(np.ones((3, 2))),
        np.zeros(3, [("a", "i4"), ("b", "f8", 2)]),
    ]
    return list(map(_npy_of, arrays))


def _npy_of(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _tfrecord() -> bytes:
    with ps.TFRecordWriter(_scratch) as writer:
        for row in range(5):
            writer.write(b"x" * row * 40)
    return _scratch.read_bytes()


def _tar() -> list[bytes]:
    found = []
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
            for name in ("a.txt", "a.cls", "folder/" * 12 + "b.txt", "folder/" * 12 + "b.cls"):
                member = tarfile.TarInfo(name)
                member.size = 1
                archive.addfile(member, io.BytesIO(b"1"))
        found.append(file.getvalue())
    return found


def _mds() -> bytes:
    about = {"column_names": ["n", "s"], "column_encodings": ["int32", "str"], "column_sizes": [4, None]}
    head = json.dumps(about).encode()
    sample = (4).to_bytes(4, "little") + bytes(4) + b"rose"
    begin = 16 + len(head)
    return np.array([2, begin, begin + 12, begin + 24], "<u4").tobytes() + head + 2 * sample


def _megatron() -> bytes:
    head = b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\x04" + np.array([3, 4], "<u8").tobytes()
    return head + np.array([1, 0, 2], "<i4").tobytes() + np.array([0, 4, 4, 0, 1, 1, 3], "<i8").tobytes()


def _array_record() -> bytes:
    folder = _scratch.with_suffix(f".{next(_numbers)}")
    ps.Dataset.from_list([b"rose", b"violet", b"x" * 40]).save(folder, format="array_record")
    return next(folder.glob("*.array_record")).read_bytes()


def _table() -> pa.Table:
    message = [{"role": "user", "parts": [{"n": 1}, None]}, {"role": None, "parts": None}]
    columns = {"x": range(20), "s": ["rose", "violet"] * 10, "l": [[1, 2], []] * 10, "m": [message, []] * 10}
    tags = pa.array([[("a", 1)], [("b", None)]] * 10, pa.map_(pa.string(), pa.int8()))
    return pa.table(columns | {"o": [{"b": b"x", "p": None}] * 20, "tags": tags})


def _parquet() -> list[bytes]:
    found = []
    for options in ({"row_group_size": 7}, {"use_dictionary": False, "compression": "none"}):
        sink = io.BytesIO()
        pq.write_table(_table().drop("o") if "compression" in options else _table(), sink, **options)
        found.append(sink.getvalue())
    return found


def _arrow() -> list[bytes]:
    found = []
    for begin in (pa.ipc.new_file, pa.ipc.new_stream):
        sink = io.BytesIO()
        with begin(sink, _table().schema) as writer:
            writer.write_table(_table())
        found.append(sink.getvalue())
    return found


def _images() -> list[bytes]:
    from PIL import Image  # noqa: PLC0415  # an extra

    pixels = np.random.default_rng(0).integers(0, 255, (12, 10, 3), dtype=np.uint8)
    files = {
        kind: io.BytesIO() for kind in ("png", "jpeg", "gif", "webp", "bmp", "tiff", "avif", "jpeg2000", "ppm", "tga")
    }
    for kind, file in files.items():
        with suppress(KeyError, OSError):  # this Pillow may not write it
            Image.fromarray(pixels).save(file, kind)
    return [file.getvalue() for file in files.values() if file.getvalue()]


def _recordings() -> list[bytes]:
    import soundfile  # noqa: PLC0415  # an extra

    found = []
    for kind in ("WAV", "FLAC", "OGG", "AIFF", "AU"):
        file = io.BytesIO()
        soundfile.write(file, np.sin(np.arange(400) / 9), 8000, format=kind)
        found.append(file.getvalue())
    with wave.open(file := io.BytesIO(), "wb") as sound:
        sound.setparams((2, 2, 8000, 0, "NONE", "NONE"))
        sound.writeframes(bytes(400))
    return [*found, file.getvalue()]


def _videos() -> list[bytes]:
    import av  # noqa: PLC0415  # an extra

    found = []
    for kind, codec in (("mp4", "mpeg4"), ("matroska", "mpeg4"), ("gif", "gif")):
        file = io.BytesIO()
        with av.open(file, "w", format=kind) as container:
            stream = container.add_stream(codec, rate=25, width=32, height=16)
            stream.pix_fmt = "rgb8" if kind == "gif" else "yuv420p"
            for shade in range(0, 200, 40):
                frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), shade, np.uint8))
                container.mux(stream.encode(frame.reformat(format=stream.pix_fmt)))
            container.mux(stream.encode(None))
        found.append(file.getvalue())
    return found


def _json_lines() -> list[bytes]:
    rows = [b'{"a": 1, "b": [1, 2], "c": {"d": "x"}}\n{"a": 2, "b": [], "c": {"d": "y"}}\n']
    return [*rows, b"".join(json.dumps({"m": row["m"], "o": 1}).encode() + b"\n" for row in _table().to_pylist())]


def seeds(target: str) -> list[bytes]:
    """Whole files, from which damaged ones are made."""
    many: dict[str, Callable[[], list[bytes]]] = {
        "npy_files": _npy,
        "text_files": lambda: ["\ufeffrose\r\nviolet\n\nü".encode()],
        "tfrecord_files": lambda: [_tfrecord()],
        "compressed_files": lambda: [gzip.compress(_tfrecord())],
        "tar_files": _tar,
        "mds_files": lambda: [_mds()],
        "compressed_mds_files": lambda: [pa.compress(_mds(), "zstd", asbytes=True)],
        "megatron_indexes": lambda: [_megatron()],
        "megatron_files": lambda: [bytes(range(12))],
        "files_of_tokens": lambda: [bytes([5, 0, 6, 0, 0, 0, 7, 0]), *_npy(), _npy_of(np.array([3, 0, 4], np.int32))],
        "lance_files": lambda: [_lance_folder()[1].read_bytes()],
        "saved_rows": lambda: [_saved_rows(_scratch.with_suffix(f".{next(_numbers)}"))],
        "array_record_files": lambda: [_array_record()],
        "parquet_files": _parquet,
        "parquet_files_with_masks": _parquet,
        "arrow_files": _arrow,
        "csv_files": lambda: [b'a,b,"c d"\n1,2.5,rose\n2,,"vio\nlet"\n'],
        "json_lines_files": _json_lines,
        "json_lines_files_with_masks": _json_lines,
        "examples": lambda: [ps.serialize_example({"i": 300, "f": np.ones(3, np.float32), "s": b"rose"})],
        "sequence_examples": lambda: list(
            itertools.islice(ps.TFRecordDataset(_written_by_others / "sequences.tfrecord"), 3)
        ),
        "images": _images,
        "recordings": _recordings,
        "videos": _videos,
    }
    return many[target]()
