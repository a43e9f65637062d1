"""Files that fsspec reads, by its own clients, of a server that refuses requests, breaks off, or is not there."""

import importlib
import json
import socket

import fsspec
import pytest
from object_server import cut, dropped, object_server, status

import penstock as ps
from penstock.extras import Missing
from penstock.formats import remote, retries

CLIENTS = {"webhdfs": "requests", "http": "aiohttp", "s3": "s3fs"}
"""The protocols, and the packages that send their requests."""


def lines(*numbers):
    return b"".join(b"%d\n" % number for number in numbers)


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
    monkeypatch.setattr(remote, "_STORES", Missing("reading files of object stores", "obstore", "cloud"))
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
    "429": [status(429, Retry_After="1")] * 2,
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


def test_a_server_that_is_not_there_is_an_error_soon(server):
    pytest.importorskip("requests")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        name = f"webhdfs://127.0.0.1:{free.getsockname()[1]}/a"
        with pytest.raises(ps.StorageError, match=f"'{name}' cannot be read: .*Connection refused"):
            list(ps.TextLineDataset(name))


def test_requests_wait_for_longer_each_time_and_for_a_random_part(monkeypatch):
    waited = []
    monkeypatch.setattr(importlib.import_module("time"), "sleep", waited.append)
    answers = [ConnectionError] * 4 + [TimeoutError, None]

    def request():
        fault = answers.pop(0)
        if fault is not None:
            raise fault
        return "at last"

    assert retries.patiently(request, lambda error: retries.BROKEN_DELAYS) == "at last"
    assert len(waited) == 5 and len(set(waited)) == 5
    assert all(delay / 2 <= wait <= delay for wait, delay in zip(waited, retries.BROKEN_DELAYS, strict=True))
    assert sum(retries.BUSY_DELAYS) / 2 > 80
