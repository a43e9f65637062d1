"""What `save` writes in formats of others: read back as it was by `load`, and by independent readers of each format."""

import decimal
import io
import json
import os
import pickle
import signal
import sys
import tarfile
import textwrap
import threading
from collections import namedtuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from forked import Forked, run
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from two_workers import two_workers
from until import until

import penstock as ps
from penstock.cli import main
from penstock.formats.checked_json import write_checked_json
from penstock.testing import assert_same_elements, check_conformance

Pair = namedtuple("Pair", "left right")
FORMATS = ("penstock", "parquet", "npy", "tfrecord", "tar")


def rows(count, **more):
    """Rows of all kinds that every format but npy holds."""

    def row(x):
        n = int(x)
        return {
            "id": n * 1000 - 5,
            "weights": np.arange(3, dtype=np.float32) + n,
            "word": f"word {n}",
            "bytes": bytes([n % 256, 0]) * (n % 3),
            "flag": n % 2 == 0,
            "image": np.full((2, 3), n, np.uint8),
            **{name: value(n) for name, value in more.items()},
        }

    return ps.Dataset.range(count).map(row)


def numbers(count):
    return ps.Dataset.range(count).map(lambda x: {"id": x, "weights": np.full((2, 2), x, np.float64)})


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shards", [None, 3])
def test_load_gives_what_was_saved(format, shards, tmp_path):
    dataset = numbers(50) if format == "npy" else rows(50)
    dataset.save(tmp_path / "saved", format=format, shards=shards)
    loaded = ps.Dataset.load(tmp_path / "saved")
    assert_same_elements(loaded, dataset)
    assert_same_elements(loaded.shuffle(seed=3), dataset.shuffle(seed=3))
    assert loaded.cardinality() == 50
    assert os.listdir(tmp_path) == ["saved"]
    assert len(list((tmp_path / "saved").glob("*-*"))) == (shards or 1)


def columns_of(dataset):
    (batch,) = dataset.batch(10_000)
    return batch


@pytest.mark.slow
def test_parquet_files_are_read_by_arrow_with_small_row_groups(tmp_path):
    dataset = ps.Dataset.range(5000).map(lambda x: {"id": x, "pair": (x, np.full(3, x, np.int16)), "word": str(x)})
    dataset.save(tmp_path / "saved", format="parquet", shards=2)
    table = pq.read_table(tmp_path / "saved")  # as a directory: what begins with an underscore is passed over
    assert table["id"].to_pylist() == list(range(5000))
    assert table["pair"].to_pylist()[7] == {"0": 7, "1": [7, 7, 7]}
    assert table["word"].to_pylist()[4999] == "4999"
    metadata = pq.ParquetFile(tmp_path / "saved" / "part-00000.parquet").metadata
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [2000, 500]
    assert_same_elements(ps.Dataset.load(tmp_path / "saved"), dataset)


def test_numpy_files_are_read_by_numpy(tmp_path):
    ps.Dataset.range(7).map(lambda x: x * 2).save(tmp_path / "plain", format="npy", shards=2)
    parts = [np.load(tmp_path / "plain" / f"part-0000{number}.npy") for number in range(2)]
    assert [part.tolist() for part in parts] == [[0, 2, 4], [6, 8, 10, 12]]
    numbers(5).save(tmp_path / "fields", format="npy")
    found = np.load(tmp_path / "fields" / "part-00000.npy", mmap_mode="r")
    assert found["id"].tolist() == [0, 1, 2, 3, 4] and found["weights"].shape == (5, 2, 2)
    assert_same_elements(ps.FilesDataset(str(tmp_path / "fields" / "*.npy"), "npy"), numbers(5))


NUMBERS = ["bool", "i1", ">i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", ">f8", "longdouble", "c8", "c16"]
TIMES = ["M8[D]", "M8[ns]", "m8[ms]"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["alone", "fields"])
def test_numpy_files_hold_numbers_of_every_dtype(form, tmp_path):
    for number, name in enumerate(NUMBERS + TIMES):
        column = np.array([[0, 1], [1, 0], [1, 1]]).astype(name)
        given = column if form == "alone" else {"x": column, "only": column[:, 0]}
        dataset = ps.Dataset.from_tensor_slices(given)
        dataset.save(tmp_path / str(number), format="npy")
        assert_same_elements(ps.Dataset.load(tmp_path / str(number)), dataset)
        read = np.load(tmp_path / str(number) / "part-00000.npy")
        read = read if form == "alone" else read["x"]
        assert read.dtype == column.dtype and (read == column).all()


def test_tar_archives_are_read_by_tarfile(tmp_path):
    dataset = ps.Dataset.range(4).map(
        lambda x: {"__key__": f"{'n' * 120}/{int(x)}", "jpg": b"\xff" * int(x), "cls": x, "txt": f"é{int(x)}", "w": [x]}
    )
    dataset.save(tmp_path / "saved", format="tar")
    with tarfile.open(tmp_path / "saved" / "part-00000.tar") as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive}
    assert list(found)[:4] == [f"{'n' * 120}/0.{ending}" for ending in ("cls", "jpg", "txt", "w.npy")]
    assert found[f"{'n' * 120}/3.cls"] == b"3" and found[f"{'n' * 120}/3.txt"].decode() == "é3"
    assert np.load(io.BytesIO(found[f"{'n' * 120}/2.w.npy"])).tolist() == [2]
    assert_same_elements(ps.Dataset.load(tmp_path / "saved"), dataset)
    first = ps.TarDataset(tmp_path / "saved" / "part-00000.tar")[3]
    assert (int(first["cls"]), first["jpg"], first["txt"]) == (3, b"\xff\xff\xff", "é3")


def test_records_are_bytes_or_examples(tmp_path):
    words = ps.Dataset.from_tensor_slices([b"one", b"", b"three"])
    words.save(tmp_path / "bytes", format="tfrecord")
    assert list(ps.TFRecordDataset(tmp_path / "bytes" / "part-00000.tfrecord")) == [b"one", b"", b"three"]
    rows(9).save(tmp_path / "rows", format="tfrecord")
    features = {"id": ps.TensorSpec((), np.int64), "weights": ps.TensorSpec((3,)), "word": ps.TensorSpec((), object)}
    records = ps.TFRecordDataset(tmp_path / "rows" / "part-00000.tfrecord").batch(9).get_single_element()
    parsed = ps.parse_example(records, features)
    assert parsed["id"].tolist() == [n * 1000 - 5 for n in range(9)]
    assert parsed["weights"][8].tolist() == [8, 9, 10] and parsed["word"][3] == b"word 3"


def test_array_record_files_are_read_by_their_library(tmp_path):
    library = pytest.importorskip("array_record.python.array_record_module")
    rows(9).save(tmp_path / "saved", format="array_record", shards=2)
    reader = library.ArrayRecordReader(str(tmp_path / "saved" / "part-00001.array_record"))
    assert reader.num_records() == 5 and "group_size:1," in reader.writer_options_string()
    features = {"id": ps.TensorSpec((), np.int64)}
    assert ps.parse_example(reader.read(0, 5), features)["id"].tolist() == [n * 1000 - 5 for n in range(4, 9)]
    reader.close()
    assert_same_elements(ps.Dataset.load(tmp_path / "saved"), rows(9))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["tfrecord", "tar"])
def test_the_index_of_offsets_is_written_with_the_file_and_moves_along(format, tmp_path, monkeypatch):
    rows(20).save(tmp_path / "saved", format=format)
    os.rename(tmp_path / "saved", tmp_path / "moved")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    assert_same_elements(ps.Dataset.load(tmp_path / "moved"), rows(20))
    file = tmp_path / "moved" / f"part-00000.{format}"
    found = ps.TarDataset(file) if format == "tar" else ps.FilesDataset(file, "tfrecord")
    assert len(found) == 20 and not (tmp_path / "cache").exists()
    file.write_bytes(file.read_bytes()[::-1])  # of the same length: the index is not believed
    with pytest.raises(ps.StorageError):
        list(ps.TarDataset(file) if format == "tar" else ps.FilesDataset(file, "tfrecord"))


@pytest.mark.parametrize("format", ["parquet", "tfrecord", "tar"])
def test_rows_of_unequal_length_can_be_saved(format, tmp_path):
    def row(x):
        return {"ids": np.arange(int(x) % 4), "pairs": np.ones((int(x) % 3, 2), np.float32)}

    spec = {"ids": ps.TensorSpec((None,), np.int64), "pairs": ps.TensorSpec((None, 2), np.float32)}
    dataset = ps.Dataset.range(13).map(row, output_signature=spec)
    dataset.save(tmp_path / "saved", format=format, shards=2)
    assert_same_elements(ps.Dataset.load(tmp_path / "saved"), dataset)


def test_records_of_arrays_without_a_name_are_refused_in_these_words(tmp_path):
    with pytest.raises(ps.InvalidTypeError, match=r"got arrays whose shapes differ: give them a name by map"):
        ps.Dataset.range(10).batch(4).save(tmp_path / "saved", format="tfrecord")


def test_axes_that_are_always_as_long_are_known_after_load(tmp_path):
    """Without them Parquet could not hold what was saved."""
    spec = ps.TensorSpec((None, 2), np.float32)
    dataset = ps.Dataset.range(7).map(lambda x: np.full((int(x), 2), x, np.float32), output_signature=spec)
    for shards in (1, 3):
        dataset.save(tmp_path / f"{shards}", shards=shards)
        loaded = ps.Dataset.load(tmp_path / f"{shards}")
        assert loaded.element_spec == spec
        loaded.save(tmp_path / f"{shards} in Parquet", format="parquet")
        assert_same_elements(ps.Dataset.load(tmp_path / f"{shards} in Parquet"), dataset)


def test_batches_with_a_short_last_one_are_rows_of_unequal_length(tmp_path):
    dataset = ps.Dataset.range(10).batch(4)
    dataset.save(tmp_path / "saved", format="parquet")
    assert_same_elements(ps.Dataset.load(tmp_path / "saved"), dataset)


@pytest.mark.parametrize(
    ("format", "value", "says"),
    [
        ("parquet", np.complex64(1), "no type for complex64, of .*'x'.*penstock's own format"),
        ("parquet", np.datetime64("2026", "Y"), "no type for datetime64"),
        ("npy", "text", "hold numbers in one shape"),
        ("npy", bfloat16(1), "no type for bfloat16, of .*'x'.*: convert it by map, such as to float32, or save in"),
        ("tar", bfloat16(1), "no type for bfloat16, of 'x': convert it by map, such as to float32, or save in"),
        ("tfrecord", bfloat16(1), "got bfloat16 in 'x': convert it by map"),
        ("parquet", bfloat16(1), "no type for bfloat16, of .*'x'.*: convert it by map, or save in penstock's own"),
        ("parquet", decimal.Decimal("1.5"), "objects of type Decimal: convert them by map, to numbers, strings or"),
        ("penstock", decimal.Decimal("1.5"), "objects of type Decimal: convert them by map, to numbers, strings or"),
        ("tfrecord", np.float64(1), "got float64 in 'x'"),
        ("tfrecord", np.datetime64("2026-01-01"), "got datetime64"),
        ("tar", np.array(["a", "b"], object), "strings and bytes by themselves"),
        ("parquet", object(), "cannot store objects of type object"),
        ("penstock", "a\udcff", r"cannot store the string 'a\\udcff', which is not valid Unicode"),
        ("parquet", "a\udcff", "which is not valid Unicode"),
        ("tar", "a\udcff", "which is not valid Unicode"),
        ("tfrecord", "a\udcff", "which is not valid Unicode"),
        ("array_record", "a\udcff", "which is not valid Unicode"),
        ("penstock", np.array(["a"], np.dtypes.StringDType()), r"cannot store values of dtype StringDType\(\)"),
        ("parquet", np.array(["a"], np.dtypes.StringDType()), "StringDType"),
        ("tar", np.array(["a"], np.dtypes.StringDType()), "StringDType"),
        ("tfrecord", np.array(["a"], np.dtypes.StringDType()), "StringDType"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_at_the_call(format, value, says, tmp_path):
    column = np.empty(3, object)
    column[:] = [value] * 3
    dataset = ps.Dataset.range(3).map(lambda x: {"x": value})
    with pytest.raises(ps.InvalidTypeError, match=says):
        dataset.save(tmp_path / "saved", format=format)
    assert os.listdir(tmp_path) == []


def test_rows_that_do_not_fit_the_first_one_are_told(tmp_path):
    with pytest.raises(ps.ElementError, match=r"shape \([23], 1\).*first one said \(1, 1\).*output_signature"):
        ps.Dataset.range(3).map(lambda x: {"x": np.zeros((1 + int(x), 1))}).save(tmp_path / "saved", format="parquet")
    rows = [{"x": np.array([{"a": 1}], object)}, {"x": np.array([{"a": "one"}], object)}]
    with pytest.raises(ps.PenstockError, match="rows of lists are of different types|different types: .*int64"):
        ps.Dataset.from_generator(lambda: iter(rows * 1)).save(tmp_path / "saved", format="parquet")
    with pytest.raises(ps.ElementError, match="names without dots that differ"):
        ps.Dataset.range(3).map(lambda x: {"__key__": "same", "x": x}).save(tmp_path / "saved", format="tar")
    assert os.listdir(tmp_path) == []


def test_arguments_that_cannot_be(tmp_path):
    numbers = ps.Dataset.range(3)
    with pytest.raises(ps.InvalidArgumentError, match=r"save\(format=...\) takes one of .*'parquet'.*got 'csv'"):
        numbers.save(tmp_path / "saved", format="csv")
    with pytest.raises(ps.InvalidArgumentError, match=r"shards=2.*known length.*that of filter.*rows_per_shard"):
        numbers.filter(lambda x: True).save(tmp_path / "saved", shards=2)
    with pytest.raises(ps.InvalidArgumentError, match="got both"):
        numbers.save(tmp_path / "saved", shards=2, rows_per_shard=1)


def test_a_stream_is_cut_by_its_rows(tmp_path):
    dataset = ps.Dataset.range(100).filter(lambda x: x % 3 == 0)
    dataset.save(tmp_path / "saved", format="npy", rows_per_shard=10)
    parts = sorted((tmp_path / "saved").glob("*.npy"))
    assert [len(np.load(part)) for part in parts] == [10, 10, 10, 4]
    assert_same_elements(ps.Dataset.load(tmp_path / "saved"), dataset)


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_can_be_saved(format, tmp_path):
    ps.Dataset.range(0).save(tmp_path / "saved", format=format, shards=2)
    assert list(ps.Dataset.load(tmp_path / "saved")) == []


@pytest.mark.parametrize("format", FORMATS)
def test_a_dataset_saved_without_rows_tells_what_its_elements_would_be(format, tmp_path):
    dataset = numbers(3).map(lambda row: {**row, "word": "rose"}).filter(lambda row: False)
    dataset.save(tmp_path / "saved", format=format)
    loaded = ps.Dataset.load(tmp_path / "saved")
    assert loaded.element_spec == {
        "id": ps.TensorSpec((), np.int64),
        "weights": ps.TensorSpec((2, 2), np.float64),
        "word": ps.TensorSpec((), object),
    }
    assert (loaded.cardinality(), list(loaded.shuffle().batch(2))) == (0, [])


def test_a_dataset_saved_without_any_good_row_is_an_error(tmp_path):
    numbers(0).save(tmp_path / "saved")
    with pytest.raises(
        ps.ElementError, match=r"load\(\) at .* has no elements to find element_spec from: give output_signature="
    ):
        _ = ps.Dataset.load(tmp_path / "saved").element_spec


@pytest.mark.parametrize("name", ["_dataset.json", "rows.json", "cache.json", "_snapshot.json"])
def test_rows_that_an_earlier_version_has_written_are_refused(name, tmp_path):
    write_checked_json(tmp_path / name, {"version": 1})
    for read in (
        lambda: ps.Dataset.load(tmp_path),
        lambda: list(ps.Dataset.range(3).cache(tmp_path)),
        lambda: ps.Dataset.range(3).snapshot(tmp_path),
    ):
        with pytest.raises(ps.StorageError, match="version of penstock|no saved dataset|no cache|no snapshot"):
            read()


@pytest.mark.parametrize(
    ("key", "value"),
    [("files", []), ("files", {"a": 1}), ("structure", None), ("structure", 5), ("kinds", []), ("specs", ["x"])],
)
def test_a_description_with_other_values_is_a_storage_error(tmp_path, key, value):
    numbers(9).save(tmp_path / "saved")
    manifest = tmp_path / "saved" / "_dataset.json"
    write_checked_json(manifest, {**json.loads(manifest.read_text())["content"], key: value})
    with pytest.raises(ps.StorageError, match=r"_dataset\.json is damaged, or another penstock's"):
        ps.Dataset.load(tmp_path / "saved")


def test_a_file_that_was_changed_is_an_error(tmp_path):
    numbers(9).save(tmp_path / "saved", format="npy")
    file = tmp_path / "saved" / "part-00000.npy"
    os.truncate(file, 200)
    with pytest.raises(ps.StorageError, match="not as it was saved: it had .* bytes, and has 200"):
        ps.Dataset.load(tmp_path / "saved")
    manifest = tmp_path / "saved" / "_dataset.json"
    manifest.write_text(manifest.read_text().replace("[9, ", "[8, "))
    with pytest.raises(ps.StorageError, match=r"_dataset\.json is damaged"):
        ps.Dataset.load(tmp_path / "saved")


KILLED = """
    import os, signal, sys, time
    import numpy as np
    import penstock as ps
    folder, kind, format = sys.argv[1:]

    def row(x):
        time.sleep(0.002)  # of quicker calls some more are made together, for rows of the next shard too
        if int(x) == 70 and not os.path.exists(folder + "/killed"):
            open(folder + "/killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        with open(folder + "/calls", "a") as calls:
            calls.write(f"{int(x)} ")
        return {"id": x, "three": np.full(3, x)}

    dataset = ps.Dataset.range(100)
    if kind == "stream":
        dataset = dataset.filter(lambda x: x % 2 == 0)
    if kind == "shuffled":  # without a seed: the one that was drawn holds
        dataset = dataset.filter(lambda x: x % 2 == 0).shuffle(20)
    calls = 2 if kind == "threads" else None
    dataset.map(row, num_parallel_calls=calls).save(folder + "/saved", format=format, rows_per_shard=10)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "format"),
    [("index", "penstock"), ("stream", "tfrecord"), ("shuffled", "parquet"), ("threads", "npy")],
)
def test_a_save_that_was_killed_goes_on_behind_its_complete_shards(kind, format, tmp_path):
    program = textwrap.dedent(KILLED)
    assert run("-c", program, str(tmp_path), kind, format).returncode == -signal.SIGKILL
    assert sorted(os.listdir(tmp_path)) == ["calls", "killed", "saved.unfinished"]
    complete = len(list((tmp_path / "saved.unfinished" / "_save").glob("0*.json")))
    (tmp_path / "calls").unlink()
    done = run("-c", program, str(tmp_path), kind, format)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["calls", "killed", "saved"]
    found = [int(row["id"]) for row in ps.Dataset.load(tmp_path / "saved")]
    expected = list(range(100)) if kind in ("index", "threads") else list(range(0, 100, 2))
    assert sorted(found) == expected
    assert (found == expected) == (kind != "shuffled")
    again = [int(x) for x in (tmp_path / "calls").read_text().split()]
    if kind in ("index", "stream"):
        assert complete == {"index": 7, "stream": 3}[kind]
        assert again == expected[10 * complete :]
    if kind == "threads":
        assert sorted(again) == sorted(set(again)) and len(again) == 100 - 10 * complete


CALLER = """
    import os, sys
    import penstock as ps
    folder, target = sys.argv[1:]

    def row(x):
        if int(x) == 35 and not os.path.exists(folder + "/killed"):
            open(folder + "/reached", "w").close()  # each waits for the other end
            open(folder + "/resume").close()
        with open(folder + "/calls", "a") as calls:
            calls.write(f"{int(x)} ")
        return x

    rows = ps.Dataset.range(60).map(row)
    ps.service.distributed_save(rows, folder + "/saved", target, "npy", shards=6)
"""


@pytest.mark.slow
def test_a_killed_distributed_save_leaves_its_complete_shards(tmp_path):
    arguments = "-c", textwrap.dedent(CALLER), str(tmp_path)
    for name in ("reached", "resume"):
        os.mkfifo(tmp_path / name)
    with two_workers() as service:
        caller = Forked(*arguments, service)
        (tmp_path / "reached").read_text()  # one worker stays within shard 3; the other one writes the rest
        until(lambda: len(list(tmp_path.glob("saved.unfinished/_save/0*.json"))) == 5)
        caller.kill()
        assert caller.wait() == -signal.SIGKILL
        (tmp_path / "killed").touch()
        (tmp_path / "resume").write_text("")
        with pytest.raises(ps.StorageError, match="no saved dataset"):
            ps.Dataset.load(tmp_path / "saved")
        done = run(*arguments, service)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["calls", "killed", "reached", "resume", "saved"]
    assert [int(x) for x in ps.Dataset.load(tmp_path / "saved")] == list(range(60))
    calls = [int(x) for x in (tmp_path / "calls").read_text().split()]
    assert sorted(x for x in calls if x and x // 10 != 3) == [*range(1, 30), *range(40, 60)]  # none of them again


@pytest.mark.slow
def test_a_save_of_another_dataset_begins_anew(tmp_path):
    def failing(factor):
        return ps.Dataset.range(100).map(lambda x: int(x) * factor // (0 if x == 95 and factor == 1 else 1))

    with pytest.raises(ZeroDivisionError):
        failing(1).save(tmp_path / "saved", rows_per_shard=30)
    assert os.listdir(tmp_path) == ["saved.unfinished"]
    failing(2).save(tmp_path / "saved", rows_per_shard=30)
    assert [int(x) for x in ps.Dataset.load(tmp_path / "saved")] == list(range(0, 200, 2))
    assert os.listdir(tmp_path) == ["saved"]


def test_a_save_that_fails_keeps_its_complete_shards_and_says_so(tmp_path, caplog):
    class Source:
        def __len__(self):
            return 40

        def __getitem__(self, index):
            calls.append(index)
            if index == 35 and (tmp_path / "broken").exists():
                raise OSError("the network is away")
            return index

        def __reduce__(self):
            return Source, ()

    calls = []
    (tmp_path / "broken").touch()
    dataset = ps.Dataset.from_source(Source()).filter(lambda x: True)
    with pytest.raises(OSError, match="the network is away"):
        dataset.save(tmp_path / "saved", rows_per_shard=10)
    assert "30 rows stay in" in caplog.text and "the same call continues after them" in caplog.text
    (tmp_path / "broken").unlink()
    calls.clear()
    dataset.save(tmp_path / "saved", rows_per_shard=10)
    assert min(calls) == 30
    assert [int(x) for x in ps.Dataset.load(tmp_path / "saved")] == list(range(40))


LEAVES = {
    "int": st.integers(-(2**63), 2**63 - 1).map(np.int64),
    "small": st.integers(0, 255).map(np.uint8),
    "float": st.floats(width=32, allow_nan=False).map(np.float32),
    "flag": st.booleans().map(np.bool_),
    "text": st.text(st.characters(codec="utf-8"), max_size=20),
    "bytes": st.binary(max_size=20),
    "array": st.lists(st.integers(-(2**31), 2**31 - 1), min_size=6, max_size=6).map(
        lambda entries: np.array(entries, np.int32).reshape(2, 3)
    ),
}


@st.composite
def elements(draw):
    """Elements of one random structure."""
    kinds = draw(st.lists(st.sampled_from(sorted(LEAVES)), min_size=1, max_size=4))
    shape = draw(st.sampled_from(["dict", "tuple", "nested"]))
    found = []
    for _ in range(draw(st.integers(1, 6))):
        leaves = [draw(LEAVES[kind]) for kind in kinds]
        named = {f"x{number}": leaf for number, leaf in enumerate(leaves)}
        found.append({"dict": named, "tuple": tuple(leaves), "nested": {"a": (named, None), "b": leaves[0]}}[shape])
    return found


@pytest.mark.slow
@given(elements(), st.sampled_from(["parquet", "tfrecord", "tar", "penstock"]), st.integers(1, 3))
def test_every_structure_comes_back_as_it_was(tmp_path_factory, found, format, shards):
    path = tmp_path_factory.mktemp("saving") / "saved"
    dataset = ps.Dataset.from_list(found)
    dataset.save(path, format=format, shards=shards)
    assert_same_elements(ps.Dataset.load(path), dataset)


def squares(path, calls=None, factor=1):
    def square(x):
        if calls is not None:
            calls.append(int(x))
        return x * x * factor

    return ps.Dataset.range(9).filter(lambda x: x != 4).map(square, output_signature=ps.TensorSpec((), np.int64))


def test_a_snapshot_is_made_once(tmp_path):
    made = squares(tmp_path).snapshot(tmp_path / "kept")
    assert [int(x) for x in made] == [0, 1, 4, 9, 25, 36, 49, 64]
    assert len(made) == 8 and made.explain().startswith("load(")  # by index, what was a stream
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "kept").iterdir()}
    again = squares(tmp_path).snapshot(tmp_path / "kept", shards=None)
    assert [int(x) for x in again] == [int(x) for x in made]
    assert before == {file.name: file.stat().st_mtime_ns for file in (tmp_path / "kept").iterdir()}


def test_a_snapshot_of_another_pipeline_is_refused(tmp_path):
    squares(tmp_path).snapshot(tmp_path / "kept", format="parquet")
    with pytest.raises(ps.StorageError, match="another dataset: its steps are the same, but not the code"):
        squares(tmp_path, factor=2).snapshot(tmp_path / "kept")
    with pytest.raises(ps.StorageError, match=r"another dataset: node 0 was range\(start=0, stop=9.*stop=8"):
        ps.Dataset.range(8).snapshot(tmp_path / "kept")
    with pytest.raises(ps.StorageError, match="of 4 steps that count|of 3 steps that count|of 2 steps that count"):
        ps.Dataset.range(9).snapshot(tmp_path / "kept")
    ps.Dataset.range(3).save(tmp_path / "saved")
    with pytest.raises(ps.StorageError, match="exists, and is no snapshot"):
        ps.Dataset.range(3).snapshot(tmp_path / "saved")


SNAPSHOT = """
    import os, signal, sys, time
    import penstock as ps
    folder, dies = sys.argv[1:]

    def row(x):
        time.sleep(0.002)  # of quicker calls some more are made together, for rows of the next shard too
        if dies == "dies" and int(x) == 55 and not os.path.exists(folder + "/killed"):
            open(folder + "/killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        with open(folder + "/calls", "a") as calls:
            calls.write(f"{int(x)} ")
        return x * x

    print("ready", flush=True)
    sys.stdin.readline()
    dataset = ps.Dataset.range(60).map(row).snapshot(folder + "/kept", shards=6)
    print(sum(int(x) for x in dataset), flush=True)
"""


@pytest.mark.slow
def test_processes_that_make_a_snapshot_at_the_same_time_make_one(tmp_path):
    program = textwrap.dedent(SNAPSHOT)
    processes = [Forked("-c", program, str(tmp_path), "dies", pipes=("stdin", "stdout")) for _ in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    codes = {process.communicate()[0]: process.returncode for process in processes}
    assert codes == {"": -signal.SIGKILL, f"{sum(x * x for x in range(60))}\n": 0}
    calls = [int(x) for x in (tmp_path / "calls").read_text().split()]
    assert set(calls) == set(range(60))
    assert len(calls) < 60 + 25  # two shards of ten at most were begun when it was killed, and a first row
    assert sorted(os.listdir(tmp_path)) == ["calls", "kept", "killed"]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["parquet", "tfrecord", "tar"])
def test_a_loaded_dataset_conforms_and_travels(format, tmp_path):
    rows(12).save(tmp_path / "saved", format=format, shards=2)
    check_conformance(lambda: ps.Dataset.load(tmp_path / "saved").shuffle(12, seed=1))
    loaded = ps.Dataset.load(tmp_path / "saved")
    assert_same_elements(pickle.loads(pickle.dumps(loaded)), rows(12))


@pytest.mark.slow
def test_bytes_of_a_parquet_file_that_were_altered_do_not_come_back_as_data(tmp_path, capsys):
    ps.Dataset.range(1000).map(lambda x: {"x": x * 7919 % 1000}).save(tmp_path / "saved", format="parquet")
    file = tmp_path / "saved" / "part-00000.parquet"
    content = bytearray(file.read_bytes())
    content[300] ^= 1
    file.write_bytes(content)
    with pytest.raises(ps.StorageError, match=r"part-00000\.parquet.*(CRC|checksum)"):
        list(ps.Dataset.load(tmp_path / "saved"))
    assert main(["inspect", str(tmp_path / "saved")]) == 1
    assert "could not verify page integrity" in capsys.readouterr().out


def test_a_path_with_a_protocol_is_refused():
    with pytest.raises(ps.InvalidArgumentError, match="save takes a local path, got 's3://bucket/rows'"):
        ps.Dataset.range(3).save("s3://bucket/rows")
    with pytest.raises(ps.InvalidArgumentError, match="snapshot takes a local path"):
        ps.Dataset.range(3).snapshot("s3://bucket/rows")


@pytest.mark.slow
def test_functions_without_threads_run_in_one_and_others_in_several(tmp_path):
    def thread(x):
        threads.add(threading.get_ident())
        return x

    for calls in (None, 2):
        threads = set()
        ps.Dataset.range(40).map(thread, num_parallel_calls=calls).save(tmp_path / f"saved-{calls}", shards=8)
        assert len(threads) == 1 or calls
        assert [int(x) for x in ps.Dataset.load(tmp_path / f"saved-{calls}")] == list(range(40))


def test_a_cache_in_a_directory_is_filled_by_a_save(tmp_path):
    calls = []
    dataset = ps.Dataset.range(40).map(lambda x: calls.append(int(x)) or x, num_parallel_calls=2)
    dataset = dataset.cache(tmp_path / "cache")
    dataset.save(tmp_path / "saved", shards=8)
    assert sorted(calls) == list(range(40))
    assert [int(x) for x in dataset] == [int(x) for x in ps.Dataset.load(tmp_path / "saved")] == list(range(40))
    assert len(calls) == 40


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 7])
def test_shards_that_are_written_in_any_order_are_those_of_one_iteration(seed, tmp_path):
    def noisy(x, generator):
        return x, generator.integers(1000)

    dataset = ps.Dataset.range(60).shuffle().map(noisy, num_parallel_calls=2, seed=3).shuffle(20).prefetch(1)
    dataset = dataset.with_options(ps.Options(seed=seed))
    dataset.save(tmp_path / "saved", shards=7)
    found = [(int(x), int(noise)) for x, noise in ps.Dataset.load(tmp_path / "saved")]
    assert sorted(x for x, _ in found) == list(range(60))
    if seed is not None:  # otherwise the next iteration draws anew
        again = dataset.map(lambda *row: row)
        assert found == [(int(x), int(noise)) for x, noise in again]


def altered(path, old, new):
    """Alter the manifest of a saved dataset, as somebody may who knows the format."""
    content = json.loads((path / "_dataset.json").read_text())["content"]
    write_checked_json(path / "_dataset.json", json.loads(json.dumps(content).replace(old, new)))


def test_a_saved_dataset_named_files_outside_of_its_directory(tmp_path):
    for name in ("mine", "theirs"):
        ps.Dataset.range(3).save(tmp_path / name)
    altered(tmp_path / "theirs", '"part', '"../mine/part')
    with pytest.raises(ps.StorageError, match=r"names a file that is not in its directory: '\.\./mine/part"):
        ps.Dataset.load(tmp_path / "theirs")


def test_loading_a_dataset_imported_a_module_that_it_named(tmp_path):
    ps.Dataset.range(3).map(lambda x: Pair(x, x)).save(tmp_path / "saved")
    altered(tmp_path / "saved", f'"{__name__}"', '"this"')
    with pytest.raises(ps.StorageError, match=r"are this\.Pair values, which this process does not know: import this"):
        ps.Dataset.load(tmp_path / "saved")
    assert "this" not in sys.modules
