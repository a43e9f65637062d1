"""Options of the replicas' input: `InputOptions`."""

from dataclasses import dataclass
from enum import StrEnum

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import as_member, check_flag, check_integer
from penstock.other_names import Names, NotHere, OtherNames


class InputReplicationMode(StrEnum):
    """Number of input pipelines; names are accepted too.

    Attributes:
        PER_WORKER: one on each worker, which feeds all its replicas.
        PER_REPLICA: one for each replica.

    Example:
        >>> import penstock as ps
        >>> strategy = ps.HostStrategy(replicas_per_worker=2)
        >>> options = ps.InputOptions(replication_mode="PER_REPLICA")
        >>> def rows(context):
        ...     return ps.Dataset.range(4).shard(context.num_input_pipelines, context.input_pipeline_id).batch(2)
        >>> [batch.values for batch in strategy.distribute_datasets_from_function(rows, options)]
        [(array([0, 2]), array([1, 3]))]
    """

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


class PartialBatch(StrEnum):
    """Treatment of a batch that does not fill all replicas equally; names are accepted too.

    Attributes:
        RAGGED: the replicas get slices of different sizes, some of them empty.
        PAD: all get slices of one size, padded with zeros, and a mask that is True for rows and False for padding.
        DROP: the step is skipped; where batches have no one size, the rows that do not divide by the replicas.

    Example:
        >>> import penstock as ps
        >>> strategy, dataset = ps.HostStrategy(replicas_per_worker=2), ps.Dataset.range(3).batch(3)
        >>> (batch, mask), = strategy.distribute_dataset(dataset, ps.InputOptions(partial_batch="pad"))
        >>> [part.tolist() for part in batch.values], [part.tolist() for part in mask.values]
        ([[0, 1], [2, 0]], [[True, True], [True, False]])
    """

    RAGGED = "ragged"
    PAD = "pad"
    DROP = "drop"


_TENSORFLOW: Names = {
    "experimental_fetch_to_device": "fetch_to_device",
    "experimental_per_replica_buffer_size": "per_replica_buffer_size",
    "experimental_place_dataset_on_device": NotHere("a pipeline is Python and NumPy, and runs on the host"),
    "experimental_replication_mode": "replication_mode",
}


@OtherNames(keywords={"__init__": _TENSORFLOW}, attributes=_TENSORFLOW)
@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Options of `distribute_dataset` and `distribute_datasets_from_function` for feeding the replicas.

    Args:
        per_replica_buffer_size: how many steps a background thread keeps ready for every replica; with 0 there is no
            thread, and each step is made when it is asked for.
        fetch_to_device: whether the steps are brought to the devices ahead of time. Otherwise they stay NumPy arrays in
            host memory, and `run` transfers them.
        replication_mode: one pipeline per worker, or, for `distribute_datasets_from_function`, one per replica.
        partial_batch: "ragged", "pad" or "drop". With "pad" a step is the pair (batch, mask): at each leaf every
            replica has the rows of a full step, and its mask, an array of booleans, is True for real rows. The
            rows of a full step follow from the size given to `batch`, even if a function changes the batches
            afterwards; one with more rows is padded for itself. "drop" skips the steps that are not full. Where
            batches have no one size, as those of buckets, of a function or of `group_by_window`, each step is taken
            for itself: "pad" goes to the next multiple of the number of replicas, and "drop" skips the rows
            beyond the last one.

    Raises:
        InvalidTypeError: a value of the wrong type.
        InvalidArgumentError: a negative size, or a name that is none.

    Example:
        >>> import penstock as ps
        >>> strategy = ps.HostStrategy(replicas_per_worker=2)
        >>> options = ps.InputOptions(partial_batch="pad")
        >>> for batch, mask in strategy.distribute_dataset(ps.Dataset.range(5).batch(4), options):
        ...     print(batch.values, mask.values)
        (array([0, 1]), array([2, 3])) (array([ True,  True]), array([ True,  True]))
        (array([4, 0]), array([0, 0])) (array([ True, False]), array([False, False]))
    """

    per_replica_buffer_size: int = 2
    fetch_to_device: bool = True
    replication_mode: InputReplicationMode | str = InputReplicationMode.PER_WORKER
    partial_batch: PartialBatch | str = PartialBatch.RAGGED

    def __post_init__(self) -> None:
        check_integer("InputOptions", "per_replica_buffer_size", self.per_replica_buffer_size, minimum=0)
        check_flag("InputOptions", "fetch_to_device", self.fetch_to_device)
        mode = as_member("InputOptions(replication_mode=...)", InputReplicationMode, self.replication_mode)
        partial = as_member("InputOptions(partial_batch=...)", PartialBatch, self.partial_batch)
        object.__setattr__(self, "replication_mode", mode)
        object.__setattr__(self, "partial_batch", partial)


def checked_options(call: str, options: object, *, divided: bool = True) -> InputOptions:
    """Return the options that a call was given, or the default ones; `divided` says that it divides one dataset.

    Raises:
        InvalidTypeError: they are something else.
        InvalidArgumentError: they ask for more datasets than there are.
    """
    if options is not None and not isinstance(options, InputOptions):
        raise InvalidTypeError(f"{call}(input_options=...) takes ps.InputOptions, got {options!r}")
    if divided and options is not None and options.replication_mode is InputReplicationMode.PER_REPLICA:
        raise InvalidArgumentError(
            f'InputOptions(replication_mode="PER_REPLICA") makes a pipeline for each replica, and {call} has one to '
            "divide: use distribute_datasets_from_function of a strategy"
        )
    return options or InputOptions()
