"""A data worker: it produces what consumers ask for, and keeps in touch with its dispatcher."""

import logging
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from queue import Empty
from typing import Final

import msgspec

from penstock.addresses import WILDCARDS, host_of, joined_address, own_address_towards, reached_here_at
from penstock.errors import InvalidTypeError, PenstockError, ServiceError, StorageError
from penstock.runtime.memory_thresholds import keep_freed_memory
from penstock.service.background import BackgroundServer, Ending, Running
from penstock.service.config import LOCAL_ADDRESS, PORT_WILDCARD
from penstock.service.config import WorkerConfig as WorkerConfig
from penstock.service.transport.block_server import BlockServer
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.transport.identity import this_machine, this_process
from penstock.service.transport.in_process import InProcessServer
from penstock.service.wire.address import PROTOCOL, TLS_PROTOCOL
from penstock.service.wire.dispatcher_messages import GetDataset, WorkerHeartbeat, WorkerHello, WorkerNews
from penstock.service.wire.envelope import ProtocolError
from penstock.service.wire.interfaces import UnreachedDataWorkerError
from penstock.service.wire.subjects import Endpoint
from penstock.service.worker.production import Produced, Production

_logger = logging.getLogger(__name__)

_DRAIN_SECONDS: Final = 30.0
"""How long a leaving worker continues with its requests."""

_PATIENCE_SECONDS: Final = 2.0
"""How long a reader's request waits, at most, for a dispatcher that cannot be reached: the reader asks again."""


class WorkerNumbers(msgspec.Struct, frozen=True):
    """Work of a data worker since it began.

    Attributes:
        trouble: the reason why it is not asked for elements; "" while it is.
    """

    rows: int
    bytes: int
    busy_seconds: float
    trouble: str


class WorkerServer(BackgroundServer["_RunningWorker"]):
    """Produces elements for the readers of a service.

    It stops by `stop`, at the end of a `with` block, when its dispatcher ends, when it is no longer referenced, and
    when the interpreter ends.

    Args:
        config: where its dispatcher is, and how it is reached itself.
        start: whether it registers at once. It then waits for the dispatcher, and logs that it does.

    Raises:
        InvalidTypeError: a `config` of another kind.
        ServiceError: it cannot listen at that port, or the dispatcher cannot be reached or will not have it.

    Example:
        >>> import penstock as ps
        >>> with ps.service.DispatchServer() as dispatcher:
        ...     address = dispatcher.target.split("://")[1]
        ...     with ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=address)) as worker:
        ...         worker.target
        'grpc://localhost:...'
    """

    _name = "data worker"

    def __init__(self, config: WorkerConfig, *, start: bool = True) -> None:
        if not isinstance(config, WorkerConfig):
            raise InvalidTypeError(f"WorkerServer(config) takes a ps.service.WorkerConfig, got {config!r}")
        self._config = config
        super().__init__(start=start)

    def _run(self) -> "_RunningWorker":
        return _RunningWorker(self._config)

    @property
    def target(self) -> str:
        """Return where consumers reach it: "grpc://host:port", or "grpc+tls://host:port"."""
        protocol = TLS_PROTOCOL if self._config.tls_cert else PROTOCOL
        return f"{protocol}://{self._running().address}"

    def numbers(self) -> WorkerNumbers:
        """Return its work so far, as its metrics show it; renewed with each report to the dispatcher."""
        return self._running().numbers()

    def stop(self, *, drain: bool = False) -> None:
        """Stop. A second call does nothing.

        Args:
            drain: first finish its pending requests, for 30 s at most; new ones go to other workers. Otherwise readers
                request the missing elements from other workers.
        """
        super().stop(drain=drain)


class _RunningWorker(Running):
    """A data worker that listens, and keeps in touch with its dispatcher."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__()
        self._config = config
        keep_freed_memory()  # the blocks of a pass are alike
        self._access = config.access()
        self._dispatcher = DispatcherClient(
            config.dispatcher_address,
            patience_seconds=config.dispatcher_timeout_seconds,
            credentials=config.credentials_for_dispatcher().for_worker(),
        )
        self._production = Production(self._definition)
        self._made = Produced()
        with ExitStack() as stack:
            stack.callback(self._dispatcher.close)
            stack.callback(self._production.close)
            server = self._listen()
            stack.callback(server.stop)
            self.address = self._advertised(server.port)
            self._endpoint = Endpoint(
                address=self.address,
                machine=this_machine(),
                socket=server.socket,
                process=this_process(),
                tls=config.tls_cert is not None,
            )
            stack.callback(InProcessServer(self._production.fetch, self.address).stop)
            self._interval = self._register()
            self._parts = stack.pop_all()
        self._reported = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name="penstock-worker", daemon=True)
        self._thread.start()

    def _listen(self) -> BlockServer:
        host, port = self._config.host, self._config.port
        try:
            return BlockServer(self._production.fetch, self._access, host, port)
        except OSError as error:
            raise ServiceError(
                f"the data worker cannot listen at {joined_address(host, port)}: {error}; port 0 takes one that is free"
            ) from error

    def _advertised(self, port: int) -> str:
        if self._config.worker_address == LOCAL_ADDRESS:
            host = self._config.host
            reached_at = reached_here_at(host)
            if host in WILDCARDS:
                reached_at = own_address_towards(host_of(self._dispatcher.address.rpartition("://")[2])) or reached_at
            return joined_address(reached_at, port)
        return self._config.worker_address.replace(PORT_WILDCARD, str(port))

    def _definition(self, dataset_id: str) -> bytes:
        try:
            patience = min(self._config.dispatcher_timeout_seconds, _PATIENCE_SECONDS)
            found = self._dispatcher.ask(GetDataset(dataset_id=dataset_id), patience_seconds=patience)
        except PenstockError as error:
            # The reader should ask again: its own dispatcher may be another one, or be back by then. If the dataset was
            # forgotten here, the reader learns that from its dispatcher, and registers the dataset again.
            raise UnreachedDataWorkerError(f"this data worker cannot get the dataset: {error}") from error
        return bytes(found.definition)

    def _register(self) -> float:
        """Register at the dispatcher; returns the seconds between two reports."""
        hello = WorkerHello(endpoint=self._endpoint, tags=list(self._config.tags))
        welcome = self._dispatcher.ask(hello)
        self._worker_id: int = welcome.worker_id
        return float(self._config.heartbeat_seconds or welcome.heartbeat_seconds)

    def _serve(self) -> None:
        try:
            if self._report_until_ended() == "drain":
                self._leave()
            self._try_to_send(WorkerHeartbeat(worker_id=self._worker_id, left=True))
        except Exception as error:  # otherwise the error would be lost
            self.failure = ServiceError(f"this data worker failed to keep in touch with its dispatcher: {error!r}")
            _logger.exception("this data worker ends: it failed to keep in touch with its dispatcher")
        finally:
            self._parts.close()
            self.ended.set()

    def _report_until_ended(self) -> Ending:
        """Report to the dispatcher until this worker has to end; returns how."""
        heard = time.monotonic()
        while True:
            with suppress(Empty):
                return self.endings.get(timeout=self._interval)
            try:
                ending = self._send_heartbeat()
                if ending is not None:
                    return ending
                heard = time.monotonic()
                continue
            except PenstockError as error:
                # It is gone, or cannot write its journal. After other errors it will not accept this worker again.
                may_pass = isinstance(error, (ServiceError, StorageError)) and not isinstance(error, ProtocolError)
                if may_pass and time.monotonic() - heard <= self._config.dispatcher_timeout_seconds:
                    continue
                self.failure = error
                _logger.error("this data worker ends: %s", error)
                return "stop"

    def _send_heartbeat(self) -> Ending | None:
        """Report, and act on the answer; returns how to end, if the dispatcher stops."""
        self._access()  # which warns of an expiring certificate also while no reader calls
        made = self._production.statistics()
        now = time.monotonic()
        seconds, self._reported = now - self._reported, now
        self._made += made
        news: WorkerNews = self._dispatcher.ask(
            WorkerHeartbeat(
                worker_id=self._worker_id,
                seconds=seconds,
                **asdict(made),
            ),
            patience_seconds=self._interval,
        )
        if news.stopping:
            return "drain"
        if not news.known:
            _logger.warning("the dispatcher no longer knows this data worker, which registers again")
            self._register()
        else:
            self._production.keep(news.datasets, news.silent)
        return None

    def numbers(self) -> WorkerNumbers:
        """The numbers of its metrics."""
        made, trouble = self._made, self._dispatcher.trouble
        if self.ended.is_set() or not self._thread.is_alive():
            trouble = "this data worker has ended"
        return WorkerNumbers(made.rows, made.bytes, made.busy_seconds, trouble)

    def _leave(self) -> None:
        """Announce that this worker leaves, and complete its requests."""
        self._try_to_send(WorkerHeartbeat(worker_id=self._worker_id, leaving=True))
        if not self._production.wait_until_idle(_DRAIN_SECONDS):
            _logger.warning("this data worker ends with requests under way, after %.0f s", _DRAIN_SECONDS)

    def _try_to_send(self, message: WorkerHeartbeat) -> None:
        with suppress(PenstockError):  # without it, the dispatcher notices missing heartbeats
            self._dispatcher.ask(message, patience_seconds=0)
