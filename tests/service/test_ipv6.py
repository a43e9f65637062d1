"""A service whose processes reach each other by IPv6 alone."""

import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from certificates import self_signed
from forked import Forked
from ipv6 import needs_ipv6

import penstock as ps
from penstock.cli import main
from penstock.service.metrics import MetricsServer

pytestmark = [needs_ipv6, pytest.mark.slow]


@contextmanager
def command(*arguments: str) -> Iterator[tuple[Forked, str]]:
    """A command that goes on, and the target that it names first."""
    process = Forked("-m", "penstock", *arguments, pipes=("stdout",))
    try:
        yield process, process.stdout.readline().partition(" at ")[2].replace(",", " ").split()[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def read(target: object, protocol: str | None = None) -> list[int]:
    dataset = ps.Dataset.range(6).map(lambda x: x * x)
    mode = ps.service.distribute("distributed_epoch", target, data_transfer_protocol=protocol)
    return [int(x) for x in dataset.apply(mode)]


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_commands_listen_at_an_address_of_ipv6(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    with command("dispatcher", "--host", host, "--port", "0", "--metrics-port", "0") as (_, target):
        assert re.fullmatch(r"grpc://\[::1\]:\d+", target)
        with command("worker", "--dispatcher", target, "--host", host) as (_, worker):
            assert re.fullmatch(r"grpc://\[::1\]:\d+", worker)
            assert read(target, "flight") == read(target.split("://")[1]) == [0, 1, 4, 9, 16, 25]
            assert main(["status", target]) == 0
            assert worker.split("://")[1] in capsys.readouterr().out


def test_a_service_by_tls_has_an_address_of_ipv6_in_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "a-token-of-this-test-alone-0123456789"
    right, wrong = (self_signed(tmp_path / name, "x", names) for name, names in (("a", "IP:::1"), ("b", "IP:fd00::9")))
    for (certificate, key), works in ((right, True), (wrong, False)):
        files = {"tls_cert": certificate.read_bytes(), "tls_key": key.read_bytes()}
        config = ps.service.DispatcherConfig(host="::", token=token, **files)
        with ps.service.DispatchServer(config) as dispatcher:
            target = f"grpc+tls://[::1]:{dispatcher.port}"
            where = ps.service.ServiceAddress(target, token, files["tls_cert"])
            if not works:
                with pytest.raises(ps.errors.ServiceError, match="its certificate .* is not for the name '::1'"):
                    ps.service.status(where)
                continue
            worker = ps.service.WorkerConfig(
                dispatcher_address=where,
                host="::",
                worker_address="[::1]:%port%",
                token=token,
                tls_root=files["tls_cert"],
                **files,
            )
            with ps.service.WorkerServer(worker) as server:
                assert server.target.startswith("grpc+tls://[::1]:")
                assert read(where, "flight") == [0, 1, 4, 9, 16, 25]


@pytest.mark.parametrize(("host", "reached"), [("0.0.0.0", ("127.0.0.1", "[::1]")), ("[::1]", ("[::1]",))])
def test_metrics_are_served_where_the_dispatcher_is(host: str, reached: tuple[str, ...]) -> None:
    with ps.service.DispatchServer() as dispatcher, MetricsServer(host, 0, dispatcher.status) as metrics:
        for where in reached:
            with urllib.request.urlopen(f"http://{where}:{metrics.port}/metrics") as answer:
                assert b"penstock_data_workers 0" in answer.read()


def test_places_of_workers_may_be_addresses_of_ipv6() -> None:
    config = ps.service.DispatcherConfig(host="::1", worker_addresses=["[::1]:%port%"])
    with ps.service.DispatchServer(config) as dispatcher:
        address = dispatcher.target.split("://")[1]
        with ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=address, host="::1")):
            assert read(dispatcher.target) == [0, 1, 4, 9, 16, 25]


def test_an_address_that_cannot_be_had_is_named_with_its_brackets() -> None:
    config = ps.service.DispatcherConfig(host="::1")
    with ps.service.DispatchServer(config) as dispatcher:
        again = ps.service.DispatcherConfig(host="::1", port=dispatcher.port)
        with pytest.raises(ps.errors.ServiceError, match=rf"cannot listen at \[::1\]:{dispatcher.port}: "):
            ps.service.DispatchServer(again)
