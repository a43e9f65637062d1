"""What cache, save and load give is what was stored: on real files, killed in the middle, and with two writers."""

import os
import resource
import textwrap
from collections import namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from forked import Forked, run
from ml_dtypes import bfloat16

import penstock as ps
from penstock.data.iterator import blocks_of
from penstock.formats.writing.work_directory import BeingWritten
from penstock.testing import assert_same_elements, check_conformance

Pair = namedtuple("Pair", "left right")


def everything(x):
    """An element with every kind of leaf that can be stored."""
    n = int(x)
    return {
        "int": n,
        "float": 0.5 * n,
        "double": np.float64(n) / 3,
        "bool": n % 2 == 0,
        "complex": np.complex64(1j * n),
        "half": np.full((2, 2), n, bfloat16),
        "time": np.datetime64("2026-01-01") + np.timedelta64(n, "D"),
        "fixed": np.str_("ab"),
        "none": None,
        "pair": Pair(f"text {n}\0", b"\0bytes\0" * n),
        "image": np.full((3, 2), n, np.uint8),
        "empty": np.zeros((0, 4), np.float32),
        "ragged": np.arange(n * 2).reshape(n, 2),
        "words": [["a", "bc"]],
    }


def test_save_and_load_keep_every_kind_of_leaf(tmp_path):
    dataset = ps.Dataset.range(6).map(everything)
    dataset.save(tmp_path / "rows")
    loaded = ps.Dataset.load(tmp_path / "rows")
    assert_same_elements(loaded, dataset)
    assert loaded.cardinality() == 6
    assert_same_elements(loaded.shuffle(6, seed=1), dataset.shuffle(6, seed=1))
    assert os.listdir(tmp_path) == ["rows"]


def test_saved_rows_are_read_by_memory_map_without_a_copy(tmp_path):
    ps.Dataset.from_tensor_slices(np.zeros((1000, 64), np.float32)).save(tmp_path / "rows")
    block = next(blocks_of(iter(ps.Dataset.load(tmp_path / "rows").batch(100))))
    assert not block.columns[0].flags.owndata
    assert not block.columns[0].flags.writeable


@pytest.mark.slow
def test_a_loaded_dataset_conforms(tmp_path):
    ps.Dataset.range(12).map(lambda x: np.full(int(x % 3), x)).save(tmp_path / "rows")
    check_conformance(lambda: ps.Dataset.load(tmp_path / "rows").shuffle(12, seed=1))


def test_batches_with_a_short_last_one_can_be_saved(tmp_path):
    ps.Dataset.range(10).batch(4).save(tmp_path / "rows")
    assert [batch.tolist() for batch in ps.Dataset.load(tmp_path / "rows")] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_an_empty_dataset_can_be_saved(tmp_path):
    ps.Dataset.range(0).save(tmp_path / "rows")
    assert list(ps.Dataset.load(tmp_path / "rows")) == []


def test_save_does_not_overwrite(tmp_path):
    ps.Dataset.range(3).save(tmp_path / "rows")
    with pytest.raises(ps.StorageError, match="exists"):
        ps.Dataset.range(3).save(tmp_path / "rows")


def test_a_save_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError):
        ps.Dataset.range(5).map(lambda x: 1 // (3 - int(x))).save(tmp_path / "rows")
    with pytest.raises(TypeError, match="cannot store objects of type object"):
        ps.Dataset.range(5).map(lambda x: object()).save(tmp_path / "rows")
    assert os.listdir(tmp_path) == []


def test_load_of_nothing_and_of_damaged_rows(tmp_path):
    with pytest.raises(ps.StorageError, match="no saved dataset"):
        ps.Dataset.load(tmp_path)
    ps.Dataset.range(100).save(tmp_path / "rows")
    file = tmp_path / "rows" / "part-00000.rows"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ps.StorageError, match="not as it was saved: it had .* bytes, and has 200"):
        ps.Dataset.load(tmp_path / "rows")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["saved", "kept"])
def test_altered_bytes_do_not_come_back_as_data(kind, tmp_path):
    rows = ps.Dataset.range(300).map(lambda x: np.full(50, x, np.int16))
    if kind == "saved":
        rows.save(tmp_path / "rows")
    else:
        list(rows.cache(tmp_path / "rows").shuffle(300, seed=1))
    found = sorted(os.listdir(tmp_path / "rows"))
    assert len(found) == 2 and any(name.endswith(".json") for name in found)
    for name in found:
        file = tmp_path / "rows" / name
        whole = file.read_bytes()
        for place in range(0, len(whole), 641):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
            with pytest.raises(ps.StorageError, match=f"{name} is damaged"):
                list(ps.Dataset.load(tmp_path / "rows") if kind == "saved" else rows.cache(tmp_path / "rows"))
        file.write_bytes(whole)
    assert_same_elements(ps.Dataset.load(tmp_path / "rows") if kind == "saved" else rows.cache(tmp_path / "rows"), rows)


@pytest.mark.slow
def test_a_mapped_file_that_is_cut_is_an_error_not_the_end_of_the_process(tmp_path):
    ps.Dataset.from_tensor_slices(np.zeros((4096, 256))).save(tmp_path / "rows")
    program = """
        import os, sys
        import penstock as ps
        loaded = ps.Dataset.load(sys.argv[1])
        rows = iter(loaded.batch(64))
        next(rows)
        os.truncate(sys.argv[1] + "/part-00000.rows", 1 << 16)
        for elements in (rows, loaded.shuffle(4096, seed=1)):
            try:
                print(len(list(elements)))
            except ps.StorageError as error:
                print(error)
    """
    done = run("-c", textwrap.dedent(program), str(tmp_path / "rows"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("part-00000.rows was cut from 8") == 2


def counted(calls):
    def function(x):
        calls.append(int(x))
        return x * 10

    return function


def over(kind, count):
    dataset = ps.Dataset.range(count)
    return dataset if kind == "index" else dataset.filter(lambda x: True)


@pytest.mark.parametrize("kind", ["index", "stream"])
@pytest.mark.parametrize("filename", ["", "cache"])
def test_a_cache_calls_the_function_once_for_each_element(kind, filename, tmp_path):
    calls = []
    path = filename and str(tmp_path / filename)
    dataset = over(kind, 20).map(counted(calls)).cache(path)
    expected = [10 * x for x in range(20)]
    for _ in range(3):
        assert list(map(int, dataset)) == expected
    assert list(map(int, dataset.shuffle(20, seed=1).repeat(2).batch(5).unbatch())) != expected
    assert calls == list(range(20))


@pytest.mark.parametrize("kind", ["index", "stream"])
def test_a_file_cache_serves_other_processes(kind, tmp_path):
    calls = []
    list(over(kind, 9).map(counted(calls)).cache(str(tmp_path / "cache")))
    later = []
    again = over(kind, 9).map(counted(later)).cache(str(tmp_path / "cache"))
    assert list(map(int, again)) == [10 * x for x in range(9)]
    assert (len(calls), later) == (9, [])


@pytest.mark.slow
def test_a_file_cache_read_in_random_order_is_whole(tmp_path):
    dataset = ps.Dataset.range(30).map(everything).cache(str(tmp_path / "cache"))
    shuffled = list(dataset.shuffle(30, seed=3))
    assert len(shuffled) == 30
    assert len(list((tmp_path / "cache").glob("*.rows"))) == 1
    assert_same_elements(dataset, ps.Dataset.range(30).map(everything))


def test_a_partial_pass_over_a_stream_leaves_no_cache(tmp_path):
    dataset = over("stream", 50_000).map(lambda x: x).cache(str(tmp_path / "cache"))
    iterator = iter(dataset)
    next(iterator)
    iterator.close()
    del dataset, iterator
    assert os.listdir(tmp_path) == []


def test_a_cache_of_another_dataset_is_refused(tmp_path):
    list(ps.Dataset.range(9).cache(str(tmp_path / "cache")))
    with pytest.raises(
        ps.StorageError, match=r"holds rows of another dataset: node 0 was range.*stop=9.*; delete the directory"
    ):
        list(ps.Dataset.range(8).cache(str(tmp_path / "cache")))


STREAMED = """
import sys
import penstock as ps
dataset = ps.Dataset.range(100_000).filter(lambda x: True).cache(sys.argv[1])
"""
BEGUN = """
iterator = iter(dataset)
next(iterator)
print("writing", flush=True)
sys.stdin.readline()
print(len(list(iterator)) + 1, flush=True)
"""
WHOLE = "print(len(list(dataset)))"


@pytest.fixture
def writer(tmp_path):
    """A process that has begun to fill a cache over a stream, and goes on when it is sent a line."""
    process = Forked("-c", STREAMED + BEGUN, str(tmp_path / "cache"), pipes=("stdin", "stdout"))
    assert process.stdout.readline() == "writing\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_a_second_process_waits_for_the_cache_of_the_first(tmp_path, writer):
    reader = Forked("-c", STREAMED + WHOLE, str(tmp_path / "cache"), pipes=("stdout",))
    writer.stdin.write("\n")
    writer.stdin.flush()
    assert reader.communicate()[0] == "100000\n"
    assert writer.stdout.readline() == "100000\n"
    with pytest.raises(ps.StorageError, match=r"holds rows of another dataset: node 0 was range"):
        next(iter(ps.Dataset.range(5).filter(lambda x: True).cache(str(tmp_path / "cache"))))
    assert sorted(os.listdir(tmp_path / "cache")) == ["_made_by.json", "pass"]


@pytest.mark.slow
def test_a_second_process_replaces_one_that_was_killed(tmp_path, writer):
    writer.kill()
    writer.communicate()
    assert run("-c", STREAMED + WHOLE, str(tmp_path / "cache")).stdout == "100000\n"
    assert sorted(os.listdir(tmp_path / "cache")) == ["_made_by.json", "pass"]


@pytest.mark.extended
def test_a_second_process_reads_itself_where_the_first_stands_still(tmp_path, writer):
    still = "import penstock.data.cache_directory as cache\ncache._STILL_SECONDS = 0.0\n"
    assert run("-c", still + STREAMED + WHOLE, str(tmp_path / "cache")).stdout == "100000\n"


INDEXED = """
import os, sys
import penstock as ps
made = []
dataset = ps.Dataset.range(100).map(lambda x: made.append(1) or x * 10).cache(sys.argv[1]).shuffle(seed=1)
"""
KILLED = """
for number, _ in enumerate(dataset.batch(8)):
    if number == 5:
        os.kill(os.getpid(), 9)
"""
COUNTED = "print(sorted(map(int, dataset)) == list(range(0, 1000, 10)), len(made))"


@pytest.mark.slow
def test_rows_that_a_killed_process_has_kept_are_not_made_again(tmp_path):
    assert run("-c", INDEXED + KILLED, str(tmp_path / "cache")).returncode == -9
    (kept,) = (tmp_path / "cache").glob("*.rows")
    kept.write_bytes(kept.read_bytes()[:-1])  # as if it was killed while it wrote
    right, made = run("-c", INDEXED + COUNTED, str(tmp_path / "cache")).stdout.split()
    assert right == "True" and 0 < int(made) < 100
    assert run("-c", INDEXED + COUNTED, str(tmp_path / "cache")).stdout.split() == ["True", "0"]


@pytest.mark.slow
def test_processes_that_fill_one_cache_at_once_leave_each_other_alone(tmp_path):
    both = [Forked("-c", INDEXED + COUNTED, str(tmp_path / "cache"), pipes=("stdout",)) for _ in range(2)]
    assert [one.communicate()[0].split()[0] for one in both] == ["True", "True"]
    assert run("-c", INDEXED + COUNTED, str(tmp_path / "cache")).stdout.split() == ["True", "0"]


@pytest.mark.parametrize(
    "part",
    [lambda d: d.take(7), lambda d: d.shuffle(seed=1).batch(8, drop_remainder=True), lambda d: d.shard(2, 1)],
    ids=["take", "drop_remainder", "shard"],
)
def test_a_part_of_a_file_cache_was_made_again_in_every_epoch(part, tmp_path):
    calls = []
    cached = part(ps.Dataset.range(20).map(counted(calls)).cache(tmp_path / "cache"))
    for _ in range(3):
        list(cached)
    made = len(calls)
    assert len(set(calls)) == made <= 20
    list(part(ps.Dataset.range(20).map(counted(calls)).cache(tmp_path / "cache")))
    assert len(set(calls)) == len(calls)


CHANGED = {
    "other rows": lambda: ps.Dataset.range(5, 10).map(lambda x: x),
    "another function": lambda: ps.Dataset.range(5).map(lambda x: x + 1),
    "another constant": lambda: ps.Dataset.range(5).map(lambda x, by={"scale": 2}: x),
    "more steps": lambda: ps.Dataset.range(5).map(lambda x: x).take(5),
}


@pytest.mark.parametrize("stream", [False, True], ids=["index", "stream"])
@pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED)
def test_a_cache_answered_for_another_dataset(changed, stream, tmp_path):
    def read(dataset):
        return list((dataset.filter(lambda x: True) if stream else dataset).cache(tmp_path / "same"))

    first = read(ps.Dataset.range(5).map(lambda x: x))
    with pytest.raises(ps.StorageError, match="same' holds rows of another dataset: .*; delete the directory"):
        read(changed())
    assert read(ps.Dataset.range(5).map(lambda x: x)) == first


def test_a_directory_with_other_files_is_no_cache(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(ps.StorageError, match="exists, and is no cache: remove it, or choose another directory"):
        list(ps.Dataset.range(3).cache(tmp_path))


@pytest.mark.parametrize("kind", ["index", "stream"])
def test_what_a_later_map_did_was_kept_in_a_file_cache(kind, tmp_path):
    def more(x):
        x += 1
        return x

    made = over(kind, 4).map(lambda x: np.zeros(2))
    with pytest.raises(ValueError, match="read-only"):
        list(made.cache(tmp_path / "cache").map(more))
    assert [row.tolist() for row in made.cache(tmp_path / "cache")] == [[0, 0]] * 4


def test_a_directory_that_penstock_has_not_made_is_left_alone(tmp_path):
    own = tmp_path / "own.unfinished"
    own.mkdir()
    (own / "notes").touch()
    with pytest.raises(ps.StorageError, match=r"own\.unfinished is there, and penstock has not made it"):
        ps.Dataset.range(3).save(tmp_path / "own")
    assert (own / "notes").exists()


@pytest.mark.slow
def test_writers_at_once_in_one_directory_leave_each_other_alone(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: ps.Dataset.range(number + 1).save(tmp_path / str(number)), range(8)))
    assert sorted(os.listdir(tmp_path)) == [str(number) for number in range(8)]
    assert [len(list(ps.Dataset.load(tmp_path / str(number)))) for number in range(8)] == list(range(1, 9))


def test_a_shuffle_below_a_cache_is_frozen_and_above_it_is_not():
    frozen = ps.Dataset.range(30).shuffle(30, seed=1).cache()
    assert list(frozen) == list(frozen)
    fresh = ps.Dataset.range(30).cache().shuffle(30, seed=1)
    assert list(fresh) != list(fresh)


def test_an_unseeded_shuffle_below_a_cache_stays_whole():
    cached = ps.Dataset.range(30).shuffle(30).cache()
    first, second = cached.map(lambda x: x), cached.batch(7).unbatch()
    one, other = iter(first), iter(second)
    found = [(int(next(one)), int(next(other))) for _ in range(30)]
    assert sorted(a for a, _ in found) == sorted(b for _, b in found) == list(range(30))


def test_what_cannot_be_stored_is_refused(tmp_path):
    with pytest.raises(TypeError, match="elements without leaves"):
        ps.Dataset.range(3).map(lambda x: {}).save(tmp_path / "empty")
    with pytest.raises(TypeError, match="use one array for each field"):
        ps.Dataset.from_tensor_slices(np.zeros(3, [("a", "i4"), ("b", "f4")])).save(tmp_path / "records")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("filename", ["", "cache"])
def test_two_passes_over_a_cached_stream_at_the_same_time(filename, tmp_path):
    dataset = over("stream", 5).cache(filename and str(tmp_path / filename))
    one, other = iter(dataset), iter(dataset)
    assert [(int(next(one)), int(next(other))) for _ in range(5)] == [(n, n) for n in range(5)]
    assert list(one) == list(other) == []
    assert [int(x) for x in dataset] == list(range(5))


@pytest.mark.parametrize("alike", [False, True], ids=["one dataset", "datasets made alike"])
@pytest.mark.parametrize("directory", [False, True], ids=["in memory", "in a directory"])
def test_an_iterator_opened_before_another_completes_the_cache_reads_it(tmp_path, directory, alike):
    def make():
        return ps.Dataset.range(5).filter(lambda x: True).cache(*[tmp_path / "kept"] * directory)

    one = make()
    first, second = iter(one), iter(make() if alike else one)
    assert [int(x) for x in first] == [int(x) for x in second] == list(range(5))


@pytest.mark.extended
def test_several_passes_over_a_cache_in_a_directory_at_once_all_read_it(tmp_path):
    for trial in range(30):

        def read(_, trial=trial):
            try:
                return len(list(ps.Dataset.range(30).filter(lambda x: True).cache(tmp_path / str(trial))))
            except BeingWritten:
                return 30

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(read, range(4))) == [30] * 4


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file of this process becomes larger than 64 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("size", [7_000, 35_000], ids=["at the end", "at once"])
def test_a_writer_of_records_removes_what_it_wrote_where_the_disk_is_full(tmp_path, size):
    path = tmp_path / "a.tfrecord"

    def write() -> None:
        with ps.TFRecordWriter(path) as writer:
            for _ in range(70_000 // size):
                writer.write(bytes(size))

    with pytest.raises(ps.StorageError, match=f"'{path}' cannot be written: .*too large"):
        write()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ps.StorageError, match=f"'{tmp_path}/none/a' cannot be written: No such file or directory"):
        ps.TFRecordWriter(tmp_path / "none" / "a")


@pytest.mark.slow
@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_disk_is_told_with_the_place_and_nothing_is_left(tmp_path, stream):
    rows = ps.Dataset.range(64).map(lambda x: np.zeros(10_000))
    rows = rows.filter(lambda row: True) if stream else rows
    with pytest.raises(ps.StorageError, match=f"'{tmp_path}/saved' cannot be written: .*too large"):
        rows.save(tmp_path / "saved")
    with pytest.raises(ps.StorageError, match=f"'{tmp_path}/kept' cannot be written: .*too large"):
        list(rows.cache(tmp_path / "kept"))
    assert [path.name for path in tmp_path.rglob("*.*")] == ([] if stream else ["_made_by.json"])


def test_a_directory_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ps.StorageError, match="file/saved' cannot be written: .*Not a directory"):
        ps.Dataset.range(3).save(tmp_path / "file" / "saved")


def test_the_home_is_meant_by_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    ps.Dataset.range(3).save("~/saved")
    assert list(map(int, ps.Dataset.load("~/saved"))) == [0, 1, 2]
    assert list(map(int, ps.Dataset.range(3).cache("~/kept"))) == [0, 1, 2]
    with ps.TFRecordWriter("~/records") as writer:
        writer.write(b"one")
    assert (
        list(ps.TFRecordDataset("~/records")) == list(ps.TFRecordDataset(ps.Dataset.list_files("~/rec*"))) == [b"one"]
    )
    assert sorted(os.listdir(tmp_path)) == ["kept", "records", "saved"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link away")
@pytest.mark.parametrize("kind", ["index", "stream"])
def test_a_cache_that_is_another_users_link_is_refused(kind, tmp_path):
    ps.Dataset.range(3).save(tmp_path / "real")
    os.symlink(tmp_path / "real", tmp_path / "kept")
    os.symlink(tmp_path / "nowhere", tmp_path / "new")
    for link in ("kept", "new"):
        os.chown(tmp_path / link, 65534, 65534, follow_symlinks=False)
        with pytest.raises(ps.StorageError, match=rf"{link}' are not read: .* a link that user 65534 has made"):
            list(over(kind, 3).cache(str(tmp_path / link)))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("kind", ["index", "stream", "snapshot"])
@pytest.mark.parametrize("what", ["directory", "file", "writable"])
def test_rows_that_another_user_has_put_there_are_refused(kind, what, tmp_path):
    def rows():
        dataset = over("index" if kind == "snapshot" else kind, 3)
        return list(map(int, dataset.snapshot(place) if kind == "snapshot" else dataset.cache(place)))

    place = str(tmp_path / "kept")
    assert rows() == [0, 1, 2]
    if what == "writable":
        os.chmod(place, 0o777)
        with pytest.raises(ps.StorageError, match=f"not read: all users may write {place}: .*`chmod -R o-w") as raised:
            rows()
        os.system(str(raised.value).split("`")[1])
    else:
        files = [os.path.join(path, name) for path, _, names in os.walk(place) for name in names]
        given = place if what == "directory" else files[0]
        os.chown(given, 65534, 65534)
        with pytest.raises(ps.StorageError, match=f"not read: {given} was made by user 65534, who .*: copy it"):
            rows()
        os.rename(place, tmp_path / "theirs")
        os.system(f"cp -r {tmp_path}/theirs {place}")
    assert rows() == [0, 1, 2]


def test_a_place_that_is_the_current_directory_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ps.StorageError, match="exists: remove it first"):
        ps.Dataset.range(3).save(".")
