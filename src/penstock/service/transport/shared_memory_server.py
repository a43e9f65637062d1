"""A worker's end of shared memory: one thread for each line with requests, which answers them in order.

Columns in the arena are sent without a copy, unless they are read-only: those are also used in the worker.
Memory stays allocated while a reader uses it. It is freed when its token comes back, or at the end of the line, which
readers keep open while they use any of it.
"""

import itertools
import logging
import select
import socket
import threading
import weakref
from contextlib import closing, suppress

import numpy as np

from penstock.data.block import Block
from penstock.errors import ServiceError
from penstock.runtime.memory import LARGE, allocate_from, no_longer_from
from penstock.runtime.shared_memory import Arena, Segment, location_of
from penstock.service.transport.accepting import AcceptedConnections
from penstock.service.transport.line import (
    MOST_FILES,
    BufferLocation,
    Credit,
    SharedBlockFrame,
    StopFetch,
    listen,
    receive_request,
    send,
)
from penstock.service.wire.blocks import Buffer, pack
from penstock.service.wire.interfaces import Produce
from penstock.service.wire.refusals import refusal_of
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, Pause

_logger = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0
MOST_LINES = 512
"""How many readers are answered at the same time, each by a thread; lines of others are closed."""


class SharedMemoryServer:
    """Serves a worker's blocks to readers on this machine. While it runs, large arrays are allocated in its arena.

    Attributes:
        path: of its socket, for `Endpoint.socket`.
        arena: the memory of large arrays.
    """

    def __init__(self, produce: Produce) -> None:
        self._produce = produce
        self.arena = Arena()
        self._lock = threading.Lock()
        self._lines: dict[socket.socket, threading.Thread] = {}
        self._stopped = threading.Event()
        self._listener, self._path = listen()
        self.path = str(self._path)
        allocate_from(self.arena.allocate)
        connections = AcceptedConnections(self._listener, self._begin, self._stopped)
        self._thread = threading.Thread(target=connections.run, name="penstock-socket", daemon=True)
        self._thread.start()

    def _begin(self, line: socket.socket) -> None:
        """Answer the requests of a line, in a thread of its own."""
        with self._lock:
            if self._stopped.is_set() or len(self._lines) >= MOST_LINES:
                line.close()
                return
            thread = threading.Thread(target=self._serve, args=(line,), name="penstock-line", daemon=True)
            self._lines[line] = thread
            try:
                thread.start()
            except RuntimeError as error:  # no thread can be started now; later lines may get one
                _logger.warning("a line from a consumer was not taken: %s", error)
                del self._lines[line]
                line.close()

    def _serve(self, line: socket.socket) -> None:
        server_line = _ServerLine(line, self.arena)
        try:
            while (message := server_line.next()) is not None:
                if isinstance(message, Fetch):
                    self._answer(server_line, message)
        except ConnectionError:  # the reader has ended
            return
        except (OSError, ServiceError) as error:
            _logger.warning("a line to a consumer has ended: %s", error)
        finally:
            with self._lock:
                self._lines.pop(line, None)
            line.close()

    def _answer(self, line: "_ServerLine", request: Fetch) -> None:
        line.begin()
        try:
            with closing(self._produce(request)) as answers:
                for answer in answers:
                    if self._stopped.is_set() or not line.wants_more():
                        return
                    if not isinstance(answer, tuple):
                        line.send(answer)
                        return
                    line.send_block(*answer)
        except BrokenPipeError:  # the reader is gone; memory that was sent may still be in use
            return
        except Exception as error:
            line.refuse(error)

    def stop(self) -> None:
        """End all lines. Memory that readers use stays theirs."""
        with self._lock:
            self._stopped.set()
            lines = dict(self._lines)
        no_longer_from(self.arena.allocate)
        for line in lines:
            _shut(line)
        with socket.socket(socket.AF_UNIX) as last, suppress(OSError):  # wakes the thread that waits for lines
            last.connect(self.path)
        self._path.unlink(missing_ok=True)
        for thread in (self._thread, *lines.values()):
            thread.join(_JOIN_SECONDS)
        self._listener.close()
        self.arena.close()


def _shut(line: socket.socket) -> None:
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # it had ended by itself
        _logger.debug("a line was closed already: %s", error)


class _ServerLine:
    """The state of one line."""

    def __init__(self, line: socket.socket, arena: Arena) -> None:
        self._line = line
        self._arena = arena
        self._held: dict[int, Buffer] = {}
        self._tokens = itertools.count()
        self._known: dict[int, weakref.ref[Segment]] = {}
        self._credit = 0
        self._stopped = False
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)

    def begin(self) -> None:
        """Note a request: its first block may be sent at once."""
        self._credit = 1
        self._stopped = False

    def next(self) -> Fetch | Credit | StopFetch | None:
        """The reader's next message, once it is noted; None at the end of the line."""
        message = receive_request(self._line)
        if isinstance(message, Credit):
            self._credit += message.blocks
            for token in message.returned:
                self._held.pop(token, None)
        elif isinstance(message, StopFetch):
            self._stopped = True
        return message

    def wants_more(self) -> bool:
        """Wait until the reader accepts another block; returns whether it does."""
        while not self._stopped and (self._credit == 0 or self._poll.poll(0)):
            if self.next() is None:
                return False
        return not self._stopped

    def send(self, message: End | Failed | Pause) -> None:
        """Send a message other than a block."""
        send(self._line, message)

    def refuse(self, error: Exception) -> None:
        """Send a refusal, if anybody listens."""
        try:
            send(self._line, refusal_of(error))
        except BrokenPipeError:
            return

    def send_block(self, chunk: Chunk, block: Block) -> None:
        """Send a block: its columns in the arena, or copies of them."""
        header, buffers = pack(block)
        new: list[Segment] = []
        body: list[Buffer] = []
        locations = tuple(self._located(buffer, new, body) for buffer in buffers)
        forgotten = tuple(number for number, segment in self._known.items() if segment() is None)
        for number in forgotten:
            del self._known[number]
        message = SharedBlockFrame(chunk, header, locations, tuple((s.number, s.size) for s in new), forgotten)
        send(self._line, message, body, [segment.file for segment in new])
        self._credit -= 1

    def _located(self, buffer: Buffer, new: list[Segment], body: list[Buffer]) -> BufferLocation:
        # Read-only arrays are used here too, and readers may write into what they get, so these are copied.
        location = location_of(buffer) if buffer.flags.writeable else None
        if location is None and buffer.size >= LARGE and (copy := self._arena.allocate(buffer.size)) is not None:
            np.copyto(copy, buffer)
            buffer, location = copy, location_of(copy)
        if location is None or len(new) >= MOST_FILES and location[0].number not in self._known:
            body.append(buffer)
            return BufferLocation(buffer.size)
        segment, offset = location
        if segment.number not in self._known:
            self._known[segment.number] = weakref.ref(segment)
            new.append(segment)
        token = next(self._tokens)
        self._held[token] = buffer
        return BufferLocation(buffer.size, segment.number, offset, token)
