"""Distributed input: a dataset of global batches as steps, cut into a slice per replica and placed ahead of time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from penstock.data.dataset import Dataset
from penstock.distribute.contexts import refuse_in_replica
from penstock.distribute.optional import Optional
from penstock.distribute.prefetch import End, Failure, Outcome, Prefetcher, Step
from penstock.distribute.values import PerReplica
from penstock.errors import ClosedError, ElementError, InvalidTypeError, OutOfRangeError
from penstock.options import check_integer
from penstock.runtime.channel import Closed
from penstock.sharding import slice_bounds
from penstock.spec import TensorSpec
from penstock.structure import Structure, flatten

Bounds = Sequence[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """How `distribute_dataset` feeds the replicas.

    Args:
        prefetch: how many steps a background thread keeps ready on the devices; with 0 each step is made when it is
            asked for.

    Raises:
        InvalidTypeError: a `prefetch` that is not an integer.
        InvalidArgumentError: a negative `prefetch`.
    """

    prefetch: int = 2

    def __post_init__(self) -> None:
        check_integer("InputOptions", "prefetch", self.prefetch, minimum=0)


@dataclass(frozen=True)
class ReplicaLayout:
    """Which replicas this process feeds, and how.

    Attributes:
        replicas_in_sync: the number of replicas on all workers: every batch is cut into as many slices.
        local: the numbers of this process's replicas.
        place: given the leaves of a batch and the bounds of the local slices, what to hand out for each leaf.
    """

    replicas_in_sync: int
    local: range
    place: Callable[[list[Any], Bounds], list[PerReplica]]

    def cut(self, batch: Any) -> Any:
        """The batch with its leaves cut by the splitting rule and placed; bare ones for a single replica in sync."""
        leaves, structure = flatten(batch)
        rows = _rows_of(leaves, structure)
        bounds = slice_bounds(rows, self.replicas_in_sync)[self.local.start : self.local.stop]
        placed = self.place(leaves, bounds)
        return structure.unflatten([leaf.values[0] for leaf in placed] if self.replicas_in_sync == 1 else placed)


def sliced(leaves: list[Any], bounds: Bounds) -> list[PerReplica]:
    """Slices as they lie in host memory, as views."""
    return [PerReplica([leaf[start:stop] for start, stop in bounds]) for leaf in leaves]


class DistributedDataset:
    """A dataset of global batches that gives every replica its slice; from `strategy.distribute_dataset(...)`.

    Each `iter` starts the dataset anew.
    """

    def __init__(self, dataset: Any, layout: ReplicaLayout, options: InputOptions | None = None) -> None:
        if isinstance(dataset, DistributedDataset):
            raise InvalidTypeError(
                "distribute_dataset(dataset) got a dataset that is distributed already: give it the plain ps.Dataset"
            )
        if not isinstance(dataset, Dataset):
            raise InvalidTypeError(
                f"distribute_dataset(dataset) takes a ps.Dataset, got {type(dataset).__name__}: "
                "make one by ps.Dataset.from_tensor_slices(...) or ps.Dataset.from_generator(...)"
            )
        if options is not None and not isinstance(options, InputOptions):
            raise InvalidTypeError(f"distribute_dataset(input_options=...) takes ps.InputOptions, got {options!r}")
        _check_spec(dataset.node.spec)
        self._dataset = dataset
        self._layout = layout
        self._options = options or InputOptions()

    @property
    def element_spec(self) -> Any:
        """The specification of a step: at each leaf a `PerReplica` of `TensorSpec`; bare ones for one replica in sync.

        The leading length is given where every batch has the same one and the replicas divide it evenly, else it is
        None.
        """
        spec = self._dataset.element_spec
        if spec is None or self._layout.replicas_in_sync == 1:
            return spec
        leaves, structure = flatten(spec)
        return structure.unflatten([self._leaf_spec(leaf) for leaf in leaves])

    def _leaf_spec(self, leaf: TensorSpec) -> PerReplica:
        rows, replicas = leaf.shape[0], self._layout.replicas_in_sync
        share = rows // replicas if rows is not None and rows % replicas == 0 else None
        return PerReplica([leaf.row().batched(share)] * len(self._layout.local))

    def cardinality(self) -> int:
        """The number of steps, or `ps.INFINITE_CARDINALITY`, or `ps.UNKNOWN_CARDINALITY`."""
        return int(self._dataset.cardinality())

    def __iter__(self) -> "DistributedIterator":
        refuse_in_replica("iter(distributed_dataset)")
        return DistributedIterator(iter(self._dataset), self._layout, self._options)


class DistributedIterator(Iterator[Any]):
    """One pass over a distributed dataset.

    Its state is that of the dataset after the last step handed out, whatever was prefetched, so it can also be restored
    on another number of replicas. An exception of the pipeline is raised for the step it happened in; `next` may be
    called again after it.
    """

    def __init__(self, batches: Any, layout: ReplicaLayout, options: InputOptions) -> None:
        self._batches = batches
        self._produce = _Producer(batches, layout)
        self._prefetch = options.prefetch
        self._prefetcher: Prefetcher | None = None
        self._state = batches.state_dict()
        self._ended = False
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        refuse_in_replica("next(distributed_iterator)")
        if self._closed:
            raise ClosedError("this distributed iterator was closed: make a new one by iter(distributed_dataset)")
        if self._ended:
            raise StopIteration
        try:
            outcome = self._outcome()
        except Closed:
            if self._ended:  # met by another thread
                raise StopIteration from None
            raise ClosedError("this distributed iterator was closed while a step was waited for") from None
        if outcome.state is not None:
            self._state = outcome.state
        if isinstance(outcome, Step):
            return outcome.value
        if isinstance(outcome, Failure):
            try:
                raise outcome.error
            finally:
                del outcome  # the error's traceback holds this frame: the two would keep each other alive
        self._ended = True
        self._stop()
        raise StopIteration

    def _outcome(self) -> Outcome:
        if self._prefetch == 0:
            return self._produce()
        if self._prefetcher is None:
            self._prefetcher = Prefetcher(self._produce, self._prefetch)
        return self._prefetcher.get()

    def get_next(self) -> Any:
        """The next step, as `next` gives it.

        Raises:
            OutOfRangeError: the data has ended.
        """
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError("the distributed dataset has no further step") from None

    def get_next_as_optional(self) -> Optional:
        """The next step, or an optional without a value at the end: no exception tells it."""
        try:
            return Optional.of(next(self))
        except StopIteration:
            return Optional.empty()

    def state_dict(self) -> dict[str, Any]:
        """The position after the last step handed out, as plain data: the state of the dataset's own iterator."""
        return self._state  # type: ignore[no-any-return]  # what the dataset's iterator gave

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the step after the one that `state` was taken at.

        Raises:
            StateMismatchError: the state is of another dataset; this iterator then stays as it was.
            ClosedError: the iterator was closed.
        """
        if self._closed:
            raise ClosedError("this distributed iterator was closed: make a new one by iter(distributed_dataset)")
        self._stop()
        try:
            self._batches.load_state_dict(state)
        except BaseException:
            # The thread had read ahead: what the caller has not seen yet must come again.
            self._batches.load_state_dict(self._state)
            raise
        self._state = state
        self._ended = False

    def close(self) -> None:
        """End the background thread and free what it holds; may be called more than once."""
        self._closed = True
        self._stop()
        self._batches.close()

    def _stop(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class _Producer:
    """Makes the next step; it knows nothing of the iterator that hands it out, so a thread may hold it."""

    batches: Any
    layout: ReplicaLayout

    def __call__(self) -> Outcome:
        try:
            value = self.layout.cut(next(self.batches))
        except StopIteration:
            return End(self.batches.state_dict())
        except Exception as error:  # raised again by the iterator, in the caller's thread
            return Failure(error, self.batches.state_dict())
        return Step(value, self.batches.state_dict())


def _rows_of(leaves: list[Any], structure: Structure) -> int:
    """The leading length that all leaves of a batch share."""
    rows: int | None = None
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, np.ndarray) or leaf.ndim == 0:
            raise _unbatched(structure.paths()[number])
        if rows is None:
            rows = len(leaf)
        elif len(leaf) != rows:
            raise _unequal(structure, [len(array) for array in leaves])
    if rows is None:
        raise ElementError(f"a distributed batch must have at least one array, got an element of structure {structure}")
    return rows


def _unequal(structure: Structure, lengths: list[int | None]) -> ElementError:
    rows = ", ".join(f"{path}: {length}" for path, length in zip(structure.paths(), lengths, strict=True))
    return ElementError(f"all leaves of a distributed batch must have the same number of rows, got {rows}")


def _unbatched(path: str) -> ElementError:
    return ElementError(
        "distribute_dataset takes a dataset of global batches, but its elements hold a scalar"
        f"{' at ' + path if path else ''}: add .batch(global_batch_size) before it"
    )


def _check_spec(spec: Any) -> None:
    """Refuse what is no batch when the dataset is distributed, where that is known without running user functions."""
    if spec is None:
        return
    leaves, structure = flatten(spec)
    for path, leaf in zip(structure.paths(), leaves, strict=True):
        if len(leaf.shape) == 0:
            raise _unbatched(path)
    lengths = [leaf.shape[0] for leaf in leaves]
    if len(set(lengths) - {None}) > 1:
        raise _unequal(structure, lengths)
