"""Files of tokens: raw ones, and Megatron's."""

import struct

import numpy as np
import pytest

import penstock as ps

TEXT = [5, 6, 0, 7, 0, 0, 8, 8, 0, 9]


@pytest.fixture
def raw(tmp_path):
    np.array(TEXT, np.uint16).tofile(tmp_path / "train.bin")
    return tmp_path / "train.bin"


def rows_of(dataset):
    return [row.tolist() for row in dataset]


def test_rows_of_one_length_begin_a_stride_apart(raw):
    assert rows_of(ps.FilesDataset(raw, ps.text.TokenFiles("uint16", length=4))) == [[5, 6, 0, 7], [0, 0, 8, 8]]
    overlapping = ps.FilesDataset(raw, ps.text.TokenFiles("uint16", length=4, stride=3))
    assert rows_of(overlapping) == [[5, 6, 0, 7], [7, 0, 0, 8], [8, 8, 0, 9]]
    assert rows_of(overlapping.select([2, 0])) == [[8, 8, 0, 9], [5, 6, 0, 7]]
    assert overlapping.element_spec == ps.TensorSpec((4,), np.uint16) and not next(iter(overlapping)).flags.writeable
    assert rows_of(ps.FilesDataset(raw, ps.text.TokenFiles("uint32", length=2))) != []


def test_documents_end_with_a_token(raw, tmp_path):
    np.save(tmp_path / "more.npy", np.array([3, 0, 4], np.uint32))
    documents = ps.FilesDataset(raw, ps.text.TokenFiles("uint16", eos=0))
    assert rows_of(documents) == [[5, 6, 0], [7, 0], [0], [8, 8, 0], [9]]
    assert rows_of(documents.select([4, 1])) == [[9], [7, 0]]
    assert documents.element_spec == ps.TensorSpec((None,), np.uint16)
    packed = documents.pack(4)
    assert packed.node.indexable and len(packed) == 3
    assert rows_of(row["tokens"] for row in packed) == [[5, 6, 0, 0], [7, 0, 0, 0], [8, 8, 0, 9]]
    assert rows_of(ps.FilesDataset(tmp_path / "more.npy", ps.text.TokenFiles(eos=0))) == [[3, 0], [4]]


def test_tokens_of_many_pieces_of_a_file_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.formats.records.token_files._SCAN_BYTES", 8)
    tokens = np.random.default_rng(1).integers(0, 4, 1000).astype(np.uint16)
    tokens.tofile(tmp_path / "a.bin")
    documents = rows_of(ps.FilesDataset(tmp_path / "a.bin", ps.text.TokenFiles(eos=0)))
    assert sum(documents, []) == tokens.tolist()  # noqa: RUF017
    assert all(document.index(0) == len(document) - 1 for document in documents[:-1])


def test_what_is_no_file_of_tokens_is_refused(raw, tmp_path):
    raw.write_bytes(b"123")
    with pytest.raises(
        ps.errors.StorageError, match=r"has 3 bytes, which is no whole number of tokens of uint16: it is cut"
    ):
        ps.FilesDataset(raw, ps.text.TokenFiles(eos=0))
    np.save(tmp_path / "a.npy", np.zeros((2, 2), np.int32))
    with pytest.raises(ps.errors.StorageError, match=r"an array of int32\(2, 2\), not integers along one axis"):
        ps.FilesDataset(tmp_path / "a.npy", ps.text.TokenFiles(eos=0))
    for arguments in ({}, {"length": 2, "eos": 0}, {"eos": 0, "stride": 2}):
        with pytest.raises(ps.errors.InvalidArgumentError, match=r"length=... .* or eos=... for documents; got length"):
            ps.text.TokenFiles(**arguments)
    with pytest.raises(ps.errors.InvalidTypeError, match="integers, got float32"):
        ps.text.TokenFiles("float32", eos=0)


DOCUMENTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]


def by_hand(path, documents, sequences=None):
    """Files as Megatron's own code writes them; a document may be of several sequences."""
    sequences = sequences or [[document] for document in documents]
    flat = [sequence for several in sequences for sequence in several]
    np.concatenate([np.array(one, np.uint16) for one in flat]).tofile(path / "x.bin")
    sizes = np.array([len(one) for one in flat], np.int32)
    starts = np.cumsum([0, *sizes[:-1]], dtype=np.int64) * 2
    edges = np.cumsum([0, *map(len, sequences)], dtype=np.int64)
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(flat), len(edges))
    (path / "x.idx").write_bytes(head + sizes.tobytes() + starts.tobytes() + edges.tobytes())
    return str(path / "x.bin")


def test_documents_of_megatron_are_read_by_number(tmp_path):
    documents = ps.FilesDataset(by_hand(tmp_path, DOCUMENTS), "megatron")
    assert rows_of(documents) == DOCUMENTS
    assert rows_of(documents.select([3, 0])) == [DOCUMENTS[3], DOCUMENTS[0]]
    assert documents.element_spec == ps.TensorSpec((None,), np.uint16)
    packed = documents.pack(5)
    assert packed.node.indexable
    assert rows_of(row["tokens"] for row in packed) == [[1, 2, 3, 5, 6], [4, 7, 8, 9, 10]]
    cut = documents.shuffle(seed=1, reshuffle_each_iteration=False).pack(4, "concat_split")
    assert sorted(token for row in cut for token in row["tokens"].tolist()) == [0, 0, *range(1, 11)]


def test_a_document_of_several_sequences_is_one(tmp_path):
    sequences = [[[1, 2], [3]], [], [[4, 5], [6], [7]]]
    documents = ps.FilesDataset(by_hand(tmp_path, None, sequences), "megatron")
    assert rows_of(documents) == [[1, 2, 3], [], [4, 5, 6, 7]]
    with pytest.raises(ps.errors.ElementError, match=r"document 1 \(row 1 of .*x.bin\): it is empty"):
        documents.pack(4)


def test_documents_are_saved_as_megatron_has_them(tmp_path):
    documents = ps.Dataset.from_list([np.array(one, np.uint16) for one in DOCUMENTS])
    documents.save(tmp_path / "one", format="megatron", shards=1)
    by_hand(tmp_path, DOCUMENTS)
    for ending in ("bin", "idx"):
        assert (tmp_path / "one" / f"part-00000.{ending}").read_bytes() == (tmp_path / f"x.{ending}").read_bytes()
    documents.save(tmp_path / "two", format="megatron", shards=2)
    loaded = ps.Dataset.load(tmp_path / "two")
    assert rows_of(loaded) == DOCUMENTS and loaded.node.has_lengths
    assert rows_of(ps.FilesDataset(tmp_path / "two" / "*.bin", "megatron")) == DOCUMENTS
    with pytest.raises(ps.errors.InvalidTypeError, match=r"arrays with one axis, of one of .*'uint16'.*uint32"):
        documents.map(lambda x: x.astype(np.uint32)).save(tmp_path / "three", format="megatron")


def test_damaged_files_of_megatron_are_refused(tmp_path):
    name = by_hand(tmp_path, DOCUMENTS)
    whole, index = (tmp_path / "x.bin").read_bytes(), (tmp_path / "x.idx").read_bytes()
    for damage, message in (
        (index[:-1], "x.idx' is cut: it should have"),
        (b"no index", "x.idx' is no index of Megatron's"),
        (index.replace(b"\x01", b"\x02", 1), "or of another version than 1"),
    ):
        (tmp_path / "x.idx").write_bytes(damage)
        with pytest.raises(ps.errors.StorageError, match=message):
            ps.FilesDataset(name, "megatron")
    (tmp_path / "x.idx").write_bytes(index)
    (tmp_path / "x.bin").write_bytes(whole[:-2])
    with pytest.raises(ps.errors.StorageError, match="x.bin', document 3: it is not within the 18 bytes .* cut"):
        ps.FilesDataset(name, "megatron")
    with pytest.raises(ps.errors.StorageError, match=r"x.idx': name the file of tokens, x.bin"):
        ps.FilesDataset(tmp_path / "x.idx", "megatron")


@pytest.mark.parametrize("begin", [-8, 3, 1 << 40, (1 << 63) - 1])
def test_a_document_that_an_index_puts_elsewhere_fails_alone(tmp_path, begin):
    name = by_hand(tmp_path, DOCUMENTS)
    index = bytearray((tmp_path / "x.idx").read_bytes())
    sequences = int.from_bytes(index[18:26], "little")
    index[34 + 4 * sequences : 42 + 4 * sequences] = begin.to_bytes(8, "little", signed=True)
    (tmp_path / "x.idx").write_bytes(index)
    rows = iter(ps.FilesDataset(name, "megatron"))
    with pytest.raises(ps.StorageError, match="x.bin', document 0: it is not within the 20 bytes of the file"):
        next(rows)
    assert [row.tolist() for row in rows] == DOCUMENTS[1:]
