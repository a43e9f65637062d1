"""The protocol between a reader and a worker of one machine: frames over a Unix socket, and the files of segments.

A frame has the lengths of its message and its body, the message in MessagePack, and the body as raw bytes. Only blocks
have a body: their buffers that are not in a segment. Only workers send files.
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
"""How much memory is allocated at once for bytes that have not arrived yet."""
MOST_FILES = 64
"""How many files a frame can carry; Linux allows 253."""
_KEEP_PRIVATE = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]


class BufferLocation(msgspec.Struct, frozen=True, array_like=True):
    """Where a buffer is.

    Attributes:
        segment: the number of its segment; -1 if it is in the body of the frame.
        token: what the reader returns when it no longer needs the memory.
    """

    size: _Size
    segment: int = -1
    offset: _Size = 0
    token: int = 0


class SharedBlockFrame(msgspec.Struct, frozen=True, tag="block"):
    """A block from a worker.

    Attributes:
        segments: the number and the size of each segment whose file is sent with this frame.
        forgotten: segments that the worker will not use again.
    """

    chunk: Chunk
    header: BlockHeader
    locations: tuple[BufferLocation, ...]
    segments: tuple[tuple[int, _Size], ...] = ()
    forgotten: tuple[int, ...] = ()

    @property
    def body_size(self) -> int:
        """The length of the body."""
        return sum(location.size for location in self.locations if location.segment < 0)


class Credit(msgspec.Struct, frozen=True, tag="credit"):
    """A reader accepts `blocks` more, and gives memory back."""

    blocks: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0
    returned: tuple[int, ...] = ()


class StopFetch(msgspec.Struct, frozen=True, tag="stop"):
    """A reader wants nothing more of its request."""


FromConsumer = Fetch | Credit | StopFetch
FromWorker = SharedBlockFrame | End | Failed | Pause | Refused
from_consumer = msgspec.msgpack.Decoder(FromConsumer)
from_worker = msgspec.msgpack.Decoder(FromWorker)


def frame(message: FromConsumer | FromWorker, body_size: int = 0) -> bytes:
    """The beginning of a frame, without the body."""
    content = msgspec.msgpack.encode(message)
    return _LENGTHS.pack(len(content), body_size) + content


def send(line: socket.socket, message: FromWorker, body: Sequence[Buffer] = (), files: Sequence[int] = ()) -> None:
    """Send a frame, and open files with it."""
    content = frame(message, sum(part.size for part in body))
    sent = socket.send_fds(line, [content], files) if files else 0
    line.sendall(memoryview(content)[sent:])
    for part in body:
        line.sendall(part.data)


def receive_request(line: socket.socket) -> FromConsumer | None:
    """A reader's next message; None if it has closed the connection.

    Raises:
        WrongAnswerError: what arrived is no frame of a reader's.
        OSError: the line is broken.
    """
    lengths = line.recv(_LENGTHS.size)  # the system closes files that come with it
    if not lengths:
        return None
    return _message(line, lengths, from_consumer, _LONGEST_REQUEST)[0]  # type: ignore[no-any-return]


def receive(line: socket.socket) -> tuple[FromWorker, Buffer, list[int]] | None:
    """A worker's next message, its body and its files; None if the worker has closed the connection.

    Raises:
        WrongAnswerError: what arrived is no frame of a worker's.
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
    """The message of a frame of which some bytes were read, and the length of its body."""
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
        if received == content.size:  # memory is not allocated for what is only announced
            content = np.resize(content, min(size, 2 * received))
        count = line.recv_into(content.data[received:])
        if count == 0:
            raise ConnectionResetError("the line was closed in the middle of a frame")
        received += count
    return content


def peer_is_this_user(line: socket.socket) -> bool:
    """Whether the peer is of this process's user, if the system can tell; the directory keeps others out anyway."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(user == os.getuid())


def listen() -> tuple[socket.socket, Path]:
    """A socket that listens, and its path, in a directory that only this user can enter."""
    # If another user has taken the name, use one that cannot be guessed.
    directory = private_directory() or Path(tempfile.mkdtemp(prefix="penstock-", dir="/tmp"))
    _remove_dead(directory)
    name = f"{os.getpid()}-{os.urandom(6).hex()}"
    hidden, path = directory / f".{name}", directory / name
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(hidden))
    listener.listen()
    hidden.rename(path)  # only now, so that every process that finds it can connect
    return listener, path


def _remove_dead(directory: Path) -> None:
    """Remove the sockets of workers that were killed, at which no process listens."""
    for path in directory.glob("[!.]*"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.setblocking(False)
            try:
                line.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:  # a full backlog: a process does listen
                continue
