"""Records of one length and arrays of NumPy: what `test_indexed_formats.py` does not have for all formats."""

import contextlib
import gzip
import io
import math
import struct
import tarfile
import warnings

import numpy as np
import pytest

import penstock as ps
from penstock.testing import check_conformance


@pytest.mark.extended
@pytest.mark.parametrize("footer", [0, 3])
def test_compressed_records_are_a_stream_of_the_same(tmp_path, footer):
    numbers = range(300_000)  # more than a chunk
    content = b"head" + struct.pack(f"<{len(numbers)}i", *numbers) + b"end"[:footer]
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "packed").write_bytes(gzip.compress(content, 1))
    plain = ps.FixedLengthRecordDataset(tmp_path / "plain", 4, 4, footer)
    packed = ps.FixedLengthRecordDataset(tmp_path / "packed", 4, 4, footer, compression_type="GZIP")
    assert b"".join(packed) == b"".join(plain) == content[4 : len(content) - footer]
    check_conformance(lambda: packed.skip(299_990), limit=15)


def test_records_of_another_length_are_errors(tmp_path):
    (tmp_path / "a").write_bytes(b"abcdefgh")
    with pytest.raises(ps.StorageError, match=r"a' has 8 bytes, which are no whole number of records of 3 bytes and 1"):
        ps.FixedLengthRecordDataset(tmp_path / "a", 3, 1)
    with pytest.raises(ps.StorageError, match="no whole number"):
        ps.FixedLengthRecordDataset(tmp_path / "a", 3, 20)
    (tmp_path / "b").write_bytes(gzip.compress(b"abcdefgh"))
    rows = iter(ps.FixedLengthRecordDataset([tmp_path / "b"] * 2, 3, 1, compression_type="GZIP"))
    assert [next(rows), next(rows)] == [b"bcd", b"efg"]
    with pytest.raises(ps.StorageError, match=r"record 2 at byte 7: the file ends after 1 bytes of 3"):
        next(rows)
    assert next(rows) == b"bcd"
    with pytest.raises(ps.StorageError, match="fewer bytes than its header of 20"):
        list(ps.FixedLengthRecordDataset(tmp_path / "b", 3, 20, compression_type="GZIP"))
    with pytest.raises(ps.InvalidArgumentError, match="record_bytes of at least 1"):
        ps.FixedLengthRecordDataset(tmp_path / "a", 0)


def test_arrays_have_the_specification_of_their_rows(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 2, 5), ">f4"))
    assert ps.FilesDataset(tmp_path / "a.npy", "npy").element_spec == ps.TensorSpec((2, 5), ">f4")
    np.save(tmp_path / "words.npy", np.array(["rose", "violet"]))
    assert list(ps.FilesDataset(tmp_path / "words.npy", "npy")) == ["rose", "violet"]
    np.save(tmp_path / "none.npy", np.zeros((0, 2)))
    assert list(ps.FilesDataset(tmp_path / "none.npy", "npy")) == []
    np.save(tmp_path / "empty.npy", np.zeros((3, 0)))
    assert [row.shape for row in ps.FilesDataset(tmp_path / "empty.npy", "npy")] == [(0,)] * 3
    np.save(tmp_path / "by_columns.npy", np.asfortranarray(np.arange(4)))
    assert [int(row) for row in ps.FilesDataset(tmp_path / "by_columns.npy", "npy")] == [0, 1, 2, 3]


def test_arrays_that_cannot_be_read_by_row(tmp_path):
    np.save(tmp_path / "cut.npy", np.arange(10))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-1])
    np.save(tmp_path / "objects.npy", np.array([None, 1]), allow_pickle=True)
    np.save(tmp_path / "scalar.npy", np.array(3))
    np.save(tmp_path / "other.npy", np.zeros((2, 3)))
    np.save(tmp_path / "one.npy", np.zeros((2, 4)))
    (tmp_path / "text.npy").write_text("rose")
    np.savez(tmp_path / "several.npz", x=np.zeros(3))
    for names, message in (
        (["cut.npy"], r"is cut: its array of int64\(10,\) takes 208 bytes, and there are 207"),
        (["objects.npy"], "holds Python objects"),
        (["scalar.npy"], r"of shape \(\) has no rows"),
        (["text.npy"], "cannot be read as an array of NumPy"),
        (
            ["several.npz"],
            r"cannot be read as an array of NumPy .*: it is an archive of several \(.npz\): save each by",
        ),
        (["one.npy", "other.npy"], r"other.npy' has rows of .*\(3,\).* and .*one.npy' of .*\(4,\)"),
    ):
        with pytest.raises(ps.StorageError, match=message):
            ps.FilesDataset([tmp_path / name for name in names], "npy")


@pytest.mark.parametrize("shape", [(7, 3), (5, 2, 3, 4), (3, 0), (1, 5), (2000, 2)])
def test_an_array_in_the_order_of_fortran_is_read_by_row(tmp_path, shape):
    array = np.asfortranarray(np.arange(math.prod(shape), dtype=np.int32).reshape(shape))
    np.save(tmp_path / "a.npy", array)
    dataset = ps.FilesDataset(tmp_path / "a.npy", "npy")
    assert dataset.element_spec == ps.TensorSpec(shape[1:], np.int32)
    assert np.array_equal(np.stack(list(dataset)), array)
    order = list(ps.Dataset.range(shape[0]).shuffle(seed=3))
    assert np.array_equal(np.stack(list(dataset.shuffle(seed=3))), array[order])


def test_field_names_of_version_3_are_utf_8(tmp_path):
    kinds = [("gr\xf6\xdfe_\u03bc", "i4"), ("in", [("\u03b2", "f4", (2,))])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.save(tmp_path / "a.npy", np.zeros(2, kinds))
    (row, _) = ps.FilesDataset(tmp_path / "a.npy", "npy")
    assert list(row) == ["gr\xf6\xdfe_\u03bc", "in"] and row["in"].dtype == np.dtype(kinds[1][1])


def test_a_damaged_header_of_an_array_is_named_whatever_is_wrong(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3, [("a", "i4"), ("b", "f8")]))
    good = (tmp_path / "a.npy").read_bytes()
    bad = [
        good.replace(b"(3,)", one)
        for one in (b"(-3,)", b"(3", b"[3]", b"(" * 90, b"(1 << 40,)", b"(9" + b"9" * 30 + b",)")
    ]
    bad += [good[:place] + sign + good[place + 1 :] for place in range(6, 60, 3) for sign in (b"\0", b"(", b"\n")]
    for content in bad:
        (tmp_path / "b.npy").write_bytes(content)
        with contextlib.suppress(ps.StorageError):  # some of it is spaces
            list(ps.FilesDataset(tmp_path / "b.npy", "npy"))


def test_an_archived_array_that_claims_more_than_there_is_costs_itself(tmp_path):
    file = io.BytesIO()
    np.save(file, np.asfortranarray(np.arange(6).reshape(2, 3)))
    good = file.getvalue()
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, content in enumerate((good, good.replace(b"(2, 3), }", b"(2, 1099511627776), }"), good[:-1])):
            about = tarfile.TarInfo(f"{number}.npy")
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    rows = iter(ps.TarDataset(tmp_path / "a.tar"))
    assert next(rows)["npy"].tolist() == [[0, 1, 2], [3, 4, 5]]
    for _ in range(2):
        with pytest.raises(ps.ElementError, match="its 'npy' cannot be read: it is cut: its array of int64"):
            next(rows)
