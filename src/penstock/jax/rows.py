"""Rows of a batch that each process reads, from the index maps of the leaves' shardings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from penstock.data.dataset import Dataset
from penstock.distribute.feed.inputs import DividedInput
from penstock.distribute.feed.options import PartialBatch
from penstock.distribute.feed.shards import StrategyWorkers, WorkerShard
from penstock.errors import InvalidArgumentError
from penstock.jax.shardings import parts_along
from penstock.options import AutoShardPolicy


@dataclass(frozen=True)
class MeshWorkers(StrategyWorkers):
    """The processes of a mesh. A replica is one of the equal slices into which the rows of a batch are cut.

    Attributes:
        slices: the slices that the devices of each process hold.
    """

    slices: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of_mesh(cls, shardings: Sequence[NamedSharding]) -> "MeshWorkers":
        """The processes of the leaves' mesh.

        Raises:
            InvalidArgumentError: the mesh has devices of this process and some others, but not of all.
        """
        devices: list[Any] = list(shardings[0].mesh.devices.flat)
        processes = sorted({device.process_index for device in devices})
        here = jax.process_index()
        if processes != [here] and processes != list(range(jax.process_count())):
            raise InvalidArgumentError(
                f"ps.jax.loader takes a mesh over the devices of this process, {here}, or of all "
                f"{jax.process_count()} processes, got one of processes {processes}"
            )
        parts = math.lcm(*(parts_along(sharding, 0) for sharding in shardings))
        held: dict[int, set[int]] = {process: set() for process in processes}
        for sharding in shardings:
            rows = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))  # type: ignore[no-untyped-call]
            indices: dict[Any, Any] = dict(rows.devices_indices_map((parts,)))
            for device, (index,) in indices.items():
                held[device.process_index].update(range(*index.indices(parts)))
        slices = tuple(tuple(sorted(held[process])) for process in processes)
        own = processes.index(here)
        return cls(len(processes), own, len(slices[own]), slices)

    @cached_property
    def replicas_in_sync(self) -> int:
        """The number of slices of a batch."""
        return 1 + max(number for held in self.slices for number in held)

    @cached_property
    def _distinct(self) -> list[tuple[int, ...]]:
        """The shares: groups of slices of equal size that have none in common; one of all slices if there are none."""
        distinct = sorted(set(self.slices))
        sizes = {len(held) for held in distinct}
        apart = sum(map(len, distinct)) == self.replicas_in_sync
        return distinct if apart and len(sizes) == 1 else [tuple(range(self.replicas_in_sync))]

    @property
    def shares(self) -> int:
        return len(self._distinct)

    @property
    def share(self) -> int:
        return self._distinct.index(self.slices[self.index]) if self.shares > 1 else 0

    @property
    def own_slices(self) -> Sequence[int]:
        return self.slices[self.index]


class MeshInput(DividedInput):
    """A dataset of which each process reads what its devices hold.

    Args:
        dataset: the whole dataset.
        workers: the processes of the mesh.
        partial: what happens to a batch whose rows cannot be divided evenly.
        division: words for how rows are divided, which must be the same on all processes.
    """

    workers: MeshWorkers

    def __init__(self, dataset: Dataset, workers: MeshWorkers, partial: PartialBatch, division: Sequence[str]) -> None:
        super().__init__(dataset, workers, partial, division, padded_at_end=True)
        if self.shard.own_batches and self.shard.policy is AutoShardPolicy.OFF and workers.shares < workers.count:
            raise InvalidArgumentError(
                "ps.jax.loader: several processes of this mesh hold the same rows, so they cannot read from a named "
                "job of the data service, which gives each of them other elements: omit job_name"
            )

    def shard_of(self, worker: int) -> WorkerShard:
        shard = super().shard_of(worker)
        asked = super()._policy() is shard.policy
        return shard if asked else replace(shard, reason="a position in global batches fits any mesh")

    def _policy(self) -> AutoShardPolicy | None:
        policy = super()._policy()
        # A position in files of a process's own would fit no other number of processes, so files must be asked for.
        if policy in (None, AutoShardPolicy.AUTO) or (self.workers.shares == 1 and policy is not AutoShardPolicy.HINT):
            return AutoShardPolicy.DATA
        return policy

    def fix_seeds_alone(self) -> None:
        # Not the user's own dataset, whose other iterations would count as epochs of this loader.
        self._part = Dataset(self.shard.node, self._whole.options())
