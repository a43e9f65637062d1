"""Listeners and lines whose other ends are strangers, slow, half said or gone."""

import errno
import resource
import socket
import ssl
import struct
import subprocess
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

from penstock.errors import ServiceError
from penstock.parameter_server import listening
from penstock.parameter_server.closures import dumps
from penstock.parameter_server.line import ProcessLine
from penstock.parameter_server.listening import CONTROL, READER, Address, LineListener, dial
from penstock.parameter_server.messages import Answer, Create, ReadVariables, Ready, Stage
from penstock.parameter_server.rules import OptaxRule
from penstock.parameter_server.server import Server
from penstock.parameter_server.tls import LineTls, line_tls
from penstock.runtime.shared_memory import Arena


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena()
    yield arena
    arena.close()


@pytest.fixture
def listener() -> Iterator[LineListener]:
    listener = LineListener("here", "127.0.0.1", "localhost", b"secret", shared_memory=True)
    yield listener
    listener.close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> LineTls:
    """A certificate that has signed itself, for the name "servers"."""
    certificate, key = map(str, self_signed(tmp_path_factory.mktemp("tls"), "servers"))
    return line_tls(certificate, key, certificate, "servers")


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


def test_thousands_of_silent_callers_keep_no_process_of_the_strategy_out(listener: LineListener, arena: Arena) -> None:
    silent = [stranger(listener.address) for _ in range(500)]
    threads = threading.active_count()
    line = dial(listener.address, "there", CONTROL, arena)
    caller, its = listener.take(arena)
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
    certificate, key = map(str, self_signed(tmp_path, "here", "IP:::1,IP:127.0.0.1,DNS:localhost"))
    tls = line_tls(certificate, key, certificate, None)
    listener = LineListener("here", listens, host, b"secret", shared_memory=False, tls=tls)
    line = dial(listener.address, "there", CONTROL, arena, tls)
    caller, its = listener.take(arena)
    assert caller == CONTROL
    its.send(Ready())
    assert line.receive() == Ready()
    for end in (line, its, listener):
        end.close()


def test_a_caller_that_spells_out_its_proof_is_sent_away(monkeypatch, listener: LineListener) -> None:
    monkeypatch.setattr(listening, "_SECONDS", 0.2)
    slow = stranger(listener.address)
    slow.recv(32)
    slow.settimeout(0.02)
    said, answer = 0, b"nothing yet"
    while answer:
        slow.sendall(b"\0")
        said += 1
        with suppress(TimeoutError):
            answer = slow.recv(1)
    assert said < 72
    slow.close()


def test_bytes_that_another_caller_has_proved_itself_with_prove_nothing(listener: LineListener, arena: Arena) -> None:
    """A replay: whatever was recorded is an answer to another number."""
    with socket.create_server(("127.0.0.1", 0)) as between:
        heard: list[bytes] = []

        def pass_on() -> None:
            near, _ = between.accept()
            with near, stranger(listener.address) as far:
                near.sendall(far.recv(32))
                heard.append(near.recv(72))
                far.sendall(heard[0])
                near.sendall(far.recv(32))
                near.recv(1)

        thread = threading.Thread(target=pass_on)
        thread.start()
        dial(replace(listener.address, port=between.getsockname()[1]), "there", 5, arena).close()
        thread.join()
    caller, its = listener.take(arena)
    assert caller == 5
    its.close()
    again = stranger(listener.address)
    again.recv(32)
    again.sendall(heard[0])
    assert hung_up(again)


def test_a_listener_that_has_no_descriptor_left_goes_on_when_it_has(listener: LineListener, arena: Arena) -> None:
    address = ("127.0.0.1", listener.address.port)
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
    line = dial(listener.address, "there", CONTROL, arena)
    for end in (line, listener.take(arena)[1], *callers):
        end.close()


def test_a_listener_that_closes_hangs_up_on_those_that_nobody_has_taken(arena: Arena) -> None:
    listener = LineListener("here", "127.0.0.1", "localhost", b"secret", shared_memory=False)
    line = dial(listener.address, "there", 7, arena)
    silent = stranger(listener.address)
    silent.recv(32)
    listener.close()
    assert line.receive() is None
    assert hung_up(silent)
    line.close()


@contextmanager
def served(listener: LineListener, arena: Arena, tls: LineTls | None = None) -> Iterator[tuple[Address, ProcessLine]]:
    """A server that runs, and the line for reading."""
    address = listener.address
    control, reader = (dial(address, "there", caller, arena, tls) for caller in (CONTROL, READER))
    lines = dict(listener.take(arena) for _ in range(2))
    thread = threading.Thread(target=Server(lines[CONTROL], lines[READER], arena, listener).run, daemon=True)
    thread.start()
    assert control.receive() == Ready()
    yield address, reader
    for end in (control, reader):
        end.close()
    thread.join()


def worker_of(address: Address, number: int, arena: Arena, tls: LineTls | None = None) -> ProcessLine:
    line = dial(address, "there", number, arena, tls)
    assert line.receive() == Ready()
    return line


def created(reader: ProcessLine, size: int) -> None:
    content = dumps("the optimizer", OptaxRule(optax.sgd(1.0)))
    reader.send(Create(0, content, False, (reader.part(np.arange(size, dtype=np.float32)),)))
    assert reader.receive() == Answer()


@pytest.fixture(params=[False, True], ids=["plain", "TLS"])
def encryption(request: pytest.FixtureRequest, tls: LineTls) -> LineTls | None:
    return tls if request.param else None


@pytest.fixture
def remote(encryption: LineTls | None) -> Iterator[LineListener]:
    listener = LineListener("here", "127.0.0.1", "127.0.0.1", b"secret", shared_memory=False, tls=encryption)
    yield listener
    listener.close()


def test_half_a_message_of_one_worker_holds_up_no_other(remote, arena, encryption) -> None:
    with served(remote, arena, encryption) as (address, reader):
        created(reader, 4)
        halting, other = (worker_of(address, number, arena, encryption) for number in (1, 2))
        halting._connection.send(memoryview(struct.pack("<Q", 1000) + b"half"), wait=True)
        other.send(ReadVariables(0))
        (value,) = other.receive().values
        assert other.array(value).tolist() == [0.0, 1.0, 2.0, 3.0]
        halting.close()
        other.send(Stage(1, ()))
        assert other.receive() == Answer()
        other.close()


def test_a_worker_that_does_not_read_its_answer_holds_up_no_other_and_has_all_of_it_later(
    remote, arena, encryption
) -> None:
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
    listener = LineListener("here", "127.0.0.1", "127.0.0.1", b"secret", shared_memory=False, tls=tls)
    line = dial(listener.address, "there", 3, arena, tls)
    caller, its = listener.take(arena)
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
    listener = LineListener("here", "127.0.0.1", "127.0.0.1", b"secret", shared_memory=False, tls=tls)
    for other, reason in ((replace(tls, root=b""), "self.signed"), (replace(tls, name=""), "IP address mismatch")):
        with pytest.raises(ssl.SSLCertVerificationError, match=reason):
            dial(listener.address, "there", 3, arena, other)
    with pytest.raises(ConnectionError, match="closed the connection before it identified itself"):
        dial(replace(listener.address, secret=b"another"), "there", 3, arena, tls)
    plain = stranger(listener.address)
    plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert hung_up(plain)
    listener.close()


def test_a_key_of_another_certificate_is_refused(tmp_path: Path, tls) -> None:
    subprocess.run(
        [
            "openssl",
            "genpkey",
            "-algorithm",
            "EC",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-out",
            tmp_path / "key",
        ],
        check=True,
        capture_output=True,
    )
    with pytest.raises(ServiceError, match="the key the given bytes is not that of the certificate the given bytes"):
        line_tls(tls.certificate, (tmp_path / "key").read_bytes(), None, None)
