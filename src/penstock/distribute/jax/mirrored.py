"""`MirroredStrategy`: one replica on each of this process's JAX devices."""

from collections.abc import Sequence
from typing import Any

from penstock.distribute.cluster.finding import warn_of_others
from penstock.distribute.feed.shards import StrategyWorkers
from penstock.distribute.jax.devices import checked_devices
from penstock.distribute.jax.mesh_strategy import MeshStrategy
from penstock.distribute.tensorflow import STRATEGY


@STRATEGY
class MirroredStrategy(MeshStrategy):
    """One replica on each local JAX device.

    A step whose slices are equal in size runs as one compiled program on all devices, compiled once for each function
    and each set of shapes. So give `run` the same function object at every step. As under `jax.jit`, the
    function runs only while it is compiled: values from outside its arguments are fixed from then on. A ragged
    step gives the same numbers more slowly, on one device.

    If a launcher names several processes, each of them trains alone with this strategy, and a warning is logged.

    Args:
        devices: JAX devices, or names such as "cpu:0"; all local devices of JAX's default platform where None.
        check_weights: after every step compare the Keras variables that must be equal on all replicas, weights and
            those of optimisers, and raise an error where they differ. For debugging: it waits for every step.

    Raises:
        InvalidTypeError: something that is no device.
        InvalidArgumentError: no devices, unknown ones, one of them twice, or several platforms; from `run`, variables
            that `check_weights` finds to differ.

    Example:
        >>> import penstock as ps
        >>> strategy = ps.MirroredStrategy()
        >>> dataset = strategy.distribute_dataset(ps.Dataset.range(6).batch(6))
        >>> totals = [strategy.reduce("SUM", batch, axis=0) for batch in dataset]
        >>> int(totals[0])
        15
    """

    def __init__(self, devices: Sequence[Any] | None = None, *, check_weights: bool = False) -> None:
        warn_of_others("MirroredStrategy", "use MultiWorkerMirroredStrategy if they are to train together")
        found = checked_devices(devices)
        super().__init__(found, StrategyWorkers(1, 0, len(found)), control=None, check_weights=check_weights)

    def __repr__(self) -> str:
        names = [f"{device.platform}:{device.id}" for device in self._placement.local_devices]
        return f"MirroredStrategy({', '.join(names)})"
