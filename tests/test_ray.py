"""A data service of Ray actors, on a Ray cluster that is really started, once."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
import pytest
import ray
from until import until

import penstock as ps

pytestmark = [
    pytest.mark.slow,
    # Ray leaves sockets and files of its own to the end of the process.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


def test_nothing_is_lost_when_a_worker_and_the_dispatcher_are_killed() -> None:
    with ps.ray.service(num_workers=1, worker_options={"num_cpus": 0.5}) as service:
        dataset = ps.Dataset.range(4000).shuffle(4000, seed=1)
        elements = iter(dataset.apply(ps.service.distribute("distributed_epoch", service)))
        taken = [int(next(elements)) for _ in range(5)]
        for actor in (service._workers[0], service._dispatcher):
            process = ray.get(actor.process.remote())
            os.kill(process, signal.SIGKILL)
            taken += [int(next(elements)) for _ in range(100)]
        taken += [int(element) for element in elements]
        assert taken == [int(element) for element in dataset]
        service.scale(2)
        until(lambda: sum(worker.alive for worker in service.status().workers) == 2)
        service.scale(1)
        until(lambda: sum(worker.alive for worker in service.status().workers) == 1)


@contextmanager
def elsewhere() -> Iterator[Any]:
    """A service that was started somewhere else, as this process sees it."""
    with ps.service.local(1) as service, ps.service.connect(service) as connected:
        yield connected


@pytest.mark.parametrize("kind", ["local", "ray", "connected"])
def test_all_services_have_one_interface_and_drain_alike(kind: str) -> None:
    started = {
        "local": lambda: ps.service.local(1, max_workers=2),
        "ray": lambda: ps.ray.service(1, max_workers=2, worker_options={"num_cpus": 0.5}),
        "connected": elsewhere,
    }
    with started[kind]() as service:
        assert [worker.alive for worker in service.status().workers] == [True]
        with pytest.raises(ps.InvalidArgumentError, match="more than max_workers=2|started elsewhere"):
            service.scale(3)
        dataset = ps.Dataset.range(2000).apply(ps.service.distribute("distributed_epoch", service.target))
        elements = iter(dataset)
        taken = [int(next(elements))]
        stopping = threading.Thread(target=service.stop, kwargs={"drain": True})
        stopping.start()
        until(lambda: service.status().stopping)
        with pytest.raises(ps.ServiceError, match="this dispatcher is stopping: no epoch can be begun any more"):
            next(iter(dataset))
        taken += [int(element) for element in elements]
        assert taken == list(range(2000))
        stopping.join()


def test_one_certificate_with_one_name_serves_machines_that_it_does_not_know(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here to make a certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=data", "-addext", "subjectAltName=DNS:data",
         "-out", tmp_path / "crt", "-keyout", tmp_path / "key"],
        check=True, capture_output=True,
    )  # fmt: skip
    cert, key = (tmp_path / "crt").read_bytes(), (tmp_path / "key").read_bytes()
    options = {"num_cpus": 0.5}
    with ps.ray.service(
        1, worker_options=options, tls_cert=cert, tls_key=key, tls_root=cert, tls_name="data"
    ) as service:
        address = ray.get(service._dispatcher.address.remote())
        assert address.target.startswith(f"grpc+tls://{ray.util.get_node_ip_address()}:")
        read = ps.Dataset.range(5).apply(
            ps.service.distribute("distributed_epoch", service, data_transfer_protocol="flight")
        )
        assert [int(x) for x in read] == [0, 1, 2, 3, 4]
        unnamed = ps.service.ServiceAddress(address.target, address.token, address.tls_root)
        with pytest.raises(ps.ServiceError, match=r"its certificate \(--tls-cert\) is not for the name"):
            ps.service.status(unnamed, patience_seconds=0)


def test_actors_that_cannot_be_placed_are_said() -> None:
    with pytest.raises(ps.ServiceError, match=r"Ray has not started the data workers .* each needs {'num_cpus': 64}"):
        ps.ray.service(1, worker_options={"num_cpus": 64}, start_timeout_seconds=8)


def test_a_name_that_no_service_has_is_said() -> None:
    with pytest.raises(ps.ServiceError, match="where the dispatcher is cannot be found out by ray://nobody: ValueErro"):
        ps.service.status("ray://nobody", patience_seconds=0)


@pytest.mark.long  # the same parts are tested here and in test_demo.py
def test_the_demo_trains_on_batches_of_actors(tmp_path: Path) -> None:
    done = forked.run(
        *("-m", "penstock", "demo", "--dataset", "digits", "--epochs", "1", "--engine", "ray"),
        *("--checkpoints", str(tmp_path)),
        env=os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address},
        timeout=280,
        training=True,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[1] == "2 actors of Ray make the batches."
    assert lines[3].startswith("Epoch 1, Loss: ")
    assert (tmp_path / "demo-digits-batch-64-seed-0-service").is_dir()
