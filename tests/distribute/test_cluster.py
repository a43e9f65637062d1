"""Where a process learns which cluster it belongs to; environments are plain dictionaries."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ipv6 import needs_ipv6

from penstock.distribute.cluster import kubernetes, tpu
from penstock.distribute.cluster.description import Cluster, _address_towards, own_address
from penstock.distribute.cluster.finding import find_cluster, warn_of_others
from penstock.distribute.cluster.slurm import first_host
from penstock.distribute.jax.processes import meeting_of_processes
from penstock.errors import InvalidArgumentError, InvalidTypeError

PENSTOCK = {
    "PENSTOCK_COORDINATOR_ADDRESS": "127.0.0.1:4000",
    "PENSTOCK_NUM_WORKERS": "2",
    "PENSTOCK_WORKER_INDEX": "1",
}
TRAINER = {"JAX_COORDINATOR_ADDRESS": "job-0.job:8080", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2"}
JAXJOB = {"COORDINATOR_ADDRESS": "job-worker-0", "COORDINATOR_PORT": "6666", "NUM_PROCESSES": "4", "PROCESS_ID": "0"}
TORCHRUN = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "8", "RANK": "7"}
# Every variable as its launcher sets it; the docstrings in penstock.distribute.cluster name the sources.
OPEN_MPI = {  # version 4, mpirun -n 2 on two machines
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "PMIX_NAMESPACE": "1531576321",
}
OPEN_MPI_5 = {  # which has no URI of mpirun, here with all processes on one machine
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_NAMESPACE": "prterun-node01-3271@1",
    "PMIX_RANK": "1",
}
MPICH = {  # Hydra's mpiexec -n 4 -ppn 2
    "PMI_RANK": "3",
    "PMI_SIZE": "4",
    "PMI_FD": "9",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
}
SLURM = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}
LEADER_WORKER_SET = {
    "LWS_LEADER_ADDRESS": "train-0.train.default",
    "LWS_GROUP_SIZE": "4",
    "LWS_WORKER_INDEX": "2",
}
GKE_TPU = {
    "TPU_WORKER_HOSTNAMES": "job-0.svc,job-1.svc",
    "TPU_WORKER_ID": "1",
    "TPU_SKIP_MDS_QUERY": "true",
}
MEGASCALE = {
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
    "MEGASCALE_COORDINATOR_ADDRESS": "job-0-0.svc:8081",
}
SAGEMAKER = {"SM_HOSTS": '["algo-1","algo-2","algo-3"]', "SM_CURRENT_HOST": "algo-2"}


def tf_config(kind: str, index: int, **cluster: list[str]) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


CHIEF_AND_WORKERS = {"chief": ["c:1"], "worker": ["a:2", "b:3"], "ps": ["p:4"]}


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
        (OPEN_MPI, Cluster("10.96.0.1:62690", 2, 0, "Open MPI", 0)),
        (
            OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp6://[fe80::b9b,2620:10d::2]:43370"},
            Cluster("[fe80::b9b]:62690", 2, 0, "Open MPI", 0),
        ),
        (OPEN_MPI_5, Cluster("127.0.0.1:63526", 2, 1, "Open MPI", 1)),
        (MPICH | {"PENSTOCK_COORDINATOR_ADDRESS": "n1:9"}, Cluster("n1:9", 4, 3, "MPICH", 1)),
        (MPICH | {"MPI_LOCALNRANKS": "4", "PBS_JOBID": "7"}, Cluster("127.0.0.1:64130", 4, 3, "MPICH", 1)),
        (SLURM, Cluster("node1:61457", 2, 1, "Slurm", 0)),
        (SLURM | {"JAX_COORDINATOR_PORT": "700"}, Cluster("node1:700", 2, 1, "Slurm", 0)),
        (LEADER_WORKER_SET, Cluster("train-0.train.default:62182", 4, 2, "LeaderWorkerSet")),
        (LEADER_WORKER_SET | {"LWS_LEADER_ADDRESS": "10.0.0.9"}, Cluster("10.0.0.9:62182", 4, 2, "LeaderWorkerSet")),
        (GKE_TPU, Cluster("job-0.svc:8482", 2, 1, "GKE TPU")),
        (
            GKE_TPU | {"TPU_PROCESS_ADDRESSES": "job-0.svc:8476,job-1.svc:8476"},
            Cluster("job-0.svc:8482", 2, 1, "GKE TPU"),
        ),
        (GKE_TPU | MEGASCALE, Cluster("job-0-0.svc:8482", 4, 3, "GKE TPU")),
        (GKE_TPU | LEADER_WORKER_SET, Cluster("job-0.svc:8482", 2, 1, "GKE TPU")),
        (SAGEMAKER, Cluster("algo-1:62182", 3, 1, "SageMaker")),
        (tf_config("chief", 0, **CHIEF_AND_WORKERS), Cluster("c:1", 3, 0, "TF_CONFIG")),
        (tf_config("worker", 1, **CHIEF_AND_WORKERS), Cluster("c:1", 3, 2, "TF_CONFIG")),
        (tf_config("worker", 1, worker=["a:2", "b:3"]), Cluster("a:2", 2, 1, "TF_CONFIG")),
        (tf_config("evaluator", 0, **CHIEF_AND_WORKERS), None),
        ({"TF_CONFIG": "{}"}, None),
        (
            KUBERNETES | {"PENSTOCK_NUM_WORKERS": "3", "PENSTOCK_COORDINATOR_ADDRESS": "a:1"},
            Cluster("a:1", 3, 1, "Kubernetes"),
        ),
        ({}, None),
    ],
)
def test_every_launcher_is_understood(environment: dict[str, str], expected: Cluster | None) -> None:
    assert find_cluster(environment=environment) == expected


def test_the_most_specific_environment_counts() -> None:
    layers = [PENSTOCK, TRAINER, JAXJOB, TORCHRUN, tf_config("worker", 0, worker=["a:2", "b:3"])]
    layers += [GKE_TPU, LEADER_WORKER_SET, SAGEMAKER, OPEN_MPI, MPICH | {"MPI_LOCALNRANKS": "4"}, SLURM]
    sources = []
    while layers:
        everything = {name: value for layer in layers for name, value in layer.items()}
        found = find_cluster(environment=everything)
        assert found is not None
        sources.append(found.source)
        layers.pop(0)
    assert sources[:6] == ["penstock launch", "JAX_* variables", "JAXJob", "torchrun", "TF_CONFIG", "GKE TPU"]
    assert sources[6:] == ["LeaderWorkerSet", "SageMaker", "Open MPI", "MPICH", "Slurm"]


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


def test_torchruns_elastic_agent_tells_each_group_anew() -> None:
    # Recorded from torchrun of PyTorch 2.13 with --nnodes=1:2, before and after one of its two agents was killed.
    agent = {
        "LOCAL_RANK": "0",
        "GROUP_RANK": "1",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "36637",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    assert find_cluster(environment=agent) == Cluster("127.0.0.1:36638", 2, 1, "torchrun")
    alone = agent | {"RANK": "0", "WORLD_SIZE": "1", "GROUP_RANK": "0", "TORCHELASTIC_RESTART_COUNT": "1"}
    assert find_cluster(environment=alone) == Cluster("127.0.0.1:36638", 1, 0, "torchrun")


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
        (
            without(LEADER_WORKER_SET, "LWS_WORKER_INDEX"),
            "the environment has LWS_LEADER_ADDRESS=train-0.train.default, LWS_GROUP_SIZE=4 without LWS_WORKER_INDEX: ",
        ),
        (without(GKE_TPU, "TPU_WORKER_ID"), "the environment names 2 TPU hosts without TPU_WORKER_ID: set all of"),
        (
            GKE_TPU | {"MEGASCALE_NUM_SLICES": "2"},
            "the environment names 4 TPU hosts without MEGASCALE_SLICE_ID and MEGASCALE_COORDINATOR_ADDRESS: ",
        ),
        (without(SAGEMAKER, "SM_CURRENT_HOST"), "the environment has only one of SM_HOSTS and SM_CURRENT_HOST"),
        (SAGEMAKER | {"SM_CURRENT_HOST": "x"}, "SM_HOSTS must be a JSON list with SM_CURRENT_HOST, 'x', in it, got "),
        ({"TF_CONFIG": "{"}, "TF_CONFIG must be JSON, got '{': "),
        ({"TF_CONFIG": "[1]"}, 'TF_CONFIG must be JSON such as {"cluster": {"worker": ["host0:2222", '),
        (
            tf_config("ps", 0, **CHIEF_AND_WORKERS),
            "TF_CONFIG says that this process is a 'ps', which trains nothing: make the strategy in the tasks 'chief' ",
        ),
        (tf_config("worker", 2, worker=["a:1"]), "TF_CONFIG's task has the index 2, but its cluster lists 1 of"),
        (tf_config("worker", 0, worker=["a"]), "the first address of TF_CONFIG must be HOST:PORT"),
        # Others are named, and not where the first of them is: nobody trains alone.
        (
            MPICH,
            "MPICH started 4 processes, of which this is number 3, but does not say where number 0 is: set "
            "PENSTOCK_COORDINATOR_ADDRESS=HOST:PORT for all of them",
        ),
        (without(OPEN_MPI, "OMPI_MCA_orte_hnp_uri") | SLURM, "Open MPI started 2 processes, of which this is number 0"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "PMI started 2 processes, of which this is number 0, but does not say"),
        (
            without(SLURM, "SLURM_STEP_NODELIST"),
            "this Slurm job has 2 tasks, but this process is none of them: start it in the batch script by `srun",
        ),
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
        {"SLURM_JOB_ID": "17", "SLURM_PROCID": "0"},  # a batch script of one task
        {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"MEGASCALE_NUM_SLICES": "1"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        {"JOB_COMPLETION_INDEX": "1"},
    ],
)
def test_these_alone_are_no_cluster(environment: dict[str, str]) -> None:
    assert find_cluster(environment=environment) is None


def test_a_slurm_script_may_set_what_is_the_same_for_all_processes() -> None:
    found = Cluster("node1:61457", 2, 1, "Slurm", 0)
    assert find_cluster(environment=SLURM | without(TORCHRUN, "RANK")) == found


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node001", "node001"),
        ("node001,host2", "node001"),
        ("node[001-0015],host2", "node001"),
        ("node[001,007-015],host2", "node001"),
        ("rack[1-2]-node[03,05].cluster", "rack1-node03.cluster"),
        ("gpu-a[7]", "gpu-a7"),
    ],
)
def test_the_first_host_of_every_form_of_slurms_lists(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


def test_a_job_says_how_many_pods_it_has_by_a_package_or_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "find_spec", lambda name: name)
    assert find_cluster(environment=KUBERNETES) == Cluster(None, None, None, "Kubernetes")
    monkeypatch.setattr(kubernetes, "find_spec", lambda name: None)
    with refusal("this is a pod of an indexed Kubernetes Job (JOB_COMPLETION_INDEX is set), which does not say how"):
        find_cluster(environment=KUBERNETES)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("train-1.trainers.default.svc.cluster.local", "train-0.trainers.default.svc.cluster.local"),
        ("set-workers-0-1.set.default.svc.cluster.local", "set-workers-0-0.set.default.svc.cluster.local"),  # JobSet's
    ],
)
def test_the_first_pod_of_a_job_is_known_by_the_names_of_a_headless_service(
    name: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes.socket, "getfqdn", lambda: name)
    counted = KUBERNETES | {"PENSTOCK_NUM_WORKERS": "2"}
    assert find_cluster(environment=counted) == Cluster(f"{first}:62182", 2, 1, "Kubernetes")


@pytest.mark.parametrize("name", ["train-1", "train-1-x7k2f", "other.svc.default"])
def test_a_bare_pod_name_that_nobody_resolves_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes.socket, "getfqdn", lambda: name)
    with refusal(f"this pod's name is {name!r}, by which no other pod finds it: give the Job's pod template a"):
        find_cluster(environment=KUBERNETES | {"PENSTOCK_NUM_WORKERS": "2"})


def test_a_cloud_tpu_virtual_machine_is_told_by_its_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0000:00:05.0").mkdir()
    (tmp_path / "0000:00:05.0" / "vendor").write_text("0x1ae0\n")
    monkeypatch.setattr(tpu, "find_spec", lambda name: name)
    assert tpu.cloud_tpu({}, tmp_path) == Cluster(None, None, None, "Cloud TPU")
    assert tpu.cloud_tpu({"TPU_SKIP_MDS_QUERY": "1"}, tmp_path) is None
    assert tpu.cloud_tpu({"TPU_PROCESS_ADDRESSES": "local"}, tmp_path) is None
    assert tpu.cloud_tpu({}, tmp_path / "none") is None
    monkeypatch.setattr(tpu, "find_spec", lambda name: None)
    assert tpu.cloud_tpu({}, tmp_path) is None


def test_a_worker_of_ray_train_without_its_others_does_not_train_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_world_size=lambda: 2, get_world_rank=lambda: 1)
    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=lambda: context))
    with refusal(
        "this is worker 1 of 2 of Ray Train, which has not told the workers of each other: give the trainer ps.ray."
    ):
        find_cluster(environment=SLURM)  # Ray's processes inherit the variables of the step that started Ray
    assert find_cluster(environment=SLURM | PENSTOCK) == Cluster("127.0.0.1:4000", 2, 1, "penstock launch")


def test_a_strategy_of_one_process_says_that_there_are_others(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_others("MirroredStrategy", "use another", {})
    assert not caplog.messages
    warn_of_others("HostStrategy", "give it {which}", SLURM)
    warn_of_others("MirroredStrategy", "use another", MPICH)
    assert caplog.messages == [
        "HostStrategy is a single worker here, which reads everything, though the environment (Slurm) names several "
        "processes: give it num_workers=2, worker_index=1",
        "MirroredStrategy is a single worker here, alone with its data, but: MPICH started 4 processes, of which this "
        "is number 3, but does not say where number 0 is: set PENSTOCK_COORDINATOR_ADDRESS=HOST:PORT for all of them, "
        "with the host of number 0 and a free port",
    ]


def test_the_published_address_is_no_name() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+", own_address())


def test_the_published_address_is_the_one_towards_the_others() -> None:
    """A machine in a network without a way to the internet has only that one."""
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("localhost") == "127.0.0.1"
    own = own_address()
    assert own_address(own) == own
    assert own_address("no-machine.invalid") == own


@needs_ipv6
def test_the_published_address_is_of_ipv6_where_the_others_are() -> None:
    assert own_address("::1") == "::1"
    assert own_address("[::1]") == own_address()  # brackets belong to ports


def test_tpu_hosts_may_have_addresses_of_ipv6() -> None:
    hosts = {"TPU_WORKER_HOSTNAMES": "fd00::1,fd00::2", "TPU_WORKER_ID": "1"}
    assert find_cluster(environment=hosts) == Cluster("[fd00::1]:8482", 2, 1, "GKE TPU")
    ports = {"TPU_PROCESS_ADDRESSES": "[fd00::1]:8471,[fd00::2]:8471", "TPU_WORKER_ID": "0"}
    assert find_cluster(environment=ports) == Cluster("[fd00::1]:8482", 2, 0, "GKE TPU")
    slices = {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1", "MEGASCALE_COORDINATOR_ADDRESS": "[fd00::9]:8080"}
    assert find_cluster(environment=ports | slices) == Cluster("[fd00::9]:8482", 4, 2, "GKE TPU")


def test_where_nothing_can_be_sent_no_address_of_this_machine_leads() -> None:
    assert _address_towards("255.255.255.255") is None  # to all at once, which a socket must be allowed to


def test_processes_meet_only_where_jax_connects_them() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^load needs jax\.distributed\.initialize\(\)"):
        meeting_of_processes("load", 0, 2, 1.0)
