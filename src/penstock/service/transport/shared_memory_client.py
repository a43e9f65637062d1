"""A reader's end of shared memory: connections to one worker, and arrays over its memory."""

import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from penstock.errors import LostDataWorkerError, ServiceError
from penstock.runtime.memory import Memory
from penstock.runtime.shared_memory import Mapping
from penstock.service.transport.line import (
    BufferLocation,
    Credit,
    FromConsumer,
    SharedBlockFrame,
    StopFetch,
    frame,
    peer_is_this_user,
    receive,
)
from penstock.service.wire.blocks import Buffer, unpack
from penstock.service.wire.interfaces import Answer, Answers, UnreachedDataWorkerError, WrongAnswerError
from penstock.service.wire.refusals import raise_refused
from penstock.service.wire.subjects import Endpoint, Refused
from penstock.service.wire.worker_messages import Fetch


class SharedMemoryConnection:
    """A connection to a worker on this machine.

    Raises:
        UnreachedDataWorkerError: no process answers at its socket.
    """

    protocol = "shared_memory"

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._closed = False
        self._busy: set[_Line] = set()
        self._idle = [self._open()]

    def _open(self) -> "_Line":
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.connect(self._endpoint.socket)
            if not peer_is_this_user(line):
                raise PermissionError("it belongs to another user")
        except OSError as error:
            line.close()
            raise UnreachedDataWorkerError(str(self._lost(error))) from error
        return _Line(line)

    def fetch(self, request: Fetch) -> Answers:
        """As `Connection.fetch`."""
        line = self._take()
        complete = False
        try:
            self._ask(line, request)
            while not complete:
                answer = self._next(line)
                complete = not isinstance(answer, tuple)  # a refusal is an answer too
                if isinstance(answer, Refused):
                    raise_refused(answer)
                yield answer
        finally:
            self._release(line, complete)

    def _ask(self, line: "_Line", request: Fetch) -> None:
        try:
            line.send(request)
        except OSError as error:
            raise self._lost(error) from error

    def _next(self, line: "_Line") -> Answer | Refused:
        try:
            return line.next()
        except OSError as error:
            raise self._lost(error) from error

    def _take(self) -> "_Line":
        with self._lock:
            line = self._idle.pop() if self._idle else None
        if line is None:
            line = self._open()
        with self._lock:
            if self._closed:
                raise self._lost(None)
            self._busy.add(line)
        return line

    def _release(self, line: "_Line", complete: bool) -> None:
        if not complete:
            line.stop()
        with self._lock:
            self._busy.discard(line)
            if complete and not self._closed:
                self._idle.append(line)

    def _lost(self, error: OSError | None) -> LostDataWorkerError:
        if self._closed:
            return LostDataWorkerError(f"the connection to the worker at {self._endpoint.address} was closed")
        return LostDataWorkerError(f"the worker at {self._endpoint.address} cannot be reached: {error}")

    def close(self) -> None:
        """As `Connection.close`."""
        with self._lock:
            self._closed = True
            self._idle.clear()
            for line in self._busy:
                line.stop()


class _Line:
    """One socket. It stays open while any array uses memory that came through it, because closing it frees that memory.

    So arrays refer to the line, and the line closes when it is garbage-collected.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        # Before the socket warns that it was not closed, where both are garbage of one cycle, as of an exception.
        weakref.finalize(self, line.close).atexit = False
        self._process = os.getpid()
        self._mappings: dict[int, Mapping] = {}
        self._sending = threading.Lock()
        self._returned: deque[int] = deque()

    def send(self, message: FromConsumer) -> None:
        with self._sending:
            self._line.sendall(frame(message))

    def next(self) -> Answer | Refused:
        """The next piece of the answer; the worker may then send one more."""
        received = receive(self._line)
        if received is None:
            raise ConnectionResetError("its process has ended")
        message, body, files = received
        if not isinstance(message, SharedBlockFrame):
            return message
        self._map(message, files)
        answer = message.chunk, unpack(message.header, list(self._buffers(message, body)))
        self.send(Credit(blocks=1, returned=self._taken_back()))
        return answer

    def _map(self, message: SharedBlockFrame, files: list[int]) -> None:
        for number in message.forgotten:
            self._mappings.pop(number, None)
        try:
            if len(files) != len(message.segments):
                raise OSError(f"{len(message.segments)} segments came with {len(files)} files")
            for (number, size), file in zip(message.segments, files, strict=True):
                self._mappings[number] = Mapping(file, size)
        except (OSError, ValueError) as error:
            raise ServiceError(
                f"a worker's memory cannot be mapped ({error}): raise `ulimit -n`, or use "
                'data_transfer_protocol="flight"'
            ) from error
        finally:
            for file in files:
                os.close(file)

    def _buffers(self, message: SharedBlockFrame, body: Buffer) -> Iterator[Buffer]:
        start = 0
        for location in message.locations:
            if location.segment < 0:
                yield body[start : start + location.size]
                start += location.size
            else:
                yield self._shared(location)

    def _shared(self, location: BufferLocation) -> Buffer:
        mapping = self._mappings.get(location.segment)
        if mapping is None or not 0 <= location.offset <= location.offset + location.size <= mapping.size:
            raise WrongAnswerError(f"a worker names memory that it does not share: {location}")
        released = partial(self._give_back, location.token)
        return Memory(mapping.address + location.offset, location.size, mapping, released).array()

    def _give_back(self, token: int) -> None:
        """Tell the worker that no array uses this memory any more."""
        if os.getpid() != self._process:  # a forked process has copies of the arrays; the line belongs to its parent
            return
        self._returned.append(token)
        if not self._sending.acquire(blocking=False):
            return
        try:
            tokens = self._taken_back()
            try:
                self._line.send(frame(Credit(returned=tokens)), socket.MSG_DONTWAIT)
            except OSError:
                self._returned.extend(tokens)
        finally:
            self._sending.release()

    def _taken_back(self) -> tuple[int, ...]:
        tokens = []
        with suppress(IndexError):
            while True:
                tokens.append(self._returned.popleft())
        return tuple(tokens)

    def stop(self) -> None:
        """Stop the request under way; a thread that waits for it gets the end of the line."""
        with suppress(OSError):
            self.send(StopFetch())
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RD)
