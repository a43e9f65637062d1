"""A worker's Arrow Flight server, for readers on any host.

The ticket of a `do_get` is an encoded `Fetch`. Every record batch of the stream is a block: one row, whose columns are
the block's buffers (`wire/blocks.py`), with a frame as metadata that describes them. An end, a failure or a refusal is
a frame with an empty batch, the last of the stream.
"""

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import flight

from penstock.addresses import split_address
from penstock.data.block import Block
from penstock.errors import InvalidArgumentError
from penstock.service.security.credentials import ServerCredentials, server_credentials
from penstock.service.transport.flight_tokens import ALIVE, TokenCheckedServer
from penstock.service.wire.blocks import BlockHeader, Buffer, pack
from penstock.service.wire.compression import AUTO, AutomaticCodec, compress
from penstock.service.wire.interfaces import Produce
from penstock.service.wire.refusals import refusal_of
from penstock.service.wire.subjects import UNDECODABLE, Refused
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, Pause


class BlockFrame(msgspec.Struct, frozen=True, tag="block"):
    """The metadata of a block. A buffer that is smaller than its size here is compressed with `codec`."""

    chunk: Chunk
    header: BlockHeader
    sizes: tuple[int, ...]
    codec: str


_fetch_decoder = msgspec.msgpack.Decoder(Fetch)

_STOP_SECONDS = 2.0
_LONGEST_TICKET = 1 << 16
LARGEST_BLOCK = (1 << 31) - (1 << 20)
"""gRPC's messages have less than 2 GiB."""

_Stream = Generator[tuple[pa.RecordBatch, bytes], None, None]


class FlightServer(TokenCheckedServer):
    """Serves a worker's blocks to readers on any host.

    Args:
        host: the address to listen at.
        port: 0 for one that the system chooses; the attribute `port` says which.
        credentials: what readers must show; None requires this user's token.
    """

    def __init__(
        self,
        produce: Produce,
        host: str = "127.0.0.1",
        port: int = 0,
        credentials: ServerCredentials | None = None,
    ) -> None:
        super().__init__(host, port, credentials or server_credentials("FlightServer", host=host))
        self._produce = produce
        self._stopped = threading.Event()
        self._automatic = lru_cache(maxsize=256)(lambda _host, _dataset_id: AutomaticCodec())
        # Started now: while the interpreter ends, some versions of Python start no thread.
        self._stopping = threading.Thread(target=self._stop_when_told, name="penstock-flight-stop", daemon=True)
        self._stopping.start()

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Flight's call for a stream."""
        self.let_in(context)
        if len(ticket.ticket) > _LONGEST_TICKET:
            raise flight.FlightServerError(f"the ticket is no request: it has {len(ticket.ticket)} bytes")
        try:
            request = _fetch_decoder.decode(ticket.ticket)
        except UNDECODABLE as error:
            raise flight.FlightServerError(f"the ticket is no request: {error}") from error
        host = split_address(context.peer())[0]
        automatic = self._automatic(host, request.dataset_id) if request.codec == AUTO else None
        stream = self._stream(request, automatic)
        first = next(stream, None)
        if first is None:
            raise flight.FlightUnavailableError("the worker was stopped")
        return flight.GeneratorStream(first[0].schema, _prepend(first, stream))

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        """Flight's call for anything else: `ALIVE` is answered with nothing."""
        self.let_in(context)
        if action.type != ALIVE:
            raise NotImplementedError(f"a worker does not know {action.type}")
        return iter(())

    def _stream(self, request: Fetch, automatic: AutomaticCodec | None) -> _Stream:
        names: list[str] = []
        try:
            with closing(self._produce(request)) as answers:
                for answer in answers:
                    if self._stopped.is_set():
                        return
                    if not isinstance(answer, tuple):
                        yield _last(answer, names)
                        return
                    names = _names(answer[1])
                    yield from self._block(request, *answer, automatic)
        except Exception as error:
            yield _last(refusal_of(error), names)

    def _block(self, request: Fetch, chunk: Chunk, block: Block, automatic: AutomaticCodec | None) -> _Stream:
        header, buffers = pack(block)
        size = sum(buffer.size for buffer in buffers)
        if size > LARGEST_BLOCK:
            raise InvalidArgumentError(
                f"a block of {size} bytes does not fit into a message of Arrow Flight: make batches smaller"
            )
        codec = request.codec if automatic is None else automatic.codec
        frame = BlockFrame(chunk, header, tuple(buffer.size for buffer in buffers), codec)
        batch = _batch(_names(block), compress(codec, buffers))
        start = time.perf_counter()
        yield batch, msgspec.msgpack.encode(frame)
        if automatic is not None and not codec:
            automatic.sent(buffers, time.perf_counter() - start)

    def stop(self) -> None:
        """End all streams; wait a limited time for calls that are in a user's function.

        A stream to a reader that does not read would last as long as the reader, and this process with it.
        """
        self._stopped.set()
        self._stopping.join(_STOP_SECONDS)
        if self._stopping.is_alive():
            self.end_connections()
            self._stopping.join(_STOP_SECONDS)

    def _stop_when_told(self) -> None:
        self._stopped.wait()
        self.shutdown()


def _prepend(first: Any, rest: _Stream) -> _Stream:
    try:
        yield first
        yield from rest
    finally:
        rest.close()


def _names(block: Block) -> list[str]:
    return [str(number) for number in range(len(block.columns))]


def _schema(names: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, pa.large_binary()) for name in names])


def _batch(names: Sequence[str], buffers: Sequence[Buffer]) -> pa.RecordBatch:
    arrays = [
        pa.Array.from_buffers(
            pa.large_binary(), 1, [None, pa.py_buffer(np.array([0, buffer.size], np.int64)), pa.py_buffer(buffer)]
        )
        for buffer in buffers
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(names))


def _last(message: End | Failed | Pause | Refused, names: Sequence[str]) -> tuple[pa.RecordBatch, bytes]:
    arrays = [pa.array([], pa.large_binary()) for _ in names]
    return pa.RecordBatch.from_arrays(arrays, schema=_schema(names)), msgspec.msgpack.encode(message)
