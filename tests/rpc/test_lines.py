"""Lines and listeners whose other ends drip, stop in the middle, say nothing, lie, or come in crowds."""

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec
import numpy as np
import pytest
from until import until

from penstock.rpc import listener as listening
from penstock.rpc.connection import PlainConnection
from penstock.rpc.frames import ArrayPart, BytesLocation, Header
from penstock.rpc.line import Line, TooLongError
from penstock.rpc.listener import Access, Address, Listener, dial
from penstock.rpc.proof import NotAdmittedError, OtherProtocolError
from penstock.runtime.shared_memory import Arena

SECRET = b"a secret of both ends"

FORKS = pytest.mark.filterwarnings(  # the child does nothing but wait
    r"ignore:os.fork\(\) was called:RuntimeWarning", "ignore:.*use of fork:DeprecationWarning"
)


class Said(msgspec.Struct, frozen=True, tag="said"):
    text: str = ""
    arrays: tuple[ArrayPart, ...] = ()


Ends = tuple["Line[Said]", "Line[Said]"]


@contextmanager
def two_ends(*, most_bytes: int = 1 << 40, lends: bool = False, arena: Arena | None = None) -> Iterator[Ends]:
    own, its = socket.socketpair()
    near, far = Line(own, Said, arena), Line(its, Said, arena, most_bytes=most_bytes, lends=lends)
    yield near, far
    near.close()
    far.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener(lambda: Access((SECRET,)), "127.0.0.1", local=True)) as listener:
        yield listener


def reached(listener: Listener) -> Address:
    return Address("127.0.0.1", listener.port)


def stranger(listener: Listener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.port), 20)


# Messages


def test_a_message_comes_with_its_arrays_in_their_order() -> None:
    arrays = [np.arange(5), np.zeros((0, 3), np.float32), np.full((300, 1000), 7, np.uint8), np.array(3.5)]
    with two_ends() as (near, far):
        thread = threading.Thread(target=lambda: near.send(Said("all", tuple(map(near.part, arrays)))))
        thread.start()
        message = far.receive(20)
        thread.join()
        assert message is not None and message.text == "all"
        for sent, part in zip(arrays, message.arrays, strict=True):
            np.testing.assert_array_equal(far.array(part), sent)
            assert not far.array(part).flags.writeable and far.array(part).dtype == sent.dtype


def test_what_arrives_byte_by_byte_arrives() -> None:
    own, its = socket.socketpair()
    header = msgspec.msgpack.encode(Header(Said("slowly"), 5))
    far = Line(its, Said, None)
    for byte in struct.pack("<IQ", len(header), 0) + header:
        assert not far.has_more()
        own.sendall(bytes([byte]))
        far.fill()
    assert far.receive(0) == Said("slowly") and far.number == 5
    far.close()
    own.close()


def test_half_a_message_and_then_silence_ends_a_wait_at_its_deadline() -> None:
    own, its = socket.socketpair()
    with own, closing(Line(its, Said, None)) as far:
        own.sendall(struct.pack("<IQ", 1000, 0) + b"half of it")
        begun = time.monotonic()
        assert far.receive(0.2) is None
        assert 0.15 < time.monotonic() - begun < 5


def test_who_does_not_read_holds_a_sender_up_no_longer_than_its_deadline() -> None:
    with two_ends() as (near, far):
        large = np.arange(1 << 20)
        with pytest.raises(TimeoutError, match=r"taken no more for 0\.2 s"):
            near.send(Said("large", (near.part(large),)), seconds=0.2)
        near.send(Said("after it"), seconds=0)
        received = threading.Thread(target=near.flush, args=(20.0,))
        received.start()
        first, second = far.receive(20), far.receive(20)
        received.join()
        assert first is not None and first.text == "large" and second == Said("after it")


@pytest.mark.extended
def test_memory_given_back_in_pieces_is_all_given_back() -> None:
    """A socket that takes only a part of the tokens gets the rest later."""
    arena = Arena()
    with two_ends(arena=arena, lends=True) as (near, far):
        far._returned.extend(range(100_000, 200_000))
        far._release(7)
        assert far.unsent
        flushing = threading.Thread(target=far.flush, args=(20.0,))
        flushing.start()
        assert near.receive(1.0) is None  # all frames with tokens only
        flushing.join()
        far.send(Said("last"))
        assert near.receive(20) == Said("last") and not far.unsent
    arena.close()


@pytest.mark.parametrize(
    "said",
    [
        struct.pack("<IQ", 5, 0) + b"hello",
        struct.pack("<IQ", 0, 0),
        struct.pack("<IQ", 8, 0) + msgspec.msgpack.encode([["other"], 0])[:8],
        struct.pack("<IQ", 2, 0) + b"\xc1\xc1",
    ],
    ids=["text", "nothing", "another kind", "no MessagePack"],
)
def test_what_is_no_message_ends_the_line(said: bytes) -> None:
    own, its = socket.socketpair()
    with own, closing(Line(its, Said, None)) as far:
        own.sendall(said)
        far.fill()
        with pytest.raises(ConnectionError, match="a frame came that holds no message"):
            far.receive_one()


def test_a_message_that_is_too_long_is_refused_and_the_next_one_comes() -> None:
    with two_ends(most_bytes=100_000) as (near, far):
        sending = threading.Thread(target=near.send, args=(Said("x" * 1_000_000),))
        sending.start()
        while not far.has_more():
            far.connection.wait(time.monotonic() + 20)
            far.fill()
        sending.join()
        with pytest.raises(TooLongError, match="of 1,000,0.. bytes"):
            far.receive_one()
        near.send(Said("short"))
        assert far.receive(20) == Said("short")


def test_memory_that_was_not_sent_is_not_shown() -> None:
    with two_ends() as (near, far):
        near.send(Said("lies"))
        assert far.receive(20) == Said("lies")
        for place in (
            BytesLocation(8, 0),
            BytesLocation(8, 0, segment=3, token=1),
            BytesLocation(0, 0, segment=3, token=1),
            BytesLocation(-8, 8),
            BytesLocation(0, -1),
        ):
            with pytest.raises(ConnectionError, match="names memory that it has not sent"):
                far.bytes_at(place)


# Requests


def test_the_answer_to_a_request_that_was_given_up_is_not_that_of_the_next() -> None:
    arena = Arena()
    with two_ends(arena=arena) as (near, far):
        assert near.ask(Said("first"), 1, 0.05) is None
        for text in ("first", "second"):
            if text == "second":
                near.send(Said("second"), number=2)
            message = far.receive(20)
            assert message == Said(text)
            large = far.part(np.full(1 << 17, far.number, np.uint8))
            far.send(Said(f"to {text}", (large,)), number=far.number)
        answer = near.answer_to(2, 20)
        assert answer is not None and answer.text == "to second"
        kept = near.array(answer.arrays[0])
        near.give_back()
        far.take_back()
        assert (kept == 2).all() and list(far._held) == [1]  # what came with the dropped answer is given back
    arena.close()


@FORKS
def test_a_peer_that_is_stopped_is_noticed_by_its_silence() -> None:
    own, its = socket.socketpair()
    child = os.fork()
    if child == 0:
        its_line = Line(its, Said, None)
        its_line.receive(60)
        os._exit(0)
    its.close()
    with closing(Line(own, Said, None)) as line:
        line.ask_for_life()
        assert line.connection.wait(time.monotonic() + 20) and line.fill() and line.quiet == 0.0
        assert line.has_more() and line.receive_one() is None
        os.kill(child, signal.SIGSTOP)
        line.ask_for_life()
        assert not line.connection.wait(time.monotonic() + 0.3)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# Callers


def test_a_wrong_secret_is_told_to_both_ends_and_never_said(listener: Listener) -> None:
    for address in (reached(listener), Address(local=listener.local)):
        with pytest.raises(NotAdmittedError, match="has another secret"):
            dial(address, b"another", 1)
        dial(address, SECRET, 2).close()
        caller, connection = listener.take(20)
        assert caller == 2
        connection.close()


def test_something_else_than_penstock_is_said_to_be_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            with other.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(OtherProtocolError, match="it is not penstock"):
            dial(Address("127.0.0.1", other.getsockname()[1]), SECRET, 1)
        answering.join()


def test_many_callers_at_once_among_silent_and_dripping_ones_all_get_in(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_SECONDS", 5.0)
    strangers = [stranger(listener) for _ in range(200)]
    for line in strangers[::2]:
        line.sendall(b"penst")
    begun, dialled = time.monotonic(), []

    def call(number: int) -> None:
        dialled.append(dial(reached(listener), SECRET, number, seconds=20))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    taken = [listener.take(20) for _ in threads]
    for thread in threads:
        thread.join()
    assert sorted(caller for caller, _ in taken) == list(range(30))
    assert time.monotonic() - begun < 5
    for end in (*strangers, *dialled, *(connection for _, connection in taken)):
        end.close()


def test_nobody_who_calls_is_a_timeout_and_no_hang(listener: Listener) -> None:
    with pytest.raises(TimeoutError):
        listener.take(0.05)


def test_a_process_that_listens_and_says_nothing_is_a_timeout() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(TimeoutError, match="not identified itself"),
    ):
        dial(Address("127.0.0.1", silent.getsockname()[1]), SECRET, 1, seconds=0.2)


@FORKS
def test_a_forked_process_does_not_keep_a_connection_open() -> None:
    own, its = socket.socketpair()
    connection = PlainConnection(own)
    child = os.fork()
    if not child:
        signal.pause()
    try:
        connection.close()
        its.settimeout(60)
        assert its.recv(1) == b""
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        its.close()


def test_freed_memory_returns_with_the_next_message_of_a_gathering_line() -> None:
    arena = Arena()
    with two_ends(arena=arena, lends=True) as (near, far):
        near.send(Said("one", (near.part(np.zeros(1 << 20, np.uint8)),)))
        message = far.receive(20)
        assert message is not None
        array = far.array(message.arrays[0])
        far.gathers = True
        del array
        assert not near.fill() and len(near._held) == 1
        far.send(Said("two"))
        assert near.receive(20) == Said("two") and not near._held
    arena.close()


# Tags


@pytest.mark.parametrize("attack", ["change", "repeat", "leave out", "reflect"])
def test_a_tagged_line_ends_where_somebody_changes_what_is_sent(listener: Listener, attack: str) -> None:
    dialled = dial(reached(listener), SECRET, 7)
    _, accepted = listener.take(20)
    own, middle = socket.socketpair()
    other, its = socket.socketpair()
    ends = []
    for end, connection in ((own, dialled), (its, accepted)):
        ends.append(PlainConnection(end))
        ends[-1].frame_keys = connection.frame_keys
        connection.close()
    near, far = (Line[Said](end, Said, None, tagged=True) for end in ends)
    with closing(near), closing(far), middle, other:
        near.send(Said("one"))
        frame = middle.recv(1000)
        other.sendall(frame)
        answer = far.receive(20)
        assert answer is not None and answer.text == "one"
        near.send(Said("two"))
        second = middle.recv(1000)
        if attack == "leave out":
            near.send(Said("three"))
            second = middle.recv(1000)
        sent = {"change": second.replace(b"two", b"owt"), "repeat": frame}.get(attack, second)
        hearing = far
        if attack == "reflect":
            hearing, other = near, middle
        other.sendall(sent)
        until(hearing.fill)
        with pytest.raises(ConnectionError, match="was changed on its way between"):
            hearing.receive_one()
