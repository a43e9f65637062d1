"""A data service, and parameter servers, of Ray actors, on a Ray cluster that is really started, once."""

import ctypes
import importlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked
import keras
import numpy as np
import optax
import promises
import pytest
import ray
from certificates import self_signed
from until import until

import penstock as ps
from penstock.parameter_server import dispatch
from penstock.ray.service import RayService

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


def workers_alive(service: RayService) -> int:
    """How many data workers run; a dispatcher that was killed may take long to start again on a busy machine."""
    return sum(worker.alive for worker in ps.service.status(service.target, patience_seconds=120).workers)


@pytest.mark.extended
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
        until(lambda: workers_alive(service) == 2)
        service.scale(1)
        until(lambda: workers_alive(service) == 1)
    with pytest.raises(ps.errors.ServiceError, match="the data service at ray://.* has ended, because this program"):
        next(iter(dataset.apply(ps.service.distribute("distributed_epoch", service))))


def hang_once(flag: Path) -> Any:
    """A function that never returns the first time, with Python's lock held: no thread of its process runs on."""

    def function(x: np.ndarray) -> np.ndarray:
        if x == 7 and not flag.exists():
            flag.touch()
            ctypes.PyDLL(None).sleep(10**6)
        return x

    return function


@pytest.mark.extended
def test_a_worker_that_hung_was_never_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("penstock.ray.service")
    monkeypatch.setattr(module, "_SILENT_SECONDS", 20.0)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.2)
    with ps.ray.service(num_workers=1, worker_options={"num_cpus": 0.5}) as service:
        dataset = ps.Dataset.range(20).map(hang_once(tmp_path / "hung"))
        elements = dataset.apply(ps.service.distribute("distributed_epoch", service.target))
        assert [int(x) for x in elements] == list(range(20))


@pytest.mark.parametrize(
    "how", [pytest.param("stop", marks=pytest.mark.extended), pytest.param("scale", marks=pytest.mark.long)]
)
def test_a_dispatcher_that_is_killed_while_it_drains_loses_nothing(how: str) -> None:
    with ps.ray.service(num_workers=2, worker_options={"num_cpus": 0.25}) as service:
        dataset = ps.Dataset.range(3000)
        elements = iter(dataset.apply(ps.service.distribute("distributed_epoch", service.target)))
        taken = [int(next(elements)) for _ in range(5)]
        leaving = threading.Thread(target=service.stop, kwargs={"drain": True})
        if how == "stop":
            leaving.start()
            until(lambda: service.status().stopping)
        else:
            service.scale(1)
        os.kill(ray.get(service._dispatcher.process.remote()), signal.SIGKILL)
        taken += [int(element) for element in elements]
        assert taken == list(range(3000))
        if how == "stop":
            leaving.join()
        else:
            until(lambda: workers_alive(service) == 1)


@contextmanager
def elsewhere() -> Iterator[Any]:
    """A service that was started somewhere else, as this process sees it."""
    with ps.service.local(1) as service, ps.service.connect(service) as connected:
        yield connected


@pytest.mark.parametrize(
    "kind", ["local", *(pytest.param(kind, marks=pytest.mark.extended) for kind in ("ray", "connected"))]
)
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
        with pytest.raises(ps.errors.ServiceError, match="this dispatcher is stopping: no epoch can be begun any more"):
            next(iter(dataset))
        taken += [int(element) for element in elements]
        assert taken == list(range(2000))
        stopping.join()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A certificate that has signed itself, for no machine but a name."""
    cert, key = (file.read_bytes() for file in self_signed(tmp_path_factory.mktemp("tls"), "data"))
    return {"tls_cert": cert, "tls_key": key, "tls_root": cert, "tls_name": "data"}


@pytest.mark.extended
def test_one_certificate_with_one_name_serves_unknown_machines(tls: dict[str, Any]) -> None:
    with ps.ray.service(1, worker_options={"num_cpus": 0.5}, **tls) as service:
        address = ray.get(service._dispatcher.address.remote())
        assert address.target.startswith(f"grpc+tls://{ray.util.get_node_ip_address()}:")
        read = ps.Dataset.range(5).apply(
            ps.service.distribute("distributed_epoch", service, data_transfer_protocol="flight")
        )
        assert [int(x) for x in read] == [0, 1, 2, 3, 4]
        unnamed = ps.service.ServiceAddress(address.target, address.token, address.tls_root)
        with pytest.raises(ps.errors.ServiceError, match=r"its certificate \(--tls-cert\) is not for the name"):
            ps.service.status(unnamed, patience_seconds=0)


@pytest.mark.extended
def test_actors_that_cannot_be_placed_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for = RayService._wait_for

    def impatient_for_workers(service: RayService, actors: list[Any], seconds: float, what: str) -> None:
        # The dispatcher does start, in seconds or many on a busy machine; the workers never do.
        wait_for(service, actors, seconds if what == "dispatcher" else 1, what)

    monkeypatch.setattr(RayService, "_wait_for", impatient_for_workers)
    with pytest.raises(
        ps.errors.ServiceError, match=r"Ray has not started the data workers .* within 1 s: each needs {'num_cpus': 64}"
    ):
        ps.ray.service(1, worker_options={"num_cpus": 64})


def test_a_name_that_no_service_has_is_said() -> None:
    with pytest.raises(ps.errors.ServiceError, match="address of the dispatcher cannot be resolved by ray://nobody: "):
        ps.service.status("ray://nobody", patience_seconds=0)


QUARTER = {"num_cpus": 0.25}


@contextmanager
def coordinated(num_ps: int, *, shared_memory: bool, **tls: Any) -> Iterator[ps.ClusterCoordinator]:
    # Actors import JAX, which takes a busy machine longer than a minute.
    engine = ps.ray.ParameterServers(QUARTER, QUARTER, shared_memory=shared_memory, start_timeout_seconds=240, **tls)
    partitioner = ps.parameter_server.FixedShardsPartitioner(num_ps)
    with ps.ParameterServerStrategy(2, num_ps, engine, variable_partitioner=partitioner) as strategy:
        yield ps.ClusterCoordinator(strategy)


@pytest.mark.extended
def test_actors_share_memory_and_raise_errors_once(tmp_path: Path) -> None:
    with coordinated(2, shared_memory=True) as coordinator:
        promises.pushes_are_applied_in_every_shard_and_arguments_and_results_travel(coordinator)
        promises.the_first_error_cancels_the_rest_and_is_raised_once(coordinator, tmp_path)


@pytest.mark.extended
def test_encrypted_actors_lose_no_update_when_a_server_is_replaced(tmp_path: Path, tls: dict[str, Any]) -> None:
    def created(coordinator: ps.ClusterCoordinator) -> ps.parameter_server.ServerVariables:
        return coordinator.strategy.create_variables(np.zeros(100_000, np.float32), optax.sgd(-1.0, momentum=0.5))

    with coordinated(1, shared_memory=False, **tls) as coordinator:
        assert coordinator.strategy.servers[0].place.result().address.host == ray.util.get_node_ip_address()
        variables = created(coordinator)

        def add() -> float:
            read = variables.read()
            variables.push(np.ones(100_000, np.float32))
            return float(read[0])

        assert [coordinator.schedule(add).fetch() for _ in range(2)] == [0.0, 1.0]
        path = ps.Checkpoint(coordinator=coordinator).save(tmp_path / "saved")
        promises.killed_workers_apply_every_update_once_and_read_on_where_they_were(coordinator)
        os.kill(coordinator.strategy.servers[0].pid, signal.SIGKILL)
        until(lambda: coordinator._dispatch.fatal is not None)
        with pytest.raises(ps.errors.UnavailableError, match="parameter server 0 has ended"):
            variables.read()
        with pytest.raises(ps.errors.UnavailableError, match="0 has ended with ActorDiedError: .*restore a checkpoint"):
            coordinator.join()
    with coordinated(1, shared_memory=False) as coordinator:
        variables = created(coordinator)
        ps.Checkpoint(coordinator=coordinator).restore(path)
        assert variables.read().tolist() == [2.5] * 100_000


@pytest.mark.long  # Keras in two actors; test_keras_servers.py has the same fit on processes of this machine
def test_a_keras_model_is_trained_on_actors() -> None:
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    rows = ps.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).repeat()
    with ps.ParameterServerStrategy(1, 1, ps.ray.ParameterServers(QUARTER, QUARTER)) as strategy:
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.05), loss="mse")
        losses = model.fit(rows.batch(16), epochs=3, steps_per_epoch=20, verbose=0).history["loss"]
        assert int(model.optimizer.iterations.value) == 60
    assert losses[0] > 10 * losses[2]


@pytest.mark.extended
def test_servers_whose_certificate_nobody_trusts_are_said(tls: dict[str, Any]) -> None:
    engine = ps.ray.ParameterServers(QUARTER, QUARTER, shared_memory=False, **tls)
    with pytest.raises(ps.errors.UnavailableError, match="is not trusted, IP address mismatch.*tls_name a name in it"):
        ps.ParameterServerStrategy(1, engine=replace(engine, tls_name=None))
    with pytest.raises(ps.InvalidArgumentError, match="tls_cert and tls_key belong together"):
        replace(engine, tls_key=None)


@pytest.mark.long  # test_coordinator.py has a function that ends its workers' processes on this machine
def test_a_function_that_ends_its_actors_says_with_what(monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "MOST_RUNS", 2)
    with ps.ParameterServerStrategy(1, engine=ps.ray.ParameterServers(QUARTER, QUARTER)) as strategy:
        coordinator = ps.ClusterCoordinator(strategy)
        value = coordinator.schedule(lambda: os._exit(3))
        with pytest.raises(ps.WorkerError, match="a function has cost 2 workers .* has ended with ActorDiedError"):
            value.fetch()


@pytest.mark.extended
def test_a_strategy_outside_of_a_ray_cluster_says_so(monkeypatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(
        ps.errors.UnavailableError, match=r"needs a Ray cluster, and this process is in none: call ray.init"
    ):
        ps.ParameterServerStrategy(1, engine="ray")


@pytest.mark.extended
def test_servers_and_workers_that_ray_cannot_place_are_said() -> None:
    many = {"num_cpus": 64}
    with pytest.raises(
        ps.errors.UnavailableError, match="not started parameter servers within 1 s.*needs {'num_cpus': 64}"
    ):
        ps.ParameterServerStrategy(1, engine=ps.ray.ParameterServers(server_options=many, start_timeout_seconds=1))
    engine = ps.ray.ParameterServers(many, QUARTER)
    with ps.ParameterServerStrategy(1, engine=engine) as strategy:
        strategy.started_processes._engine = replace(engine, start_timeout_seconds=1)  # the server has its place by now
        coordinator = ps.ClusterCoordinator(strategy)
        value = coordinator.schedule(lambda: 1)
        with pytest.raises(
            ps.errors.UnavailableError, match="not started worker 0 within 1 s.*the cluster has {.*'CPU'"
        ):
            value.fetch()
        with pytest.raises(ps.errors.UnavailableError, match="not started worker 0"):
            coordinator.join()


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
