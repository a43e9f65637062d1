"""Files of object stores and web servers: patterns, tags, faults of servers, and what is read in advance."""

import datetime
import gzip
import importlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import forked
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_server import cut, dropped, object_server, short, status
from two_workers import two_workers

import penstock as ps
from penstock.cli import main
from penstock.formats.remote import retries

pytest.importorskip("obstore.store", reason="the extra cloud is not installed: pip install obstore")
object_stores = importlib.import_module("penstock.formats.remote.object_stores")
obstore = pytest.importorskip("obstore", reason="the extra cloud is not installed: pip install obstore")
PROTOCOLS = ("s3", "gs", "az")


@pytest.fixture(scope="module")
def running():
    with object_server() as server:
        yield server


@pytest.fixture
def server(running, monkeypatch):
    running.forget()
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    return running


def lines(*numbers):
    return b"".join(b"%d\n" % number for number in numbers)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_stores_are_listed_and_read(server, protocol):
    names = ["data/a 1%20ü.txt", "data/b[x]#~.txt", "data/deep/er/c.txt", "data/d.csv", "other/e.txt"]
    for number, name in enumerate(names):
        server.objects[f"bucket/{name}"] = lines(number)
    at = f"{protocol}://bucket/"
    assert list(ps.Dataset.list_files(at + "data/*.txt")) == [at + names[0], at + names[1]]
    assert list(ps.Dataset.list_files(at + "data/**/*.txt")) == [at + name for name in names[:3]]
    assert list(ps.Dataset.list_files(at + "*/?.txt")) == [at + names[4]]
    assert list(ps.Dataset.list_files(at + "data/[!ab]*")) == [at + names[3]]
    assert list(ps.Dataset.list_files(at + "data/d.csv")) == [at + names[3]]
    assert list(ps.TextLineDataset(ps.Dataset.list_files(at + "**"))) == ["0", "1", "3", "2", "4"]
    assert list(ps.TextLineDataset([at + names[2], at + names[4]])) == ["2", "4"]
    with pytest.raises(ps.InvalidArgumentError, match="no file matches '.*data/none.*'$"):
        ps.Dataset.list_files(at + "data/none*")


def test_the_command_line_takes_a_folder_of_a_store_as_one_of_a_disk(server, capsys):
    server.objects |= {f"bucket/{name}": lines(1, 2) for name in ("data/a.txt", "data/deep/b.txt", "data/_index/c.txt")}
    assert main(["inspect", "s3://bucket/data"]) == 0
    assert "text: 2 files" in capsys.readouterr().out
    assert main(["inspect", "s3://bucket/other/"]) == 2
    assert "no file matches 's3://bucket/other/**'" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_bucket_that_is_not_there_is_told(server, protocol):
    server.fail("none", status(404))
    with pytest.raises(ps.StorageError, match=f"'{protocol}://none/.*' cannot be listed: there is no such bucket$"):
        ps.Dataset.list_files(f"{protocol}://none/*")


def test_more_names_than_a_page_has(server):
    server.objects |= {f"bucket/many/{number:05}": b"x" for number in range(2500)}
    names = list(ps.Dataset.list_files("s3://bucket/many/*"))
    assert names == [f"s3://bucket/many/{number:05}" for number in range(2500)]
    assert server.lists == 3


def test_web_servers_are_read_with_what_follows_the_question_mark(server):
    server.objects["data/a.txt"] = lines(1, 2)
    server.objects["data/empty.txt"] = b""
    at = f"{server.address}/data/"
    assert list(ps.TextLineDataset([at + "a.txt?signature=a%2Fb", at + "empty.txt", at + "a.txt"])) == list("1212")
    assert len(ps.FilesDataset(at + "a.txt", "text")) == 2
    with pytest.raises(ps.InvalidArgumentError, match="web servers do not list their files"):
        ps.TextLineDataset(at + "*.txt")


@pytest.mark.parametrize("most", [1 << 25, 1000])
@pytest.mark.parametrize("by_index", [False, True])
def test_a_server_without_ranges_sends_whole_files_to_memory_or_disk(server, most, by_index, monkeypatch, tmp_path):
    monkeypatch.setattr(object_stores, "WHOLE_BYTES", most)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server.objects["a"], server.objects["b"] = lines(*range(1000)), lines(*range(1000, 1010))
    server.ranges = False
    names = [f"{server.address}/a", f"{server.address}/b"]
    dataset = ps.FilesDataset(names, "text") if by_index else ps.TextLineDataset(names)
    assert [int(line) for line in dataset] == list(range(1010))
    if by_index:
        assert sorted(int(line) for line in dataset.shuffle(seed=1)) == list(range(1010))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_disk_does_not_take_says_why_it_was_copied(server, monkeypatch, tmp_path):
    monkeypatch.setattr(object_stores, "WHOLE_BYTES", 10)
    monkeypatch.setenv("PENSTOCK_FILE_CACHE", str(tmp_path / "none"))
    server.objects["a"] = lines(*range(1000))
    server.ranges = False
    with pytest.raises(
        ps.StorageError,
        match="a', of 4 kB, cannot be copied to '.*none': No such file.* sends no parts of files; .*remote_files",
    ):
        list(ps.TextLineDataset(f"{server.address}/a"))


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "http"])
def test_a_file_without_bytes_is_one_without_rows(server, protocol):
    server.objects["bucket/empty"] = b""
    name = f"{server.address}/bucket/empty" if protocol == "http" else f"{protocol}://bucket/empty"
    assert list(ps.TextLineDataset(name)) == [] and len(ps.FilesDataset(name, "text")) == 0


TRANSIENT = {
    "503": [status(503)] * 2,
    "429": [status(429, Retry_After="1")] * 2,
    "500": [status(500)],
    "dropped": [dropped] * 2,
    "cut": [cut] * 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", TRANSIENT)
@pytest.mark.parametrize("by_index", [False, True])
def test_faults_that_pass_cost_no_row(server, fault, by_index):
    server.objects["bucket/a"] = lines(*range(100_000))
    server.objects["bucket/b"] = lines(*range(100_000, 100_010))
    server.fail("bucket/a", *TRANSIENT[fault])
    server.fail("bucket/b", *TRANSIENT[fault])
    names = ["s3://bucket/a", "s3://bucket/b"]
    dataset = ps.FilesDataset(names, "text") if by_index else ps.TextLineDataset(names)
    assert [int(line) for line in dataset] == list(range(100_010))
    assert server.requests["bucket/a"] > len(TRANSIENT[fault])


def test_a_server_that_is_busy_for_longer_than_obstore_asks_is_asked_again(server, monkeypatch):
    monkeypatch.setattr(object_stores, "_stores", {})
    monkeypatch.setattr(object_stores, "_RETRIES", {"max_retries": 0})
    monkeypatch.setattr(retries, "BUSY_DELAYS", (0.001,) * 3)
    server.objects["bucket/a"] = lines(1, 2)
    server.fail("bucket/a", status(503), status(429, Retry_After="1"), status(500))
    assert list(ps.TextLineDataset("s3://bucket/a")) == ["1", "2"]
    for _ in range(2):
        server.fail("bucket/a", *[status(503)] * 4)
        with pytest.raises(ps.StorageError, match="'s3://bucket/a' cannot be read: .* status code: 503"):
            list(ps.TextLineDataset("s3://bucket/a"))
    assert server.requests["bucket/a"] == 12


@pytest.mark.slow
@pytest.mark.parametrize("by_index", [False, True])
def test_a_slow_server_is_asked_for_many_files_at_a_time(server, by_index):
    server.objects |= {f"bucket/{number:03}": lines(number) for number in range(128)}
    names = [f"s3://bucket/{number:03}" for number in range(128)]
    server.seconds = 0.05
    dataset = ps.FilesDataset(names, "text") if by_index else ps.TextLineDataset(names)
    assert [int(line) for line in dataset] == list(range(128))
    assert server.most_at_a_time > 8


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (status(403), "the server refuses access .*AWS_ACCESS_KEY_ID"),
        (status(404), "there is no such file"),
    ],
)
def test_faults_that_stay_come_after_the_rows_before_them(server, fault, message):
    server.objects |= {f"bucket/{name}": lines(number) for number, name in enumerate("abc")}
    server.fail("bucket/b", fault)
    iterator = iter(ps.TextLineDataset([f"s3://bucket/{name}" for name in "abc"]))
    assert next(iterator) == "0"
    with pytest.raises(ps.StorageError, match=f"'s3://bucket/b' cannot be read: {message}"):
        next(iterator)
    assert list(iterator) == ["2"]


def test_a_server_that_always_breaks_off_is_an_error(server, monkeypatch):
    monkeypatch.setattr(object_stores, "_stores", {})
    monkeypatch.setattr(object_stores, "_RETRIES", {"max_retries": 1})
    server.objects["bucket/a"] = os.urandom(1 << 20)
    server.fail("bucket/a", *[cut] * 100)
    with pytest.raises(ps.StorageError, match="'s3://bucket/a' cannot be read: Generic S3 error: .*body"):
        list(ps.TextLineDataset("s3://bucket/a"))


def test_a_file_that_changes_under_its_index_is_an_error(server):
    server.objects["bucket/a"] = np.arange(100_000).tobytes()
    dataset = ps.FixedLengthRecordDataset("s3://bucket/a", 8)
    assert int.from_bytes(dataset[70_000], "little") == 70_000
    server.objects["bucket/a"] = np.arange(1, 100_001).tobytes()
    with pytest.raises(ps.StorageError, match="'s3://bucket/a' has changed since the dataset was made"):
        dataset[80_000]


def test_a_length_that_is_wrong_is_an_error(server):
    server.objects["bucket/a"] = np.arange(100_000).tobytes()
    dataset = ps.FixedLengthRecordDataset("s3://bucket/a", 8)
    server.fail("bucket/a", short)
    with pytest.raises(ps.StorageError, match="of bytes 640000 to 640008 the server sent 4 bytes"):
        dataset[80_000]


@pytest.mark.extended
def test_a_file_that_changes_while_it_is_read_is_an_error(server):
    server.objects["bucket/a"] = lines(*range(1_000_000))
    iterator = iter(ps.TextLineDataset("s3://bucket/a"))
    assert next(iterator) == "0"
    server.objects["bucket/a"] = lines(*range(1, 1_000_001))
    with pytest.raises(ps.StorageError, match="'s3://bucket/a' has changed"):
        list(iterator)


@pytest.mark.slow
def test_small_files_are_opened_ahead_and_each_costs_one_request(server):
    count = 200
    server.objects |= {f"bucket/{number:03}": lines(number) for number in range(count)}
    dataset = ps.TextLineDataset(ps.Dataset.list_files("s3://bucket/*"))
    iterator = iter(dataset)
    assert next(iterator) == "0"
    assert server.requests.total() <= 3
    assert [int(line) for line in iterator] == list(range(1, count))
    assert server.requests.total() == count and server.lists == 1


@pytest.mark.slow
@pytest.mark.parametrize("format", ["text", "npy"])
def test_small_files_that_were_read_by_number_are_not_asked_for_again(server, format, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    count = 150  # more than are kept of large ones
    for number in range(count):
        file = io.BytesIO()
        np.save(file, [number, -number])
        server.objects[f"bucket/{number:03}"] = lines(number, -number) if format == "text" else file.getvalue()
    dataset = ps.FilesDataset("s3://bucket/*", format).map(int)
    first = sorted(int(x) for x in dataset)
    asked = server.requests.total()
    assert asked <= (2 if format == "text" else 1) * count  # text is looked through for its lines too
    assert sorted(int(x) for x in dataset.shuffle(seed=1)) == first == sorted([*range(count), *range(0, -count, -1)])
    assert server.requests.total() == asked


@pytest.mark.slow
def test_a_state_between_files_that_were_opened_ahead(server):
    server.objects |= {f"bucket/{number:02}": lines(number, number) for number in range(40)}
    dataset = ps.TextLineDataset(ps.Dataset.list_files("s3://bucket/*")).map(int)
    whole = [int(x) for x in dataset]
    for taken in (1, 2, 33, 64, 79):
        iterator = iter(dataset)
        for _ in range(taken):
            next(iterator)
        other = iter(dataset)
        other.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
        assert [int(x) for x in other] == whole[taken:]
        iterator.close()


@pytest.mark.slow
def test_reading_in_order_asks_ahead_and_holds_32_mib(server):
    server.objects["bucket/large"] = os.urandom(1 << 20) * 64
    dataset = ps.FixedLengthRecordDataset("s3://bucket/large", 1 << 16).batch(16)
    iterator = iter(dataset)
    next(iterator)
    assert server.sent < 4 << 20
    for _ in range(19):
        next(iterator)
    assert server.sent <= (20 << 20) + (33 << 20)
    iterator.close()


@pytest.mark.slow
def test_columns_of_parquet_are_fetched_alone_and_together(server, tmp_path):
    table = pa.table({name: np.random.default_rng(2).random(40_000) for name in "abcd"})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=10_000, use_dictionary=False, compression="none")
    server.objects["bucket/t.parquet"] = (tmp_path / "t.parquet").read_bytes()
    dataset = ps.ParquetDataset("s3://bucket/t.parquet", ["b", "d"])
    row = dataset[25_000]
    assert row == {name: table[name][25_000].as_py() for name in "bd"}
    assert server.sent < len(server.objects["bucket/t.parquet"])
    assert sum(row["b"] for row in dataset) == pytest.approx(sum(table["b"].to_pylist()))


def test_an_index_that_was_written_with_files_saves_reading_them(server, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    rows = ps.Dataset.range(60).map(lambda x: np.full(20_000, int(x), np.uint8).tobytes())
    rows.save(tmp_path / "saved", format="tfrecord", shards=2)
    for file in (tmp_path / "saved").rglob("*.*"):
        server.objects[f"bucket/{file.relative_to(tmp_path / 'saved')}"] = file.read_bytes()
    dataset = ps.FilesDataset("s3://bucket/*.tfrecord", "tfrecord")
    assert len(dataset) == 60 and server.sent < 300_000  # the first and last bytes of both
    made = server.sent
    assert [dataset[row][0] for row in (50, 7)] == [50, 7]
    assert server.sent - made == 2 * 20_016  # with the lengths and checksums of these records
    assert sorted(record[0] for record in dataset.shuffle(seed=1)) == list(range(60))


@pytest.mark.slow
def test_data_workers_use_the_listing_of_the_dataset(server):
    server.objects |= {f"bucket/{number}": lines(*range(number * 20, number * 20 + 20)) for number in range(10)}
    dataset = ps.TextLineDataset(ps.Dataset.list_files("s3://bucket/*")).map(int)
    with two_workers() as service:
        shared = dataset.apply(ps.service.distribute("distributed_epoch", service))
        assert sorted(int(x) for x in shared) == list(range(200))
    assert server.lists == 1


@pytest.mark.parametrize("policy", ["FILE", "DATA"])
def test_shards_use_the_listing_of_the_dataset(server, policy):
    server.objects |= {f"bucket/{number}": lines(*range(number * 20, number * 20 + 20)) for number in range(10)}
    dataset = ps.TextLineDataset(ps.Dataset.list_files("s3://bucket/*")).map(int).batch(10)
    dataset = dataset.with_options(ps.Options(auto_shard_policy=policy))
    parts = [ps.HostStrategy(1, 2, worker).distribute_dataset(dataset) for worker in range(2)]
    assert sorted(int(x) for part in parts for step in part for x in step.values[0]) == list(range(200))
    assert server.lists == 1


@pytest.mark.slow
def test_a_server_that_others_have_written_is_read(server, tmp_path, monkeypatch):
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask_cors") is None:
        pytest.skip("moto is not installed: pip install 'moto[s3]' flask flask-cors")
    program = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
input()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        address = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        pytest.importorskip("boto3").client("s3", endpoint_url=address).create_bucket(Bucket="bucket")
        store = obstore.store.S3Store("bucket", client_options={"allow_http": True})
        pq.write_table(
            pa.table({"x": range(100_000)}), tmp_path / "t.parquet", row_group_size=5000, use_dictionary=False
        )
        obstore.put(store, "t/a b.parquet", (tmp_path / "t.parquet").read_bytes())
        for number in range(30):
            obstore.put(store, f"lines/{number:02}.txt", lines(number))
        obstore.put(store, "empty.txt", b"")
        rows = ps.ParquetDataset("s3://bucket/*/*.parquet")
        assert sorted(x for rows in rows.shuffle(seed=1).batch(9000) for x in rows["x"]) == list(range(100_000))
        texts = ps.TextLineDataset(["s3://bucket/empty.txt", *ps.Dataset.list_files("s3://bucket/lines/*")])
        assert [int(line) for line in texts] == list(range(30))
        by_number = ps.FilesDataset("s3://bucket/t/a b.parquet", "parquet")
        obstore.put(store, "t/a b.parquet", (tmp_path / "t.parquet").read_bytes()[::-1])
        with pytest.raises(ps.StorageError, match="a b.parquet' has changed since the dataset was made"):
            by_number[99_000]
        for missing in ("s3://bucket/none", "s3://none/none"):
            with pytest.raises(ps.StorageError, match="there is no such file, or no such bucket"):
                list(ps.TextLineDataset(missing))
        process.stdin.close()


@pytest.mark.slow
def test_a_process_that_is_forked_while_files_are_read_is_told(server):
    server.objects["bucket/a"] = lines(1)
    script = """
import os
import penstock as ps
assert list(ps.TextLineDataset("s3://bucket/a")) == ["1"]
if os.fork() == 0:
    try:
        list(ps.TextLineDataset("s3://bucket/a"))
    except ps.StorageError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""
    done = forked.run("-c", script)
    assert done.returncode == 0, done.stderr
    assert "this process was forked from one that has read remote files" in done.stdout


def test_a_file_is_read_where_the_current_directory_is_gone(server, tmp_path, monkeypatch):
    """Names with a protocol have nothing to do with directories."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    Path(tmp_path / "gone").rmdir()
    server.objects["bucket/a"] = lines(1)
    assert list(ps.TextLineDataset("s3://bucket/a")) == ["1"]


def test_the_index_of_a_remote_directory_names_its_shards(server):
    about = {"column_names": ["x"], "column_encodings": ["int"], "column_sizes": [8], "format": "mds", "version": 2}
    head = json.dumps(about).encode()
    for number in range(2):
        edges = np.array([2, *(16 + len(head) + 8 * row for row in range(3))], "<u4").tobytes()
        rows = np.array([2 * number, 2 * number + 1], "<i8").tobytes()
        server.objects[f"bucket/mds/shard.{number}.mds"] = edges + head + rows
    shards = [{"raw_data": {"basename": f"shard.{number}.mds"}} for number in range(2)]
    server.objects["bucket/mds/index.json"] = json.dumps({"version": 2, "shards": shards}).encode()
    assert [int(row["x"]) for row in ps.MdsDataset("s3://bucket/mds/")] == [0, 1, 2, 3]
    with pytest.raises(ps.StorageError, match="none/index.json' cannot be read: there is no such file"):
        ps.MdsDataset("s3://bucket/none/")


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A directory in which what is read of remote files is kept."""
    monkeypatch.setenv("PENSTOCK_FILE_CACHE", "")
    monkeypatch.setenv("PENSTOCK_FILE_CACHE_BYTES", "")
    ps.files.cache_remote_files(tmp_path / "cache")
    return tmp_path / "cache"


def pieces(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


@pytest.mark.slow
def test_what_was_read_once_is_not_sent_again(server, cached):
    content = np.random.default_rng(3).integers(0, 255, 5_000_000, np.uint8).tobytes()
    server.objects |= {"bucket/large": content, "bucket/small": lines(1, 2), "bucket/empty": b""}
    records = ps.FixedLengthRecordDataset("s3://bucket/large", 1000)
    assert b"".join(records.shuffle(seed=1).batch(100).unbatch()) != content
    assert server.sent == len(content) and len(pieces(cached)) == 5
    names = ["s3://bucket/small", "s3://bucket/empty"]
    assert list(ps.TextLineDataset(names)) == ["1", "2"]
    sent = server.sent
    again = ps.FixedLengthRecordDataset("s3://bucket/large", 1000)
    assert b"".join(again) == content and list(ps.TextLineDataset(names)) == ["1", "2"]
    with ps.files.open_file("s3://bucket/large") as file:
        assert file.read() == content
    assert server.sent == sent


def test_a_changed_file_is_fetched_again(server, cached):
    server.objects["bucket/a"] = lines(1)
    assert list(ps.TextLineDataset("s3://bucket/a")) == ["1"]
    server.objects["bucket/a"] = lines(2)
    assert list(ps.TextLineDataset("s3://bucket/a")) == ["2"]


@pytest.mark.parametrize("most", [1 << 25, 1000])
def test_whole_files_of_a_server_without_ranges_are_kept_too(server, cached, most, monkeypatch):
    monkeypatch.setattr(object_stores, "WHOLE_BYTES", most)
    received = []
    receive = object_stores._WholeFile.receive
    monkeypatch.setattr(
        object_stores._WholeFile, "receive", lambda file, found: (received.append(file.size), receive(file, found))
    )
    server.ranges = False
    packed = server.objects["a.gz"] = gzip.compress(lines(*range(1000)), mtime=0)
    dataset = ps.TextLineDataset(f"{server.address}/a.gz", compression_type="GZIP")
    for _ in range(2):
        assert [int(line) for line in dataset] == list(range(1000))
    assert received == [len(packed)]
    changed = server.objects["a.gz"] = gzip.compress(lines(7), mtime=0)
    assert list(dataset) == ["7"] and received == [len(packed), len(changed)]


@pytest.mark.slow
def test_damaged_cut_and_half_written_pieces_are_fetched_again(server, cached):
    content = os.urandom(3_500_000)
    server.objects["bucket/a"] = content
    with ps.files.open_file("s3://bucket/a") as file:
        assert file.read() == content
    first, second, third, _ = pieces(cached)
    first.write_bytes(first.read_bytes()[:-1] + bytes([first.read_bytes()[-1] ^ 1]))
    second.write_bytes(second.read_bytes()[:1000])
    third.rename(third.with_suffix(".writing"))
    sent = server.sent
    with ps.files.open_file("s3://bucket/a") as file:
        assert file.read() == content
    assert server.sent == sent + (3 << 20)


@pytest.mark.extended
def test_no_more_is_kept_than_the_limit(server, cached, tmp_path):
    ps.files.cache_remote_files(tmp_path / "small", max_bytes=64 << 20)
    server.objects |= {f"bucket/{number}": os.urandom(10 << 20) for number in range(10)}
    for number in range(10):
        with ps.files.open_file(f"s3://bucket/{number}") as file:
            assert file.read() == server.objects[f"bucket/{number}"]
        assert sum(path.stat().st_size for path in pieces(tmp_path / "small")) <= 64 << 20
    sent = server.sent
    with ps.files.open_file("s3://bucket/9") as file:
        file.read()
    assert server.sent == sent
    with pytest.raises(ps.InvalidArgumentError, match="takes at least 67 MB, got 1000"):
        ps.files.cache_remote_files(tmp_path, max_bytes=1000)


@pytest.mark.slow
def test_workers_of_a_service_share_the_directory(server, cached):
    count = 8
    server.objects |= {f"bucket/{number}": os.urandom(1 << 20) for number in range(count)}
    names = [f"s3://bucket/{number}" for number in range(count)]
    dataset = ps.FixedLengthRecordDataset(names, 1 << 14).shuffle(seed=1).batch(16)
    with ps.service.local(2) as service:
        shared = dataset.apply(ps.service.distribute("distributed_epoch", service.target))
        assert sum(len(batch) for batch in shared) == count * 64
    sent = server.sent
    assert sum(len(batch) for batch in dataset) == count * 64
    assert server.sent == sent and len(pieces(cached)) == count


def test_a_directory_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ps.StorageError, match="cache_remote_files: .*file/cache' cannot be written"):
        ps.files.cache_remote_files(tmp_path / "file" / "cache")


def test_a_format_of_ones_own_reads_remote_files(server):
    server.objects["bucket/a.rgb"] = bytes(range(12))

    class Triples(ps.files.FileFormat):
        def count(self, name):
            with ps.files.open_file(name) as file:
                return file.seek(0, 2) // 3

        def read(self, name, rows):
            with ps.files.open_file(name) as file:
                return np.frombuffer(file.read(), np.uint8).reshape(-1, 3)[rows]

    dataset = ps.FilesDataset("s3://bucket/*.rgb", Triples())
    assert dataset[2].tolist() == [6, 7, 8]
    with pytest.raises(ps.StorageError, match="'s3://bucket/none' cannot be read: there is no such file"):
        ps.files.open_file("s3://bucket/none")


def test_credentials_of_a_function_are_asked_for_again_and_kept_if_it_fails(server, monkeypatch, caplog):
    server.objects["vault-bucket/a"] = lines(1)
    stores, answers = [], [datetime.timedelta(minutes=1), None, datetime.timedelta(hours=1)]

    def give(store):
        stores.append(store)
        valid = answers[len(stores) - 1]
        if valid is None:
            raise ValueError("the vault is sealed")
        expires = datetime.datetime.now(datetime.UTC) + valid
        return {"access_key_id": f"key{len(stores)}", "secret_access_key": "s", "token": None, "expires_at": expires}

    monkeypatch.setitem(sys.modules, "vault", types.SimpleNamespace(give=give))
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", "vault:give")
    assert list(ps.TextLineDataset("s3://vault-bucket/a")) == ["1"]
    assert (stores, server.keys) == (["s3://vault-bucket"], {"key1"})
    stores.clear()
    credentials = object_stores.Credentials("s3://other")
    monkeypatch.setattr(object_stores, "_AGAIN_SECONDS", (0.0, 0.0))
    assert [credentials()["access_key_id"] for _ in range(3)] == ["key1", "key1", "key3"]
    assert "no new credentials for s3://other, the old ones are kept" in caplog.text


def test_credentials_that_are_refused_in_mid_epoch_are_asked_for_again(server, monkeypatch):
    def give(store):
        given.append(store)
        if sealed:
            raise ValueError("the vault is sealed")
        return {"access_key_id": f"key{len(given)}", "secret_access_key": "s", "token": None, "expires_at": None}

    given, sealed = [], []
    monkeypatch.setattr(object_stores, "_RENEWED_DELAYS", (0.22,))
    for number in range(9):
        np.save(file := io.BytesIO(), np.repeat(np.arange(4 * number, 4 * number + 4), 1 << 14).reshape(4, -1))
        server.objects[f"renewed/{number}.npy"] = file.getvalue()
    monkeypatch.setitem(sys.modules, "vault", types.SimpleNamespace(give=give))
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", "vault:give")
    dataset = ps.FilesDataset([f"s3://renewed/{number}.npy" for number in range(9)], "npy").map(lambda row: row[0])
    with iter(dataset) as rows:
        found = [int(next(rows)) for _ in range(2)]
        server.refused |= {"key1"}
        assert [*found, *map(int, rows)] == list(range(36))
        assert (len(given), server.keys) == (2, {"key1", "key2"})
    with iter(dataset) as rows:
        assert int(next(rows)) == 0
        server.refused |= {"key2"}
        sealed.append(True)
        with pytest.raises(ps.StorageError, match=r"renewed/\d.npy' .*the vault is sealed.*PENSTOCK_CRED") as caught:
            list(rows)
    assert re.search(r"in FilesDataset\(NpyFiles\) at .*, element \d+$", caught.value.__notes__[0])
    sealed.clear()
    assert list(map(int, dataset)) == list(range(36))


@pytest.mark.parametrize(
    ("place", "kind", "message"),
    [
        ("vault:none", ps.InvalidArgumentError, "PENSTOCK_CREDENTIALS='vault:none' names no function"),
        ("nowhere_to_be_found:give", ps.InvalidArgumentError, "names no function, as package.module:function"),
        ("vault:sealed", ps.StorageError, "'s3://sealed/a' cannot be read: .*the vault is sealed"),
    ],
)
def test_credentials_that_a_function_does_not_give(server, monkeypatch, place, kind, message):
    def sealed(store):
        raise ValueError("the vault is sealed")

    monkeypatch.setitem(sys.modules, "vault", types.SimpleNamespace(sealed=sealed))
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", place)
    with pytest.raises(kind, match=message):
        list(ps.TextLineDataset("s3://sealed/a"))


@pytest.mark.parametrize(
    ("table", "data", "described", "reader"),
    [
        ("a", "", "_delta_log/0.json", r"ps\.DeltaDataset\('{at}a'\)"),
        ("a/b", "data/", "metadata/2.metadata.json", r"from_metadata\('{at}a/b/metadata/2\.metadata\.json'\)"),
    ],
)
@pytest.mark.parametrize("protocol", ["s3", "gs", "memory"])
def test_deleted_rows_are_not_read_by_a_pattern_of_a_store(
    server, tmp_path, protocol, table, data, described, reader, capsys
):
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "x")
    at = f"{protocol}://{tmp_path.name}/"
    rows = [f"{table}/{data}year=1/x.parquet", f"{table}/{data}year=2/y.parquet", "plain/x.parquet", "plain/y.parquet"]
    for name in (*rows, f"{table}/{described}", f"{table}/{described.replace('2.', '1.')}"):
        server.objects[f"{tmp_path.name}/{name}"] = (tmp_path / "x").read_bytes()
        if protocol == "memory":
            fsspec.filesystem("memory").pipe(f"/{tmp_path.name}/{name}", (tmp_path / "x").read_bytes())
    for files in (
        f"{at}{table}/**/*.parquet",
        f"{at}{table}/{data}year=2/*.parquet",
        f"{at}**/x.parquet",
        ps.Dataset.list_files(f"{at}a/**/*.parquet"),
    ):
        with pytest.raises(ps.InvalidArgumentError, match=f"is a table of .*{reader.format(at=at)}"):
            ps.ParquetDataset(files)
    for found in (f"{at}{table}/**/*.parquet", f"{at}a"):
        assert main(["inspect", found]) == 2
        assert "the names of the files, instead of a folder or pattern, read all" in capsys.readouterr().err
    server.lists = 0
    assert len(ps.ParquetDataset([at + name for name in rows])) == 8 and server.lists == 0
    assert len(ps.ParquetDataset(f"{at}plain/*.parquet")) == 4
    assert server.lists == (0 if protocol == "memory" else 3)


def test_requests_and_repeats_of_an_iteration_are_in_its_report(server, monkeypatch):
    monkeypatch.setattr(object_stores, "_stores", {})
    monkeypatch.setattr(object_stores, "_RETRIES", {"max_retries": 0})
    monkeypatch.setattr(retries, "BUSY_DELAYS", (0.001,) * 3)
    server.objects["bucket/a"] = lines(1, 2)
    dataset = ps.TextLineDataset("s3://bucket/a").repeat(3)
    assert len(list(dataset)) == 6
    server.requests.clear()
    server.fail("bucket/a", status(503), status(503))
    with iter(dataset) as iterator:
        assert len(list(iterator)) == 6
        report = iterator.report()
    stores = report.ranks[0].stores
    assert (stores.requests, stores.repeats, stores.nbytes) == (server.requests["bucket/a"], 2, 12)
    assert 0.001 <= stores.waited <= 0.002
    assert any(line.startswith("stores: 5 requests for 12 B; 2 of them were repeats") for line in report.lines())
