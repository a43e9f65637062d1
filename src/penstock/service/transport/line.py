"""A line between a consumer and a worker of one machine: frames over a Unix socket, and the files of segments.

A frame is the length of its message and of its body, the message in MessagePack, and the body: bytes as they are. Only
blocks have a body, as long as their places without a segment say. Only workers send files.
"""

import os
import socket
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from penstock.service.security.private_files import private_directory
from penstock.service.wire.blocks import BlockHeader, Buffer
from penstock.service.wire.interfaces import WrongAnswerError
from penstock.service.wire.subjects import UNDECODABLE, Refused
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, Pause

_LENGTHS = struct.Struct("<IQ")
_LONGEST_MESSAGE = 1 << 26
_LONGEST_REQUEST = 1 << 20
_PIECE = 1 << 26
"""How much memory is taken for bytes that have not come yet."""
MOST_FILES = 64
"""How many files one frame can bring; Linux allows 253."""
_KEEP_PRIVATE = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]


class BufferPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a buffer is.

    Attributes:
        segment: the number of the segment that it lies in; -1 where the body of the frame brings it.
        token: what the consumer gives back when it needs the memory no more.
    """

    size: _Size
    segment: int = -1
    offset: _Size = 0
    token: int = 0


class SharedBlockFrame(msgspec.Struct, frozen=True, tag="block"):
    """A block from a worker.

    Attributes:
        segments: the number and the size of each segment whose file comes with this frame.
        forgotten: segments that the worker will not use again.
    """

    chunk: Chunk
    header: BlockHeader
    places: tuple[BufferPlace, ...]
    segments: tuple[tuple[int, _Size], ...] = ()
    forgotten: tuple[int, ...] = ()

    @property
    def body_size(self) -> int:
        """How long the body is that comes with it."""
        return sum(place.size for place in self.places if place.segment < 0)


class Credit(msgspec.Struct, frozen=True, tag="credit"):
    """A consumer takes `blocks` more, and gives memory back."""

    blocks: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0
    returned: tuple[int, ...] = ()


class StopFetch(msgspec.Struct, frozen=True, tag="stop"):
    """A consumer wants nothing more of what it has fetched."""


FromConsumer = Fetch | Credit | StopFetch
FromWorker = SharedBlockFrame | End | Failed | Pause | Refused
from_consumer = msgspec.msgpack.Decoder(FromConsumer)
from_worker = msgspec.msgpack.Decoder(FromWorker)


def frame(message: FromConsumer | FromWorker, body_size: int = 0) -> bytes:
    """The beginning of a frame: all but the body."""
    content = msgspec.msgpack.encode(message)
    return _LENGTHS.pack(len(content), body_size) + content


def send(line: socket.socket, message: FromWorker, body: Sequence[Buffer] = (), files: Sequence[int] = ()) -> None:
    """Send a frame, with open files beside it."""
    content = frame(message, sum(part.size for part in body))
    sent = socket.send_fds(line, [content], files) if files else 0
    line.sendall(memoryview(content)[sent:])
    for part in body:
        line.sendall(part.data)


def receive_request(line: socket.socket) -> FromConsumer | None:
    """A consumer's next message; None where it has closed the line.

    Raises:
        WrongAnswerError: what came is no frame of a consumer's.
        OSError: the line is broken.
    """
    lengths = line.recv(_LENGTHS.size)  # files that come with it are closed by the system
    if not lengths:
        return None
    return _message(line, lengths, from_consumer, _LONGEST_REQUEST)[0]  # type: ignore[no-any-return]


def receive(line: socket.socket) -> tuple[FromWorker, Buffer, list[int]] | None:
    """A worker's next message, its body and its files; None where the worker has closed the line.

    Raises:
        WrongAnswerError: what came is no frame of a worker's.
        OSError: the line is broken.
    """
    lengths, files, _, _ = socket.recv_fds(line, _LENGTHS.size, MOST_FILES, _KEEP_PRIVATE)
    try:
        if not lengths:
            return None
        message, body_size = _message(line, lengths, from_worker, _LONGEST_MESSAGE)
        return message, _exactly(line, body_size), files
    except BaseException:
        for file in files:
            os.close(file)
        raise


def _message(
    line: socket.socket, begun: bytes, decoder: "msgspec.msgpack.Decoder[Any]", longest: int
) -> tuple[Any, int]:
    """The message of a frame of which some bytes were read, and how long its body is."""
    lengths = begun + bytes(_exactly(line, _LENGTHS.size - len(begun)))
    message_size, body_size = _LENGTHS.unpack(lengths)
    if message_size > longest:
        raise WrongAnswerError(f"what came over the line is no message: it claims to have {message_size} bytes")
    try:
        message = decoder.decode(_exactly(line, message_size).data)
    except UNDECODABLE as error:
        raise WrongAnswerError(f"what came over the line is no message: {error}") from error
    expected = message.body_size if isinstance(message, SharedBlockFrame) else 0
    if body_size != expected:
        raise WrongAnswerError(f"what came over the line claims a body of {body_size} bytes, its message {expected}")
    return message, body_size


def _exactly(line: socket.socket, size: int) -> Buffer:
    content = np.empty(min(size, _PIECE), np.uint8)
    received = 0
    while received < size:
        if received == content.size:  # what is claimed takes no memory before it comes
            content = np.resize(content, min(size, 2 * received))
        count = line.recv_into(content.data[received:])
        if count == 0:
            raise ConnectionResetError("the line was closed in the middle of a frame")
        received += count
    return content


def peer_is_this_user(line: socket.socket) -> bool:
    """Whether the other end belongs to this process's user, where the system tells; the directory keeps others out."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(user == os.getuid())


def listen() -> tuple[socket.socket, Path]:
    """A socket that listens, and its path, in a directory that only this user can enter."""
    # Where somebody else has taken the name, one that nobody could know.
    directory = private_directory() or Path(tempfile.mkdtemp(prefix="penstock-", dir="/tmp"))
    _remove_dead(directory)
    name = f"{os.getpid()}-{os.urandom(6).hex()}"
    hidden, path = directory / f".{name}", directory / name
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(hidden))
    listener.listen()
    hidden.rename(path)  # only now, so that whoever finds it can connect
    return listener, path


def _remove_dead(directory: Path) -> None:
    """Remove what workers that were killed have left: sockets at which nobody listens."""
    for path in directory.glob("[!.]*"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.setblocking(False)
            try:
                line.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:  # a full backlog: somebody does listen
                continue
