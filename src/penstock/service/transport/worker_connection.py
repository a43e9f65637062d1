"""A reader's connection to one data worker: through shared memory on one machine, or over the network."""

import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import msgspec

from penstock.addresses import split_address
from penstock.data.block import Block
from penstock.errors import LostDataWorkerError, PenstockError, ServiceError
from penstock.rpc.line import TICK_SECONDS, Line
from penstock.rpc.listener import Address, dial
from penstock.rpc.proof import NotAdmittedError
from penstock.runtime.memory_thresholds import keep_freed_memory
from penstock.service.security.credentials import ClientCredentials, client_credentials
from penstock.service.security.handshake import not_admitted, tls_trouble
from penstock.service.transport.identity import this_machine
from penstock.service.wire.block_messages import BlockFrame, Credit, FromWorker, StopFetch
from penstock.service.wire.blocks import unpack
from penstock.service.wire.compression import AUTO, decompress
from penstock.service.wire.interfaces import (
    Answer,
    Answers,
    UnreachedDataWorkerError,
    UnusableDataWorkerError,
    WrongAnswerError,
)
from penstock.service.wire.refusals import raise_refused
from penstock.service.wire.subjects import Endpoint, Refused
from penstock.service.wire.worker_messages import Chunk, Fetch, Making

_SILENT_SECONDS: Final = 10.0
"""The silence after which a worker is lost. A user's function may hold Python's lock there for long."""

WorkerLine = Line[FromWorker]


class WorkerConnection:
    """A connection to a worker, with a line for each request that is under way.

    A host that is cut off is as silent as a worker that computes. So after some silence the worker is asked for a sign
    of life.

    Args:
        shared_memory: whether to connect to its socket on this machine, at once; otherwise nothing is sent yet.
        credentials: None takes those of this process.

    Raises:
        UnreachedDataWorkerError: no process answers at its socket.
        ServiceError: the token would go over the network without encryption.
    """

    def __init__(
        self, endpoint: Endpoint, *, shared_memory: bool, credentials: ClientCredentials | None = None
    ) -> None:
        self.protocol = "shared_memory" if shared_memory else "network"
        self._endpoint = endpoint
        self._credentials = (credentials or client_credentials()).for_worker()
        self._shared_memory = shared_memory
        self._admitted = False
        if not shared_memory:
            self._credentials.secret_for(endpoint.address, tls=endpoint.tls)  # or say why nothing is sent
        keep_freed_memory()
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()  # an answer that is forgotten ends wherever garbage is collected
        self._closed = False
        self._busy: dict[WorkerLine, int] = {}
        self._idle: list[WorkerLine] = [self._open()] if shared_memory else []

    def _open(self) -> WorkerLine:
        endpoint, tls = self._endpoint, None
        credentials = self._credentials.now()
        if self._shared_memory:
            address = Address(local=endpoint.socket.replace("@", "\0").encode())
            secret = credentials.token.encode()
        else:
            host, port = split_address(endpoint.address)
            address, tls = Address(host, int(port)), credentials.names() if endpoint.tls else None
            secret = credentials.secret_for(endpoint.address, tls=endpoint.tls)
        try:
            connection = dial(address, secret, os.getpid(), tls)
        except NotAdmittedError as error:
            refused = not_admitted("data worker", endpoint.address, secret)
            if self._admitted:  # its token was renewed, and that of this process may be soon
                raise UnreachedDataWorkerError(refused) from error
            raise UnusableDataWorkerError(refused) from error
        except OSError as error:
            reason = tls_trouble(error, endpoint.address, self._credentials, tls=endpoint.tls)
            raise UnreachedDataWorkerError(str(self._lost(reason or str(error)))) from error
        self._admitted = True
        return Line(connection, FromWorker, None, lends=True)

    def waits_for(self) -> str:
        """Say in words what a call waits for."""
        return f"the data worker at {self._endpoint.address}"

    def fetch(self, request: Fetch) -> Answers:
        """Same as `Connection.fetch`."""
        if self._shared_memory or (request.codec == AUTO and self._endpoint.machine == this_machine()):
            request = msgspec.structs.replace(request, codec="")
        number = next(self._numbers)
        line, complete = self._take(number), False
        line.gathers = True  # each block is answered by a message
        try:
            with self._translating_errors():
                line.send(request, number=number, seconds=_SILENT_SECONDS)
            while not complete:
                with self._translating_errors():
                    message = self._next(line, number)
                    complete = not isinstance(message, (BlockFrame, Making))
                    answer = self._answer(line, message, number)
                yield answer
        finally:
            self._release(line, number, complete)

    def _next(self, line: WorkerLine, number: int) -> FromWorker:
        """The next piece of the answer."""
        line.quiet, looked = 0.0, time.monotonic()
        while True:
            while line.has_more():
                message = line.receive_one()
                if message is not None and line.number == number:
                    return message
                line.drop()
            if not line.fill():
                line.connection.wait(time.monotonic() + min(TICK_SECONDS, _SILENT_SECONDS / 4))
                line.flush()
            before, looked = looked, time.monotonic()
            if line.is_silent(looked - before, _SILENT_SECONDS):
                reason = f"it has given no sign of life for {line.quiet:.0f} s"
                raise UnreachedDataWorkerError(str(self._lost(reason)))

    def _answer(self, line: WorkerLine, message: FromWorker, number: int) -> Answer:
        if isinstance(message, Refused):
            raise_refused(message)
        if not isinstance(message, BlockFrame):
            return message
        answer = block_of(line, message)
        line.send(Credit(1), number=number, seconds=_SILENT_SECONDS)
        return answer

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except PenstockError:  # some of which are of the system's kinds too
            raise
        except EOFError as error:
            raise self._lost("its process has ended") from error
        except OSError as error:
            if error.errno is None and not isinstance(error, TimeoutError):  # the line's own error
                raise WrongAnswerError(f"from the worker at {self._endpoint.address}: {error}") from error
            raise self._lost(str(error)) from error

    def _take(self, number: int) -> WorkerLine:
        with self._lock:
            line = self._idle.pop() if self._idle else None
        if line is None:
            line = self._open()
        with self._lock:
            if not self._closed:
                self._busy[line] = number
                return line
        line.close()
        raise self._lost("")

    def _release(self, line: WorkerLine, number: int, complete: bool) -> None:
        """Keep a line for the next request; one in the middle of an answer ends with the last array that it brought."""
        line.gathers = False
        if not complete:
            self._stop(line, number)
        with suppress(OSError):  # it has ended
            line.give_back()
        with self._lock:
            self._busy.pop(line, None)
            if complete and not self._closed:
                self._idle.append(line)

    def _stop(self, line: WorkerLine, number: int) -> None:
        if not self._shared_memory:
            line.connection.shut_down()
            return
        with suppress(OSError):
            line.send(StopFetch(), number=number, seconds=0)
        line.connection.shut_input()

    def _lost(self, reason: str) -> LostDataWorkerError:
        if self._closed:
            return LostDataWorkerError(f"the connection to the worker at {self._endpoint.address} was closed")
        return LostDataWorkerError(f"the worker at {self._endpoint.address} cannot be reached: {reason}")

    def close(self) -> None:
        """Same as `Connection.close`."""
        with self._lock:
            self._closed = True
            self._idle.clear()
            busy = list(self._busy.items())
        for line, number in busy:
            self._stop(line, number)


def block_of(line: WorkerLine, message: BlockFrame) -> tuple[Chunk, Block]:
    """The block of a message that was received last over a line.

    Raises:
        WrongAnswerError: its parts do not fit together.
        ConnectionError: it names memory that was not sent.
        ServiceError: this process cannot map the worker's memory, or does not know a class or a dtype.
    """
    if len(message.places) != len(message.sizes) or min(message.sizes, default=0) < 0:
        raise WrongAnswerError(f"a block came with {len(message.places)} buffers of the sizes {message.sizes}")
    try:
        content = [line.bytes_at(place) for place in message.places]
    except MemoryError as error:
        raise ServiceError(
            f'a worker\'s memory cannot be mapped ({error}): raise `ulimit -n`, or use data_transfer_protocol="network"'
        ) from error
    buffers = [decompress(message.codec, found, size) for found, size in zip(content, message.sizes, strict=True)]
    del content
    return message.chunk, unpack(message.header, buffers)
