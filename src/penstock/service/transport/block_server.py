"""A data worker's end of its lines to readers: one thread hears all of them, and one for each line makes its blocks.

On one machine, columns in the arena are sent without a copy, unless they are read-only: those are also used in the
worker. Memory stays allocated while a reader uses it, or until its line ends.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import lru_cache
from queue import SimpleQueue
from typing import Final

from penstock.data.block import Block
from penstock.errors import InvalidArgumentError
from penstock.rpc.connection import SocketConnection
from penstock.rpc.line import Line, TooLongError
from penstock.rpc.listener import Access, Listener
from penstock.rpc.server import LineServer
from penstock.runtime.memory import allocate_from, no_longer_from
from penstock.runtime.shared_memory import Arena
from penstock.service.wire.block_messages import BlockFrame, Credit, FromReader
from penstock.service.wire.blocks import pack
from penstock.service.wire.compression import AUTO, AutomaticCodec, compress
from penstock.service.wire.interfaces import Produce
from penstock.service.wire.refusals import refusal_of
from penstock.service.wire.worker_messages import Chunk, Fetch, Making

_logger = logging.getLogger(__name__)

_Automatic = Callable[[str, str], AutomaticCodec]
"""The codec between this worker and a host, for a dataset."""

LARGEST_BLOCK: Final = (1 << 31) - (1 << 20)
"""The largest block between machines, in bytes; a larger one is nearly always a mistake."""
_LONGEST_REQUEST: Final = 1 << 20
_JOIN_SECONDS: Final = 2.0
_SENDING_SECONDS: Final = 3600.0
"""The longest wait of a block for the reader that requested it, whose program may do something else meanwhile."""


class BlockServer:
    """Serves a worker's blocks. While it runs, large arrays are allocated in its arena.

    Args:
        access: returns who may connect.
        host: the address to listen at.
        port: 0 for one that the system chooses.

    Attributes:
        port: where it listens.
        socket: the name of its socket for readers on this machine, for `Endpoint.socket`; "" where it has none.
        arena: the memory of large arrays.
    """

    def __init__(self, produce: Produce, access: Callable[[], Access], host: str = "127.0.0.1", port: int = 0) -> None:
        listener = Listener(access, host.strip("[]"), port, local=sys.platform == "linux")
        self.port, self.socket = listener.port, listener.local.replace(b"\0", b"@").decode()
        self.arena = Arena()
        self._produce = produce
        self._readers: dict[Line[FromReader], _Reader] = {}
        self._automatic = lru_cache(maxsize=256)(lambda _host, _dataset_id: AutomaticCodec())
        if self.socket:
            allocate_from(self.arena.allocate)
        self._server = LineServer("penstock-lines", listener, self._open, self._hear, self._end)

    def _open(self, caller: int, connection: SocketConnection) -> Line[FromReader]:
        arena = self.arena if connection.on_one_machine else None
        line: Line[FromReader] = Line(connection, FromReader, arena, most_bytes=_LONGEST_REQUEST)
        self._readers[line] = _Reader(line, self._produce, self._automatic)
        return line

    def _hear(self, line: Line[FromReader], message: FromReader | TooLongError) -> None:
        if isinstance(message, TooLongError):
            raise message
        self._readers[line].hear(message, line.number)

    def _end(self, line: Line[FromReader], error: Exception) -> None:
        self._readers.pop(line).end()

    def stop(self) -> None:
        """End all lines; wait a limited time for calls of users' functions. Memory of readers stays theirs."""
        readers = list(self._readers.values())
        if self.socket:
            with suppress(ValueError):  # it was stopped already
                no_longer_from(self.arena.allocate)
        self._server.stop()
        until = time.monotonic() + _JOIN_SECONDS
        for reader in readers:
            reader.join(until)
        self.arena.close()


class _Reader:
    """A line to a reader, whose requests are answered in order."""

    def __init__(self, line: Line[FromReader], produce: Produce, automatic: _Automatic) -> None:
        self._line = line
        self._host = line.connection.host
        self._produce = produce
        self._automatic = automatic
        self._requests: SimpleQueue[tuple[Fetch, int] | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._credit: dict[int, int] = {}
        self._ended = False
        self._thread: threading.Thread | None = None  # until the first request there is none

    def hear(self, message: FromReader, number: int) -> None:
        """Handle a message of the reader, in the thread that hears all lines."""
        if isinstance(message, Fetch):
            with self._changed:
                self._credit[number] = 1  # the first block may be sent at once
            self._requests.put((message, number))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="penstock-line", daemon=True)
                self._thread.start()
            return
        with self._changed:
            if isinstance(message, Credit):
                if number in self._credit:
                    self._credit[number] += message.blocks
            else:
                self._credit.pop(number, None)
            self._changed.notify_all()

    def end(self) -> None:
        """Note the end of the line."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._requests.put(None)

    def join(self, until: float) -> None:
        """Wait for the thread, until then."""
        if self._thread is not None:
            self._thread.join(max(until - time.monotonic(), 0))

    def _serve(self) -> None:
        while (entry := self._requests.get()) is not None:
            try:
                self._answer(*entry)
            except OSError as error:  # the reader is gone, or wants no more; it may still use memory that was sent
                _logger.debug("an answer was not taken: %r", error)
                if isinstance(error, TimeoutError):
                    self._line.connection.shut_down()
            finally:
                with self._changed:
                    self._credit.pop(entry[1], None)

    def _answer(self, request: Fetch, number: int) -> None:
        try:
            with closing(self._produce(request)) as answers:
                for answer in answers:
                    if isinstance(answer, Making):
                        self._line.send(answer, number=number)
                        continue
                    if not self._wants_more(number):
                        return
                    if not isinstance(answer, tuple):
                        self._line.send(answer, number=number)
                        return
                    self._send_block(request, number, *answer)
        except OSError:
            raise
        except Exception as error:
            self._line.withdraw()
            self._line.send(refusal_of(error), number=number)

    def _wants_more(self, number: int) -> bool:
        """Wait until the reader accepts another block; return whether it does."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._credit.get(number, 1) > 0)
            if self._ended or number not in self._credit:
                return False
            self._credit[number] -= 1
            return True

    def _send_block(self, request: Fetch, number: int, chunk: Chunk, block: Block) -> None:
        line = self._line
        header, buffers = pack(block)
        sizes = tuple(buffer.size for buffer in buffers)
        if not line.remote:
            # Readers may write into their arrays. Read-only ones are used here too, so these are copied.
            places = tuple(line.place(buffer, shared=buffer.flags.writeable) for buffer in buffers)
            line.send(BlockFrame(chunk, header, places, sizes), number=number, seconds=_SENDING_SECONDS)
            return
        if sum(sizes) > LARGEST_BLOCK:
            raise InvalidArgumentError(
                f"a block of {sum(sizes)} bytes is too large to be sent between machines: make batches smaller"
            )
        automatic = self._automatic(self._host, request.dataset_id) if request.codec == AUTO else None
        codec = request.codec if automatic is None else automatic.codec
        places = tuple(map(line.place, compress(codec, buffers)))
        start = time.perf_counter()
        line.send(BlockFrame(chunk, header, places, sizes, codec), number=number, seconds=_SENDING_SECONDS)
        if automatic is not None and not codec:
            automatic.sent(buffers, time.perf_counter() - start)
