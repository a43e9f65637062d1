"""The dispatcher: the machine of `penstock.service.dispatcher.machine` behind a socket, with a clock.

Its state is in memory, and in its journal if it has a `work_dir`. A message is decided, journalled, applied and
answered under one lock.
"""

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty
from typing import Final

import msgspec

from penstock.addresses import joined_address, reached_here_at
from penstock.errors import InvalidArgumentError, InvalidTypeError, ServiceError, StorageError
from penstock.rpc.connection import SocketConnection
from penstock.rpc.line import Line, TooLongError
from penstock.rpc.listener import Listener
from penstock.rpc.server import LineServer
from penstock.service.background import BackgroundServer, Ending, Running
from penstock.service.config import DispatcherConfig as DispatcherConfig
from penstock.service.dispatcher.journal import Journal
from penstock.service.dispatcher.machine.machine import Machine
from penstock.service.dispatcher.machine.report import leaves, log_lines
from penstock.service.dispatcher.machine.state import State
from penstock.service.dispatcher.machine.updates import ConsumerGone, EpochCreated, Update, WorkerLost
from penstock.service.wire.address import PROTOCOL, TLS_PROTOCOL
from penstock.service.wire.dispatcher_messages import (
    DispatcherCounts,
    FromDispatcher,
    GetDataset,
    GetStatus,
    Status,
    ToDispatcher,
    WorkerHeartbeat,
    WorkerHello,
)
from penstock.service.wire.envelope import NO_ENTRY, JournalEntry, ProtocolError, sealed, unsealed
from penstock.service.wire.refusals import refusal_of

_logger = logging.getLogger(__name__)

_COMPLAIN_SECONDS: Final = 30.0
"""How often the log repeats a message about a lasting problem, such as a journal that cannot be written."""

_ENVELOPE_BYTES: Final = 1 << 12

_FROM_WORKERS: Final = (WorkerHello, WorkerHeartbeat, GetDataset)
"""The messages accepted from processes that know only the token of data workers."""

_decoder = msgspec.msgpack.Decoder(ToDispatcher)


class DispatchServer(BackgroundServer["_RunningDispatcher"]):
    """Knows the workers, datasets and jobs of a service, and divides the work of a job; it sees no elements.

    It stops by `stop`, at the end of a `with` block, by `penstock stop`, when it is no longer referenced, and when the
    interpreter ends.

    Args:
        config: None takes the defaults.
        start: whether it listens at once.

    Raises:
        InvalidTypeError: a `config` of another kind.
        ServiceError: it cannot listen at that port, or its token or certificate cannot be read.
        StorageError: it cannot work in its `work_dir`, or another dispatcher does.

    Example:
        >>> import penstock as ps
        >>> with ps.service.DispatchServer(ps.service.DispatcherConfig(port=0)) as dispatcher:
        ...     dispatcher.target
        'grpc://localhost:...'
    """

    _name = "dispatcher"

    def __init__(self, config: DispatcherConfig | None = None, *, start: bool = True) -> None:
        if config is not None and not isinstance(config, DispatcherConfig):
            raise InvalidTypeError(f"DispatchServer(config) takes a ps.service.DispatcherConfig, got {config!r}")
        self._config = DispatcherConfig() if config is None else config
        super().__init__(start=start)

    def _run(self) -> "_RunningDispatcher":
        return _RunningDispatcher(self._config)

    @property
    def target(self) -> str:
        """The address for processes of this machine: "grpc://localhost:port", or "grpc+tls://localhost:port".

        Where it listens at one other address only, that takes the place of localhost.
        """
        protocol = TLS_PROTOCOL if self._config.tls_cert else PROTOCOL
        return f"{protocol}://{joined_address(reached_here_at(self._config.host), self._running().port)}"

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self._running().port)

    def status(self) -> Status:
        """Return the state of its data workers, jobs and readers, as `ps.service.status` does."""
        return self._running().status()

    def stop(self, *, drain: bool = False) -> None:
        """Stop listening. Without a `work_dir` its state is lost. A second call does nothing.

        Args:
            drain: first let readers finish; no new epoch can begin. With a `work_dir` it ends at once: readers and
                workers wait for the next dispatcher with that `work_dir`.
        """
        super().stop(drain=drain)


class _RunningDispatcher(Running):
    """A dispatcher that listens, with its journal and its clock."""

    def __init__(self, config: DispatcherConfig) -> None:
        super().__init__()
        self._config = config
        self._lock = threading.Lock()
        self._complaints: dict[str, float] = {}
        self._events: Counter[type[Update]] = Counter()
        self._journal_errors, self._journal_writable = 0, True
        self._journal = Journal(config.work_dir, _first_state()) if config.work_dir is not None else None
        state = _first_state() if self._journal is None else self._journal.state
        if self._journal is not None and self._journal.found:
            found = f"{len(state.workers)} data workers, {len(state.datasets)} datasets, {len(state.jobs)} jobs"
            _logger.info("the dispatcher resumes from %s: %s", self._journal.path, found)
        self._machine = Machine(config, time.monotonic(), self._before, state, life=secrets.randbits(32))
        try:
            self._access = config.access()
            self._listener = listener = Listener(self._access, config.host.strip("[]"), config.port)
        except OSError as error:
            self._close_journal()
            raise ServiceError(
                f"the dispatcher cannot listen at {joined_address(config.host, config.port)}: {error}; port 0 takes "
                "one that is free"
            ) from error
        self.port = listener.port
        self._server = LineServer("penstock-dispatcher", listener, self._open, self._hear)
        self._thread = threading.Thread(target=self._keep_time, name="penstock-dispatcher-clock", daemon=True)
        self._thread.start()

    def _open(self, caller: int, connection: SocketConnection) -> Line[bytes]:
        most_bytes = self._config.max_message_bytes + _ENVELOPE_BYTES
        return Line(connection, bytes, None, most_bytes=most_bytes, tagged=not connection.encrypted)

    def _hear(self, line: Line[bytes], message: bytes | TooLongError) -> None:
        number = 0 if isinstance(message, TooLongError) else line.number
        line.send(sealed(self._answer(message, line.connection.secret), self._entry()), number=number, seconds=0)

    def status(self) -> Status:
        """The answer to `GetStatus`."""
        status = self._answer_to(NO_ENTRY, GetStatus())
        assert isinstance(status, Status)
        return status

    def _answer_to(self, known: JournalEntry, message: ToDispatcher) -> FromDispatcher:
        with self._lock:
            self._check_journal(known)
            answer = self._machine.answer(message, time.monotonic())
            return msgspec.structs.replace(answer, counts=self._counts()) if isinstance(answer, Status) else answer

    def _counts(self) -> DispatcherCounts:
        return DispatcherCounts(
            lost_workers=self._events[WorkerLost],
            ended_readers=self._events[ConsumerGone],
            begun_epochs=self._events[EpochCreated],
            refused_callers=self._listener.refused,
            journal_errors=self._journal_errors,
            journal_bytes=-1 if self._journal is None else self._journal.size,
            journal_writable=self._journal_writable,
        )

    def _answer(self, body: bytes | TooLongError, secret: int) -> FromDispatcher:
        try:
            size = body.size if isinstance(body, TooLongError) else len(body)
            if isinstance(body, TooLongError) or size > self._config.max_message_bytes:
                raise InvalidArgumentError(
                    f"a message of {size:,} bytes: the dispatcher takes at most {self._config.max_message_bytes:,}"
                    " (DispatcherConfig.max_message_bytes). Let the dataset read its data on the workers, instead of "
                    "holding it itself"
                )
            known, message = unsealed(body, _decoder, "the dispatcher", "a process that asks it")
            if secret and not isinstance(message, _FROM_WORKERS):
                raise InvalidArgumentError(
                    "this process has shown the token of data workers, which begins with worker-, and asks for what "
                    "trainers do: name the file with the token of the service in PENSTOCK_TOKEN_FILE"
                )
            return self._answer_to(known, message)
        except ProtocolError as error:
            self._complain("protocol", "%s", error)
            return refusal_of(InvalidArgumentError(str(error)))
        except (InvalidArgumentError, StorageError) as error:
            return refusal_of(error)
        except Exception:
            _logger.exception("the dispatcher failed to answer")
            return refusal_of(ServiceError("the dispatcher failed to answer, its log says why"))

    def _entry(self) -> JournalEntry:
        """The last entry of the journal: the changes that an answer reports are in it or in earlier ones."""
        return NO_ENTRY if self._journal is None else JournalEntry(self._journal.name, self._journal.number)

    def _check_journal(self, known: JournalEntry) -> None:
        """End this dispatcher if a peer knows of a later entry than its journal has.

        Raises:
            StorageError: one does, or did before.
        """
        journal = self._journal
        if self.failure is None and journal is not None and known.journal == journal.name:
            if known.number <= journal.number:
                return
            self.failure = StorageError(
                f"the journal {journal.path} is older than the answers of its dispatcher: a reader or data worker "
                f"knows of entry {known.number}, and it ends with {journal.number}. This dispatcher ends. Restore "
                "the newest journal, or choose another work_dir to start over"
            )
            _logger.error("%s", self.failure)
            self.endings.put("stop")
        if self.failure is not None:
            raise self.failure

    def _keep_time(self) -> None:
        """Pass the time to the machine regularly; at the end, close the socket."""
        pause = min(1.0, self._config.heartbeat_seconds / 4, self._config.lease_seconds / 4)
        over = False
        looked = time.monotonic()
        while not over:
            with suppress(Empty):
                self.endings.get(timeout=pause)
                break
            before, looked = looked, time.monotonic()
            self._access()  # logs a warning about an expiring certificate even if there are no calls
            with self._lock:
                if looked - before > 4 * pause:  # this process was suspended, perhaps with its whole machine
                    self._machine.was_away(looked)
                self._pass_time()
                over = self._machine.may_end
        self._server.stop()
        with self._lock:
            self._close_journal()
        self.ended.set()

    def _pass_time(self) -> None:
        try:
            self._machine.pass_time(time.monotonic())
        except StorageError as error:  # it will be tried again the next time
            self._complain("journal", "%s", error)
        except Exception as error:  # without this thread no loss would be noticed any more
            self._complain(
                "clock", "the dispatcher failed to make the changes that are due, and tries again", error, trace=True
            )

    def _complain(self, about: str, message: str, error: Exception, *, trace: bool = False) -> None:
        """Log a lasting problem, but not every time that it occurs."""
        now = time.monotonic()
        if now - self._complaints.get(about, float("-inf")) > _COMPLAIN_SECONDS:
            self._complaints[about] = now
            _logger.error(message, *([] if trace else [error]), exc_info=error if trace else None)

    def _before(self, state: State, updates: Sequence[Update]) -> None:
        lines = list(log_lines(state, updates))
        if self._journal is not None:
            try:
                self._journal.write(state, updates)
            except StorageError:
                self._journal_errors, self._journal_writable = self._journal_errors + 1, False
                raise
            self._journal_writable = True
        self._events.update(type(update) for update in updates if not leaves(state, update, updates))
        for line in lines:
            _logger.info("%s", line)

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def stop(self, ending: Ending) -> None:
        """End it, and wait until it has ended."""
        if ending == "drain" and self._journal is None:
            with self._lock:
                self._machine.leave()
            self._thread.join()
        else:
            super().stop("stop")


def _first_state() -> State:
    """An empty state with random first ids: workers of an earlier dispatcher at this address may still report."""
    first = secrets.randbelow(1 << 20) * 1000
    return State(next_worker=first, next_job=first, next_epoch=first, next_consumer=first)
