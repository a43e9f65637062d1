"""The connection to the dispatcher."""

import itertools
import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from penstock.addresses import split_address
from penstock.errors import ClosedError, PenstockError, ServiceError, StorageError
from penstock.printing import many_lines
from penstock.rpc.line import Line
from penstock.rpc.listener import Address, dial
from penstock.rpc.proof import NotAdmittedError
from penstock.service.security.credentials import ClientCredentials, check_not_ended
from penstock.service.security.handshake import not_admitted, tls_trouble
from penstock.service.security.resolving import (
    Place,
    Service,
    checked_service,
    described,
    is_resolved,
    place_of,
)
from penstock.service.wire.address import TLS_PROTOCOL
from penstock.service.wire.dispatcher_answers import check_answer
from penstock.service.wire.dispatcher_messages import FromDispatcher, GetDataset, RegisterDataset
from penstock.service.wire.envelope import NO_ENTRY, sealed, unsealed
from penstock.service.wire.refusals import raise_refused
from penstock.service.wire.subjects import Message, Refused

_logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 300.0
"""By default, the time for which a reader keeps trying a dispatcher that no longer answers."""
FIRST_PATIENCE_SECONDS: Final = 60.0
"""The same for a dispatcher that has never answered: the address may be wrong."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_WARN_SECONDS: Final = 1.0
_WARN_AGAIN_SECONDS: Final = 30.0
_IDLE_SECONDS: Final = 30.0
"""How long a line is kept that no call uses. Many threads may have asked at the same time once."""
_SHORTEST_CALL: Final = 2.0
_LONGEST_CALL: Final = 30.0

_IS_IT_RUNNING: Final = " Is it running (`penstock dispatcher`), and is this its address?"

_decoder = msgspec.msgpack.Decoder(FromDispatcher)


@dataclass(eq=False)
class _OpenLine:
    """A line to a dispatcher, of this process or of one that it was forked from."""

    line: Line[bytes]
    place: Place
    process: int
    used: float = 0.0  # when it was, on the clock of `time.monotonic`


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
        self._idle: deque[_OpenLine] = deque()
        self._busy: list[_OpenLine] = []
        self._numbers = itertools.count(1)
        self._known = NO_ENTRY  # of the dispatcher's journal
        self._reached_before = False
        self._closed = threading.Event()
        self._hurried = threading.Event()
        self.trouble = ""

    @property
    def address(self) -> str:
        """The address of the dispatcher, as far as it is known."""
        with self._lock:
            found = self._found
        return described(self._service) if found is None else found.address

    @property
    def credentials(self) -> ClientCredentials:
        """The credentials to show to the dispatcher and its data workers."""
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
        limit = min(max(patience, _SHORTEST_CALL), _LONGEST_CALL)
        if isinstance(message, (GetDataset, RegisterDataset)):  # the definition may be large
            limit = _LONGEST_CALL
        warn_at, pause = begun + _WARN_SECONDS, _FIRST_PAUSE
        while True:
            try:
                reply = self._send_once(message, limit)
            except _NoAnswer as no_answer:
                now = time.monotonic()
                if now >= begun + patience or (self._hurried.is_set() and not self._closed.is_set()):
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
            self._hurried.wait(min(pause, begun + patience - now))
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
            reason = f"the address of the dispatcher cannot be resolved by {described(self._service)}: {error!r}"
            raise _NoAnswer(reason, ServiceError) from error
        address = place.address
        reply_body = self._reply(place, sealed(message, self._known), seconds)
        self._reached_before = True
        known, reply = unsealed(reply_body, _decoder, "this process", f"the dispatcher at {address}")
        with self._lock:
            if known.journal != self._known.journal or known.number > self._known.number:
                self._known = known
        if isinstance(reply, Refused) and reply.kind == StorageError.__name__:
            raise _NoAnswer(many_lines(reply.reason), StorageError)
        return reply

    def _reply(self, place: Place, body: bytes, seconds: float) -> bytes:
        """The answer to a message, over a line that no other thread uses.

        Raises:
            _NoAnswer: none came.
            ServiceError: the dispatcher does not accept this process's token or certificate.
            ClosedError: the client was closed.
        """
        while True:
            opened, fresh = self._idle_line(place), False
            if opened is None:
                opened, fresh = self._dial(place, seconds), True
            with self._lock:
                self._busy.append(opened)
            answer = None
            try:
                answer = opened.line.ask(body, next(self._numbers), seconds)
            except OSError as error:
                _logger.debug("a line to the dispatcher has ended: %r", error)
            finally:
                with self._lock:
                    self._busy.remove(opened)
                if answer is not None and not self._closed.is_set():
                    self._keep(opened)
                else:  # an answer that comes later must not be the next one's
                    opened.line.close()
            if answer is not None:
                return answer
            self._check_open(place)
            check_not_ended(place.address)
            if fresh:
                self._forget_place()
                reason = f"the dispatcher at {place.address} cannot be reached: it has not answered"
                raise _NoAnswer(reason, ServiceError, _IS_IT_RUNNING)

    def _keep(self, opened: _OpenLine) -> None:
        """Keep a line for the next call, and close those that none has needed for long."""
        opened.used = now = time.monotonic()
        with self._lock:
            self._idle.append(opened)  # the next call takes the one used last
            while self._idle[0].used < now - _IDLE_SECONDS:
                self._idle.popleft().line.close()

    def _idle_line(self, place: Place) -> "_OpenLine | None":
        """A line that is open and not used; None without any."""
        while (opened := self._popped()) is not None:
            if opened.place == place and opened.process == os.getpid():
                return opened
            opened.line.close()
        return None

    def _popped(self) -> _OpenLine | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _dial(self, place: Place, seconds: float) -> "_OpenLine":
        self._check_open(place)
        protocol, _, address = place.address.rpartition("://")
        tls, (host, port) = protocol == TLS_PROTOCOL, split_address(address)
        secret = place.credentials.secret_for(address, tls=tls)
        try:
            names = place.credentials.names() if tls else None
            connection = dial(Address(host, int(port)), secret, os.getpid(), names, seconds)
        except NotAdmittedError as error:
            refused = not_admitted("dispatcher", address, secret)
            if self._reached_before:  # its token was renewed, and that of this process may be soon
                raise _NoAnswer(refused, ServiceError) from error
            raise ServiceError(refused) from error
        except OSError as error:
            self._forget_place()
            check_not_ended(place.address)
            wrong = tls_trouble(error, address, place.credentials, tls=tls)
            reason = f"the dispatcher at {place.address} cannot be reached: {wrong or error}"
            if wrong and not self._reached_before:
                raise ServiceError(reason) from None
            raise _NoAnswer(reason, ServiceError, "" if wrong else _IS_IT_RUNNING) from error
        return _OpenLine(Line(connection, bytes, None, tagged=not connection.encrypted), place, os.getpid())

    def _check_open(self, place: Place) -> None:
        if self._closed.is_set():
            raise ClosedError(f"the line to the dispatcher at {place.address} was closed")

    def _place(self) -> Place:
        """The place of the dispatcher: found once, and again after a loss if a resolver gives it."""
        with self._lock:
            if self._found is not None:
                self._found = replace(self._found, credentials=self._found.credentials.now())
                return self._found
        found = place_of(self._service, self._given)  # it may take seconds, in which others may ask too
        with self._lock:
            if self._found is None:
                self._found = found
            return self._found

    def _forget_place(self) -> None:
        """Find the dispatcher again before the next message if a resolver gives its place."""
        if is_resolved(self._service):
            with self._lock:
                self._found = None

    def hurry(self) -> None:
        """Try every message once from now on; threads that wait for a dispatcher that is away get an error."""
        self._hurried.set()

    def close(self) -> None:
        """Close the connections; waiting threads get a `ClosedError`. A second call does nothing."""
        self._closed.set()
        self._hurried.set()
        with self._lock:
            for opened in self._busy:
                opened.line.connection.shut_down()
        while (idle := self._popped()) is not None:
            idle.line.close()
