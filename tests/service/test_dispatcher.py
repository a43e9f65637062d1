"""A dispatcher answers over its socket as its machine decides, and the line to it says what went wrong."""

import gc
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

import penstock as ps
from penstock.rpc.line import Line
from penstock.rpc.listener import Address, dial
from penstock.runtime.ports import free_port
from penstock.service.security.credentials import client_credentials
from penstock.service.transport import dispatcher_client
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.address import parse_service
from penstock.service.wire.dispatcher_messages import (
    DatasetFound,
    Done,
    EpochOpened,
    FromDispatcher,
    GetDataset,
    GetStatus,
    OpenEpoch,
    RegisterDataset,
    ReleaseConsumer,
    Status,
    Stop,
)
from penstock.service.wire.envelope import NO_ENTRY, PROTOCOL, unsealed
from penstock.service.wire.subjects import DatasetInfo, JobParameters, Refused
from penstock.version import VERSION

INFO = DatasetInfo(kind="rows", length=10, cardinality=10)
NOBODY = "localhost:1"


@pytest.fixture
def dispatcher() -> Iterator[ps.service.DispatchServer]:
    with ps.service.DispatchServer() as server:
        yield server


@pytest.fixture
def client(dispatcher: ps.service.DispatchServer) -> Iterator[DispatcherClient]:
    client = DispatcherClient(dispatcher.target)
    yield client
    client.close()


def open_epoch(client: DispatcherClient) -> EpochOpened:
    dataset_id = client.ask(RegisterDataset(definition=b"x", info=INFO)).dataset_id
    parameters = JobParameters(dataset_id=dataset_id, policy=1)
    opened = client.ask(OpenEpoch(job_name="", parameters=parameters, epoch=0, seed=0, consumer="a"))
    assert isinstance(opened, EpochOpened)
    return opened


def sent(dispatcher: ps.service.DispatchServer, body: bytes) -> FromDispatcher:
    """The answer to bytes that no client of ours would send."""
    secret = client_credentials().token.encode()
    line: Line[bytes] = Line(dial(Address("localhost", dispatcher.port), secret, 0), bytes, None, tagged=True)
    answer = line.ask(body, 1, 20)
    line.close()
    assert answer is not None
    decoder = msgspec.msgpack.Decoder(FromDispatcher)
    reply: FromDispatcher = unsealed(answer, decoder, "this process", "the dispatcher")[1]
    return reply


def in_envelope(message: object, protocol: int = PROTOCOL, version: str = "9.9") -> bytes:
    return msgspec.msgpack.encode((protocol, version, NO_ENTRY, message))


# The server


def test_a_dispatcher_answers_at_its_target(client: DispatcherClient) -> None:
    dataset_id = client.ask(RegisterDataset(definition=b"x" * 1_000_000, info=INFO)).dataset_id
    assert client.ask(GetDataset(dataset_id=dataset_id)) == DatasetFound(definition=b"x" * 1_000_000, info=INFO)


def test_the_target_has_a_protocol_and_an_address(dispatcher: ps.service.DispatchServer) -> None:
    assert dispatcher.target == f"grpc://localhost:{dispatcher.port}"


def test_starting_and_stopping_twice_is_harmless_and_restarting_refused() -> None:
    server = ps.service.DispatchServer(start=False)
    with pytest.raises(ps.errors.ServiceError, match="no address before it is started"):
        _ = server.target
    server.start()
    server.start()
    server.stop()
    server.stop()
    with pytest.raises(RuntimeError, match="cannot be started after it was stopped"):
        server.start()


def test_join_waits_until_the_server_is_stopped() -> None:
    server = ps.service.DispatchServer()
    joined = threading.Thread(target=server.join)
    joined.start()
    server.join(timeout=0.05)
    assert joined.is_alive()
    server.stop()
    joined.join(60)
    assert not joined.is_alive()


def test_a_port_that_is_taken_is_said() -> None:
    with (
        ps.service.DispatchServer() as first,
        pytest.raises(
            ps.errors.ServiceError, match=f"listen at 127.0.0.1:{first.port}: .*already in use.*; port 0 takes one"
        ),
    ):
        ps.service.DispatchServer(ps.service.DispatcherConfig(port=first.port))


@pytest.mark.slow
def test_a_dispatcher_that_is_forgotten_stops_listening() -> None:
    server = ps.service.DispatchServer()
    port, gone = server.port, weakref.ref(server)
    clock = next(thread for thread in threading.enumerate() if thread.name == "penstock-dispatcher-clock")
    del server
    gc.collect()
    assert gone() is None
    clock.join(60)
    with pytest.raises(ps.errors.ServiceError, match="cannot be reached"):
        DispatcherClient(f"localhost:{port}").ask(GetStatus(), patience_seconds=0)


@pytest.mark.slow
def test_a_program_ends_that_does_not_stop_its_dispatcher() -> None:
    program = "import penstock as ps; server = ps.service.DispatchServer(); print(server.target)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.startswith("grpc://localhost:")
    assert done.stderr == ""


def test_a_configuration_is_checked() -> None:
    with pytest.raises(TypeError, match="takes a ps.service.DispatcherConfig"):
        ps.service.DispatchServer("localhost:5050")  # type: ignore[arg-type]
    for wrong, message in {
        "port": "must be from 0 to 65535, got -1",
        "heartbeat_seconds": "must be a number of seconds greater than 0, got -1",
        "missed_heartbeats": "must be at least 1, got -1",
        "job_gc_seconds": "must be at least 0, got -1",
    }.items():
        with pytest.raises(ValueError, match=rf"DispatcherConfig\({wrong}=...\) {message}"):
            ps.service.DispatcherConfig(**{wrong: -1})
        with pytest.raises(TypeError, match=rf"DispatcherConfig\({wrong}=...\) takes a\w* \w+, got '3'"):
            ps.service.DispatcherConfig(**{wrong: "3"})
    with pytest.raises(TypeError, match="takes a list of strings, got 'host'"):
        ps.service.DispatcherConfig(worker_addresses="host")
    with pytest.raises(ValueError, match="lists 'host:1' twice"):
        ps.service.DispatcherConfig(worker_addresses=["host:1", "host:1"])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Input data was truncated"),
        (b"\xc1", "malformed"),
        (msgspec.msgpack.encode(GetStatus()), "Expected `array`, got `object`"),
        (in_envelope({"type": "no"}, version=VERSION), "Invalid value 'no'"),
        (in_envelope({"type": "get_dataset", "dataset_id": 3}, version=VERSION), "Expected `str`, got `int`"),
        (in_envelope(GetStatus()), "has penstock 9.9, which speaks protocol"),
        (
            in_envelope(GetStatus(), 99),
            "has penstock 9.9, which speaks protocol 99 of the data service, and",
        ),
    ],
)
def test_what_is_no_message_is_refused(dispatcher: ps.service.DispatchServer, body: bytes, reason: str) -> None:
    reply = sent(dispatcher, body)
    assert isinstance(reply, Refused)
    assert reply.kind == "InvalidArgumentError"
    assert reason in reply.reason


def test_a_message_that_is_too_large_is_refused() -> None:
    with ps.service.DispatchServer(ps.service.DispatcherConfig(max_message_bytes=1000)) as server:
        client = DispatcherClient(server.target)
        with pytest.raises(ValueError, match="the dispatcher takes at most 1,000 .*Let the dataset read its data"):
            client.ask(RegisterDataset(definition=b"x" * 1000, info=INFO))
        client.close()


def test_many_threads_are_answered_at_the_same_time(client: DispatcherClient) -> None:
    answers: list[Status] = []
    threads = [threading.Thread(target=lambda: answers.append(client.ask(GetStatus()))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 16


def test_a_stopped_service_ends_when_its_readers_are_done(client: DispatcherClient) -> None:
    server = ps.service.DispatchServer(ps.service.DispatcherConfig(heartbeat_seconds=0.2))
    client = DispatcherClient(server.target)
    opened = open_epoch(client)
    assert client.ask(Stop()) == Done()
    server.join(timeout=0.3)
    assert client.ask(GetStatus()).stopping
    client.ask(ReleaseConsumer(consumer_id=opened.consumer_id))
    server.join(timeout=60)
    client.close()
    with pytest.raises(ps.errors.ServiceError, match="cannot be reached"):
        DispatcherClient(server.target).ask(GetStatus(), patience_seconds=0)
    server.stop()


# The client


def test_a_refusal_is_raised_as_the_error_that_it_names(client: DispatcherClient) -> None:
    with pytest.raises(ps.InvalidArgumentError, match="knows no dataset 'no': call ps.service.register_dataset first"):
        client.ask(GetDataset(dataset_id="no"))


def test_an_unreachable_dispatcher_is_an_error_after_its_timeout() -> None:
    client = DispatcherClient(NOBODY, patience_seconds=0.3)
    begun = time.monotonic()
    with pytest.raises(
        ps.errors.ServiceError, match=rf"the dispatcher at {NOBODY} cannot be reached: .* tried for \d+\.\d s\."
    ):
        client.ask(GetStatus())
    assert time.monotonic() - begun >= 0.3
    client.close()


@pytest.mark.extended
def test_waiting_for_a_dispatcher_is_said_in_the_log_within_seconds(caplog: pytest.LogCaptureFixture) -> None:
    client = DispatcherClient(NOBODY, patience_seconds=2)
    with caplog.at_level(logging.WARNING), pytest.raises(ps.errors.ServiceError):
        client.ask(GetStatus())
    assert [record.getMessage().partition(":1 ")[0] for record in caplog.records] == [
        "waiting for the dispatcher, for 2 s at most: the dispatcher at localhost"
    ]


def test_a_dispatcher_that_comes_later_is_found() -> None:
    port = free_port()
    client = DispatcherClient(f"localhost:{port}", patience_seconds=20)
    answers: list[Status] = []
    asking = threading.Thread(target=lambda: answers.append(client.ask(GetStatus())))
    asking.start()
    asking.join(0.2)
    with ps.service.DispatchServer(ps.service.DispatcherConfig(port=port)):
        asking.join(60)
    client.close()
    assert len(answers) == 1


def test_closing_a_client_ends_its_waiting() -> None:
    client = DispatcherClient(NOBODY)
    errors: list[Exception] = []

    def ask() -> None:
        try:
            client.ask(GetStatus())
        except ps.errors.ClosedError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(0.1)
    client.close()
    client.close()
    asking.join(60)
    assert "was closed" in str(errors[0])


# Addresses


@pytest.mark.parametrize("service", ["host:5", "grpc://host:5", ("grpc", "host:5")])
def test_a_service_is_an_address_with_or_without_a_protocol(service: str | tuple[str, str]) -> None:
    assert parse_service("call", service) == "host:5"


@pytest.mark.parametrize("address", ["a.b-c:5", "my_host:5", "127.0.0.1:65535", "[::1]:5", "[fe80::1%eth0]:5", "h.:5"])
def test_hosts_have_names_and_numbers(address: str) -> None:
    assert parse_service("call", address) == address
    assert ps.service.DispatcherConfig(worker_addresses=[address]).addresses == (address,)


@pytest.mark.parametrize("address", ["host:", "host:99999", "bad host", "bad host:5", "host:%x%", "host:0", "a:b:5"])
def test_a_mistyped_worker_address_is_refused_where_it_is_listed(address: str) -> None:
    with pytest.raises(ValueError, match=r'worker_addresses=\.\.\.\) takes "host", "host:port" and "host:%port%"'):
        ps.service.DispatcherConfig(worker_addresses=[address])


@pytest.mark.parametrize(
    ("service", "kind", "message"),
    [
        ("", ValueError, "must not be empty"),
        ("grpc://a:1://b", ValueError, 'more than one "://"'),
        ("http://host:5", ValueError, "there is no protocol 'http'"),
        (("http", "host:5"), ValueError, "there is no protocol 'http'"),
        (("", "host:5"), ValueError, "as a tuple is"),
        (("grpc", "grpc://host:5"), ValueError, "as a tuple is"),
        ("host", ValueError, 'as "host:port"'),
        ("host:", ValueError, 'as "host:port"'),
        ("host:x", ValueError, 'as "host:port"'),
        ("host:70000", ValueError, 'as "host:port"'),
        ("host:0", ValueError, 'as "host:port"'),
        ("bad host:5", ValueError, 'as "host:port"'),
        ("::1:5", ValueError, 'as "host:port"'),
        ("host:\u0665", ValueError, 'as "host:port"'),
        (5050, TypeError, "must be a string"),
        (("grpc",), TypeError, "must be a string"),
        (None, TypeError, "must be a string"),
    ],
)
def test_what_is_no_service_is_refused(service: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=rf"distribute\(service=...\).*{message}"):
        parse_service("distribute", service)


def test_a_dispatcher_leaves_no_descriptors_behind() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def once() -> None:
        with ps.service.DispatchServer() as server:
            client = DispatcherClient(server.target)
            client.ask(GetStatus())
            client.close()

    once()  # libraries open some that they keep
    before = descriptors()
    for _ in range(5):
        once()
    assert descriptors() < before + 5  # gRPC may open one more for itself, a server none of its own


@pytest.mark.extended
def test_a_client_closed_while_others_ask_leaves_the_process_alive() -> None:
    with ps.service.DispatchServer() as server:
        for number in range(100):
            client = DispatcherClient(server.target)
            refused: list[ps.errors.ClosedError] = []
            asking = [threading.Thread(target=ask_until_closed, args=(client, refused)) for _ in range(4)]
            for thread in asking:
                thread.start()
            for _ in range(number % 4):
                client.ask(GetStatus())
            client.close()
            for thread in asking:
                thread.join()
            assert len(refused) == len(asking)


def ask_until_closed(client: DispatcherClient, refused: list[ps.errors.ClosedError]) -> None:
    try:
        while True:
            client.ask(GetStatus())
    except ps.errors.ClosedError as error:
        refused.append(error)


def test_definitions_that_take_too_much_memory_in_all_are_refused() -> None:
    with ps.service.DispatchServer(ps.service.DispatcherConfig(max_definition_bytes=1000)) as server:
        client = DispatcherClient(server.target)
        first = RegisterDataset(definition=b"x" * 600, info=INFO)
        kept = client.ask(first)
        with pytest.raises(
            ps.InvalidArgumentError, match=r"no room for 401 more: it takes 1,000 \(Dis.*dataset_gc_seconds"
        ):
            client.ask(RegisterDataset(definition=b"y" * 401, info=INFO))
        assert client.ask(first) == kept  # it takes no more room
        client.ask(RegisterDataset(definition=b"y" * 400, info=INFO))
        client.close()


def test_lines_that_no_call_has_needed_for_long_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client kept as many connections as threads had ever asked at the same time, to its end."""
    with ps.service.DispatchServer() as dispatcher, ThreadPoolExecutor(4) as threads:
        client = DispatcherClient(dispatcher.target)
        assert dispatcher._started is not None
        with dispatcher._started._lock:
            asked = [threads.submit(client.ask, GetStatus()) for _ in range(4)]
            while len(client._busy) < 4:
                time.sleep(0.001)
        assert all(isinstance(answer.result(), Status) for answer in asked)
        assert len(client._idle) == 4
        monkeypatch.setattr(dispatcher_client, "_IDLE_SECONDS", 0.0)
        for _ in range(2):
            client.ask(GetStatus())
        assert len(client._idle) == 1
        client.close()
        assert len(client._idle) == 0
