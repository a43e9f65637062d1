"""Where a process learns which cluster it belongs to; environments are plain dictionaries."""

import re

import pytest

import penstock.distribute.control.cluster as cluster_module
from penstock.distribute.control.cluster import Cluster, find_cluster
from penstock.errors import InvalidArgumentError, InvalidTypeError

PENSTOCK = {
    "PENSTOCK_COORDINATOR_ADDRESS": "127.0.0.1:4000",
    "PENSTOCK_NUM_WORKERS": "2",
    "PENSTOCK_WORKER_INDEX": "1",
}
TRAINER = {"JAX_COORDINATOR_ADDRESS": "job-0.job:8080", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2"}
JAXJOB = {"COORDINATOR_ADDRESS": "job-worker-0", "COORDINATOR_PORT": "6666", "NUM_PROCESSES": "4", "PROCESS_ID": "0"}
TORCHRUN = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "8", "RANK": "7"}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "0",
}
SLURM = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}


def without(environment: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names}


def refusal(message: str) -> "pytest.RaisesExc[InvalidArgumentError]":
    return pytest.raises(InvalidArgumentError, match=f"^{re.escape(message)}")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (PENSTOCK, Cluster("127.0.0.1:4000", 2, 1, "penstock launch")),
        (TRAINER, Cluster("job-0.job:8080", 3, 2, "JAX_* variables")),
        (JAXJOB, Cluster("job-worker-0:6666", 4, 0, "JAXJob")),
        (JAXJOB | {"COORDINATOR_ADDRESS": "job-worker-0:7777"}, Cluster("job-worker-0:7777", 4, 0, "JAXJob")),
        (TORCHRUN, Cluster("node1:29500", 8, 7, "torchrun")),
        (TORCHRUN | {"MASTER_ADDR": "fe80::1"}, Cluster("[fe80::1]:29500", 8, 7, "torchrun")),
        (TORCHRUN | {"MASTER_ADDR": "[fe80::1]"}, Cluster("[fe80::1]:29500", 8, 7, "torchrun")),
        (OPEN_MPI, Cluster(None, None, None, "Open MPI")),
        (SLURM, Cluster(None, None, None, "Slurm")),
        ({}, None),
    ],
)
def test_every_launcher_is_understood(environment: dict[str, str], expected: Cluster | None) -> None:
    assert find_cluster(environment=environment) == expected


def test_the_most_specific_environment_counts() -> None:
    layers = [PENSTOCK, TRAINER, JAXJOB, TORCHRUN, OPEN_MPI, SLURM]
    sources = []
    while layers:
        everything = {name: value for layer in layers for name, value in layer.items()}
        found = find_cluster(environment=everything)
        assert found is not None
        sources.append(found.source)
        layers.pop(0)
    assert sources == ["penstock launch", "JAX_* variables", "JAXJob", "torchrun", "Open MPI", "Slurm"]


def test_arguments_come_before_any_environment() -> None:
    assert find_cluster("[::1]:1", 2, 0, PENSTOCK) == Cluster("[::1]:1", 2, 0, "arguments")


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PENSTOCK.items():
        monkeypatch.setenv(name, value)
    assert find_cluster() == Cluster("127.0.0.1:4000", 2, 1, "penstock launch")


@pytest.mark.parametrize(
    "environment",
    [
        PENSTOCK | {"PENSTOCK_NUM_WORKERS": "1", "PENSTOCK_WORKER_INDEX": "0"},
        TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"},
    ],
)
def test_one_process_is_a_cluster_of_one(environment: dict[str, str]) -> None:
    found = find_cluster(environment=environment)
    assert found is not None
    assert (found.num_workers, found.worker_index) == (1, 0)


def test_torchrun_keeps_its_own_port_for_itself() -> None:
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert find_cluster(environment=TORCHRUN | agent) == Cluster("node1:29501", 8, 7, "torchrun")
    # Inside torchrun, other variables are taken as they are.
    assert find_cluster(environment=JAXJOB | agent) == Cluster("job-worker-0:6666", 4, 0, "JAXJob")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a:1", None, None), "got coordinator_address='a:1' without num_workers and worker_index: give all three"),
        (("a:1", 2, None), "got coordinator_address='a:1', num_workers=2 without worker_index: give all three"),
        ((None, 2, 0), "got num_workers=2, worker_index=0 without coordinator_address: give all three, or none"),
        (("a", 2, 0), "coordinator_address must be HOST:PORT, with a port from 1 to 65535, got 'a'"),
        (("a:0", 2, 0), "coordinator_address must be HOST:PORT, with a port from 1 to 65535, got 'a:0'"),
        (("a:65536", 2, 0), "coordinator_address must be HOST:PORT, with a port from 1 to 65535, got 'a:65536'"),
        (("::1:80", 2, 0), "coordinator_address must be HOST:PORT, with a port from 1 to 65535, got '::1:80'"),
        (
            ("http://a:80", 2, 0),
            "coordinator_address must be HOST:PORT, with a port from 1 to 65535, got 'http://a:80'",
        ),
        (("a:1", 0, 0), "num_workers must be at least 1, got 0"),
        (("a:1", 2, 2), "worker_index must be at least 0 and less than num_workers, which is 2, got 2"),
        (("a:1", 2, -1), "worker_index must be at least 0 and less than num_workers, which is 2, got -1"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: tuple[str, int, int], message: str) -> None:
    with refusal(message):
        find_cluster(*arguments, environment={})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7, 2, 0), "coordinator_address must be a string HOST:PORT, got 7"),
        (("a:1", "2", 0), "num_workers must be an int, got '2'"),
        (("a:1", 2, False), "worker_index must be an int, got False"),
    ],
)
def test_arguments_of_a_wrong_kind_are_refused(arguments: tuple[str, int, int], message: str) -> None:
    with pytest.raises(InvalidTypeError, match=message):
        find_cluster(*arguments, environment={})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"PENSTOCK_WORKER_INDEX": "0"},
            "the environment has PENSTOCK_WORKER_INDEX=0 without PENSTOCK_COORDINATOR_ADDRESS and "
            "PENSTOCK_NUM_WORKERS: set all of them, or none",
        ),
        (
            without(PENSTOCK, "PENSTOCK_NUM_WORKERS") | SLURM,
            "the environment has PENSTOCK_COORDINATOR_ADDRESS=127.0.0.1:4000, PENSTOCK_WORKER_INDEX=1 without "
            "PENSTOCK_NUM_WORKERS: ",
        ),
        (
            PENSTOCK | {"PENSTOCK_WORKER_INDEX": ""},
            "the environment has PENSTOCK_COORDINATOR_ADDRESS=127.0.0.1:4000, PENSTOCK_NUM_WORKERS=2 without "
            "PENSTOCK_WORKER_INDEX: ",
        ),
        (
            {"JAX_PROCESS_ID": "0"},
            "the environment has JAX_PROCESS_ID=0 without JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES: ",
        ),
        (
            without(JAXJOB, "COORDINATOR_PORT"),
            "the environment has COORDINATOR_ADDRESS=job-worker-0, NUM_PROCESSES=4, PROCESS_ID=0 without "
            "COORDINATOR_PORT: ",
        ),
        (
            without(TORCHRUN, "RANK"),
            "the environment has MASTER_ADDR=node1, MASTER_PORT=29500, WORLD_SIZE=8 without RANK: ",
        ),
        ({"RANK": "0"}, "the environment has RANK=0 without MASTER_ADDR and MASTER_PORT and WORLD_SIZE: "),
        (TORCHRUN | {"RANK": "8"}, "RANK must be at least 0 and less than WORLD_SIZE, which is 8, got 8"),
        (TORCHRUN | {"WORLD_SIZE": "many"}, "WORLD_SIZE must be a whole number, got 'many'"),
        (TORCHRUN | {"MASTER_PORT": "http"}, "MASTER_PORT must be a whole number, got 'http'"),
        (
            TORCHRUN | {"MASTER_PORT": "70000"},
            "MASTER_ADDR must be HOST:PORT, with a port from 1 to 65535, got 'node1:70000'",
        ),
        (PENSTOCK | {"PENSTOCK_NUM_WORKERS": "0"}, "PENSTOCK_NUM_WORKERS must be at least 1, got 0"),
    ],
)
def test_environments_that_cannot_be_are_refused(environment: dict[str, str], message: str) -> None:
    with refusal(message):
        find_cluster(environment=environment)


@pytest.mark.parametrize(
    "environment",
    [
        {"NUM_PROCESSES": "8", "PROCESS_ID": "3"},
        {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
        {"JAX_COORDINATOR_ADDRESS": "a:1"},
        {"OMPI_COMM_WORLD_SIZE": "1"},
        SLURM | {"SLURM_NTASKS": "1"},
        without(SLURM, "SLURM_STEP_NODELIST"),  # a batch script without srun
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        {"JOB_COMPLETION_INDEX": "1"},
    ],
)
def test_these_alone_are_no_cluster(environment: dict[str, str]) -> None:
    assert find_cluster(environment=environment) is None


def test_a_slurm_script_may_set_what_is_the_same_for_all_processes() -> None:
    assert find_cluster(environment=SLURM | without(TORCHRUN, "RANK")) == Cluster(None, None, None, "Slurm")


def test_open_mpi_5_does_not_say_where_process_0_is() -> None:
    with refusal("Open MPI started several processes but does not say where the first one is"):
        find_cluster(environment=without(OPEN_MPI, "OMPI_MCA_orte_hnp_uri") | SLURM)


def test_jax_finds_the_pods_of_a_job_by_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "find_spec", lambda name: name)
    assert find_cluster(environment=KUBERNETES) == Cluster(None, None, None, "Kubernetes")
    monkeypatch.setattr(cluster_module, "find_spec", lambda name: None)
    with refusal(
        "this is a pod of an indexed Kubernetes Job (JOB_COMPLETION_INDEX is set), whose other pods JAX finds"
    ):
        find_cluster(environment=KUBERNETES)
