"""Strategies: run the same step on several replicas, each on its slice of every batch.

JAX is imported only when a strategy on devices is asked for.
"""

from typing import TYPE_CHECKING

from penstock.distribute.contexts import InputContext as InputContext
from penstock.distribute.contexts import ReduceOp as ReduceOp
from penstock.distribute.contexts import ReplicaContext as ReplicaContext
from penstock.distribute.contexts import ValueContext as ValueContext
from penstock.distribute.contexts import get_replica_context as get_replica_context
from penstock.distribute.contexts import get_strategy as get_strategy
from penstock.distribute.feed.dataset import DistributedDataset as DistributedDataset
from penstock.distribute.feed.dataset import DistributedIterator as DistributedIterator
from penstock.distribute.feed.options import InputOptions as InputOptions
from penstock.distribute.feed.options import InputReplicationMode as InputReplicationMode
from penstock.distribute.feed.options import PartialBatch as PartialBatch
from penstock.distribute.host.strategy import HostStrategy as HostStrategy
from penstock.distribute.strategy import Strategy as Strategy
from penstock.distribute.values import PerReplica as PerReplica
from penstock.extras import when_used

if TYPE_CHECKING:
    from penstock.distribute.jax.mirrored import MirroredStrategy as MirroredStrategy
    from penstock.distribute.jax.multi_worker import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
    from penstock.distribute.jax.multi_worker import TPUStrategy as TPUStrategy

__getattr__ = when_used(
    __name__,
    MirroredStrategy="jax.mirrored",
    MultiWorkerMirroredStrategy="jax.multi_worker",
    TPUStrategy="jax.multi_worker",
)
