"""Launchers that set three variables: the address of process 0, the number of processes, and the number of this one."""

from dataclasses import dataclass
from typing import Final

from penstock.addresses import joined_address
from penstock.distribute.cluster.description import (
    Cluster,
    Environment,
    IncompleteError,
    checked,
    coordinator_port,
    is_address,
    whole_number,
)


@dataclass(frozen=True)
class Variables:
    """The environment variables with which one family of launchers describes a cluster.

    Args:
        signs: variables that nothing else uses: if one of them is set, the others are expected.
        port: the variable with the port, if the address has none.
        default_port: whether the launcher names a host alone, and any port will do.
    """

    source: str
    address: str
    port: str | None
    count: str
    number: str
    signs: tuple[str, ...]
    default_port: bool = False

    def __call__(self, environment: Environment) -> Cluster | None:
        """The cluster that the variables describe; None if none of the signs is set.

        Raises:
            IncompleteError: some of the variables are missing.
            InvalidArgumentError: a value that cannot be.
        """
        if not any(environment.get(name) for name in self.signs):
            return None
        missing = self._missing(environment)
        if missing:
            known = [self.address, self.port, self.count, self.number]
            given = ", ".join(f"{name}={environment[name]}" for name in known if name and environment.get(name))
            raise IncompleteError(
                f"the environment has {given} without {' and '.join(missing)}: set all of them, or none"
            )
        count, number = whole_number(environment, self.count), whole_number(environment, self.number)
        return checked(
            Cluster(self._address(environment), count, number, self.source), (self.address, self.count, self.number)
        )

    def _missing(self, environment: Environment) -> list[str]:
        """The variables that are not set, or empty."""
        needed = [self.address, self.count, self.number]
        if self.port is not None and not is_address(environment.get(self.address, "")):
            needed.insert(1, self.port)
        return [name for name in needed if not environment.get(name)]

    def _address(self, environment: Environment) -> str:
        address = environment[self.address]
        if self.default_port and not is_address(address):
            return joined_address(address, coordinator_port(environment))
        if self.port is None or is_address(address):
            return address
        port = whole_number(environment, self.port)
        if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and self is TORCHRUN:
            port += 1  # torchrun itself listens at MASTER_PORT as long as its processes run
        return joined_address(address, port)


PENSTOCK: Final = Variables(
    "penstock launch",
    "PENSTOCK_COORDINATOR_ADDRESS",
    None,
    "PENSTOCK_NUM_WORKERS",
    "PENSTOCK_WORKER_INDEX",
    ("PENSTOCK_COORDINATOR_ADDRESS", "PENSTOCK_NUM_WORKERS", "PENSTOCK_WORKER_INDEX"),
)
# Kubeflow Trainer's. Its address alone is a setting of JAX, for a cluster that JAX finds by itself.
JAX: Final = Variables(
    "JAX_* variables",
    "JAX_COORDINATOR_ADDRESS",
    None,
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
)
# JAXJob of Kubeflow's training operator. The two other names may mean anything.
JAX_JOB: Final = Variables(
    "JAXJob", "COORDINATOR_ADDRESS", "COORDINATOR_PORT", "NUM_PROCESSES", "PROCESS_ID", ("COORDINATOR_ADDRESS",)
)
# torchrun, Ray Train's TorchTrainer, Kubeflow's PyTorchJob. Processes without others often have the address too.
TORCHRUN: Final = Variables("torchrun", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", ("WORLD_SIZE", "RANK"))
# kubernetes-sigs/lws, pkg/utils/pod/pod_utils.go: AddLWSVariables. Before version 0.6 the index came by hand.
LEADER_WORKER_SET: Final = Variables(
    "LeaderWorkerSet",
    "LWS_LEADER_ADDRESS",
    None,
    "LWS_GROUP_SIZE",
    "LWS_WORKER_INDEX",
    ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"),
    default_port=True,
)
