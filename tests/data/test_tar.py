"""Samples of tar archives: what `test_indexed_formats.py` does not have for all formats."""

import gzip
import io
import tarfile

import numpy as np
import pytest

import penstock as ps
from penstock.testing import check_conformance


def archive_of(path, contents, **options):
    with tarfile.open(path, "w", **options) as archive:
        for name, content in contents:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_extensions_say_what_contents_are(tmp_path):
    contents = [("a.b/x.JSON", b'{"k": 1}'), ("a.b/x.w.txt", "ü".encode()), ("a.b/x.npy", npy(np.arange(3)))]
    path = archive_of(tmp_path / "a.tar", [*contents, ("a.b/x.cls", b"7"), ("a.b/x", b"bare")])
    sample = ps.TarDataset(path)[0]
    assert sample.pop("npy").tolist() == [0, 1, 2]
    assert sample == {"__key__": "a.b/x", "json": '{"k": 1}', "w.txt": "ü", "cls": 7, "": b"bare"}
    assert ps.TarDataset(path, ["cls"], decode=False)[0] == {"__key__": "a.b/x", "cls": b"7"}
    assert ps.TarDataset(path, ["cls", "json"]).element_spec == {
        "__key__": ps.TensorSpec((), object),
        "cls": ps.TensorSpec((), np.int64),
        "json": ps.TensorSpec((), object),
    }


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_folders_and_links_are_in_no_ones_way(tmp_path, format):
    folder = "/".join(["folder"] * (14 if format == tarfile.USTAR_FORMAT else 60))
    with tarfile.open(tmp_path / "a.tar", "w", format=format) as archive:
        for name in ("folder", f"{folder}/ünder.txt", "link", f"{folder}/ünder.bin", "z.bin", "z.txt"):
            member = tarfile.TarInfo(name)
            member.type = {"folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}.get(name, tarfile.REGTYPE)
            member.size = 3 if member.isreg() else 0
            archive.addfile(member, io.BytesIO(b"abc"))
    samples = list(ps.TarDataset(tmp_path / "a.tar"))
    assert [sample["__key__"] for sample in samples] == [f"{folder}/ünder", "z"]
    assert all(sample["bin"] == b"abc" and sample["txt"] == "abc" for sample in samples)


def test_two_members_of_one_name_are_an_error_not_the_last_of_them(tmp_path):
    contents = [("a.txt", b"1"), ("a.TXT", b"2"), ("b.txt", b"3")]
    samples = iter(ps.TarDataset(archive_of(tmp_path / "a.tar", contents)))
    with pytest.raises(ps.ElementError, match="a.tar', sample 0, 'a': there are 2 members 'txt'"):
        next(samples)
    assert list(samples) == [{"__key__": "b", "txt": "3"}]


def test_hidden_members_are_no_samples(tmp_path):
    """As the ones that macOS adds to each file."""
    contents = [("d/._a.txt", b"x"), ("d/a.txt", b"1"), ("d/._a.cls", b"x"), ("d/a.cls", b"2"), (".DS_Store", b"x")]
    path = archive_of(tmp_path / "a.tar", contents)
    assert list(ps.TarDataset(path)) == [{"__key__": "d/a", "txt": "1", "cls": 2}]
    assert len(ps.TarDataset(path)) == 1 and ps.TarDataset(path)[0]["cls"] == 2


def test_a_compressed_archive_of_less_than_a_header_is_told_as_one(tmp_path):
    path = archive_of(tmp_path / "a.tar", [("a.bin", b"x")])
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ps.StorageError, match="a.tar.gz' is compressed: give compression_type='GZIP'"):
        ps.TarDataset(tmp_path / "a.tar.gz")


@pytest.mark.slow
def test_large_members_and_compressed_archives(tmp_path):
    contents = [(f"{number}.bin", bytes([number]) * (number * 400_000)) for number in range(6)]
    path = archive_of(tmp_path / "a.tar", contents)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    stream = ps.TarDataset(tmp_path / "a.tar.gz", compression_type="GZIP")
    for dataset in (ps.TarDataset(path), stream):
        assert [sample["bin"] for sample in dataset] == [content for _, content in contents]
    check_conformance(lambda: stream.map(lambda sample: len(sample["bin"])), limit=10)


@pytest.mark.slow
def test_archives_that_are_damaged_or_cut(tmp_path):
    contents = [(f"{number}.cls", b"%d" % number) for number in range(4)]
    whole = archive_of(tmp_path / "a.tar", contents).read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: 1024 * 3 + 100])
    (tmp_path / "damaged.tar").write_bytes(whole[:2048] + b"?" * 512 + whole[2560:])
    (tmp_path / "text.tar").write_bytes(b"rose\n" * 500)
    (tmp_path / "empty.tar").write_bytes(bytes(10240))
    other = archive_of(tmp_path / "other.tar", [("x.cls", b"1"), ("y.txt", b"2"), ("z.cls", b"3")])
    # Of the sample before the damage nobody knows whether there was more of it.
    for name, before, message in (
        ("cut.tar", 2, "sample 2: the archive is cut: 412 bytes are missing"),
        ("damaged.tar", 1, "sample 1: there is no header of a member at byte 2048"),
    ):
        rows = iter(ps.TarDataset([tmp_path / name, tmp_path / "a.tar"]))
        assert [int(next(rows)["cls"]) for _ in range(before)] == list(range(before))
        with pytest.raises(ps.StorageError, match=message):
            next(rows)
        assert [int(row["cls"]) for row in rows] == [0, 1, 2, 3]
    rows = iter(ps.TarDataset(other))
    assert next(rows)["cls"] == 1
    with pytest.raises(ps.ElementError, match=r"sample 1, 'y': there is no 'cls'; it has \['txt'\]"):
        next(rows)
    assert next(rows)["cls"] == 3
    for make, kind, message in (
        (lambda: ps.TarDataset(tmp_path / "text.tar"), ps.StorageError, "no header of a member at byte 0.*or no tar"),
        (lambda: ps.TarDataset(tmp_path / "empty.tar"), ps.StorageError, "holds no sample"),
        (lambda: ps.TarDataset(other, ["jpg"]), ps.InvalidArgumentError, r"has no 'jpg'; it has \['cls'\]"),
        (lambda: ps.TarDataset(other, "cls"), ps.InvalidTypeError, "got a string"),
    ):
        with pytest.raises(kind, match=message):
            make()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("0.cls", b"x", "invalid literal for int"),
        ("0.cls", b"9223372036854775808", "9223372036854775808 does not fit in 64 bits: decode=False"),
        ("0.npy", b"x", "reading magic string"),
        ("0.txt", b"\xff", "'utf-8' codec"),
    ],
)
def test_a_member_that_is_not_what_its_name_says_is_named(tmp_path, name, content, says):
    path = archive_of(tmp_path / "a.tar", [(name, content)])
    with pytest.raises(ps.ElementError, match=f"a.tar', sample 0, '0': its '{name[2:]}' cannot be read: .*{says}"):
        list(ps.TarDataset(path))
