"""A reader's Arrow Flight client; `flight.py` describes the messages."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import flight

from penstock.errors import LostDataWorkerError
from penstock.runtime.memory import Memory
from penstock.runtime.memory_thresholds import keep_freed_memory
from penstock.service.security.credentials import ClientCredentials, client_credentials
from penstock.service.transport.flight import LARGEST_BLOCK, BlockFrame
from penstock.service.transport.flight_tokens import ALIVE, Line, refused_at_the_door
from penstock.service.transport.identity import this_machine
from penstock.service.transport.opening import OpeningCall
from penstock.service.transport.watch import Watch
from penstock.service.wire.blocks import Buffer, unpack
from penstock.service.wire.compression import AUTO, decompress
from penstock.service.wire.interfaces import (
    Answer,
    Answers,
    UnreachedDataWorkerError,
    UnusableDataWorkerError,
    WrongAnswerError,
)
from penstock.service.wire.refusals import raise_refused
from penstock.service.wire.subjects import UNDECODABLE, Endpoint, Refused
from penstock.service.wire.worker_messages import End, Failed, Fetch, Pause

_QUIET_SECONDS = 2.0
_ANSWER_SECONDS = 8.0
"""Long, because a user's function may hold Python's lock in the worker for that long."""
_OFFSET_BYTES = 8

_decoder = msgspec.msgpack.Decoder(BlockFrame | End | Failed | Pause | Refused)


class FlightConnection:
    """A connection to a worker on any host.

    A host that is cut off is as silent as a worker that computes. So after some silence the worker is asked whether it
    is alive; one that does not answer in time is lost.
    """

    protocol = "flight"

    def __init__(self, endpoint: Endpoint, credentials: ClientCredentials | None = None) -> None:
        self._address = endpoint.address
        self._same_machine = endpoint.machine == this_machine()
        self._line = Line(endpoint.address, credentials or client_credentials(), tls=endpoint.tls)
        self._lock = threading.Lock()
        keep_freed_memory()
        self._streams: set[flight.FlightStreamReader] = set()
        self._waiting: dict[flight.FlightStreamReader | OpeningCall, float] = {}
        self._closed = threading.Event()
        self._reached = False
        self._silent: Exception | None = None
        self._asking: threading.Thread | None = None

    def fetch(self, request: Fetch) -> Answers:
        """As `Connection.fetch`."""
        if request.codec == AUTO and self._same_machine:
            request = msgspec.structs.replace(request, codec="")
        reader = self._open(request)
        try:
            self._streams.add(reader)
            while True:
                answer = self._next(reader)
                yield answer
                if not isinstance(answer, tuple):
                    return
        finally:
            self._streams.discard(reader)
            reader.cancel()

    def _open(self, request: Fetch) -> flight.FlightStreamReader:
        with self._lock:
            if self._closed.is_set():
                raise self._lost(None)
            _watch.add(self)
        opening = OpeningCall(partial(self._first_frame, flight.Ticket(msgspec.msgpack.encode(request))))
        with self._cancel_if_silent(opening):
            return opening.reader()

    def _first_frame(self, ticket: flight.Ticket) -> flight.FlightStreamReader:
        if not self._reached:
            with self._translating_errors(UnreachedDataWorkerError):
                self._check_alive()
            self._reached = True
        return self._line.client.do_get(ticket, self._line.options())

    def _next(self, reader: flight.FlightStreamReader) -> Answer:
        try:
            with self._cancel_if_silent(reader):
                received = reader.read_chunk()
        except StopIteration:
            raise LostDataWorkerError(f"the worker at {self._address} was stopped") from None
        try:
            message = _decoder.decode(received.app_metadata.to_pybytes())
        except UNDECODABLE as error:
            raise WrongAnswerError(f"what came from the worker at {self._address} is no message: {error}") from error
        if isinstance(message, BlockFrame):
            return message.chunk, unpack(message.header, list(_buffers(received.data, message)))
        if isinstance(message, Refused):
            raise_refused(message)
        return message  # type: ignore[no-any-return]  # msgspec's decoder of a union has no type

    @contextmanager
    def _cancel_if_silent(self, call: "flight.FlightStreamReader | OpeningCall") -> Iterator[None]:
        """End a call if the worker is silent during it, or the connection is closed."""
        with self._lock:
            if self._closed.is_set():
                call.cancel()
                raise self._lost(None)
            self._waiting[call] = time.monotonic()
        try:
            with self._translating_errors(LostDataWorkerError):
                yield
        finally:
            with self._lock:
                del self._waiting[call]

    @contextmanager
    def _translating_errors(self, kind: type[LostDataWorkerError]) -> Iterator[None]:
        """Turn errors of Flight into errors of the service: `kind`, if the worker may have died."""
        try:
            yield
        except flight.FlightUnauthenticatedError as error:
            raise UnusableDataWorkerError(refused_at_the_door("data worker", self._address, error)) from error
        except (pa.ArrowException, OSError) as error:
            if self._silent is not None:
                raise self._lost(self._silent, UnreachedDataWorkerError) from error
            raise self._lost(error, kind) from error

    def _lost(
        self, error: Exception | None, kind: type[LostDataWorkerError] = LostDataWorkerError
    ) -> LostDataWorkerError:
        if self._closed.is_set():
            return kind(f"the connection to the worker at {self._address} was closed")
        reason = (error and self._line.tls_trouble(error)) or str(error).partition(". gRPC client debug context")[0]
        return kind(f"the worker at {self._address} cannot be reached: {reason}")

    def is_quiet(self) -> bool:
        """As `Watched.is_quiet`."""
        with self._lock:
            return bool(self._quiet()) and (self._asking is None or not self._asking.is_alive())

    def _quiet(self) -> list[flight.FlightStreamReader | OpeningCall]:
        limit = time.monotonic() - _QUIET_SECONDS
        return [call for call, since in self._waiting.items() if since < limit]

    def begin_asking(self) -> None:
        """As `Watched.begin_asking`; without an answer, all streams end."""
        with self._lock:
            if self._closed.is_set():
                return
            self._asking = threading.Thread(target=self._ask, name="penstock-ask", daemon=True)
            self._asking.start()

    def _ask(self) -> None:
        with self._lock:
            quiet = self._quiet()
        try:
            self._check_alive()
        except (pa.ArrowException, OSError) as error:
            self._silent = error
            for call in quiet:
                call.cancel()
            return
        with self._lock:
            self._waiting.update({call: time.monotonic() for call in quiet if call in self._waiting})

    def _check_alive(self) -> None:
        list(self._line.client.do_action(ALIVE, self._line.options(_ANSWER_SECONDS)))

    def close(self) -> None:
        """As `Connection.close`. It does not wait for a worker that is being asked whether it is alive."""
        with self._lock:
            self._closed.set()
            calls = {*self._waiting, *self._streams}
        _watch.remove(self)
        for call in calls:
            call.cancel()


_watch = Watch(lambda: _QUIET_SECONDS / 2)


def _buffers(batch: pa.RecordBatch, frame: BlockFrame) -> Iterator[Buffer]:
    if len(frame.sizes) != batch.num_columns or min(frame.sizes, default=0) < 0 or sum(frame.sizes) > LARGEST_BLOCK:
        raise WrongAnswerError(f"a block claims to have columns of {frame.sizes} bytes, and {batch.num_columns} came")
    for column, size in zip(batch.columns, frame.sizes, strict=True):
        yield decompress(frame.codec, _content(column), size)


def _content(column: pa.Array) -> Buffer:
    """The bytes of a column's only value, without a copy, which an Arrow scalar would make."""
    _, offsets, content = column.buffers()
    if len(column) != 1 or offsets is None or content is None or offsets.size < (column.offset + 2) * _OFFSET_BYTES:
        raise WrongAnswerError(f"a block has a column of {len(column)} values, expected one")
    start, stop = map(int, np.frombuffer(offsets, np.int64, 2, column.offset * _OFFSET_BYTES))
    if not 0 <= start <= stop <= content.size:
        raise WrongAnswerError(f"a block has a column from byte {start} to byte {stop} of {content.size}")
    return Memory(content.address + start, stop - start, owner=content).array()
