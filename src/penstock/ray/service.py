"""`ps.ray.service`: a data service whose processes Ray places."""

import logging
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Self

import ray
from ray.exceptions import GetTimeoutError, RayError

from penstock.errors import InvalidArgumentError, PenstockError, ServiceError
from penstock.options import check_integer
from penstock.ray.actors import NAMESPACE, DataWorker, Dispatcher, Settings
from penstock.service import status
from penstock.service.connected import SAY_SECONDS, readers_of
from penstock.service.scaling import DECISION_SECONDS, Scaler, ServiceLoad
from penstock.service.security.credentials import note_begin, note_end
from penstock.service.wire.dispatcher_messages import Status

_logger = logging.getLogger(__name__)

_CHECK_SECONDS: Final = 0.2
_DRAIN_SECONDS: Final = 60.0
_END_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 5.0
"""The time between two questions to each data worker."""
_SILENT_SECONDS: Final = 60.0
"""A data worker that has not answered for so long is started again; one that starts may take as long."""


class RayService:
    """A data service of actors; `service` makes it.

    It ends with the program that made it, however that ends.

    Attributes:
        target: what `distribute` takes as its `service`, in every process of the Ray cluster: "ray://NAME".
    """

    def __init__(
        self, settings: Settings, num_workers: int, max_workers: int | None, options: Mapping[str, Any], start: float
    ) -> None:
        self.target = f"ray://{settings.name}"
        self._settings = settings
        self._options = {"num_cpus": 1, **options}
        self._max_workers = max_workers
        self._scaler = None if max_workers is None else Scaler(num_workers, max_workers)
        self._wanted = num_workers
        self._ending = threading.Event()
        self._workers: list[Any] = []
        self._asked: dict[Any, tuple[Any, float]] = {}  # what each worker was asked, and since when it has not answered
        own = {"name": settings.dispatcher, "namespace": NAMESPACE, "num_cpus": 0, "max_task_retries": -1}
        self._dispatcher: Any = (
            ray.remote(Dispatcher).options(max_restarts=-1, max_concurrency=8, **own).remote(settings)
        )
        self._thread = threading.Thread(target=self._keep, name="penstock-ray", daemon=True)
        try:
            self._wait_for([self._dispatcher], start, "dispatcher")
            self._workers = [self._worker() for _ in range(num_workers)]
            self._wait_for(self._workers, start, "data workers")
        except BaseException:
            self._end_actors()
            raise
        note_begin(self.target)
        self._thread.start()

    def status(self) -> Status:
        """Return its status, as `ps.service.status` does."""
        return status(self.target)

    def scale(self, num_workers: int) -> None:
        """Have this many workers, which begin or end in the background. Those that end first finish their requests.

        Raises:
            InvalidTypeError: no integer.
            InvalidArgumentError: less than 1, or more than `max_workers`.
        """
        check_integer("scale", "num_workers", num_workers, minimum=1)
        if self._max_workers is not None and num_workers > self._max_workers:
            raise InvalidArgumentError(f"scale(num_workers={num_workers}) is more than max_workers={self._max_workers}")
        self._wanted = num_workers

    def stop(self, *, drain: bool = False) -> None:
        """End the workers and the dispatcher. A second call does nothing.

        Args:
            drain: let readers read to the end first; no epoch can begin meanwhile.
        """
        if self._ending.is_set():
            return
        if drain:
            self._wait_for_readers()
        self._ending.set()
        self._thread.join()
        self._end_actors()

    def _wait_for_readers(self) -> None:
        drained = self._dispatcher.drain.remote()
        while not ray.wait([drained], timeout=SAY_SECONDS)[0]:
            with suppress(PenstockError, RayError):
                _logger.warning("stopping %s waits for readers: %s", self.target, readers_of(self.status()))
        ray.get(drained)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _worker(self) -> Any:
        return ray.remote(DataWorker).options(max_restarts=-1, **self._options).remote(self._settings)

    def _wait_for(self, actors: list[Any], seconds: float, what: str) -> None:
        """Wait until the actors run.

        Raises:
            ServiceError: Ray has no place for them, or they cannot start.
        """
        try:
            ray.get([actor.process.remote() for actor in actors], timeout=seconds)
        except GetTimeoutError as error:
            left = ray.available_resources()  # type: ignore[no-untyped-call]
            needs = "it needs no CPU" if actors == [self._dispatcher] else f"each needs {self._options}"
            raise ServiceError(
                f"Ray has not started the {what} of {self.target} within {seconds:.0f} s: {needs}, and the cluster has "
                f"{left} left"
            ) from error
        except RayError as error:
            raise ServiceError(f"the {what} of {self.target} could not start: {error}") from error

    def _restart_silent_ones(self) -> None:
        """Have Ray start silent workers again: a call that never returns may hold the interpreter's lock."""
        now = time.monotonic()
        for worker in self._workers:
            asked, since = self._asked.get(worker) or (worker.process.remote(), now)
            if ray.wait([asked], timeout=0)[0]:
                asked, since = worker.process.remote(), now
            elif now - since > _SILENT_SECONDS:
                _logger.warning("a data worker of %s has fallen silent and is started again", self.target)
                ray.kill(worker, no_restart=False)
                asked, since = worker.process.remote(), now
            self._asked[worker] = asked, since

    def _keep(self) -> None:
        decide_at = time.monotonic() + DECISION_SECONDS
        look_at = 0.0
        while not self._ending.wait(_CHECK_SECONDS):
            while len(self._workers) < self._wanted:
                self._workers.append(self._worker())
            while len(self._workers) > self._wanted:
                leaving = self._workers.pop()
                self._asked.pop(leaving, None)
                threading.Thread(target=_let_leave, args=(leaving,), daemon=True).start()
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + _LOOK_SECONDS
                with suppress(RayError):
                    self._restart_silent_ones()
            if self._scaler is None or time.monotonic() < decide_at:
                continue
            decide_at = time.monotonic() + DECISION_SECONDS
            try:
                decision = self._scaler.decide(ServiceLoad.of(self.status()), self._wanted)
            except (PenstockError, RayError) as error:
                _logger.warning("the number of data workers of %s stays as it is: %s", self.target, error)
                continue
            if decision is not None:
                _logger.info("%s: %s", self.target, decision.reason)
                self._wanted = decision.workers

    def _end_actors(self) -> None:
        with suppress(RayError):
            ray.get(self._dispatcher.end.remote(), timeout=_END_SECONDS)
        for actor in (*self._workers, self._dispatcher):
            ray.kill(actor)
        note_end(self.target)


def _let_leave(worker: Any) -> None:
    with suppress(RayError):
        ray.get(worker.leave.remote(), timeout=_DRAIN_SECONDS)
    ray.kill(worker)


def service(
    num_workers: int = 2,
    max_workers: int | None = None,
    *,
    name: str | None = None,
    worker_options: Mapping[str, Any] | None = None,
    tls_cert: bytes | None = None,
    tls_key: bytes | None = None,
    tls_root: bytes | None = None,
    tls_name: str | None = None,
    insecure: bool = False,
    start_timeout_seconds: float = 60.0,
) -> RayService:
    """A data service of Ray actors: a dispatcher and data workers, which Ray starts again where they are lost.

    Its `target` is a name, "ray://NAME": readers anywhere in the cluster ask Ray where the dispatcher is, and ask again
    when it was lost. The actors end with the program that made them.

    Args:
        num_workers: how many data workers, and with `max_workers` the fewest.
        max_workers: let the number follow the load, as `ps.service.local` does.
        name: of the service; a random one where None.
        worker_options: options of the workers' actors, such as `{"num_cpus": 4}`; one CPU each otherwise.
        tls_cert: the certificate of all its servers, in PEM, with `tls_key`. A cluster of several machines needs it.
        tls_key: its private key.
        tls_root: the authority that has signed it.
        tls_name: a name in the certificate that all servers are expected to have, since machines come and go; without
            it the certificate must name the address of each machine.
        insecure: on several machines without TLS, where no one else can reach their network.
        start_timeout_seconds: how long to wait until Ray has placed all of them.

    Raises:
        InvalidTypeError: a number that is no integer.
        InvalidArgumentError: a number out of range; several machines without TLS; a certificate without its key.
        ServiceError: this process is not connected to Ray, or Ray cannot place or start an actor.

    Example:
        `docs/many-machines.md` has a whole program, which the tests run on a started Ray:

            with ps.ray.service(num_workers=2, max_workers=64) as service:
                distribute = ps.service.distribute("distributed_epoch", service.target, job_name="train")
                for batch in dataset.apply(distribute):
                    ...
    """
    least = check_integer("service", "num_workers", num_workers, minimum=1)
    if max_workers is not None:
        check_integer("service", "max_workers", max_workers, minimum=least)
    if not ray.is_initialized():
        raise ServiceError("ps.ray.service needs a Ray cluster, and this process is in none: call ray.init() first")
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    machines = {node["NodeManagerAddress"] for node in nodes if node["Alive"]}
    if (tls_cert is None) != (tls_key is None):
        raise InvalidArgumentError("service: tls_cert and tls_key belong together, got only one of them")
    alone = len(machines) == 1 and tls_cert is None and not insecure
    if not alone and tls_cert is None and not insecure:
        raise InvalidArgumentError(
            f"service: the Ray cluster has {len(machines)} machines, between which anybody on the way could read the "
            "token: give tls_cert, tls_key, tls_root and tls_name, or insecure=True where no one else can reach their "
            "network"
        )
    settings = Settings(
        name or secrets.token_hex(4),
        secrets.token_hex(8),
        alone,
        secrets.token_hex(32),
        tls_cert,
        tls_key,
        tls_root,
        tls_name,
        insecure,
    )
    return RayService(settings, least, max_workers, worker_options or {}, start_timeout_seconds)
