"""Strategies: the same step on several replicas, each with its share of every batch.

JAX is imported only when `MirroredStrategy` is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.distribute.contexts import InputContext as InputContext
from penstock.distribute.contexts import ReduceOp as ReduceOp
from penstock.distribute.contexts import ReplicaContext as ReplicaContext
from penstock.distribute.contexts import ValueContext as ValueContext
from penstock.distribute.contexts import get_replica_context as get_replica_context
from penstock.distribute.host import HostStrategy as HostStrategy
from penstock.distribute.input import DistributedDataset as DistributedDataset
from penstock.distribute.input import DistributedIterator as DistributedIterator
from penstock.distribute.input_options import InputOptions as InputOptions
from penstock.distribute.input_options import InputReplicationMode as InputReplicationMode
from penstock.distribute.input_options import PartialBatch as PartialBatch
from penstock.distribute.optional import Optional as Optional
from penstock.distribute.strategy import Strategy as Strategy
from penstock.distribute.values import PerReplica as PerReplica

if TYPE_CHECKING:
    from penstock.distribute.mirrored import MirroredStrategy as MirroredStrategy


def __getattr__(name: str) -> Any:
    if name == "MirroredStrategy":
        return import_module("penstock.distribute.mirrored").MirroredStrategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
