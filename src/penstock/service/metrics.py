"""Numbers of a service for Prometheus, served with probes.

Autoscalers of Kubernetes (KEDA, or its own by an adapter of Prometheus) read `penstock_data_workers_needed` there.
"""

import os
import platform
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from penstock.rpc.listener import Access
from penstock.runtime.web_server import Page, WebAnswer, WebServer
from penstock.service.scaling import ServiceLoad
from penstock.service.security.credentials import worker_token
from penstock.service.wire.dispatcher_messages import Status
from penstock.service.worker.server import WorkerNumbers
from penstock.version import VERSION

_STARTED: Final = time.time()

Number = tuple[str, str, str, float]
"""A metric: its name, its kind, its meaning, and its value."""


def prometheus_text(status: Status) -> str:
    """The numbers of a dispatcher's status in Prometheus's text format."""
    load = ServiceLoad.of(status)
    alive = [worker for worker in status.workers if worker.alive]
    counts = status.counts
    gauges = [
        ("data_workers", "Data workers that take requests.", load.workers),
        ("data_workers_needed", "Data workers that would be busy 80% of the time if no reader waited.", load.needed),
        ("data_workers_busy_ratio", "Share of the time in which a data worker computes, on average.", load.busy),
        ("readers", "Readers.", load.readers),
        ("readers_waiting_ratio", "Share of its time for which the reader waits that waits most.", load.waiting),
        (
            "elements_per_second",
            "Elements that all data workers send.",
            sum(worker.elements_per_second for worker in alive),
        ),
        ("bytes_per_second", "Bytes that all data workers send.", sum(worker.bytes_per_second for worker in alive)),
        ("datasets", "Registered datasets.", status.datasets),
        ("definition_bytes", "Size of the registered datasets' definitions.", status.definition_bytes),
        ("journal_bytes", "Size of the journal's files; -1 without a journal.", counts.journal_bytes),
        ("journal_writable", "1 unless the last write to the journal has failed.", counts.journal_writable),
    ]
    counters = [
        ("lost_data_workers", "Data workers that ended without leaving.", counts.lost_workers),
        ("ended_readers", "Readers that have ended or were lost.", counts.ended_readers),
        ("begun_epochs", "Epochs that were begun.", counts.begun_epochs),
        ("refused_callers", "Connections that did not prove to know the token.", counts.refused_callers),
        ("journal_errors", "Changes that could not be written to the journal.", counts.journal_errors),
    ]
    return _text(gauges, counters)


def worker_text(numbers: WorkerNumbers) -> str:
    """The numbers of a data worker in Prometheus's text format."""
    counters = [
        ("data_worker_rows", "Rows that this data worker has sent.", numbers.rows),
        ("data_worker_bytes", "Bytes that this data worker has sent.", numbers.bytes),
        ("data_worker_busy_seconds", "Time in which it computed for at least one reader.", numbers.busy_seconds),
    ]
    return _text([], counters)


def _text(gauges: Sequence[tuple[str, str, float]], counters: Sequence[tuple[str, str, float]]) -> str:
    build = f'build_info{{version="{VERSION}",python="{platform.python_version()}"}}'
    numbers: list[Number] = [
        *((f"penstock_{name}", "gauge", meaning, value) for name, meaning, value in gauges),
        *((f"penstock_{name}_total", "counter", meaning, value) for name, meaning, value in counters),
        (f"penstock_{build}", "gauge", "The version that runs.", 1),
        *_of_process(),
    ]
    return "".join(
        f"# HELP {(base := name.partition('{')[0])} {meaning}\n# TYPE {base} {kind}\n{name} {value:.15g}\n"
        for name, kind, meaning, value in numbers
    )


def _of_process() -> Iterator[Number]:
    """The metrics of a process, as Prometheus's own libraries give them."""
    yield "process_start_time_seconds", "gauge", "When this process began, in seconds since 1970.", _STARTED
    yield "process_cpu_seconds_total", "counter", "Processor time that this process has used.", time.process_time()
    with suppress(OSError):  # only Linux has these files
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident = pages * resource.getpagesize()
        yield "process_resident_memory_bytes", "gauge", "Memory that this process takes.", resident
        yield "process_open_fds", "gauge", "Open file descriptors.", len(os.listdir("/proc/self/fd"))


class MetricsServer(WebServer):
    """Answers `GET` until it is closed. It exposes numbers only, and bounds the connections in number and time.

    `/metrics` has the numbers, for this machine and for those that know a secret of `access`, as
    `Authorization: Bearer SECRET`. The probes are for all: `/healthz` answers while the process does, and `/readyz`
    says 503 while it takes no work, and to those that may read the numbers also why.

    Args:
        host: the address it listens at.
        port: 0 takes any free port.
        status: called at every request; the `trouble` of its result is the reason why it takes no work.
        text: makes the text of the numbers in a status.
        access: returns the secrets by which other machines may read the numbers, over TLS if it has that; None is none.

    Raises:
        ServiceError: it cannot listen there.
    """

    serves = "metrics"

    def __init__(
        self,
        host: str,
        port: int,
        status: Callable[[], Any],
        text: Callable[[Any], str] = prometheus_text,
        access: Callable[[], Access] | None = None,
    ) -> None:
        def ready(allowed: bool) -> WebAnswer:
            found = status().trouble
            trouble = found and (found if allowed else "not ready")
            return WebAnswer(f"{trouble or 'ok'}\n", code=HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK)

        pages: dict[str, Page] = {
            "/metrics": lambda allowed: WebAnswer(text(status())) if allowed else None,
            "/healthz": lambda allowed: WebAnswer("ok\n"),
            "/readyz": ready,
        }
        super().__init__(host, port, pages, access or partial(Access, ()))

    def meant_by(self, shown: str) -> tuple[str, ...]:
        return shown, worker_token(shown)
