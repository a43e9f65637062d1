"""A line between two processes: typed messages over a connection, and on one machine, arrays in shared memory.

Between machines, arrays travel behind the messages. On one machine, of a large array, its location in a segment of the
sender's arena is sent. The array stays unchanged until no array of the receiver refers to it: its token is then sent
back, and the sender may use the memory again.
"""

import itertools
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.rpc.connection import MOST_FILES, PlainConnection, SocketConnection
from penstock.rpc.frames import ALIGNMENT, LENGTHS, ArrayPart, BytesLocation, FrameTags, Header, decoder_of, padding
from penstock.runtime.memory import LARGE, Bytes, Memory, empty
from penstock.runtime.shared_memory import Arena, Mapping, Segment, location_of

Array = npt.NDArray[Any]
T = TypeVar("T")

SECONDS: Final = 300.0
"""The default time in which the other end must take or answer a message."""
SILENT_SECONDS: Final = 30.0
"""The silence after which a process is lost, although it was asked for a sign of life."""
TICK_SECONDS: Final = 1.0
"""The time between checks for silence. A longer time counts as this: it was this process that was suspended."""
_LOCK_SECONDS: Final = 0.1
"""The garbage collector may have interrupted a sender in the same thread."""
_MOST_FILES: Final = MOST_FILES - 1
"""The largest number of segments in a frame, beside a line."""
_CHUNK: Final = 1 << 16
"""The bytes received at once: several frames of small messages."""
_AT_ONCE: Final = 1 << 23
"""The bytes received before other lines have their turn."""
_MOST_PARTS: Final = 64
"""The number of buffers sent at once."""
_ZEROS: Final = memoryview(bytes(ALIGNMENT))
_ASKS: Final = 1
_LIVES: Final = 2

_encoder = msgspec.msgpack.Encoder()


class TooLongError(ConnectionError):
    """The other end has sent a frame longer than this one takes; the next one can be received."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a message of {size:,} bytes came")
        self.size = size


@dataclass
class _Unsent:
    """Bytes that are still to be sent.

    Attributes:
        files: go with the first of the bytes.
        own: those of the files that are closed then; the others are those of `segments`.
    """

    data: memoryview
    files: Sequence[int] = ()
    own: Sequence[int] = ()
    segments: Sequence[Segment] = ()

    def forget_files(self) -> None:
        for file in self.own:
            os.close(file)
        self.files = self.own = self.segments = ()


@dataclass
class _Arriving:
    """A frame that is received into separate memory; one that is too long gets none, and is discarded."""

    size: int
    received: int
    content: Bytes | None

    @property
    def complete(self) -> bool:
        return self.received == self.size


@dataclass
class _Outgoing:
    """The parts of the next message: buffers, segments that the other end does not know, and tokens."""

    buffers: list[Bytes] = field(default_factory=list)
    size: int = 0
    segments: list[Segment] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class Line(Generic[T]):
    """One end of a line. Several threads may send, and one at a time may receive.

    Args:
        connection: the socket or connection, which the line then owns.
        kind: the type of the messages that come.
        arena: where large arrays are copied that are not in shared memory yet; several lines may share it. None where
            the other end is on another machine.
        lends: whether the receiver may write into the memory that comes. It gives it back at once, in the thread that
            frees it; the line stays open as long.
        most_bytes: longer frames are not taken.
        tagged: whether each frame ends with a tag, by which the other end notices changes. The connection has been
            proved.

    Attributes:
        number: of the request that was received last, for its answer.
        quiet: the seconds since something was received last, as `is_silent` has counted them.
        lines: sockets that came with messages.
        gathers: whether freed memory is given back with the next message instead of a separate one. Set it while more
            messages are sent soon.
    """

    def __init__(
        self,
        connection: socket.socket | SocketConnection,
        kind: Any,
        arena: Arena | None,
        *,
        lends: bool = False,
        most_bytes: int = 1 << 48,
        tagged: bool = False,
    ) -> None:
        self.connection = connection if isinstance(connection, SocketConnection) else PlainConnection(connection)
        self._decode = decoder_of(Header[kind]).decode
        self._arena = arena
        self._lends = lends
        self._most_bytes = most_bytes
        self._tags = FrameTags(*self.connection.frame_keys) if tagged else None
        self._process = os.getpid()
        self._sending = threading.Lock()
        self._unsure = False
        self._pieces: deque[_Unsent] = deque()
        self._next = _Outgoing()
        self._tokens = itertools.count()
        self._held: dict[int, Bytes] = {}
        self._known: dict[int, weakref.ref[Segment]] = {}
        self._mappings: dict[int, Mapping] = {}
        # Segments for which there was no room: a file and its size. There may be when they are asked for again.
        self._unmapped: dict[int, tuple[int, int]] = {}
        # Arrays are freed by the garbage collector, which may only append here.
        self._returned: deque[int] = deque()
        self._buffer = bytearray()
        self._arriving: _Arriving | None = None
        self._body: Bytes = np.empty(0, np.uint8)
        self._came: tuple[int, ...] = ()
        self._unsure_of_input = False
        self._asked = False
        self.number = 0
        self.gathers = False
        self.quiet = 0.0
        self.lines: list[socket.socket] = []
        # Before the socket warns that it was not closed, where both are garbage of one cycle, as of an exception.
        weakref.finalize(self, self.connection.close).atexit = False

    @property
    def remote(self) -> bool:
        """Return whether sent messages are lost with this machine if the other end has not received them."""
        return self._arena is None

    def fileno(self) -> int:
        """The descriptor of the socket, for a selector."""
        return self.connection.fileno()

    # Sending

    def place(self, buffer: Bytes, *, shared: bool = True) -> BytesLocation:
        """Make contiguous bytes a part of the next message; if they are in shared memory, they must not change later.

        Args:
            shared: whether the receiver may get the bytes themselves, where they are in shared memory.
        """
        arena = self._arena if buffer.nbytes >= LARGE else None
        location = None if arena is None or not shared else location_of(buffer)
        if arena is not None and location is None and (copy := arena.allocate(buffer.nbytes)) is not None:
            np.copyto(copy, buffer)
            buffer, location = copy, location_of(copy)
        outgoing = self._next
        if location is None or len(outgoing.segments) >= _MOST_FILES and location[0].number not in self._known:
            offset = outgoing.size
            if buffer.nbytes:
                outgoing.buffers.append(buffer)
            outgoing.size += buffer.nbytes + padding(buffer.nbytes)
            return BytesLocation(buffer.nbytes, offset)
        segment, offset = location
        if segment.number not in self._known:
            self._known[segment.number] = weakref.ref(segment)
            outgoing.segments.append(segment)
        token = next(self._tokens)
        self._held[token] = buffer
        outgoing.tokens.append(token)
        return BytesLocation(buffer.nbytes, offset, segment.number, token)

    def part(self, array: Array) -> ArrayPart:
        """An array as part of the next message; if it is in shared memory, it must not change after that either."""
        array = np.asarray(array, order="C")
        # bfloat16 and its kind have names only
        dtype = array.dtype.str if array.dtype.kind != "V" else array.dtype.name
        return ArrayPart(array.shape, dtype, self.place(array.reshape(-1).view(np.uint8)))

    def withdraw(self) -> None:
        """Forget the arrays of a message that is not sent: their tokens will not be returned."""
        for token in self._next.tokens:
            self._held.pop(token, None)
        for segment in self._next.segments:
            del self._known[segment.number]
        self._next = _Outgoing()

    def send(
        self,
        message: Any,
        lines: tuple[socket.socket, ...] = (),
        *,
        number: int = 0,
        seconds: float = SECONDS,
        alive: int = 0,
    ) -> None:
        """Send a message with its arrays, and open lines with it.

        Args:
            number: of the request that it is, or that it answers.
            seconds: how long to wait until the other end has room for all of it; with 0, `flush` sends the rest.

        Raises:
            TimeoutError: it takes longer. The rest is sent by `flush` all the same.
            OSError: the other end is closed.
            MemoryError: this process has no room for it; nothing of it is sent.
        """
        if not self._sending.acquire(timeout=max(seconds, _LOCK_SECONDS)):
            raise TimeoutError("another message is being sent")
        try:
            self._queue(message, lines, number, alive)
            self._flush()
        finally:
            self._sending.release()
        if seconds:
            self.flush(seconds)

    def _queue(self, message: Any, lines: tuple[socket.socket, ...], number: int, alive: int) -> None:
        following = _Outgoing() if message is None else self._next
        returned = tuple(self._returned.popleft() for _ in range(len(self._returned)))
        forgotten = tuple(known for known, segment in list(self._known.items()) if segment() is None)
        segments = tuple((segment.number, segment.size) for segment in following.segments)
        header = Header(message, number, tuple(following.tokens), returned, segments, forgotten, len(lines), alive)
        content = bytearray(LENGTHS.size)
        try:
            _encoder.encode_into(header, content, LENGTHS.size)
        except BaseException:
            self._returned.extendleft(reversed(returned))
            self.withdraw()
            raise
        if message is not None:
            self._next = _Outgoing()
        for known in forgotten:
            del self._known[known]
        LENGTHS.pack_into(content, 0, len(content) - LENGTHS.size, following.size)
        if following.buffers:
            content += _ZEROS[: padding(len(content))]
        own = [os.dup(line.fileno()) for line in lines]  # which may be closed before there is room for them
        files = [*(segment.file for segment in following.segments), *own]
        pieces = [_Unsent(memoryview(content), files, own, following.segments)]
        for buffer in following.buffers:
            pieces.append(_Unsent(buffer.data))
            if rest := padding(buffer.nbytes):
                pieces.append(_Unsent(_ZEROS[:rest]))
        if self._tags is not None:
            pieces.append(_Unsent(self._tags.next_sent(piece.data for piece in pieces)))
        self._pieces += pieces

    @property
    def unsent(self) -> bool:
        """Return whether bytes are still to be sent, because the other end has had no room for them."""
        return bool(self._pieces) or self.connection.unsent

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes of messages that are still to be sent."""
        return sum(len(piece.data) for piece in list(self._pieces))

    def flush(self, seconds: float = 0.0) -> None:
        """Send the rest, or as much as the other end has room for within these seconds.

        Raises:
            TimeoutError: it has no room for all of it within them, if there are any.
            OSError: the other end is closed.
        """
        until = time.monotonic() + seconds
        while True:
            with self._sending:
                self._flush()
            if not self.unsent or not seconds:
                return
            if not self.connection.wait(until, to_send=True):
                raise TimeoutError(f"the other end has taken no more for {seconds:g} s")

    def _flush(self) -> None:
        """Send as much as there is room for."""
        if self._unsure:  # Ctrl-C has come between two steps here
            raise ConnectionError("this line was interrupted in the middle of a message")
        self._unsure = True
        try:
            self._send_pieces()
        except BrokenPipeError:  # an end that reads no more may still send
            while self._pieces:
                self._pieces.popleft().forget_files()
            self._unsure = False
            raise
        self._unsure = False

    def _send_pieces(self) -> None:
        while self._pieces:
            first = self._pieces[0]
            if first.files:
                sent = self.connection.send_with_files(first.data, first.files)
                if sent:
                    first.forget_files()
            else:
                parts = itertools.takewhile(lambda piece: not piece.files, itertools.islice(self._pieces, _MOST_PARTS))
                sent = self.connection.send([piece.data for piece in parts])
            if not sent:
                break
            while sent and sent >= len(self._pieces[0].data):
                sent -= len(self._pieces.popleft().data)
            if sent:
                self._pieces[0].data = self._pieces[0].data[sent:]
        if not self._pieces and self.connection.unsent:
            self.connection.send(())

    def give_back(self) -> None:
        """Send the tokens of arrays that are gone here, if there are any, without waiting.

        Raises:
            OSError: the other end is closed.
        """
        if self._returned:
            self.send(None, seconds=0)

    def _release(self, token: int) -> None:
        """Give memory back that was lent, wherever the last array over it is freed: it takes no lock."""
        if os.getpid() != self._process:  # a forked process has copies of the arrays; the line is its parent's
            return
        self._returned.append(token)
        if not self.gathers and self._sending.acquire(blocking=False):
            try:
                with suppress(OSError):
                    self._queue(None, (), 0, 0)
                    self._flush()
            finally:
                self._sending.release()

    def ask_for_life(self) -> None:
        """Ask the other end for a sign of life, unless it was asked since it has said something.

        Raises:
            OSError: the other end is closed.
        """
        if not self._asked:
            self._asked = True
            self.send(None, seconds=0, alive=_ASKS)

    def is_silent(self, seconds: float, limit: float | None = None) -> bool:
        """Return whether the other end has been silent too long; it is asked for a sign of life in time.

        Args:
            seconds: since this was asked last.
            limit: how long nothing may come; None stands for `SILENT_SECONDS`.

        Raises:
            OSError: the other end is closed.
        """
        limit = SILENT_SECONDS if limit is None else limit
        self.quiet += min(seconds, 2 * TICK_SECONDS)
        if self.quiet > limit / 3:
            self.ask_for_life()
        return self.quiet > limit

    # Receiving

    def array(self, part: ArrayPart) -> Array:
        """The array of a part that was received with the last message, read-only.

        Raises:
            MemoryError: this process has no room for it.
            ConnectionError: the other end names memory that it has not sent.
        """
        found = self.bytes_at(part.place).view(np.dtype(part.dtype)).reshape(part.shape)
        found.flags.writeable = False
        return found

    def bytes_at(self, place: BytesLocation) -> Bytes:
        """The bytes at a place that was received with the last message.

        Raises:
            MemoryError: this process has no room for them.
            ConnectionError: the other end names memory that it has not sent.
        """
        whole = self._body.nbytes
        if place.segment >= 0:
            if place.segment in self._unmapped:
                try:
                    self._map(place.segment, *self._unmapped.pop(place.segment))
                except OSError as error:
                    raise MemoryError(f"{place.size} bytes cannot be mapped into memory: {error}") from error
            mapping = self._mappings.get(place.segment)
            whole = -1 if mapping is None else mapping.size
        if not 0 <= place.offset <= place.offset + place.size <= whole:
            raise ConnectionError(f"the other end names memory that it has not sent: {place}")
        if place.segment < 0:
            return self._body[place.offset : place.offset + place.size]
        assert mapping is not None
        released = partial(self._release if self._lends else self._returned.append, place.token)
        return Memory(mapping.address + place.offset, place.size, mapping, released).array()

    def receive(self, seconds: float | None = SECONDS) -> T | None:
        """The next message; None at the end of the line, and where none comes in time."""
        until = None if seconds is None else time.monotonic() + seconds
        try:
            while True:
                while self.has_more():
                    if (message := self.receive_one()) is not None:
                        return message
                if not self.fill() and not self.connection.wait(until):
                    return None
        except (OSError, EOFError):  # the other process has ended, or its machine is gone
            return None

    def ask(self, message: Any, number: int, seconds: float = SECONDS) -> T | None:
        """Send a request, and return its answer; None as in `receive`. Answers to earlier requests are dropped."""
        self.send(message, number=number, seconds=seconds)
        return self.answer_to(number, seconds)

    def answer_to(self, number: int, seconds: float = SECONDS) -> T | None:
        """The answer to a request that was sent; None as in `receive`. Those to earlier requests are dropped."""
        until = time.monotonic() + seconds
        while (message := self.receive(max(until - time.monotonic(), 0))) is not None:
            if self.number in (number, 0):  # 0 answers a request that could not be read
                return message
            self.drop()
        return None

    def drop(self) -> None:
        """Give back the memory that came with the last message, of which no array was made."""
        self._returned.extend(self._came)
        self._came = ()

    def receive_one(self) -> T | None:
        """The message of a frame that has arrived, as `has_more` returns; None if it has none.

        Raises:
            TooLongError: the frame was too long.
            ConnectionError: the frame holds no message.
        """
        content = self._frame()
        if self._tags is not None:
            content = self._tags.checked(content)
        try:
            length, _ = LENGTHS.unpack_from(content.data)
            begin = LENGTHS.size + length
            header = self._decode(content[LENGTHS.size : begin].data)
            self._body = content[begin + padding(begin) :]
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ConnectionError(f"a frame came that holds no message: {error}") from error
        self._note_segments(header)
        for token in header.returned:
            self._held.pop(token, None)
        if header.alive == _ASKS:
            with suppress(BrokenPipeError):
                self.send(None, seconds=0, alive=_LIVES)
        self._came = header.tokens
        if header.message is not None:
            self.number = header.number
        return header.message  # type: ignore[no-any-return]  # msgspec's decoder of a generic struct has no type

    def _frame(self) -> Bytes:
        """The bytes of the first frame that has arrived."""
        arriving = self._arriving
        if self._tags is not None:
            self._tags.received += 1
        if arriving is not None:
            self._arriving = None
            self._begin()
            if arriving.content is None:
                raise TooLongError(arriving.size)
            return arriving.content
        size = self._size()
        content = np.frombuffer(self._buffer[:size], np.uint8)
        del self._buffer[:size]
        self._begin()
        return content

    def _note_segments(self, header: Header[T]) -> None:
        for number in header.forgotten:
            self._mappings.pop(number, None)
            self._forget_unmapped(number)
        files = self.connection.files
        if len(files) < len(header.segments) + header.lines:
            raise ConnectionError("fewer files have come than were sent")
        for number, size in header.segments:
            with suppress(OSError):  # `bytes_at` raises for an array of it
                self._map(number, files.popleft(), size)
        self.lines += [socket.socket(fileno=files.popleft()) for _ in range(header.lines)]

    def take_back(self) -> None:
        """Receive tokens where nothing else can arrive, so that the other end never waits to send them."""
        with suppress(EOFError, OSError):
            self.fill()
            while self.has_more():
                self.receive_one()
                self.drop()

    def fill(self) -> bool:
        """Receive bytes without waiting for the rest of a frame; return whether there were any.

        Raises:
            EOFError: the end of the line.
        """
        received = 0
        try:
            while received < _AT_ONCE or self.connection.unread:
                if self._unsure_of_input:
                    raise ConnectionError("this line was interrupted in the middle of a message")
                self._unsure_of_input = True
                count, most = self._receive_some()
                self._unsure_of_input = False
                received += count
                if count < most:
                    break
        except (OSError, EOFError) as end:
            if not received:  # otherwise the next call raises it
                raise EOFError(*end.args) from end
        if received:
            self.quiet, self._asked = 0.0, False
        return received > 0

    def _receive_some(self) -> tuple[int, int]:
        """Receive some bytes; return their number, and the number that there could have been."""
        arriving = self._arriving
        if arriving is None or arriving.complete:
            content = self.connection.receive(_CHUNK)
            self._buffer += content
            if arriving is None:
                self._begin()
            return len(content), _CHUNK
        missing = arriving.size - arriving.received
        if arriving.content is None:
            missing = min(missing, _CHUNK)
            count = len(self.connection.receive(missing))
        else:
            count = self.connection.receive_into(arriving.content[arriving.received :].data)
        arriving.received += count
        return count, missing

    def _begin(self) -> None:
        """Give a frame separate memory if it is large and has not arrived."""
        size = self._size()
        if size <= max(len(self._buffer), _CHUNK):
            return
        content = None
        if size <= self._most_bytes:
            try:
                content = empty((size,), np.dtype(np.uint8))  # which takes memory only as the bytes arrive
            except MemoryError as error:
                raise ConnectionError(f"a message of {size:,} bytes finds no memory") from error
            content[: len(self._buffer)] = np.frombuffer(self._buffer, np.uint8)
        self._arriving = _Arriving(size, len(self._buffer), content)
        self._buffer = bytearray()

    def has_more(self) -> bool:
        """Return whether a whole frame has been received, so that `receive_one` does not wait."""
        arriving = self._arriving
        if arriving is not None:
            return arriving.complete
        return len(self._buffer) >= LENGTHS.size and self._size() <= len(self._buffer)

    def _size(self) -> int:
        """The size of the frame at the beginning of the buffer; 0 if it is not known yet."""
        if len(self._buffer) < LENGTHS.size:
            return 0
        header, body = LENGTHS.unpack_from(self._buffer)
        begin: int = LENGTHS.size + header
        tag = 0 if self._tags is None else FrameTags.SIZE
        return begin + (padding(begin) + int(body) if body else 0) + tag

    def _map(self, number: int, file: int, size: int) -> None:
        """Map a segment, whose file is kept as long as there is no room.

        Raises:
            OSError: there is none.
        """
        self._unmapped[number] = file, size
        self._mappings[number] = Mapping(file, size, writable=self._lends)
        self._forget_unmapped(number)

    def _forget_unmapped(self, number: int) -> None:
        if number in self._unmapped:
            os.close(self._unmapped.pop(number)[0])

    def close(self) -> None:
        """End the line. Arrays that it has brought stay valid."""
        for number in list(self._unmapped):
            self._forget_unmapped(number)
        self.connection.close()
        sending = self._sending.acquire(timeout=_LOCK_SECONDS)  # another thread may be between two steps of a message
        try:
            while self._pieces:
                self._pieces.popleft().forget_files()
        finally:
            if sending:
                self._sending.release()
        self._held.clear()
