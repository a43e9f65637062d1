"""Indexes of offsets: when they are made, kept and made again, and files that change under them."""

import gzip
import os
import time

import numpy as np
import pytest

import penstock as ps
from penstock.formats import open_files
from penstock.formats.records import record_files
from penstock.formats.records.offsets import cache_directory
from penstock.formats.records.text_lines import TextLines


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(record_files, "_SMALL_BYTES", 0)  # as if the files were large
    return tmp_path / "cache" / "offsets"


@pytest.fixture
def passes(monkeypatch):
    """The names of files over which an index was made."""
    made = []
    edges = TextLines.edges
    monkeypatch.setattr(TextLines, "edges", lambda self, name: made.append(name) or edges(self, name))
    return made


@pytest.fixture
def poem(tmp_path):
    path = tmp_path / "poem.txt"
    path.write_bytes(b"rose\n\nviolet\r\nlast")
    return path


def test_an_index_is_kept_and_made_again_when_the_file_has_changed(poem, passes, cache):
    for _ in range(2):
        assert list(ps.FilesDataset(poem, "text")) == list(ps.TextLineDataset(poem)) == ["rose", "", "violet", "last"]
    assert len(passes) == 1 and len(list(cache.glob("*.arrow"))) == 1
    poem.write_bytes(b"one\ntwo\n")
    assert list(ps.FilesDataset(poem, "text")) == ["one", "two"] and len(passes) == 2
    os.utime(poem, ns=(1, 1))
    assert len(ps.FilesDataset(poem, "text")) == 2 and len(passes) == 3 and len(list(cache.glob("*.arrow"))) == 1


def test_an_index_belongs_to_a_file_whatever_name_leads_to_it(poem, passes, cache, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "poem.txt").write_bytes(b"one\n")
    (tmp_path / "link.txt").symlink_to(poem)
    for folder, lengths in ((tmp_path, [4, 4, 4]), (tmp_path / "other", [1, 4, 4])):
        monkeypatch.chdir(folder)
        assert [len(ps.FilesDataset(name, "text")) for name in ("poem.txt", poem, tmp_path / "link.txt")] == lengths
    assert len(passes) == len(list(cache.glob("*.arrow"))) == 2


def test_the_index_of_a_remote_file_belongs_to_its_whole_name(passes, cache, tmp_path, monkeypatch):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    try:
        for name in ("a", "b"):
            memory.pipe(f"/penstock/{name}/poem.txt", b"rose\n")
        for folder in (tmp_path, cache.parent):
            folder.mkdir(exist_ok=True)
            monkeypatch.chdir(folder)
            for name in ("a", "b"):
                assert len(ps.FilesDataset(f"memory://penstock/{name}/poem.txt", "text")) == 1
        assert len(passes) == len(list(cache.glob("*.arrow"))) == 2
    finally:
        memory.rm("/penstock", recursive=True)


def test_a_damaged_index_is_made_again(poem, passes, cache):
    assert len(ps.FilesDataset(poem, "text")) == 4
    (place,) = cache.glob("*.arrow")
    whole = place.read_bytes()
    for damaged in (whole[:50], b"", whole[:-5], whole.replace(np.uint8([5, 1, 8]).tobytes(), b"\1\2\3"), b"x" * 200):
        assert damaged != whole
        place.write_bytes(damaged)
        assert list(ps.FilesDataset(poem, "text")) == ["rose", "", "violet", "last"]
    assert len(passes) == 6 and place.read_bytes() == whole


def test_without_a_cache_directory_the_index_is_made_each_time(poem, passes, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file" / "below"))
    for _ in range(2):
        assert len(ps.FilesDataset(poem, "text")) == 4
    assert len(passes) == 2


def test_where_indexes_are_kept(monkeypatch, tmp_path):
    monkeypatch.delenv("PENSTOCK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "penstock" / "offsets"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/rose")
    assert str(cache_directory()) == "/home/rose/.cache/penstock/offsets"


def test_a_file_that_changes_under_an_index_is_an_error(poem):
    dataset = ps.FilesDataset(poem, "text")
    poem.write_bytes(b"rose\n\nviolet\r\nlast and more")
    with pytest.raises(ps.StorageError, match=r"poem.txt' has changed since the dataset was made"):
        list(dataset)


def test_what_follows_on_a_lost_place_is_one_record_that_fails(tmp_path):
    path = tmp_path / "a.tfrecord"
    with ps.TFRecordWriter(path) as writer:
        for word in (b"rose", b"violet", b"sugar"):
            writer.write(word)
    whole = path.read_bytes()
    path.write_bytes(whole[:20] + b"\xff" * 8 + whole[28:])
    other = tmp_path / "b.tfrecord"
    other.write_bytes(whole[:-3])
    for _ in range(2):  # without and with a kept index
        rows = iter(ps.FilesDataset([path, other], "tfrecord"))
        assert next(rows) == b"rose"
        with pytest.raises(ps.StorageError, match="record 1 at byte 20: the checksum of its length is wrong"):
            next(rows)
        assert [next(rows), next(rows)] == [b"rose", b"violet"]
        with pytest.raises(ps.StorageError, match="b.tfrecord', record 2 at byte 42: the file is truncated"):
            next(rows)
        assert list(rows) == []


def test_what_has_no_index_is_said_when_the_dataset_is_made(poem, tmp_path):
    with pytest.raises(ps.StorageError, match=r"poem.txt', record 0 at byte 0: the checksum of its length is wrong"):
        ps.FilesDataset(poem, "tfrecord")
    (tmp_path / "poem.gz").write_bytes(gzip.compress(poem.read_bytes()))
    with pytest.raises(ps.StorageError, match=r"poem.gz' is compressed \(GZIP\).*as a stream.*or unpack it"):
        ps.FilesDataset(tmp_path / "poem.gz", "text")


def test_explain_says_what_an_index_holds(poem):
    assert "FilesDataset(TextLines)" in (text := ps.FilesDataset(poem, "text").explain())
    assert "holds where 4 records begin, 8 bytes each" in text
    (empty := poem.with_name("empty")).touch()
    assert list(ps.FilesDataset([empty, poem, empty], "text").skip(3)) == ["last"]


def test_small_files_have_no_index_on_disk(poem, passes, cache, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("PENSTOCK_CACHE", str(cache.parent))
    assert list(ps.FilesDataset(poem, "text")) == ["rose", "", "violet", "last"] and not cache.exists()


def test_indexes_outlast_the_descriptors_of_their_files(tmp_path, passes, monkeypatch):
    monkeypatch.setattr(open_files, "_MOST", 8)
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_text("".join(f"{number} {row}\n" for row in range(10)))
    dataset = ps.FilesDataset(str(tmp_path / "*.txt"), "text")
    assert len(set(dataset.shuffle(seed=1))) == 200 and len(passes) == 20
    (tmp_path / "03.txt").write_text("other\n")
    with pytest.raises(ps.StorageError, match="03.txt' has 1 records, and had more when the dataset was made"):
        list(dataset)


def test_indexes_that_were_not_read_for_a_month_are_deleted(poem, cache):
    assert len(ps.FilesDataset(poem, "text")) == 4
    (index,), now = cache.glob("*.arrow"), time.time()
    for name in ("gone.arrow", "left.writing"):
        (cache / name).touch()
        os.utime(cache / name, (now, now - 40 * 86400))
    os.utime(index, (now, now - 20 * 86400))
    assert len(ps.FilesDataset(poem, "text")) == 4 and index.stat().st_mtime >= now - 1
    (other := poem.with_name("other.txt")).write_text("one\n")
    assert len(ps.FilesDataset(other, "text")) == 1 and (cache / "gone.arrow").exists()  # once a day
    os.utime(cache / ".swept", (now, now - 2 * 86400))
    other.write_text("one\ntwo\n")
    assert len(ps.FilesDataset(other, "text")) == 2
    assert len(list(cache.glob("*.arrow"))) == 2 and not {"gone.arrow", "left.writing"} & set(os.listdir(cache))
