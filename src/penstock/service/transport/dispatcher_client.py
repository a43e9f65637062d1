"""The connection to the dispatcher."""

import logging
import threading
import time
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import flight

from penstock.errors import ClosedError, PenstockError, ServiceError, StorageError
from penstock.printing import many_lines
from penstock.service.security.credentials import ClientCredentials
from penstock.service.security.resolving import (
    Place,
    Service,
    check_not_ended,
    checked_service,
    described,
    is_resolved,
    place_of,
)
from penstock.service.transport.flight_tokens import Line, refused_at_the_door
from penstock.service.wire.address import TLS_PROTOCOL
from penstock.service.wire.dispatcher_answers import check_answer
from penstock.service.wire.dispatcher_messages import FromDispatcher
from penstock.service.wire.envelope import NO_ENTRY, ProtocolError, sealed, unsealed
from penstock.service.wire.refusals import raise_refused
from penstock.service.wire.subjects import Message, Refused

_logger = logging.getLogger(__name__)

ACTION: Final = "penstock"
"""The name of the Flight action that carries messages."""

PATIENCE_SECONDS: Final = 300.0
"""By default, how long a reader keeps trying a dispatcher that no longer answers."""
FIRST_PATIENCE_SECONDS: Final = 60.0
"""The same for a dispatcher that has never answered: the address may be wrong."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_WARN_SECONDS: Final = 1.0
_WARN_AGAIN_SECONDS: Final = 30.0
_SHORTEST_CALL: Final = 2.0
_LONGEST_CALL: Final = 30.0

_IS_IT_RUNNING: Final = " Is it running (`penstock dispatcher`), and is this its address?"

_decoder = msgspec.msgpack.Decoder(FromDispatcher)


class _NoAnswer(Exception):
    """The dispatcher cannot answer now, and may be able to later."""

    def __init__(self, reason: str, kind: type[ServiceError] | type[StorageError], advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self._kind = kind
        self._advice = advice

    def error(self, seconds: float) -> PenstockError:
        """The error to raise after trying for `seconds`."""
        return self._kind(f"{self.reason}. It was tried for {seconds:.1f} s.{self._advice}")


class DispatcherClient:
    """Asks a dispatcher, and asks again while it cannot be reached. Several threads may ask at the same time.

    A message that is sent again may have been carried out before; all messages allow that. Nothing is sent before the
    first call of `ask`.

    Args:
        service: as `distribute` takes it.
        patience_seconds: how long to keep trying a dispatcher that cannot be reached, or cannot write its journal.
        credentials: the credentials to show; None takes those of this process.

    Attributes:
        trouble: why the dispatcher has not answered for some time; "" while it answers.

    Raises:
        InvalidTypeError: a `service` that is neither a string nor a tuple.
        InvalidArgumentError: a malformed one.
    """

    def __init__(
        self,
        service: Service,
        *,
        patience_seconds: float = FIRST_PATIENCE_SECONDS,
        credentials: ClientCredentials | None = None,
    ) -> None:
        self._service = checked_service("DispatcherClient", service)
        self._given = credentials
        self._found = None if is_resolved(self._service) else place_of(self._service, credentials)
        self._patience = patience_seconds
        self._lock = threading.RLock()  # a signal handler may take a state, and so ask, in the middle of `ask`
        self._open: tuple[Place, Line] | None = None
        self._known = NO_ENTRY  # of the dispatcher's journal
        self._reached_before = False
        self._closed = threading.Event()
        self.trouble = ""

    @property
    def address(self) -> str:
        """Where the dispatcher is, as far as is known."""
        with self._lock:
            found = self._found
        return described(self._service) if found is None else found.address

    @property
    def credentials(self) -> ClientCredentials:
        """What is shown to it, and to its data workers."""
        return self._place().credentials

    def ask(self, message: Message, patience_seconds: float | None = None) -> Any:
        """Send a message, and return the answer.

        Args:
            patience_seconds: replaces the client's own; 0 tries once.

        Raises:
            ServiceError: the dispatcher could not be reached for that long, or does not accept this process's token.
            ProtocolError: it has another version of penstock, or its answer does not fit the message.
            StorageError: it could not write its journal for that long.
            PenstockError: it refused; the class is that of its error.
            ClosedError: the client was closed.
        """
        patience = self._patience if patience_seconds is None else patience_seconds
        begun = time.monotonic()
        warn_at, pause = begun + _WARN_SECONDS, _FIRST_PAUSE
        while True:
            try:
                reply = self._send_once(message, min(max(patience, _SHORTEST_CALL), _LONGEST_CALL))
            except _NoAnswer as no_answer:
                now = time.monotonic()
                if now >= begun + patience:
                    raise no_answer.error(now - begun) from no_answer.__cause__
                self.trouble = no_answer.reason
                if now >= warn_at:
                    warn_at = now + _WARN_AGAIN_SECONDS
                    _logger.warning("waiting for the dispatcher, for %.0f s at most: %s", patience, self.trouble)
            else:
                self.trouble = ""
                if isinstance(reply, Refused):
                    raise_refused(reply)
                check_answer(message, reply, self.address)
                return reply
            # Not within `except`: Ctrl-C would be shown below all errors of the connection.
            self._closed.wait(min(pause, begun + patience - now))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _send_once(self, message: Message, seconds: float) -> Any:
        """Send a message once, and return the answer if it comes in time.

        Raises:
            _NoAnswer: none came, or the dispatcher cannot carry it out now.
            ServiceError: it does not accept this process's token, or its answer does not fit.
            ClosedError: the client was closed.
        """
        try:
            place = self._place()
        except PenstockError:
            raise
        except Exception as error:  # a resolver's own
            check_not_ended(described(self._service))
            reason = f"where the dispatcher is cannot be found out by {described(self._service)}: {error!r}"
            raise _NoAnswer(reason, ServiceError) from error
        line, address = self._open_line(place), place.address
        body = sealed(message, self._known)
        try:
            line.show_token(len(body), seconds)
            answers = list(line.client.do_action(flight.Action(ACTION, body), line.options(seconds)))
        except flight.FlightUnauthenticatedError as error:
            raise ServiceError(refused_at_the_door("dispatcher", address, error)) from error
        except (pa.ArrowException, OSError) as error:
            self._drop(line)
            check_not_ended(address)
            if wrong := line.tls_trouble(error):
                raise self._no_handshake(address, wrong) from None
            cause = str(error).partition(". gRPC client debug context")[0].strip()
            reason = f"the dispatcher at {address} cannot be reached: {cause}"
            raise _NoAnswer(reason, ServiceError, _IS_IT_RUNNING) from error
        self._reached_before = True
        if len(answers) != 1:
            raise ProtocolError(f"the dispatcher at {address} gave {len(answers)} answers to one message")
        known, reply = unsealed(bytes(answers[0].body), _decoder, "this process", f"the dispatcher at {address}")
        with self._lock:
            if known.journal != self._known.journal or known.number > self._known.number:
                self._known = known
        if isinstance(reply, Refused) and reply.kind == StorageError.__name__:
            raise _NoAnswer(many_lines(reply.reason), StorageError)
        return reply

    def _no_handshake(self, address: str, wrong: str) -> Exception:
        """The error for a failed TLS handshake: final, or to be tried again if a connection has worked before."""
        reason = f"the dispatcher at {address} cannot be reached: {wrong}"
        return _NoAnswer(reason, ServiceError) if self._reached_before else ServiceError(reason)

    def _open_line(self, place: Place) -> Line:
        """The line to that place. It is closed if it leads to another one, where the dispatcher was before."""
        with self._lock:
            if self._closed.is_set():
                raise ClosedError(f"the line to the dispatcher at {place.address} was closed")
            if self._open is None or self._open[0] != place:
                protocol, _, address = place.address.rpartition("://")
                self._open = place, Line(address, place.credentials, tls=protocol == TLS_PROTOCOL)
            return self._open[1]

    def _place(self) -> Place:
        """Where the dispatcher is: asked once, and again after it was lost if something resolves its name."""
        with self._lock:
            if self._found is not None:
                return self._found
        found = place_of(self._service, self._given)  # it may take seconds, in which others may ask too
        with self._lock:
            if self._found is None:
                self._found = found
            return self._found

    def _drop(self, line: Line) -> None:
        """Reconnect at the next attempt. Other threads that still use the connection will do the same."""
        with self._lock:
            if self._open is not None and self._open[1] is line:
                self._open = None
                if is_resolved(self._service):
                    self._found = None

    def connect_anew(self) -> None:
        """Reconnect at the next message, and check who listens there; gRPC itself would reconnect to anybody."""
        with self._lock:
            self._open = None

    def close(self) -> None:
        """Close the connection; waiting threads get a `ClosedError`. A second call does nothing."""
        with self._lock:
            self._closed.set()
            self._open = None
