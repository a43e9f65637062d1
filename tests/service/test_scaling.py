"""How many data workers a service should have, decided without a service; and one that follows."""

import logging
import select
import socket
import ssl
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError

import pytest
from certificates import self_signed
from until import until

import penstock as ps
from penstock.runtime.busy_time import BusyTime
from penstock.service.metrics import MetricsServer, worker_text
from penstock.service.scaling import Scaler, ServiceLoad
from penstock.service.security.credentials import worker_token

CALM = ServiceLoad(workers=4, busy=0.2, waiting=0.0, readers=1)


@pytest.mark.parametrize(
    ("load", "wanted"),
    [
        (ServiceLoad(workers=1, busy=1.0, waiting=0.9, readers=1), 5),  # believed: four times as much
        (ServiceLoad(workers=2, busy=1.0, waiting=0.0, readers=1), 3),
        (ServiceLoad(workers=2, busy=1.0, waiting=0.5, readers=1), 5),
        (ServiceLoad(workers=4, busy=1.0, waiting=0.9, readers=1), 8),  # the most that there may be
        (ServiceLoad(workers=4, busy=0.8, waiting=0.0, readers=1), None),
        (ServiceLoad(workers=1, busy=0.05, waiting=1.0, readers=1), None),  # waiting for something else than workers
        (CALM, None),
    ],
)
def test_more_workers_come_at_once(load: ServiceLoad, wanted: int | None) -> None:
    decision = Scaler(1, 8).decide(load, load.workers)
    assert (None if decision is None else decision.workers) == wanted


def test_workers_decrease_only_after_five_calm_reports() -> None:
    scaler = Scaler(1, 8)
    loads = [CALM, CALM, ServiceLoad(workers=4, busy=0.5, waiting=0.0, readers=1), CALM]
    assert [scaler.decide(load, 4) for load in loads] == [None] * 4
    decision = scaler.decide(CALM, 4)
    assert decision is not None
    assert decision.workers == 3
    assert decision.reason == (
        "readers wait 0% of the time, data workers are busy 20%, for 5 reports: from 4 to 3 workers"
    )
    assert scaler.decide(CALM, 3) is None  # it begins anew


def test_nothing_is_decided_while_workers_start() -> None:
    assert Scaler(1, 8).decide(ServiceLoad(workers=1, busy=1.0, waiting=1.0, readers=1), 4) is None


def test_a_busy_share_is_a_share_whatever_runs_at_once() -> None:
    now = 0.0
    busy = BusyTime(lambda: now)
    with busy, busy:
        now = 3.0
        assert busy.take() == 3.0
        now = 5.0
    now = 9.0
    with busy:
        now = 10.0
    assert busy.take() == 3.0
    assert busy.take() == 0.0


@pytest.mark.extended
def test_a_local_service_grows_where_readers_wait_and_drains_what_leaves(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.service.local")
    with ps.service.local(1, max_workers=2) as service:
        dataset = ps.Dataset.range(1_000_000).map(lambda x: (time.sleep(0.002), x)[1])
        elements = iter(dataset.apply(ps.service.distribute("distributed_epoch", service)))
        taken = []

        def alive() -> set[int]:
            taken.append(int(next(elements)))
            return {worker.info.worker_id for worker in service.status().workers if worker.alive}

        until(lambda: len(alive()) == 2)
        both = alive()
        service.scale(1)
        until(lambda: not both <= alive())  # another one may have been started meanwhile, as the reader still waits
        taken += [int(next(elements)) for _ in range(100)]
        elements.close()
        assert taken == list(range(len(taken)))
    told = next(record.getMessage() for record in caplog.records if record.name == "penstock.service.local")
    assert "data workers are busy" in told and "from 1 to 2 workers" in told


def test_a_service_that_runs_elsewhere_has_the_same_methods() -> None:
    with ps.service.DispatchServer() as dispatcher:
        with ps.service.connect(dispatcher.target) as service:
            assert service.status().workers == ps.service.status(dispatcher).workers == []
            with pytest.raises(ps.InvalidArgumentError, match="was started elsewhere, and so are its data workers"):
                service.scale(3)
        service.stop()
        dispatcher.join(10)


@pytest.mark.extended
def test_clients_that_send_nothing_more_hold_few_threads() -> None:
    with ps.service.DispatchServer() as dispatcher, MetricsServer("127.0.0.1", 0, dispatcher.status) as metrics:
        clients = [socket.create_connection(("127.0.0.1", metrics.port)) for _ in range(100)]
        for client in clients:
            client.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
        until(lambda: sum(not client.recv(1, socket.MSG_DONTWAIT) for client in ended(clients)) >= 68)
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics?any=1") as answer:
            assert b"penstock_readers 0" in answer.read()
        for client in clients:
            client.close()


def ended(clients: list[socket.socket]) -> list[socket.socket]:
    """The clients whose connections the server has closed."""
    return select.select(clients, [], [], 0)[0]


def test_autoscalers_read_how_many_data_workers_are_needed() -> None:
    with ps.service.DispatchServer() as dispatcher, MetricsServer("127.0.0.1", 0, dispatcher.status) as metrics:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            lines = answer.read().decode().splitlines()
        with pytest.raises(HTTPError, match="only /metrics, /healthz and /readyz are here") as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/")
        refused.value.close()
        with pytest.raises(
            ps.errors.ServiceError, match=f"metrics cannot be served at 127.0.0.1:{metrics.port}: .*in use"
        ):
            MetricsServer("127.0.0.1", metrics.port, dispatcher.status)
    numbers = dict(line.split() for line in lines if not line.startswith("#"))
    gauges = {name for name in numbers if f"# TYPE {name} gauge" in lines and name.startswith("penstock_")}
    assert {name: numbers[name] for name in gauges if not name.startswith("penstock_journal")} == dict.fromkeys(
        (
            "penstock_data_workers",
            "penstock_data_workers_needed",
            "penstock_data_workers_busy_ratio",
            "penstock_readers",
            "penstock_readers_waiting_ratio",
            "penstock_elements_per_second",
            "penstock_bytes_per_second",
            "penstock_datasets",
            "penstock_definition_bytes",
        ),
        "0",
    )
    assert ServiceLoad(workers=4, busy=1.0, waiting=0.5, readers=1).needed == 10.0


def fetched(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_counters_count_what_happens_to_a_dispatcher(tmp_path: Path) -> None:
    config = ps.service.DispatcherConfig(work_dir=tmp_path / "journal")
    with ps.service.DispatchServer(config) as dispatcher, MetricsServer("127.0.0.1", 0, dispatcher.status) as metrics:
        assert fetched(metrics.port, "/readyz") == (200, "ok\n")
        address = dispatcher.target.partition("://")[2]
        with pytest.raises(ps.errors.ServiceError, match="does not let this process in"):
            ps.service.status(ps.service.ServiceAddress(address, token="of-somebody-else-entirely"))
        with ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=address)):
            assert list(ps.Dataset.range(3).apply(ps.service.distribute("distributed_epoch", address))) == [0, 1, 2]
        text = fetched(metrics.port, "/metrics")[1]
        assert "\npenstock_begun_epochs_total 1\n" in text
        assert "\npenstock_refused_callers_total 1\n" in text
        assert "\npenstock_lost_data_workers_total 0\n" in text
        assert "\npenstock_journal_writable 1\n" in text
        assert f'\npenstock_build_info{{version="{ps.__version__}",' in text
        assert "\nprocess_open_fds " in text


def asked(url: str, token: str = "", context: ssl.SSLContext | None = None) -> tuple[int, str]:
    """The status and the text that a server at an address of this machine's network answers."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, context=context) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            route.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no network")
        return str(route.getsockname()[0])


TOKEN = "a-token-of-32-letters-and-digits"


def test_other_machines_read_metrics_with_the_token_alone(own_address: str) -> None:
    config = ps.service.DispatcherConfig(host="0.0.0.0", token=TOKEN, insecure=True)
    with (
        ps.service.DispatchServer(config) as dispatcher,
        MetricsServer("0.0.0.0", 0, dispatcher.status, access=config.access()) as metrics,
    ):
        url = f"http://{own_address}:{metrics.port}"
        for wrong in ("", "another-token", worker_token("another-token")):
            status, text = asked(f"{url}/metrics", wrong)
            assert status == 401
            assert "read from other machines with the token: Authorization: Bearer TOKEN" in text
            assert "penstock_readers" not in text
        for right in (TOKEN, worker_token(TOKEN)):
            assert "\npenstock_readers 0\n" in asked(f"{url}/metrics", right)[1]
        assert "\npenstock_readers 0\n" in fetched(metrics.port, "/metrics")[1]  # this machine needs none
        assert asked(f"{url}/healthz") == asked(f"{url}/readyz") == (200, "ok\n")

    ended = SimpleNamespace(trouble="the journal is full")
    with MetricsServer("0.0.0.0", 0, lambda: ended, access=config.access()) as metrics:
        url = f"http://{own_address}:{metrics.port}/readyz"
        assert asked(url) == (503, "not ready\n")
        assert asked(url, TOKEN) == fetched(metrics.port, "/readyz") == (503, "the journal is full\n")


@pytest.mark.slow
def test_a_token_is_taken_by_tls_where_there_is_a_certificate(own_address: str, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path / "server", "penstock", f"IP:{own_address}")
    config = ps.service.DispatcherConfig(host="0.0.0.0", token=TOKEN, tls_cert=str(certificate), tls_key=str(key))
    context = ssl.create_default_context(cafile=str(certificate))
    with (
        ps.service.DispatchServer(config) as dispatcher,
        MetricsServer("0.0.0.0", 0, dispatcher.status, access=config.access()) as metrics,
    ):
        status, text = asked(f"http://{own_address}:{metrics.port}/metrics", TOKEN)
        assert (status, "by https://, since this server has a certificate" in text) == (401, True)
        url = f"https://{own_address}:{metrics.port}/metrics"
        assert asked(url, "another-token", context)[0] == 401
        assert "\npenstock_readers 0\n" in asked(url, TOKEN, context)[1]
        assert fetched(metrics.port, "/readyz") == (200, "ok\n")


def test_a_probe_says_why_a_server_takes_no_work() -> None:
    with ps.service.DispatchServer() as dispatcher:
        config = ps.service.WorkerConfig(dispatcher_address=dispatcher.target)
        with (
            ps.service.WorkerServer(config) as worker,
            MetricsServer("127.0.0.1", 0, worker.numbers, worker_text) as metrics,
        ):
            assert fetched(metrics.port, "/readyz") == fetched(metrics.port, "/healthz") == (200, "ok\n")
            assert "\npenstock_data_worker_rows_total 0\n" in fetched(metrics.port, "/metrics")[1]
            worker.stop()
            assert fetched(metrics.port, "/readyz") == (503, "this data worker has ended\n")
            assert fetched(metrics.port, "/healthz") == (200, "ok\n")
