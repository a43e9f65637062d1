"""`penstock inspect`: what it says of files of every kind, whole and damaged."""

import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import feather

import penstock as ps
from penstock.cli import main
from penstock.cli.example_features import features_of

WRITTEN = Path(__file__).parent / "data" / "written_by_others"


def picture(shade, kind="png"):
    file = io.BytesIO()
    Image.fromarray(np.full((20, 30, 3), shade, np.uint8)).save(file, kind)
    return file.getvalue()


def write_arrow(path):
    table = pa.table({"x": [1, None, 3]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def write_records(path):
    with ps.TFRecordWriter(path) as writer:
        for number in range(5):
            writer.write(bytes([number]) * 40)


def write_tar(path):
    (path.parent / "a.txt").write_text("hello")
    with tarfile.open(path, "w") as archive:
        archive.add(path.parent / "a.txt", "inner/a.txt")


FILES = {
    "a.parquet": lambda path: pq.write_table(pa.table({"x": [1, 2], "word": ["a", "b"]}), path),
    "a.npy": lambda path: np.save(path, np.arange(12.0).reshape(4, 3)),
    "a.csv": lambda path: path.write_text("age,name\n31,Ada\n17,Bob\n"),
    "a.tsv": lambda path: path.write_text("age\tname\n31\tAda\n"),
    "a.jsonl": lambda path: path.write_text('{"a": 1}\n{"a": 2}\n'),
    "a.txt": lambda path: path.write_text("grün\nblau\n", "utf-8"),
    "a.txt.gz": lambda path: path.write_bytes(gzip.compress(b"x\ny\n")),
    "a.csv.gz": lambda path: path.write_bytes(gzip.compress(b"x\n1\n2\n3\n")),
    "a.tfrecord": write_records,
    "records": write_records,
    "a.arrow": write_arrow,
    "a.tar": write_tar,
    "a.png": lambda path: path.write_bytes(picture(7)),
    "a.webp": lambda path: path.write_bytes(picture(7, "webp")),
}


@pytest.mark.parametrize(
    ("name", "kind", "rows", "schema", "random_reads"),
    [
        ("a.parquet", "Parquet", 2, "{'x': int64, 'word': text}", "good: row groups of up to 2 rows"),
        ("a.npy", "NumPy", 4, "float64[-]", "good: any row by a slice"),
        ("a.csv", "CSV", 2, "{'age': int64, 'name': text}", "good, by ps.CsvDataset"),
        ("a.tsv", "TSV", 1, "{'age': int64, 'name': text}", "good, by ps.CsvDataset"),
        ("a.jsonl", "JSON lines", 2, "{'a': int64}", "good, by ps.JsonLinesDataset"),
        ("a.txt", "text", 2, "text", 'good, by ps.FilesDataset(files, "text")'),
        ("a.txt.gz", "text, GZIP", 2, "text", "bad: compressed files are read from front to back"),
        ("a.csv.gz", "CSV, GZIP", 3, "{'x': int64}", "bad: compressed"),
        ("a.tfrecord", "TFRecord", 5, "bytes", 'good, by ps.FilesDataset(files, "tfrecord")'),
        ("records", "TFRecord", 5, "bytes", 'good, by ps.FilesDataset(files, "tfrecord")'),
        ("a.arrow", "Arrow", 3, "{'x': int64}", "good: any row from memory"),
        (
            "a.tar",
            "tar",
            1,
            "{'__key__': text, 'txt': text}",
            "good, by ps.TarDataset: it finds out once where samples begin",
        ),
        ("a.png", "PNG", 1, "uint8[-, -, -]", "good: a file for each row"),
        ("a.webp", "WebP", 1, "uint8[-, -, -]", "good: a file for each row"),
    ],
)
def test_a_whole_file_is_described(tmp_path, capsys, name, kind, rows, schema, random_reads):
    FILES[name](tmp_path / name)
    assert main(["inspect", str(tmp_path / name), "--first", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{kind}: 1 file, ")
    assert lines[1] == f"  rows          {rows}" and lines[2] == f"  schema        {schema}"
    lines = [line for line in lines if not line.startswith("  nulls")]
    assert lines[3].startswith(f"  random reads  {random_reads}")
    assert lines[4].startswith("  element 0     ") and lines[5] == "  problems      none"


NULLABLE = pa.table(
    {
        "id": [1, 2, 3],
        "lang": ["en", None, None],
        "l": [[1], [1, None], None],
        "image": [{"path": None, "size": 1}, {"path": "p", "size": 2}, {"path": None, "size": 3}],
    }
)


def stream(path):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, NULLABLE.schema) as writer:
        writer.write_table(NULLABLE)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.parquet", lambda path: pq.write_table(NULLABLE, path)),
        ("a.jsonl", lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in NULLABLE.to_pylist()))),
        ("a.arrow", stream),
    ],
)
def test_nulls_are_counted_and_no_damage(tmp_path, capsys, name, write):
    write(tmp_path / name)
    assert main(["inspect", str(tmp_path / name)]) == 0
    lines = capsys.readouterr().out.splitlines()
    schema = "{'id': int64, 'lang': text, 'l': int64[-], 'image': {'path': text, 'size': int64}}"
    assert lines[1:3] == ["  rows          3", f"  schema        {schema}"]
    assert lines[3] == "  nulls         image.path in 2 rows, lang in 2 rows, l in 2 rows: mask_nulls reads them"
    assert lines[6:] == [
        "  element 1     {'id': 2, 'lang': None, 'l': [1, 0], 'image': {'path': 'p', 'size': 2}}",
        "  element 2     {'id': 3, 'lang': None, 'l': None, 'image': {'path': None, 'size': 3}}",
        "  problems      none",
    ]


def test_columns_that_end_as_masks_do_are_shown(tmp_path, capsys):
    for name, write in (("a.parquet", pq.write_table), ("a.arrow", feather.write_feather)):
        write(pa.table({"x": [1, 0], "x_is_valid": [True, False]}), str(tmp_path / name))
        assert main(["inspect", str(tmp_path / name)]) == 0
        assert "schema        {'x': int64, 'x_is_valid': bool}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.jsonl.xz", lzma.compress), ("a.jsonl.zst", lambda data: pa.compress(data, "zstd", asbytes=True))],
)
def test_compressed_tables_are_inspected_and_converted(tmp_path, capsys, name, pack):
    (tmp_path / name).write_bytes(pack(b'{"x": 1}\n{"x": null}\n'))
    assert main(["inspect", str(tmp_path / name)]) == 0
    assert "schema        {'x': int64}" in capsys.readouterr().out
    target = tmp_path / "a.parquet"
    assert main(["convert", str(tmp_path / name), str(target), "--mask-nulls", "x"]) == 0
    assert pq.read_table(target).to_pylist() == [{"x": 1, "x_is_valid": True}, {"x": 0, "x_is_valid": False}]
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress(target.read_bytes()))
    assert main(["inspect", str(tmp_path / "b.parquet.gz")]) == 1
    assert "b.parquet.gz' is compressed as a whole (GZIP), so that penstock cannot read" in capsys.readouterr().out


def test_each_damaged_byte_of_an_arrow_footer_names_the_file(tmp_path, capsys):
    path = tmp_path / "a.arrow"
    feather.write_feather(pa.table({"x": list(range(100))}), str(path), compression="uncompressed")
    good = path.read_bytes()
    for place in range(len(good) - 200, len(good) - 10, 5):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x7F]) + good[place + 1 :])
        if main(["inspect", str(path)]):
            assert "a.arrow' cannot be read as an Arrow file" in capsys.readouterr().out


def damaged_record(path):
    write_records(path)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)


def large_groups(path):
    pq.write_table(pa.table({"x": np.arange(30_000)}), path)


def unclosed_header(path):
    np.save(path, np.arange(3))
    path.write_bytes(path.read_bytes().replace(b"}", b" "))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "write", "status", "said"),
    [
        ("a.tfrecord", damaged_record, 1, "record 1 at byte 56: the checksum of its 40 bytes of data is wrong"),
        ("a.parquet", large_groups, 0, "bad: a row at random decodes a row group of up to 30,000 rows"),
        ("a.parquet", lambda path: path.write_bytes(b"PAR1 and no more"), 1, "cannot be read as a Parquet file"),
        ("a.png", lambda path: path.write_bytes(picture(1)[:50]), 1, "a.png': the image of 50 bytes cannot be decoded"),
        ("a.jpg", lambda path: path.write_bytes(picture(1)), 1, "named as JPEG, and its content is PNG"),
        ("a.npy", lambda path: path.write_bytes(b"\x93NUMPY"), 1, "cannot be read as an array of NumPy"),
        ("a.npy", unclosed_header, 1, "cannot be read as an array"),
        ("a.csv", lambda path: path.write_bytes("é,b\n1,2\n".encode("utf-16")), 1, "it is UTF-16: convert it, as by"),
        ("b.csv", lambda path: path.write_bytes("é,b\n1,2\n".encode("latin-1")), 1, "encoding='latin-1', or another"),
        ("a.bin", lambda path: path.write_bytes(bytes(range(256))), 1, "has no reader for unknown files"),
        ("a.csv", lambda path: path.write_text("a,b\n1,2\n1,2,3\n"), 1, "problems      1"),
        ("a.arrow", lambda path: path.write_bytes(b"ARROW1\0\0"), 1, "cannot be read as an Arrow file"),
    ],
)
def test_what_is_wrong_is_said_and_is_the_status(tmp_path, capsys, name, write, status, said):
    write(tmp_path / name)
    assert main(["inspect", str(tmp_path / name)]) == status
    assert said in capsys.readouterr().out


def test_files_are_put_together_by_kind_and_compared(tmp_path, capsys):
    for number in range(3):
        pq.write_table(pa.table({"x": list(range(number + 1))}), tmp_path / f"{number}.parquet")
    assert main(["inspect", str(tmp_path / "*.parquet"), "--first", "0"]) == 0
    assert "rows          6, from 1 to 3 in a file" in capsys.readouterr().out
    pq.write_table(pa.table({"x": [1.5]}), tmp_path / "3.parquet")
    (tmp_path / "names.txt").write_text("a\n")
    assert main(["inspect", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "Parquet: 4 files" in said and "text: 1 file" in said
    assert "3.parquet' has other rows than" in said and "{'x': float64}" in said


def test_a_sheet_shows_images_of_files_and_of_columns(tmp_path, capsys):
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(picture(100 + number))
    pq.write_table(pa.table({"image": [picture(200), picture(201)]}), tmp_path / "4.parquet")
    assert main(["inspect", str(tmp_path), "--sheet", str(tmp_path / "outsheet.png")]) == 0
    assert "5 images" in capsys.readouterr().out
    sheet = np.asarray(Image.open(tmp_path / "outsheet.png"))
    assert sheet.shape == (128, 5 * 128, 3)
    assert sorted(int(sheet[60, 60 + 128 * place, 0]) for place in range(5)) == [100, 101, 102, 200, 201]


def test_damaged_images_of_a_column_are_problems_of_the_sheet(tmp_path, capsys):
    rows = pa.table({"image": [b"bad", picture(1), picture(2), b""], "thumbnail": [b"not", b"an", b"image", b"at all"]})
    pq.write_table(rows, tmp_path / "a.parquet")
    assert main(["inspect", str(tmp_path), "--sheet", str(tmp_path / "outsheet.png")]) == 1
    said = capsys.readouterr().out
    assert "problems      2" in said and "2 images" in said
    assert "element 0 at ['image']: the 3 bytes are no image of a format that is known: they begin with b'bad'" in said
    assert "element 3 at ['image']: the 0 bytes are no image" in said


def test_shards_of_mds_are_described_without_their_index(capsys):
    assert main(["inspect", str(WRITTEN / "mosaic"), "--first", "0"]) == 0
    said = capsys.readouterr().out
    assert (
        said.startswith("MDS: 2 files")
        and "rows          30" in said
        and "random reads  good, by ps.MdsDataset" in said
        and "problems      none" in said
    )
    assert "text" not in said.partition("schema")[0]


def test_what_cannot_be_inspected_is_said(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "none.txt")]) == 2
    assert "no file matches" in capsys.readouterr().err
    (tmp_path / "inner").mkdir()
    assert main(["inspect", str(tmp_path)]) == 2
    assert "there is no file below" in capsys.readouterr().err
    (tmp_path / "a.txt").write_text("a\n")
    assert main(["inspect", str(tmp_path / "a.txt"), "--sheet", str(tmp_path / "x.png")]) == 2
    assert "there is no image in these files" in capsys.readouterr().err


def test_samples_of_archives_are_rows_and_their_images_are_on_the_sheet(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    samples = ps.Dataset.range(6).map(lambda x: {"png": picture(40 * int(x)), "cls": x})
    samples.save("shards", format="tar", shards=2)
    assert main(["inspect", "shards", "--sheet", "sheet.png"]) == 0
    said = capsys.readouterr().out
    assert "tar: 2 files" in said and "rows          6, from 3 to 3 in a file" in said
    assert "schema        {'__key__': text, 'cls': int64, 'png': bytes}" in said and "6 images" in said
    with Image.open("sheet.png") as sheet:
        assert sheet.size == (6 * 128, 128)


def test_datasets_that_penstock_has_saved_are_described(tmp_path, capsys):
    ps.Dataset.range(5).map(lambda x: (x, "word")).save(tmp_path / "saved")
    assert main(["inspect", str(tmp_path / "saved"), "--first", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("penstock: 1 file, ") and "rows          5" in said and "(int64, text)" in said


def test_a_transform_shows_what_it_has_learned(tmp_path, capsys):
    def preprocess(columns):
        return {"y": ps.transform.scale_to_z_score(columns["x"], name="size")}

    ps.transform.analyze(ps.Dataset.from_tensor_slices({"x": [1.0, 3.0]}), preprocess, tmp_path)
    assert main(["inspect", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "1 columns, 1 results, learned from 2 rows" in shown
    assert "size (mean_and_var) of x: 2; 1" in shown


def test_the_features_of_examples_are_shown_as_a_program_has_them(tmp_path, capsys):
    with ps.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(3):
            row = {"x": np.zeros(2, np.float32), "n": number, "s": "a", "l": np.arange(number)}
            writer.write(ps.serialize_example(row))
    assert main(["inspect", str(tmp_path / "a.tfrecord")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  Examples      ")]
    features = eval(line.removeprefix("  Examples      "), {"ps": ps, "np": np})
    assert features == {
        "l": ps.TensorSpec((None,), np.int64),
        "n": ps.TensorSpec((), np.int64),
        "s": ps.TensorSpec((), object),
        "x": ps.TensorSpec((2,), np.float32),
    }


@pytest.mark.extended
def test_what_the_terminal_cannot_show_is_shown_by_its_number(tmp_path):
    (tmp_path / "a.csv").write_text("name\nna\u00efve\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "inspect", tmp_path / "a.csv"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"element 0     {'name': 'na\xefve'}" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_output_to_a_full_disk_is_said_without_a_traceback(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "inspect", tmp_path / "a.csv"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr == "penstock: the output cannot be written: [Errno 28] No space left on device\n"


def test_a_feature_that_is_empty_in_some_examples_varies():
    def field(number, content):
        return bytes([number << 3 | 2, len(content)]) + content

    def example(b):
        a, rest = field(3, field(1, b"\1")), {"b": b, "never": b""}
        return field(
            1, b"".join(field(1, field(1, name.encode()) + field(2, one)) for name, one in {"a": a, **rest}.items())
        )

    found = features_of([example(field(3, field(1, b"\5"))), example(b"")])
    assert found == {"a": ps.TensorSpec((), np.int64), "b": ps.TensorSpec((None,), np.int64)}
