"""Ranks of a job, and the slice of every global batch that this one gets."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch.distributed

from penstock.distribute.cluster.description import IncompleteError
from penstock.distribute.cluster.finding import warn_of_others
from penstock.distribute.cluster.variables import TORCHRUN
from penstock.distribute.feed.shards import StrategyWorkers
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer


@dataclass(frozen=True)
class Ranks:
    """The ranks of a job, and this one's share of the data.

    Attributes:
        count: how many processes there are.
        rank: the number of this one.
        data: how many different slices a global batch is cut into, and which of them is this rank's. Ranks that differ
            in tensor, pipeline or context parallelism alone have the same one.
        parts: into how many parts a sequence is cut.
        part: which of them is this rank's.
        source: where this was found; "arguments" where nothing connects the ranks.
        division: words for how rows are divided, which must be the same on all ranks.
    """

    count: int
    rank: int
    data: StrategyWorkers
    parts: int = 1
    part: int = 0
    source: str = "alone"
    division: tuple[str, ...] = ()


def find_ranks(mesh: Any, dp: Any, context_parallel: Any, rank: int | None, num_ranks: int | None) -> Ranks:
    """The ranks as the arguments say them; otherwise by the process group, or by torchrun's variables.

    Raises:
        InvalidArgumentError: arguments that contradict each other, or a mesh without such a dimension or this rank.
        InvalidTypeError: an argument of the wrong type.
    """
    if mesh is not None:
        if rank is not None or num_ranks is not None:
            raise InvalidArgumentError("ps.torch.loader takes mesh=..., or rank=... and num_ranks=..., got both")
        return _of_mesh(mesh, dp, context_parallel)
    if dp is not None or context_parallel is not None:
        raise InvalidArgumentError(
            "ps.torch.loader(dp=..., context_parallel=...) name dimensions of a DeviceMesh: give it mesh=... too"
        )
    if rank is not None or num_ranks is not None:
        return _given(rank, num_ranks)
    found = launched()
    if found is None:
        warn_of_others("ps.torch.loader", "initialise torch.distributed first, or give it rank=... and num_ranks=...")
        return Ranks(1, 0, StrategyWorkers(1, 0, 1))
    return found


def launched() -> Ranks | None:
    """The ranks as the process group has them, or else as torchrun's variables say; None where there are neither."""
    if group_is_initialised():
        count, own = torch.distributed.get_world_size(), torch.distributed.get_rank()
        return Ranks(count, own, StrategyWorkers(count, own, 1), source="the process group")
    try:
        cluster = TORCHRUN(os.environ)
    except IncompleteError:
        return None
    if cluster is None or cluster.num_workers is None or cluster.worker_index is None:
        return None
    count, own = cluster.num_workers, cluster.worker_index
    return Ranks(count, own, StrategyWorkers(count, own, 1), source="torchrun" if count > 1 else "alone")


def group_is_initialised() -> bool:
    """Return whether this process has a default process group."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _given(rank: int | None, num_ranks: int | None) -> Ranks:
    if rank is None or num_ranks is None:
        missing = "rank" if rank is None else "num_ranks"
        raise InvalidArgumentError(f"ps.torch.loader takes rank=... and num_ranks=... together, got no {missing}")
    count = check_integer("ps.torch.loader", "num_ranks", num_ranks, minimum=1)
    own = check_integer("ps.torch.loader", "rank", rank, minimum=0)
    if own >= count:
        raise InvalidArgumentError(
            f"ps.torch.loader(rank=...) must be below num_ranks={count}, got {own}: ranks count from 0"
        )
    return Ranks(count, own, StrategyWorkers(count, own, 1), source="arguments" if count > 1 else "alone")


def _of_mesh(mesh: Any, dp: Any, context_parallel: Any) -> Ranks:
    if not hasattr(mesh, "get_coordinate") or not hasattr(mesh, "mesh_dim_names"):
        raise InvalidTypeError(
            f"ps.torch.loader(mesh=...) takes a DeviceMesh, made by torch.distributed.init_device_mesh, got {mesh!r}"
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise InvalidArgumentError(
            f"rank {torch.distributed.get_rank()} is not part of {mesh!r}: give ps.torch.loader a mesh that holds "
            "every rank that reads data"
        )
    dimensions = _dimensions(mesh, dp)
    sizes = [mesh.size(dimension) for dimension in dimensions]
    index = 0
    for dimension, size in zip(dimensions, sizes, strict=True):
        index = index * size + coordinate[dimension]
    parts, part = 1, 0
    if context_parallel is not None:
        sequence = _number(mesh, "context_parallel", context_parallel)
        if sequence in dimensions:
            raise InvalidArgumentError(
                f"ps.torch.loader: {context_parallel!r} is named by dp=... and by context_parallel=...: ranks of one "
                "dimension share either the rows or the sequence"
            )
        parts, part = mesh.size(sequence), coordinate[sequence]
    count, own = torch.distributed.get_world_size(), torch.distributed.get_rank()
    names = [mesh.mesh_dim_names[dimension] if mesh.mesh_dim_names else dimension for dimension in dimensions]
    division = f"dp={names} of sizes {sizes}, context_parallel={context_parallel!r} of size {parts}"
    return Ranks(count, own, StrategyWorkers(prod(sizes), index, 1), parts, part, "the process group", (division,))


def _dimensions(mesh: Any, dp: Any) -> list[int]:
    """The numbers of the data-parallel dimensions, in the mesh's order."""
    if dp is None:
        if mesh.ndim == 1:
            return [0]
        raise InvalidArgumentError(
            f"{mesh!r} has {mesh.ndim} dimensions: name those of data parallelism, as in dp=('replicate', 'shard'); "
            "the ranks along the others get the same rows"
        )
    names = [dp] if isinstance(dp, str) else dp
    if not isinstance(names, Sequence):
        raise InvalidTypeError(f"ps.torch.loader(dp=...) takes names of dimensions, got {dp!r}")
    numbers = [_number(mesh, "dp", name) for name in names]
    if len(set(numbers)) < len(numbers):
        raise InvalidArgumentError(f"ps.torch.loader(dp={dp!r}) names a dimension twice")
    return sorted(numbers)


def _number(mesh: Any, argument: str, name: Any) -> int:
    names = tuple(mesh.mesh_dim_names or ())
    if name not in names:
        raise InvalidArgumentError(
            f"ps.torch.loader({argument}=...) names {name!r}, which is no dimension of the mesh: it has "
            f"{', '.join(map(repr, names)) or 'no names; give init_device_mesh mesh_dim_names=...'}"
        )
    return names.index(name)
