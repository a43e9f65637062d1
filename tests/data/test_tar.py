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
        (lambda: ps.TarDataset(tmp_path / "empty.tar"), ps.StorageError, "holds no row that tells"),
        (
            lambda: ps.TarDataset(other, ["jpg"]),
            ps.InvalidArgumentError,
            r"no sample of .*other.tar' has 'jpg'; they have \['cls', 'txt'\]",
        ),
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


def keys(*paths, skip=False, **arguments):
    dataset = ps.TarDataset(paths, **arguments)
    return [row["__key__"] for row in (dataset.with_options(ps.Options(on_error="skip")) if skip else dataset)]


def test_what_the_first_sample_does_not_have_is_told_not_dropped(tmp_path):
    contents = [("a.jpg", b"1"), ("b.jpg", b"2"), ("b.txt", b"caption"), ("c.jpg", b"3")]
    path = archive_of(tmp_path / "a.tar", contents)
    rows = iter(ps.TarDataset(path))
    assert next(rows)["__key__"] == "a"
    with pytest.raises(
        ps.ElementError, match=r"sample 1, 'b': it has 'txt', which the first .*: extensions=\[...\] names"
    ):
        next(rows)
    assert next(rows)["__key__"] == "c"
    assert keys(path, extensions=["jpg"]) == ["a", "b", "c"]
    assert keys(path, extensions=["jpg", "txt"], skip=True) == ["b"]


def test_an_archive_that_begins_with_a_readme_is_read_by_its_extensions(tmp_path):
    path = archive_of(tmp_path / "a.tar", [("README.md", b"x"), ("a.jpg", b"t"), ("a.cls", b"1")])
    assert keys(path, extensions=["jpg", "cls"], skip=True) == ["a"]
    with pytest.raises(ps.ElementError, match="sample 0, 'README': there is no 'jpg'"):
        keys(path, extensions=["jpg"])
    with pytest.raises(
        ps.ElementError, match="sample 1, 'a': there is no 'md'.*names those that each sample must have"
    ):
        keys(path)
    alone = archive_of(tmp_path / "0.tar", [("README.md", b"x")])
    assert keys(alone, path, extensions=["jpg", "cls"], skip=True) == ["a"]


@pytest.mark.extended
@pytest.mark.parametrize("gap", [0, 10240, 3 << 20])
def test_an_archive_behind_another_one_is_read_too(tmp_path, gap):
    first = archive_of(tmp_path / "1.tar", [("a.txt", b"t"), ("b.txt", b"u")]).read_bytes()
    second = archive_of(tmp_path / "2.tar", [("b.txt", b"v"), ("c.txt", b"w")]).read_bytes()
    (tmp_path / "a.tar").write_bytes(first + bytes(gap) + second)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(first + bytes(gap)) + gzip.compress(second, 1))
    rows = ps.TarDataset(tmp_path / "a.tar")
    assert [(row["__key__"], row["txt"]) for row in rows] == [("a", "t"), ("b", "u"), ("b", "v"), ("c", "w")]
    assert rows[2]["txt"] == "v" and [row["txt"] for row in rows.skip(2)] == ["v", "w"]
    check_conformance(lambda: ps.TarDataset(tmp_path / "a.tar.gz", compression_type="GZIP"), limit=6)
    (tmp_path / "tail.tar").write_bytes(first + b"no header" * 100)
    rows = iter(ps.TarDataset(tmp_path / "tail.tar"))
    assert [next(rows)["txt"], next(rows)["txt"]] == ["t", "u"]
    with pytest.raises(ps.StorageError, match="there is no header of a member at byte 10240"):
        next(rows)


def test_a_cut_archive_among_many_costs_what_is_cut(tmp_path):
    whole = archive_of(tmp_path / "0.tar", [("c.txt", b"v")])
    data = archive_of(tmp_path / "1.tar", [("a.txt", b"t"), ("b.txt", b"u" * 5000)]).read_bytes()
    for size, before in ((3000, ["a"]), (2000, ["a"]), (1000, []), (700, [])):
        (tmp_path / "1.tar").write_bytes(data[:size])
        for paths in ((whole, tmp_path / "1.tar"), (tmp_path / "1.tar", whole)):
            assert sorted(keys(*paths, skip=True)) == [*before, "c"]
            with pytest.raises(ps.StorageError, match=f"1.tar', sample {len(before)}: the archive is cut"):
                keys(*paths)
    with pytest.raises(ps.StorageError, match="1.tar', sample 0: the archive is cut"):
        ps.TarDataset(tmp_path / "1.tar")


def header(name, kind, size):
    block = bytearray(512)
    block[: len(name)], block[124:136], block[156:157] = name, b"\x80" + size.to_bytes(11, "big"), kind
    block[148:156] = b"%06o\0 " % (sum(block) + 8 * 32)
    return bytes(block)


def member(name, kind, content, size=None):
    return header(name, kind, len(content) if size is None else size) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize(
    "record", [b"0 path=a\n", b"hello world\n", b"5 path=abc.txt\n", bytes(12), b"9" * 30 + b" a=b\n"]
)
def test_damaged_attributes_end_the_archive_with_its_name_and_place(tmp_path, record):
    first, last = member(b"0.txt", b"0", b"zero"), member(b"a.txt", b"0", b"abc") + bytes(1024)
    (tmp_path / "a.tar").write_bytes(first + member(b"p", b"x", record) + last)
    with pytest.raises(ps.StorageError, match="a.tar', sample 0: there is no header of a member at byte 2048"):
        ps.TarDataset(tmp_path / "a.tar")


@pytest.mark.parametrize("size", [1 << 40, 1 << 70])
@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_a_size_that_no_file_has_is_refused_without_memory_for_it(tmp_path, size, compression):
    content = header(b"a.txt", b"0", size) + b"x" * 2000
    (tmp_path / "a.tar").write_bytes(content if compression is None else gzip.compress(content))
    with pytest.raises(ps.StorageError, match=f"a.tar', sample 0: the archive is cut: {size - 2000} bytes are missing"):
        ps.TarDataset(tmp_path / "a.tar", compression_type=compression)


def test_links_have_no_content_and_attributes_may_give_the_size(tmp_path):
    parts = [member(b"a.txt", b"0", b"x" * 1000), member(b"link.txt", b"1", b"", 1000), member(b"b.txt", b"7", b"bee")]
    parts += [member(b"p", b"x", b"12 size=600\n"), member(b"c.txt", b"0", b"y" * 600, 0), member(b"d.txt", b"0", b"d")]
    (tmp_path / "a.tar").write_bytes(b"".join(parts))
    assert [len(row["txt"]) for row in ps.TarDataset(tmp_path / "a.tar")] == [1000, 3, 600, 1]


@pytest.mark.slow
def test_a_first_member_larger_than_what_is_read_at_once(tmp_path):
    path = archive_of(
        tmp_path / "a.tar", [("a.bin", b"x" * (3 << 20)), ("a.cls", b"1"), ("b.bin", b""), ("b.cls", b"2")]
    )
    assert [(len(row["bin"]), int(row["cls"])) for row in ps.TarDataset(path)] == [(3 << 20, 1), (0, 2)]


def test_alternative_extensions_are_those_that_a_sample_has(tmp_path):
    contents = [("a.jpg", b"j"), ("a.cls", b"1"), ("b.png", b"p"), ("b.cls", b"2"), ("c.jpg", b"j"), ("c.png", b"p")]
    path = archive_of(tmp_path / "a.tar", [*contents, ("c.cls", b"3"), ("d.gif", b"g"), ("d.cls", b"4")])
    samples = iter(ps.TarDataset(path, ["png;jpg", "cls"]))
    found = [next(samples) for _ in range(3)]
    assert [(row["__key__"], row["png;jpg"], row["cls"]) for row in found] == [
        ("a", b"j", 1),
        ("b", b"p", 2),
        ("c", b"p", 3),
    ]
    with pytest.raises(ps.ElementError, match="sample 3, 'd': there is no 'png;jpg'; it has"):
        next(samples)
    texts = archive_of(tmp_path / "b.tar", [("a.txt", b"1"), ("b.json", b"2")])
    assert [row["json;txt"] for row in ps.TarDataset(texts, ["json;txt"])] == ["1", "2"]
    numbers = archive_of(tmp_path / "c.tar", [("a.txt", b"1"), ("b.cls", b"2")])
    assert [row["cls;txt"] for row in ps.TarDataset(numbers, ["cls;txt"])] == [b"1", b"2"]


def test_names_with_braces_are_archives_as_webdataset_has_them(tmp_path):
    for number in range(8, 12):
        archive_of(tmp_path / f"a-{number:03}.tar", [(f"{number}.txt", b"x")])
    assert keys(str(tmp_path / "a-{008..011}.tar")) == ["8", "9", "10", "11"]
    assert keys(str(tmp_path / "a-{010,00[8-9]}.tar")) == ["10", "8", "9"]
    assert len(list(ps.Dataset.list_files(str(tmp_path / "{a,a}-{008..010}.tar")))) == 3
    with pytest.raises(ps.StorageError, match="there is no file '.*a-012.tar'"):
        ps.TarDataset(str(tmp_path / "a-{008..012}.tar"))
    archive_of(tmp_path / "{1,2}.tar", [("own.txt", b"x")])
    assert keys(str(tmp_path / "{1,2}.tar")) == ["own"]


@pytest.mark.parametrize("attributes", [b"", b"22 GNU.sparse.major=1\n", b"24 GNU.sparse.size=9999\n"])
def test_a_file_with_holes_is_refused_not_read_as_its_map(tmp_path, attributes):
    first = member(b"a.txt", b"0", b"whole") + member(b"z.txt", b"0", b"unclear")
    holes = member(b"b.txt", b"0", b"map") if attributes else member(b"b.txt", b"S", b"map")
    path = tmp_path / "a.tar"
    path.write_bytes(first + (member(b"p", b"x", attributes) if attributes else b"") + holes + bytes(1024))
    samples = iter(ps.TarDataset(path))
    assert next(samples)["txt"] == "whole"
    with pytest.raises(ps.StorageError, match="sample 1: the member at byte .* with holes: .* without tar's --sparse"):
        next(samples)


def test_an_archive_cut_in_its_first_header_costs_itself_alone(tmp_path):
    good = archive_of(tmp_path / "a.tar", [("a.txt", b"1"), ("b.txt", b"2")])
    for size in (1, 100, 511, 600):
        (tmp_path / "cut.tar").write_bytes(good.read_bytes()[:size])
        among = ps.TarDataset([good, tmp_path / "cut.tar", good])
        assert [row["txt"] for row in among.ignore_errors()] == ["1", "2", "1", "2"]
        with pytest.raises(ps.StorageError, match="cut.tar', sample 0: the archive is cut"):
            list(among)


def test_a_content_that_cannot_be_decoded_says_how_it_is_read(tmp_path):
    for name, content in {"a.cls": b"x", "a.txt": b"\xff", "a.npy": b"x", "a.id": b"9" * 30}.items():
        path = archive_of(tmp_path / "a.tar", [(name, content)])
        with pytest.raises(ps.ElementError, match="a.tar', sample 0, 'a'.*: decode=False leaves all contents as bytes"):
            list(ps.TarDataset(path))
        assert ps.TarDataset(path, decode=False)[0] == {"__key__": "a", name[2:]: content}
