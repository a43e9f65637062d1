"""Parameter servers: variables in separate processes, and workers that run functions against them.

`ps.ClusterCoordinator` queues functions, which worker processes run: they read variables, and push gradients to the
servers, each of which applies them by its optimizer. Nothing of this is imported by `import penstock`.
"""

from penstock.parameter_server.coordinator import RemoteValue as RemoteValue
from penstock.parameter_server.datasets import PerWorkerDataset as PerWorkerDataset
from penstock.parameter_server.partitioners import FixedShardsPartitioner as FixedShardsPartitioner
from penstock.parameter_server.partitioners import MaxSizePartitioner as MaxSizePartitioner
from penstock.parameter_server.partitioners import MinSizePartitioner as MinSizePartitioner
from penstock.parameter_server.variables import ServerTable as ServerTable
from penstock.parameter_server.variables import ServerVariables as ServerVariables
