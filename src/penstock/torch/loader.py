"""`ps.torch.loader`: this rank's slice of every global batch, as tensors."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from penstock.data.dataset import Dataset
from penstock.distribute.feed.data_loader import DATA_LOADER
from penstock.distribute.feed.dataset import DistributedDataset, agreed_of, inputs_of
from penstock.distribute.feed.inputs import DividedInput
from penstock.distribute.feed.loader import StepLoader
from penstock.distribute.feed.options import InputOptions, PartialBatch, checked_options
from penstock.errors import InvalidArgumentError, InvalidTypeError, StateMismatchError, WorkerError
from penstock.options import check_seconds
from penstock.other_names import other_keywords
from penstock.printing import text_of_error
from penstock.rng import draw_seed
from penstock.torch.meeting import connected, meeting_of
from penstock.torch.placing import Placing
from penstock.torch.ranks import Ranks, find_ranks, group_is_initialised, launched
from penstock.torch.tensors import check_dtypes

_KEY = "penstock"


@other_keywords(DATA_LOADER, "DataLoader")
def loader(
    dataset: Dataset[Any],
    mesh: Any = None,
    dp: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    input_options: InputOptions | None = None,
    *,
    context_parallel: str | None = None,
    rank: int | None = None,
    num_ranks: int | None = None,
    collate: Callable[..., Any] | None = None,
    failure_timeout_seconds: float | None = None,
) -> "Loader":
    """An iterable of this rank's slices of a dataset's global batches, as tensors in the dataset's structure.

    Which rank this is follows from `mesh`, from `rank` and `num_ranks`, from the process group of `torch.distributed`
    if it is initialised, or from the variables that torchrun and Accelerate set; otherwise this process is alone. With
    several ranks each of them must make the same loaders in the same order. All of them end after the same step.

    Args:
        dataset: a `ps.Dataset` of global batches: the rows of one step on all ranks together. Rank r of n gets slice r
            of the n slices of ceil(rows / n) rows.
        mesh: a `DeviceMesh`.
        dp: the name or names of the mesh's data-parallel dimensions, such as ("replicate", "shard"). Ranks that differ
            in other dimensions alone get the same rows. It is not needed for a mesh of one dimension.
        device: where the tensors go, ahead of the step; host memory by default.
        pin_memory: whether tensors are put in pinned memory; by default they are on their way to a CUDA device.
        input_options: `ps.InputOptions`: how many steps are read ahead, and what happens to partial batches. With
            `partial_batch="pad"` a step is the pair (batch, mask).
        context_parallel: the name of a mesh dimension whose ranks get a part of the second axis of each leaf that has
            one: of the sequence.
        rank: the number of this rank, from 0, where nothing else gives it. Ranks given in this way exchange nothing.
        num_ranks: the number of ranks.
        collate: a function of this rank's rows of a batch, as NumPy arrays, which gives what the step gets instead: any
            structure of arrays, tensors and other objects, such as graphs that are put together. With
            `partial_batch="pad"` it takes the rows and the mask. It is called in the thread that reads ahead.
        failure_timeout_seconds: how long a rank waits for others that do not make a call which all must make, 300 s by
            default, or take no step, half an hour by default, and, after another rank's failure, how long it may stay
            blocked in a collective before it is ended, 30 s by default.

    Returns:
        A `Loader`.

    Raises:
        InvalidTypeError: an argument of the wrong type.
        InvalidArgumentError: arguments that contradict each other, a dimension that the mesh lacks, a device that is
            not here, or batches that may leave a rank without rows under `partial_batch="ragged"`.
        ElementError: the elements are not batches, or have a dtype that torch lacks.
        WorkerError: the ranks read different datasets, or one of them did not come.

    Example:
        >>> import penstock as ps
        >>> dataset = ps.Dataset.from_tensor_slices({"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "y": [0, 1, 0]})
        >>> with ps.torch.loader(dataset.batch(2)) as loader:
        ...     for batch in loader:
        ...         print(batch["x"].shape, batch["y"])
        torch.Size([2, 2]) tensor([0, 1])
        torch.Size([1, 2]) tensor([0])
    """
    if failure_timeout_seconds is not None:
        check_seconds("ps.torch.loader", "failure_timeout_seconds", failure_timeout_seconds)
    given = rank is not None or num_ranks is not None
    meeting = None if given else meeting_of(launched(), failure_timeout_seconds)
    try:
        ranks = find_ranks(mesh, dp, context_parallel, rank, num_ranks)
        options = _checked(dataset, input_options, collated=collate is not None)
        placing = Placing(device if options.fetch_to_device else None, pin_memory, ranks.parts, ranks.part)
        partial = PartialBatch(options.partial_batch)
        inputs = DividedInput(dataset, ranks.data, partial, [*ranks.division, f"partial_batch {partial}"])
        if ranks.source == "arguments":
            _check_alone(inputs)
    except Exception as error:
        if meeting is not None:
            meeting.fail(error)
        raise
    if ranks.count == 1:
        inputs.fix_seeds(draw_seed(), inputs.drawn)  # this loader's epochs are counted by itself, as on many ranks
    control = connected(meeting)
    try:
        steps = DistributedDataset(
            *(inputs, placing, options, control, "ps.torch.loader"),
            bare=True,
            collate=collate,
            handed_out=placing.handed_out,
        )
    except BaseException as error:
        if control is not None:
            if not isinstance(error, WorkerError):  # which the others have too
                control.fail(f"failed in ps.torch.loader with {text_of_error(error)}")
            control.close()
        raise
    loader = Loader(steps, ranks)
    if agreed_of(steps).may_be_none():
        loader.close()
        raise InvalidArgumentError(
            f"the batches of this dataset may leave some of {ranks.data.count} ranks without rows, and the mean of "
            'no losses is NaN: give ps.torch.loader input_options=ps.InputOptions(partial_batch="drop"), which '
            'skips such steps, or "pad", which gives every rank the same number of rows and a mask of the real ones'
        )
    return loader


class Loader(StepLoader):
    """This rank's slices of the global batches, as tensors; from `ps.torch.loader`.

    Each `iter` begins a new epoch, and ends the one before it, unless no step of that was taken: trainers try whether a
    loader can be iterated. The state is the position after the last step handed
    out, whatever was read ahead. It is equal on all ranks and may be restored on any number of them.
    """

    def __init__(self, steps: DistributedDataset, ranks: Ranks) -> None:
        super().__init__("ps.torch.loader", steps)
        self._ranks = ranks

    def __iter__(self) -> Iterator[Any]:
        self._check_group()
        return super().__iter__()

    def state_dict(self) -> dict[str, str]:
        """The position after the last step handed out: one entry, which is JSON, as checkpoints of torch keep it.

        Ranks that read different files (AutoShardPolicy.FILE) exchange their positions, so that all of them must
        call this after the same step; otherwise any rank may.

        Raises:
            ClosedError: the loader was closed.
            WorkerError: another rank failed, or did not call this.
        """
        if self._control is None and self._ranks.count > 1 and inputs_of(self._steps).has_own_data:
            raise InvalidArgumentError(
                "each rank reads files of its own here, and ranks that were given by rank=... and num_ranks=... cannot "
                "exchange their positions: initialise torch.distributed, or use AutoShardPolicy.DATA"
            )
        return {_KEY: json.dumps(super().state_dict(), separators=(",", ":"))}

    def load_state_dict(self, state: Any, *, remix: bool = False) -> None:
        """Continue after the step that a state was taken at; all ranks must do so with the same state.

        The next `iter` gives the rest of that epoch; where the state was taken after its end, the epoch after it.

        Raises:
            StateMismatchError: the state is of another dataset, or none of a loader.
            WorkerError: the ranks have different states, or one of them did not call this.
            ClosedError: the loader was closed.
        """
        position = _position_in(state)
        if position is None:
            self._check_same(None)
            raise StateMismatchError(f"ps.torch.loader takes a loader's state, {{{_KEY!r}: ...}}, got {state!r:.200}")
        super().load_state_dict(position, remix=remix)

    def _check_group(self) -> None:
        """Refuse to feed a rank of a group that was initialised after this loader was made alone."""
        if self._ranks.source == "alone" and group_is_initialised() and torch.distributed.get_world_size() > 1:
            raise InvalidArgumentError(
                f"this loader was made for one process, but this is rank {torch.distributed.get_rank()} of "
                f"{torch.distributed.get_world_size()}: make it after torch.distributed is initialised (in Lightning, "
                "in train_dataloader), or every rank trains on every row"
            )

    def close(self) -> None:
        """End the background thread and the connection to the other ranks; may be called more than once."""
        super().close()
        if self._control is not None:
            self._control.close()

    def __getitem__(self, index: Any) -> NoReturn:
        raise InvalidTypeError(
            "a loader gives steps one after the other: loop over it, and put it into no DataLoader, for which there is "
            "ps.torch.as_iterable_dataset(dataset)"
        )

    def __repr__(self) -> str:
        ranks = self._ranks
        return f"<penstock.torch.Loader of {inputs_of(self._steps).dataset!r}, rank {ranks.rank} of {ranks.count}>"


def _position_in(state: Any) -> dict[str, Any] | None:
    """The position that a state of `Loader.state_dict` holds; None where it is something else."""
    try:
        found = json.loads(state[_KEY])
    except (TypeError, KeyError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _checked(dataset: Any, input_options: Any, *, collated: bool) -> InputOptions:
    if not isinstance(dataset, Dataset):
        raise InvalidTypeError(
            f"ps.torch.loader(dataset) takes a ps.Dataset, got {type(dataset).__name__}: make one of a map-style data "
            "set by ps.Dataset.from_source(data).batch(global_batch_size), of an iterable one by "
            "ps.Dataset.from_generator"
        )
    options = checked_options("ps.torch.loader", input_options)
    if not collated:
        check_dtypes(dataset.node.spec)
    return options


def _check_alone(inputs: DividedInput) -> None:
    """Refuse data whose end ranks would have to agree on, where nothing connects them."""
    if inputs.has_own_data and inputs.lengths_of_all() is None:
        raise InvalidArgumentError(
            "ranks given by rank=... and num_ranks=... exchange nothing, and how many steps each of them has is known "
            "only when its files were read: initialise torch.distributed, or set "
            "ps.Options(auto_shard_policy=ps.AutoShardPolicy.DATA)"
        )
