"""Data workers and their dispatcher: how they find each other, and how they part."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_status import status
from until import until

import penstock as ps
from penstock.runtime.ports import free_port
from penstock.service.transport.connect import connect
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import Stop, WorkerStatus
from penstock.service.wire.interfaces import UnreachedDataWorkerError
from penstock.service.wire.subjects import Endpoint, PassInfo, Span
from penstock.service.wire.worker_messages import Fetch
from penstock.service.worker import server

Address = str
QUICK = ps.service.DispatcherConfig(heartbeat_seconds=0.1)


@pytest.fixture
def dispatcher() -> Iterator[ps.service.DispatchServer]:
    with ps.service.DispatchServer(QUICK) as server:
        yield server


def config_for(dispatcher: ps.service.DispatchServer, **more: object) -> ps.service.WorkerConfig:
    return ps.service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1], **more)  # type: ignore[arg-type]


def worker_for(dispatcher: ps.service.DispatchServer, **more: object) -> ps.service.WorkerServer:
    return ps.service.WorkerServer(config_for(dispatcher, **more))


def awaited(dispatcher: ps.service.DispatchServer, holds: Callable[[list[WorkerStatus]], bool]) -> list[WorkerStatus]:
    """The workers, once something holds for them."""
    until(lambda: holds(status(dispatcher.target).workers))
    return status(dispatcher.target).workers


def elements(dispatcher: ps.service.DispatchServer, dataset: ps.Dataset) -> list[int]:
    return [int(x) for x in dataset.apply(ps.service.distribute("distributed_epoch", dispatcher.target))]


def test_a_worker_is_known_when_it_has_started(dispatcher: ps.service.DispatchServer) -> None:
    with worker_for(dispatcher, tags=("COLOCATED",)) as worker:
        (known,) = status(dispatcher.target).workers
        assert worker.target == f"grpc://{known.info.endpoint.address}"
        assert known.info.endpoint.address.startswith("localhost:")
        assert known.info.colocated
        assert elements(dispatcher, ps.Dataset.range(3)) == [0, 1, 2]
    assert [left.alive for left in status(dispatcher.target).workers] == [False]


def test_a_worker_advertises_the_address_that_it_was_given(dispatcher: ps.service.DispatchServer) -> None:
    with worker_for(dispatcher, worker_address="127.0.0.1:%port%"):
        (known,) = status(dispatcher.target).workers
        assert known.info.endpoint.address.startswith("127.0.0.1:")
        assert known.info.endpoint != Endpoint(address=known.info.endpoint.address), "it says where it is"


def test_a_worker_for_other_machines_advertises_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "own_address_towards", lambda host: {"localhost": "10.0.0.7"}[host])
    with ps.service.DispatchServer() as dispatcher, worker_for(dispatcher, host="0.0.0.0", insecure=True):
        (known,) = status(dispatcher.target).workers
        assert known.info.endpoint.address.startswith("10.0.0.7:")


@pytest.mark.slow
def test_a_worker_reports_what_it_makes() -> None:
    config = ps.service.DispatcherConfig(heartbeat_seconds=0.5)
    with ps.service.DispatchServer(config) as dispatcher, worker_for(dispatcher):
        dataset = ps.Dataset.range(1000).map(lambda x: np.full(100, x, np.int64))
        assert len(list(dataset.apply(ps.service.distribute("distributed_epoch", dispatcher.target)))) == 1000
        (report,) = awaited(dispatcher, lambda workers: workers[0].elements_per_second > 0)
    assert report.bytes_per_second == pytest.approx(report.elements_per_second * 800)
    assert report.busy_fraction > 0


def test_a_worker_may_be_started_before_its_dispatcher() -> None:
    port = free_port()
    started: list[ps.service.WorkerServer] = []
    config = ps.service.WorkerConfig(dispatcher_address=f"localhost:{port}")
    starting = threading.Thread(target=lambda: started.append(ps.service.WorkerServer(config)))
    starting.start()
    starting.join(0.2)
    assert starting.is_alive()
    with ps.service.DispatchServer(ps.service.DispatcherConfig(port=port)) as dispatcher:
        starting.join(60)
        assert len(status(dispatcher.target).workers) == 1
        started[0].stop()


def test_a_request_waited_a_minute_for_a_killed_dispatcher(start_dispatcher: Callable[..., Any]) -> None:
    dispatcher, errors = start_dispatcher(), []
    config = ps.service.WorkerConfig(dispatcher_address=dispatcher.address, heartbeat_seconds=600)
    span = Span(pass_number=0, start=0, stop=1)
    request = Fetch(dataset_id="d", epoch=0, seed=0, policy=1, pass_info=PassInfo(number=0), span=span)

    def fetch(endpoint: Endpoint) -> None:
        with pytest.raises(UnreachedDataWorkerError) as caught:
            list(connect(endpoint).fetch(request))
        errors.append(str(caught.value))

    with ps.service.WorkerServer(config):
        (known,) = status(dispatcher.address).workers
        dispatcher.kill()
        fetching = threading.Thread(target=fetch, args=(known.info.endpoint,), daemon=True)
        fetching.start()
        fetching.join(30)
        assert [message.partition(" at ")[0] for message in errors] == [
            "this data worker cannot get the dataset: the dispatcher"
        ]


def test_a_dispatcher_that_never_comes_is_an_error() -> None:
    config = ps.service.WorkerConfig(dispatcher_address="localhost:1", dispatcher_timeout_seconds=0.2)
    with pytest.raises(ps.errors.ServiceError, match="the dispatcher at localhost:1 cannot be reached"):
        ps.service.WorkerServer(config)


@pytest.mark.slow
def test_workers_register_anew_with_a_dispatcher_that_was_restarted() -> None:
    port = free_port()
    config = ps.service.DispatcherConfig(port=port, heartbeat_seconds=0.1)
    with ps.service.DispatchServer(config) as dispatcher:
        worker = worker_for(dispatcher)
    with worker, ps.service.DispatchServer(config) as dispatcher:
        awaited(dispatcher, lambda workers: len(workers) == 1)
        assert elements(dispatcher, ps.Dataset.range(3)) == [0, 1, 2]


def test_a_worker_ends_when_its_dispatcher_is_gone_for_too_long(caplog: pytest.LogCaptureFixture) -> None:
    with ps.service.DispatchServer(QUICK) as dispatcher:
        worker = worker_for(dispatcher, dispatcher_timeout_seconds=0.3)
    with pytest.raises(ps.errors.ServiceError, match="cannot be reached"):
        worker.join(timeout=60)
    assert "this data worker ends: the dispatcher" in caplog.text
    worker.stop()


def test_a_worker_ends_with_its_service(dispatcher: ps.service.DispatchServer) -> None:
    worker = worker_for(dispatcher)
    client = DispatcherClient(dispatcher.target)
    client.ask(Stop())
    client.close()
    worker.join(timeout=60)
    dispatcher.join(timeout=60)
    worker.stop()


def test_starting_and_stopping_twice_does_no_harm(dispatcher: ps.service.DispatchServer) -> None:
    worker = ps.service.WorkerServer(config_for(dispatcher), start=False)
    with pytest.raises(ps.errors.ServiceError, match="no address before it is started"):
        _ = worker.target
    worker.start()
    worker.start()
    worker.stop()
    worker.stop()
    with pytest.raises(RuntimeError, match="cannot be started after it was stopped"):
        worker.start()
    assert len(status(dispatcher.target).workers) == 1


def test_a_draining_worker_finishes_what_it_was_asked(dispatcher: ps.service.DispatchServer, tmp_path: Path) -> None:
    asked, answer = tmp_path / "asked", tmp_path / "answer"

    def slow(x: int) -> int:
        asked.touch()
        while not answer.exists():
            time.sleep(0.01)
        return x

    worker = worker_for(dispatcher)
    results: list[int] = []
    reading = threading.Thread(target=lambda: results.extend(elements(dispatcher, ps.Dataset.range(1).map(slow))))
    reading.start()
    until(asked.exists)
    leaving = threading.Thread(target=lambda: worker.stop(drain=True))
    leaving.start()
    leaving.join(0.2)
    assert leaving.is_alive()
    answer.touch()
    reading.join(60)
    leaving.join(60)
    assert results == [0]


@pytest.mark.slow
def test_a_worker_that_is_forgotten_ends(dispatcher: ps.service.DispatchServer) -> None:
    worker = worker_for(dispatcher)
    gone = weakref.ref(worker)
    del worker
    gc.collect()
    assert gone() is None
    awaited(dispatcher, lambda workers: not workers[0].alive)


@pytest.mark.slow
def test_a_program_ends_that_does_not_stop_its_servers() -> None:
    program = (
        "import penstock as ps; d = ps.service.DispatchServer(); "
        "w = ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=d.target)); print(w.target)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.startswith("grpc://localhost:")
    assert done.stderr == ""


def test_a_worker_that_the_dispatcher_will_not_have_says_why() -> None:
    config = ps.service.DispatcherConfig(worker_addresses=["other"])
    refused = pytest.raises(ps.InvalidArgumentError, match="of this worker is not in the dispatcher's worker_addresses")
    with ps.service.DispatchServer(config) as dispatcher, refused:
        worker_for(dispatcher)


def test_a_port_that_is_taken_is_said(dispatcher: ps.service.DispatchServer) -> None:
    with pytest.raises(ps.errors.ServiceError, match=f"the data worker cannot listen at 127.0.0.1:{dispatcher.port}"):
        worker_for(dispatcher, port=dispatcher.port)


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        ({"dispatcher_address": None}, TypeError, "must be a string, "),
        ({"dispatcher_address": ""}, ValueError, "must not be empty"),
        ({"dispatcher_address": "localhost"}, ValueError, 'needs the address of a dispatcher as "host:port"'),
        *(
            (
                {"worker_address": address},
                ValueError,
                'must be "host:port" or "host:%port%", with a port from 1 to 65535',
            )
            for address in ("host", "localhost:99999", "bad host:5", "localhost:", "localhost:0", "a b:%port%", "x:%p%")
        ),
        ({"tags": "COLOCATED"}, TypeError, "takes a list of strings"),
        ({"tags": [""]}, ValueError, "must not hold an empty tag"),
        ({"port": 1 << 16}, ValueError, "must be from 0 to 65535"),
        ({"port": "5000"}, TypeError, "takes an integer, got '5000'"),
        ({"dispatcher_timeout_seconds": "1"}, TypeError, "takes a number, got '1'"),
        ({"heartbeat_seconds": 0}, ValueError, "must be a number of seconds greater than 0"),
        ({"dispatcher_timeout_seconds": -1}, ValueError, "must be a number of seconds greater than 0"),
    ],
)
def test_a_configuration_is_checked(wrong: dict[str, object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=rf"WorkerConfig\({next(iter(wrong))}=...\) {message}"):
        ps.service.WorkerConfig(**({"dispatcher_address": "localhost:1"} | wrong))  # type: ignore[arg-type]


def test_a_server_takes_a_configuration() -> None:
    with pytest.raises(TypeError, match="takes a ps.service.WorkerConfig"):
        ps.service.WorkerServer("localhost:1")  # type: ignore[arg-type]
