"""Files that fsspec reads, by its own clients, of a server that refuses requests, breaks off, or is not there."""

import importlib
import json
import socket

import fsspec
import pytest
from object_server import cut, dropped, object_server, status

import penstock as ps
from penstock.extras import Missing
from penstock.formats.remote import remote_files, retries

CLIENTS = {"webhdfs": "requests", "http": "aiohttp", "s3": "s3fs"}
"""The protocols, and the packages that send their requests."""


def lines(*numbers):
    return b"".join(b"%d\n" % number for number in numbers)


def read_first_content(iterator):
    """Read on to the end, after the first line of `long_lines(0)`."""
    for number, line in enumerate(iterator, 1):
        assert int(line) == number


def long_lines(first, count=20_000):
    """More than is read ahead."""
    return b"".join(b"%0999d\n" % number for number in range(first, first + count))


@pytest.fixture(scope="module")
def running():
    with object_server() as server:
        yield server


@pytest.fixture
def server(running, monkeypatch):
    """Without obstore, which is preferred for some of these protocols, and with delays that are short."""
    running.forget()
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    missing = Missing("reading files of object stores", "obstore", "cloud")
    monkeypatch.setattr(remote_files, "_stores", lambda: missing)
    monkeypatch.setattr(retries, "BUSY_DELAYS", (0.001,) * 3)
    monkeypatch.setattr(retries, "BROKEN_DELAYS", (0.001,) * 4)
    return running


@pytest.fixture(params=CLIENTS)
def at(request, server):
    """Where the objects of the bucket are for a client."""
    pytest.importorskip(CLIENTS[request.param], reason=f"{CLIENTS[request.param]} is not installed")
    fsspec.get_filesystem_class(request.param).clear_instance_cache()  # with connections to a server that is gone
    plain = server.address.removeprefix("http://")
    return {"webhdfs": f"webhdfs://{plain}/bucket", "http": f"{server.address}/bucket", "s3": "s3://bucket"}[
        request.param
    ]


FAULTS = {
    "503": [status(503)] * 2,
    "429": [status(429, Retry_After="0")] * 2,
    "dropped": [dropped] * 2,
    "cut": [cut] * 2,
    "one after the other": [status(503), dropped, cut],
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("by_index", [False, True])
def test_faults_that_pass_cost_no_row(server, at, fault, by_index):
    server.objects["bucket/a"] = lines(*range(50_000))
    server.objects["bucket/b"] = lines(*range(50_000, 50_010))
    for name in ("a", "b"):
        server.fail(f"bucket/{name}", *FAULTS[fault])
        server.fail(f"bucket/{name}?", *FAULTS[fault])
    names = [f"{at}/a", f"{at}/b"]
    dataset = ps.FilesDataset(names, "text") if by_index else ps.TextLineDataset(names)
    assert [int(line) for line in dataset] == list(range(50_010))
    assert server.requests["bucket/b"] > len(FAULTS[fault])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (status(503), "the server answers 503"),
        (status(403), "access is refused .*403.*Credentials are those of fsspec's package"),
        (status(404), "there is no such file|the server answers 404"),
        (dropped, "Disconnected|Connection aborted|RemoteDisconnected|ConnectionClosed"),
    ],
)
def test_faults_that_stay_are_named_after_the_rows_before_them(server, at, fault, message, monkeypatch):
    monkeypatch.setattr(retries, "BROKEN_DELAYS", ())  # s3fs waits by itself
    server.objects |= {f"bucket/{name}": lines(number) for number, name in enumerate("abc")}
    iterator = iter(ps.TextLineDataset([f"{at}/{name}" for name in "abc"]))
    server.fail("bucket/b", *[fault] * 200)
    assert next(iterator) == "0"
    with pytest.raises(ps.StorageError, match=f"'{at}/b' cannot be read: .*({message})"):
        next(iterator)
    assert list(iterator) == ["2"]


def test_names_are_listed_and_rows_read_by_number(server, at):
    if at.startswith("http"):
        pytest.skip("web servers do not list their files")
    server.objects |= {f"bucket/data/{number}.txt": lines(number, -number) for number in range(5)}
    dataset = ps.FilesDataset(f"{at}/data/*.txt", "text")
    assert [int(line) for line in dataset[3:8]] == [-1, 2, -2, 3, -3]
    shuffled = dataset.shuffle(seed=1, reshuffle_each_iteration=False)
    iterator, other = iter(shuffled), iter(shuffled)
    taken = [next(iterator) for _ in range(4)]
    other.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
    assert taken + list(other) == list(shuffled)
    with pytest.raises(ps.StorageError, match=f"'{at}/none' cannot be read: there is no such file"):
        list(ps.TextLineDataset(f"{at}/none"))


def waits(monkeypatch):
    """The seconds of delays, which are not waited for."""
    waited = []
    monkeypatch.setattr(importlib.import_module("time"), "sleep", waited.append)
    return waited


def test_a_server_is_left_alone_for_as_long_as_it_asks(server, at, monkeypatch):
    if at.startswith("s3"):
        pytest.skip("s3fs waits by itself")
    waited = waits(monkeypatch)
    # A name of its own: a request that a test before has given up may come only now, and would take the first fault.
    server.objects["bucket/alone"] = lines(1, 2)
    answers = [status(429, Retry_After="7"), status(503, Retry_After="Wed, 21 Oct 2105 07:28:00 GMT")]
    # By HTTP fsspec asks for the size with HEAD, and with GET where that is refused for whatever reason.
    requests = 2 if at.startswith("http") else 1
    server.fail("bucket/alone", *[answer for answer in answers for _ in range(requests)])
    with pytest.raises(
        ps.StorageError, match=r"'.*/alone' cannot be read: the server answers 503 .*asks to wait for \d+ s"
    ):
        list(ps.TextLineDataset(f"{at}/alone"))
    assert len(waited) == 1 and 7 <= waited[0] <= 7.7
    assert [int(line) for line in ps.TextLineDataset(f"{at}/alone")] == [1, 2]


@pytest.mark.parametrize(
    ("value", "seconds"), [("3", 3), ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("soon", 0), ("", 0), ("-1", 0)]
)
def test_how_long_a_server_asks_for(value, seconds):
    assert retries.seconds_asked({"Server": "x", "RETRY-AFTER": value}) == seconds


@pytest.mark.parametrize("by_index", [False, True])
def test_a_file_that_is_written_anew_while_it_is_read_is_an_error(server, at, by_index):
    if at.startswith("s3"):
        pytest.skip("LastModified is always the same here, and tags belong to the content")
    server.objects["bucket/a"] = long_lines(0)
    dataset = ps.FilesDataset(f"{at}/a", "text") if by_index else ps.TextLineDataset(f"{at}/a")
    iterator = iter(dataset)
    assert int(next(iterator)) == 0
    server.objects["bucket/a"] = long_lines(50_000, 20_001)
    with pytest.raises(ps.StorageError, match=f"'{at}/a' has changed since the dataset was made"):
        read_first_content(iterator)


def test_a_file_of_the_same_size_that_takes_its_place_is_noticed():
    memory = fsspec.filesystem("memory")
    memory.pipe("/changing/a.txt", long_lines(0))
    try:
        iterator = iter(ps.TextLineDataset("memory://changing/a.txt"))
        assert int(next(iterator)) == 0
        memory.pipe("/changing/a.txt", long_lines(50_000))
        with pytest.raises(ps.StorageError, match="'memory://changing/a.txt' has changed since the dataset was made"):
            read_first_content(iterator)
    finally:
        memory.rm("/changing", recursive=True)


def test_a_server_that_is_not_there_is_an_error_soon(server):
    pytest.importorskip("requests")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        name = f"webhdfs://127.0.0.1:{free.getsockname()[1]}/a"
        with pytest.raises(ps.StorageError, match=f"'{name}' cannot be read: .*Connection refused"):
            list(ps.TextLineDataset(name))


def test_requests_wait_for_longer_each_time_and_for_a_random_part(monkeypatch):
    waited = waits(monkeypatch)
    answers = [ConnectionError] * 4 + [TimeoutError, None]

    def request():
        fault = answers.pop(0)
        if fault is not None:
            raise fault
        return "at last"

    assert retries.with_retries(request, lambda error: retries.BROKEN_DELAYS, len) == "at last"
    assert len(waited) == 5 and len(set(waited)) == 5
    assert all(delay / 2 <= wait <= delay for wait, delay in zip(waited, retries.BROKEN_DELAYS, strict=True))
    assert sum(retries.BUSY_DELAYS) / 2 > 80
