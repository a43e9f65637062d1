"""A line between two processes: typed messages over a socket, and on one machine, arrays in shared memory.

Between machines, arrays travel with the messages. On one machine, of a large array, its location in a segment of the
sender's arena is sent. The array is read-only for the receiver, and stays as it is until nothing there shows it any
more: its token then travels back, and the sender may use the memory again.
"""

import itertools
import socket
import struct
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from os import close
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.parameter_server.connection import MOST_FILES, PlainConnection, SocketConnection
from penstock.parameter_server.messages import ArrayPart, Frame, Message
from penstock.runtime.memory import LARGE, Memory
from penstock.runtime.shared_memory import Arena, Mapping, Segment, location_of

Array = npt.NDArray[Any]

_LENGTH = struct.Struct("<Q")
_MOST_FILES = MOST_FILES - 1
"""How many segments a frame can bring, beside a line."""

_CHUNK = 1 << 16
"""So much is received at once, which is several frames of small messages."""
_LARGEST_CHUNK = 1 << 22

_decoder = msgspec.msgpack.Decoder(Frame)
_encoder = msgspec.msgpack.Encoder()


class ProcessLine:
    """One end of a line. One thread may use it at a time.

    Args:
        connection: the socket, or what is over it, which the line then owns.
        arena: where large arrays are copied that are not in shared memory yet; several lines may share it. None where
            the other end is on another machine.
    """

    def __init__(self, connection: socket.socket | SocketConnection, arena: Arena | None) -> None:
        self._connection = connection if isinstance(connection, SocketConnection) else PlainConnection(connection)
        self._arena = arena
        self._tokens = itertools.count()
        self._held: dict[int, Array] = {}
        self._promised: list[int] = []  # the tokens of the next message
        self._known: dict[int, weakref.ref[Segment]] = {}
        self._new: list[Segment] = []
        self._mappings: dict[int, Mapping] = {}
        # Segments for which there was no room: a file and its size. There may be when they are asked for again.
        self._unmapped: dict[int, tuple[int, int]] = {}
        # Arrays are freed by the garbage collector, which may only append here.
        self._returned: deque[int] = deque()
        self._buffer = bytearray()
        self._outgoing: deque[memoryview] = deque()
        self.lines: list[socket.socket] = []

    @property
    def remote(self) -> bool:
        """Whether what was sent is lost with this machine, if the other end has not received it."""
        return self._arena is None

    def fileno(self) -> int:
        """The descriptor of the socket, for a selector."""
        return self._connection.fileno()

    def part(self, array: Array) -> ArrayPart:
        """An array as part of the next message; if it is in shared memory, it must not change after that either."""
        array = np.asarray(array, order="C")
        large = self._arena is not None and array.nbytes >= LARGE
        location = location_of(array) if large else None
        if large and location is None and (memory := self._allocate(array.nbytes)) is not None:
            copy = memory.view(array.dtype).reshape(array.shape)
            np.copyto(copy, array)
            array, location = copy, location_of(copy)
        dtype = (
            array.dtype.str if array.dtype.kind != "V" else array.dtype.name
        )  # bfloat16 and its kind have names only
        if location is None or len(self._new) >= _MOST_FILES and location[0].number not in self._known:
            return ArrayPart(array.shape, dtype, array.reshape(-1).view(np.uint8).data)
        segment, offset = location
        if segment.number not in self._known:
            self._known[segment.number] = weakref.ref(segment)
            self._new.append(segment)
        token = next(self._tokens)
        self._held[token] = array
        self._promised.append(token)
        return ArrayPart(array.shape, dtype, segment=segment.number, offset=offset, token=token)

    def _allocate(self, size: int) -> Array | None:
        return None if self._arena is None else self._arena.allocate(size)

    def withdraw(self) -> None:
        """Let go of the arrays of parts for a message that is not sent: nobody will return their tokens."""
        for token in self._promised:
            self._held.pop(token, None)
        self._promised.clear()

    def array(self, part: ArrayPart) -> Array:
        """The array of a part that was received, read-only.

        Raises:
            MemoryError: this process has no room for it.
        """
        dtype = np.dtype(part.dtype)
        if part.segment < 0:
            found = np.frombuffer(part.content, dtype).reshape(part.shape)
            found.flags.writeable = False
            return found
        if part.segment in self._unmapped:
            try:
                self._map(part.segment, *self._unmapped.pop(part.segment))
            except OSError as error:
                raise MemoryError(f"an array of {part.shape} cannot be mapped into memory: {error}") from error
        mapping = self._mappings[part.segment]
        size = dtype.itemsize * int(np.prod(part.shape))
        returned = partial(self._returned.append, part.token)
        array = Memory(mapping.address + part.offset, size, mapping, returned).array().view(dtype).reshape(part.shape)
        array.flags.writeable = False
        return array

    def send(self, message: Message | None, lines: tuple[socket.socket, ...] = (), *, wait: bool = True) -> None:
        """Send a message with its arrays, and open lines with it.

        Args:
            wait: until the other end has room for all of it; otherwise `flush` sends what is left.

        Raises:
            OSError: the other end is closed.
            MemoryError: this process has no room for it; nothing of it is sent.
        """
        forgotten = tuple(number for number, segment in self._known.items() if segment() is None)
        segments = tuple((segment.number, segment.size) for segment in self._new)
        files = [*(segment.file for segment in self._new), *(line.fileno() for line in lines)]
        returned = self._taken_back()
        content = bytearray(_LENGTH.size)
        try:
            _encoder.encode_into(Frame(message, segments, forgotten, returned, len(lines)), content, _LENGTH.size)
        except MemoryError:
            self._returned.extendleft(reversed(returned))
            self.withdraw()
            raise
        self._promised.clear()
        for number in forgotten:
            del self._known[number]
        _LENGTH.pack_into(content, 0, len(content) - _LENGTH.size)
        data = memoryview(content)
        if files:
            self.flush(wait=True)
            data = data[self._connection.send_with_files(data, files) :]
            self._new.clear()
        self._outgoing.append(data)
        self.flush(wait=wait)

    @property
    def unsent(self) -> bool:
        """Whether something is left to be sent, because the other end has had no room for it."""
        return bool(self._outgoing) or self._connection.unsent

    def flush(self, *, wait: bool = False) -> None:
        """Send what is left, or as much as the other end has room for.

        Raises:
            OSError: the other end is closed.
        """
        while self.unsent:
            data = self._outgoing[0] if self._outgoing else memoryview(b"")
            sent = self._connection.send(data, wait=wait)
            if self._outgoing and sent == len(data):
                self._outgoing.popleft()
            elif sent == 0:
                return
            else:
                self._outgoing[0] = data[sent:]

    def _taken_back(self) -> tuple[int, ...]:
        return tuple(self._returned.popleft() for _ in range(len(self._returned)))

    def give_back(self) -> None:
        """Send the tokens of arrays that are gone here, if there are any."""
        if self._returned:
            self.send(None)

    def receive(self) -> Message | None:
        """The next message; None at the end of the line."""
        while (frame := self._frame()) is not None:
            if frame.message is not None:
                return frame.message
        return None

    def receive_one(self) -> Message | None:
        """As `receive`, but only of the next frame: None too if it has no message.

        Raises:
            EOFError: the end of the line.
        """
        frame = self._frame()
        if frame is None:
            raise EOFError
        return frame.message

    def take_back(self) -> None:
        """Note what has arrived where only tokens can have, so that the other end never waits to send them."""
        with suppress(EOFError):
            self.fill()
        while self.has_more():
            self._frame()

    def fill(self) -> None:
        """Receive what has arrived, without waiting for the rest of a frame.

        Raises:
            EOFError: the end of the line.
        """
        received = False
        while True:
            most = self._most()
            try:
                content = self._connection.receive(most, wait=False)
            except (OSError, EOFError) as end:
                if received:  # who fills it again hears of it
                    return
                raise EOFError from end
            self._buffer += content
            received = True
            if len(content) < most:
                return

    def has_more(self) -> bool:
        """Whether a frame has been received, so that asking for it waits for nothing."""
        return self._missing() <= 0

    def _most(self) -> int:
        return min(max(self._missing(), _CHUNK), _LARGEST_CHUNK)

    def _missing(self) -> int:
        """How many bytes of the next frame have not been received; 0 or less if it is complete."""
        if len(self._buffer) < _LENGTH.size:
            return 1
        (length,) = _LENGTH.unpack_from(self._buffer)
        missing: int = _LENGTH.size + length - len(self._buffer)
        return missing

    def _frame(self) -> Frame | None:
        try:
            while (missing := self._missing()) > 0:
                self._buffer += self._connection.receive(self._most(), wait=True)
        except (OSError, EOFError):  # the other process has ended, or its machine is gone
            return None
        end = len(self._buffer) + missing
        if end < LARGE:
            frame = _decoder.decode(bytes(memoryview(self._buffer)[_LENGTH.size : end]))
            del self._buffer[:end]
        else:  # its arrays show the memory into which they were received
            frame = _decoder.decode(memoryview(self._buffer)[_LENGTH.size : end])
            self._buffer = self._buffer[end:]
        for number in frame.forgotten:
            self._mappings.pop(number, None)
            self._forget_unmapped(number)
        for number, size in frame.segments:
            with suppress(OSError):  # who asks for an array of it hears of it
                self._map(number, self._connection.files.popleft(), size)
        self.lines += [socket.socket(fileno=self._connection.files.popleft()) for _ in range(frame.lines)]
        for token in frame.returned:
            self._held.pop(token, None)
        return frame

    def _map(self, number: int, file: int, size: int) -> None:
        """Map a segment, whose file is kept as long as there is no room.

        Raises:
            OSError: there is none.
        """
        self._unmapped[number] = file, size
        self._mappings[number] = Mapping(file, size)
        self._forget_unmapped(number)

    def _forget_unmapped(self, number: int) -> None:
        if number in self._unmapped:
            close(self._unmapped.pop(number)[0])

    def close(self) -> None:
        """End the line. Arrays that it has brought stay as they are."""
        for number in list(self._unmapped):
            self._forget_unmapped(number)
        self._connection.close()
        self._held.clear()
