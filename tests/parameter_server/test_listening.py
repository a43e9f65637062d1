"""Listeners and lines whose other ends are strangers, slow, half said or gone."""

import errno
import resource
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import optax
import pytest
from certificates import self_signed
from ipv6 import needs_ipv6

from penstock.parameter_server.closures import dumps
from penstock.parameter_server.messages import (
    CONTROL,
    READER,
    Answer,
    Create,
    ProcessLine,
    ReadVariables,
    Ready,
    StagePushes,
    process_line,
)
from penstock.parameter_server.rules import OptaxRule
from penstock.parameter_server.server import Server
from penstock.rpc import listener as listening
from penstock.rpc.listener import Access, Address, Listener
from penstock.rpc.listener import dial as dial_connection
from penstock.rpc.tls import TlsNames, server_context
from penstock.runtime.shared_memory import Arena


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena()
    yield arena
    arena.close()


SECRET = b"secret"


def listening_for(tls: TlsNames | None = None, host: str = "127.0.0.1") -> Listener:
    access = Access((SECRET,), None if tls is None else server_context(tls.certificate, tls.key))
    return Listener(lambda: access, host)


def where(listener: Listener, host: str = "127.0.0.1") -> Address:
    return Address(host, listener.port)


def dial(
    address: Address, caller: int, arena: Arena, tls: TlsNames | None = None, secret: bytes = SECRET
) -> ProcessLine:
    return process_line(dial_connection(address, secret, caller, tls), arena)


def take(listener: Listener, arena: Arena) -> tuple[int, ProcessLine]:
    caller, connection = listener.take(30)
    return caller, process_line(connection, arena)


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener(lambda: Access((SECRET,)), "127.0.0.1", local=True)
    yield listener
    listener.close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsNames:
    """A certificate that has signed itself, for the name "servers"."""
    return names_of(*self_signed(tmp_path_factory.mktemp("tls"), "servers"), "servers")


def names_of(certificate: Path, key: Path, name: str) -> TlsNames:
    return TlsNames(certificate.read_bytes(), name, certificate.read_bytes(), key.read_bytes())


def stranger(address: Address) -> socket.socket:
    return socket.create_connection(("127.0.0.1", address.port), 20)


def hung_up(connection: socket.socket) -> bool:
    """Wait until the other end has hung up, and hang up too."""
    with connection:
        try:
            while connection.recv(1 << 10):
                pass
        except ConnectionResetError:
            pass
    return True


@pytest.mark.extended
def test_thousands_of_silent_callers_keep_no_process_of_the_strategy_out(listener: Listener, arena: Arena) -> None:
    silent = [stranger(where(listener)) for _ in range(500)]
    threads = threading.active_count()
    line = dial(where(listener), CONTROL, arena)
    caller, its = take(listener, arena)
    assert caller == CONTROL
    assert threading.active_count() == threads  # none for each of them
    assert all(map(hung_up, silent[:300]))  # the first ones
    for end in (line, its, *silent):
        end.close()


@needs_ipv6
@pytest.mark.parametrize(
    ("listens", "host"), [("::1", "::1"), ("", "::1"), ("", "127.0.0.1"), ("localhost", "localhost")]
)
def test_processes_reach_each_other_by_addresses_of_both_kinds(
    tmp_path: Path, arena: Arena, listens: str, host: str
) -> None:
    tls = names_of(*self_signed(tmp_path, "here", "IP:::1,IP:127.0.0.1,DNS:localhost"), "")
    listener = listening_for(tls, listens)
    line = dial(where(listener, host), CONTROL, arena, tls)
    caller, its = take(listener, arena)
    assert caller == CONTROL
    its.send(Ready())
    assert line.receive() == Ready()
    for end in (line, its, listener):
        end.close()


def test_a_caller_that_spells_out_its_proof_is_sent_away(monkeypatch, listener: Listener) -> None:
    monkeypatch.setattr(listening, "_SECONDS", 0.2)
    slow = stranger(where(listener))
    slow.recv(48)
    slow.settimeout(0.02)
    said, answer = 0, b"nothing yet"
    while answer:
        slow.sendall(b"\0")
        said += 1
        with suppress(TimeoutError):
            answer = slow.recv(1)
    assert said < 88
    slow.close()


def test_bytes_that_another_caller_has_proved_itself_with_prove_nothing(listener: Listener, arena: Arena) -> None:
    """A replay: whatever was recorded is an answer to another number."""
    with socket.create_server(("127.0.0.1", 0)) as between:
        heard: list[bytes] = []

        def pass_on() -> None:
            near, _ = between.accept()
            with near, stranger(where(listener)) as far:
                near.sendall(far.recv(48))
                heard.append(near.recv(48, socket.MSG_WAITALL) + near.recv(40, socket.MSG_WAITALL))
                far.sendall(heard[0])
                near.sendall(far.recv(32))
                near.recv(1)

        thread = threading.Thread(target=pass_on)
        thread.start()
        dial(Address("127.0.0.1", between.getsockname()[1]), 5, arena).close()
        thread.join()
    caller, its = take(listener, arena)
    assert caller == 5
    its.close()
    again = stranger(where(listener))
    again.recv(48)
    again.sendall(heard[0])
    assert hung_up(again)


def test_a_listener_that_has_no_descriptor_left_goes_on_when_it_has(listener: Listener, arena: Arena) -> None:
    address = ("127.0.0.1", listener.port)
    callers = [socket.socket() for _ in range(3)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as lowest:
        first_free = lowest.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
    try:
        with pytest.raises(OSError) as raised:
            socket.socket()
        assert raised.value.errno == errno.EMFILE
        for caller in callers:
            caller.connect(address)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    line = dial(where(listener), CONTROL, arena)
    for end in (line, take(listener, arena)[1], *callers):
        end.close()


def test_a_listener_that_closes_hangs_up_on_those_that_nobody_has_taken(arena: Arena) -> None:
    listener = listening_for()
    line = dial(where(listener), 7, arena)
    silent = stranger(where(listener))
    silent.recv(48)
    listener.close()
    assert line.receive() is None
    assert hung_up(silent)
    line.close()


@contextmanager
def served(listener: Listener, arena: Arena, tls: TlsNames | None = None) -> Iterator[tuple[Address, ProcessLine]]:
    """A server that runs, and the line for reading."""
    address = where(listener)
    control, reader = (dial(address, caller, arena, tls) for caller in (CONTROL, READER))
    lines = dict(take(listener, arena) for _ in range(2))
    thread = threading.Thread(target=Server(lines[CONTROL], lines[READER], arena, listener).run, daemon=True)
    thread.start()
    assert control.receive() == Ready()
    yield address, reader
    for end in (control, reader):
        end.close()
    thread.join()


def worker_of(address: Address, number: int, arena: Arena, tls: TlsNames | None = None) -> ProcessLine:
    line = dial(address, number, arena, tls)
    assert line.receive() == Ready()
    return line


def created(reader: ProcessLine, size: int) -> None:
    content = dumps("the optimizer", OptaxRule(optax.sgd(1.0)))
    reader.send(Create(0, content, False, (reader.part(np.arange(size, dtype=np.float32)),)))
    assert reader.receive() == Answer()


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def encryption(request: pytest.FixtureRequest, tls: TlsNames) -> TlsNames | None:
    return tls if request.param else None


@pytest.fixture
def remote(encryption: TlsNames | None) -> Iterator[Listener]:
    listener = listening_for(encryption)
    yield listener
    listener.close()


def test_half_a_message_of_one_worker_holds_up_no_other(remote, arena, encryption) -> None:
    with served(remote, arena, encryption) as (address, reader):
        created(reader, 4)
        halting, other = (worker_of(address, number, arena, encryption) for number in (1, 2))
        halting.connection.send([memoryview(struct.pack("<IQ", 1000, 0) + b"half")])
        other.send(ReadVariables(0))
        (value,) = other.receive().values
        assert other.array(value).tolist() == [0.0, 1.0, 2.0, 3.0]
        halting.close()
        other.send(StagePushes(1, ()))
        assert other.receive() == Answer()
        other.close()


def test_a_worker_that_does_not_read_its_reply_holds_up_no_other(remote, arena, encryption) -> None:
    size = 1 << 22  # more than both ends of a socket keep
    with served(remote, arena, encryption) as (address, reader):
        created(reader, size)
        slow, other = (worker_of(address, number, arena, encryption) for number in (1, 2))
        for line in (slow, other):
            line.send(ReadVariables(0))
        for line in (other, slow):
            (value,) = line.receive().values
            np.testing.assert_array_equal(line.array(value), np.arange(size, dtype=np.float32))
            line.close()


def test_large_arrays_travel_encrypted_in_both_directions(arena, tls) -> None:
    listener = listening_for(tls)
    line = dial(where(listener), 3, arena, tls)
    caller, its = take(listener, arena)
    assert caller == 3
    large = np.arange(1 << 20, dtype=np.float32)
    for sender, receiver in ((line, its), (its, line)):
        sending = threading.Thread(target=sender.send, args=(Answer((sender.part(large),)),))
        sending.start()
        np.testing.assert_array_equal(receiver.array(receiver.receive().values[0]), large)
        sending.join()
    line.close()
    assert its.receive() is None
    for end in (its, listener):
        end.close()


def test_who_dials_trusts_only_the_authority_and_the_name(arena, tls) -> None:
    listener = listening_for(tls)
    for other, reason in ((replace(tls, roots=b""), "self.signed"), (replace(tls, name=""), "IP address mismatch")):
        with pytest.raises(ssl.SSLCertVerificationError, match=reason):
            dial(where(listener), 3, arena, other)
    with pytest.raises(ConnectionError, match="another secret"):
        dial(where(listener), 3, arena, tls, b"another")
    plain = stranger(where(listener))
    plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert hung_up(plain)
    listener.close()
