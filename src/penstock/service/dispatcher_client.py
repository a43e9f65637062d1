"""A line to the dispatcher."""

import logging
import threading
import time
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from penstock.errors import ClosedError, ServiceError
from penstock.service.address import parse_service
from penstock.service.messages import FromDispatcher, Message, Refused
from penstock.service.transport.flight import open_client
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

    Raises:
        InvalidTypeError: a `service` that is neither a string nor a tuple.
        InvalidArgumentError: a malformed one.
    """

    def __init__(self, service: str | tuple[str, str], *, patience_seconds: float = 60.0) -> None:
        self.address = parse_service("DispatcherClient", service)
        self._patience = patience_seconds
        self._lock = threading.Lock()
        self._client: flight.FlightClient | None = None
        self._closed = threading.Event()

    def ask(self, message: Message, patience_seconds: float | None = None) -> Any:
        """The answer to a message: a message too.

        Args:
            patience_seconds: taken instead of the client's own; 0 tries once.

        Raises:
            ServiceError: the dispatcher could not be reached for as long.
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
        options = flight.FlightCallOptions(timeout=min(max(patience, _SHORTEST_CALL), _LONGEST_CALL))
        begun = time.monotonic()
        warn_at, pause = begun + _WARN_SECONDS, _FIRST_PAUSE
        while True:
            client = self._opened()
            try:
                (answer,) = client.do_action(flight.Action(ACTION, body), options)
                return bytes(answer.body)
            except (pa.ArrowException, OSError) as error:
                reason = str(error).partition(". gRPC client debug context")[0].strip()
                cause = error
            self._drop(client)
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

    def _opened(self) -> flight.FlightClient:
        with self._lock:
            if self._closed.is_set():
                raise ClosedError(f"the line to the dispatcher at {self.address} was closed")
            if self._client is None:
                self._client = open_client(self.address)
            return self._client

    def _drop(self, client: flight.FlightClient) -> None:
        """Connect anew at the next attempt. Other threads may still be using the line: they will do the same."""
        with self._lock:
            if self._client is client:
                self._client = None

    def close(self) -> None:
        """Let go of the line; who waits for the dispatcher gets a `ClosedError`. Twice does no harm."""
        with self._lock:
            self._closed.set()
            client, self._client = self._client, None
        if client is not None:
            client.close()
