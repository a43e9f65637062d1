"""A line to the dispatcher."""

import logging
import threading
import time
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from penstock.errors import ClosedError, ServiceError
from penstock.service.address import TLS_PROTOCOL, parse_service
from penstock.service.credentials import ClientCredentials, credentials_for
from penstock.service.messages import FromDispatcher
from penstock.service.subjects import Message, Refused
from penstock.service.transport.guard import Line, refused_at_the_door
from penstock.service.transport.refusals import raise_refused

_logger = logging.getLogger(__name__)

ACTION: Final = "penstock"
"""The name of the Flight action that carries messages."""

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_WARN_SECONDS: Final = 1.0
_WARN_AGAIN_SECONDS: Final = 30.0
_SHORTEST_CALL: Final = 2.0
_LONGEST_CALL: Final = 30.0

_decoder = msgspec.msgpack.Decoder(FromDispatcher)


class DispatcherClient:
    """Asks a dispatcher, and asks again while it cannot be reached. Several threads may ask at the same time.

    A message that is sent again may have been carried out before: all of them bear that. Nothing is sent before the
    first call of `ask`.

    Args:
        service: as `distribute` takes it.
        patience_seconds: for how long a dispatcher that cannot be reached is tried.
        credentials: what it is shown; None takes those of this process.

    Raises:
        InvalidTypeError: a `service` that is neither a string nor a tuple.
        InvalidArgumentError: a malformed one.
    """

    def __init__(
        self,
        service: str | tuple[str, str],
        *,
        patience_seconds: float = 60.0,
        credentials: ClientCredentials | None = None,
    ) -> None:
        self.address = parse_service("DispatcherClient", service)
        self.credentials = credentials or credentials_for(self.address)
        self._patience = patience_seconds
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._closed = threading.Event()

    def ask(self, message: Message, patience_seconds: float | None = None) -> Any:
        """The answer to a message: a message too.

        Args:
            patience_seconds: taken instead of the client's own; 0 tries once.

        Raises:
            ServiceError: the dispatcher could not be reached for as long, or does not take this process's token.
            PenstockError: it refused; as what it says.
            ClosedError: the client was closed.
        """
        body = msgspec.msgpack.encode(message)
        patience = self._patience if patience_seconds is None else patience_seconds
        reply = _decoder.decode(self._reach(body, patience))
        if isinstance(reply, Refused):
            raise_refused(reply)
        return reply

    def _reach(self, body: bytes, patience: float) -> bytes:
        seconds = min(max(patience, _SHORTEST_CALL), _LONGEST_CALL)
        begun = time.monotonic()
        warn_at, pause = begun + _WARN_SECONDS, _FIRST_PAUSE
        while True:
            line = self._opened()
            try:
                (answer,) = line.client.do_action(flight.Action(ACTION, body), line.options(seconds))
                return bytes(answer.body)
            except flight.FlightUnauthenticatedError as error:
                raise ServiceError(refused_at_the_door("dispatcher", self.address, error)) from error
            except (pa.ArrowException, OSError) as error:
                reason = str(error).partition(". gRPC client debug context")[0].strip()
                cause = error
            self._drop(line)
            now = time.monotonic()
            if now >= begun + patience:
                raise ServiceError(
                    f"the dispatcher at {self.address} cannot be reached, tried for {now - begun:.1f} s: {reason}. Is "
                    "it running (`penstock dispatcher`), and is this its address?"
                ) from cause
            if now >= warn_at:
                warn_at = now + _WARN_AGAIN_SECONDS
                _logger.warning(
                    "waiting for the dispatcher at %s, for %.0f s at most: %s", self.address, patience, reason
                )
            self._closed.wait(min(pause, begun + patience - now))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _opened(self) -> Line:
        with self._lock:
            if self._closed.is_set():
                raise ClosedError(f"the line to the dispatcher at {self.address} was closed")
            if self._line is None:
                protocol, _, address = self.address.rpartition("://")
                self._line = Line(address, self.credentials, tls=protocol == TLS_PROTOCOL)
            return self._line

    def _drop(self, line: Line) -> None:
        """Connect anew at the next attempt. Other threads may still be using the line: they will do the same."""
        with self._lock:
            if self._line is line:
                self._line = None

    def connect_anew(self) -> None:
        """At the next message, look again at who listens there: lines reconnect by themselves, to whoever does."""
        with self._lock:
            self._line = None

    def close(self) -> None:
        """Let go of the line; who waits for the dispatcher gets a `ClosedError`. Twice does no harm."""
        with self._lock:
            self._closed.set()
            self._line = None
