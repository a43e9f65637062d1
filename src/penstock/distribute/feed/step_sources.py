"""Sources of this worker's steps, and the positions from which they can be resumed."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from penstock.data.iterator import PositionedElements
from penstock.data.origins import Row
from penstock.data.skipped import SkippedRows, together
from penstock.distribute.feed.steps import HostStep, StepLeaf, Template, rows_of
from penstock.errors import StateMismatchError
from penstock.sharding import SliceRule
from penstock.statistics.collected import Statistics
from penstock.structure import Structure, flatten


class StepSource(ABC):
    """This worker's steps, one after the other, with a position that can be saved.

    Attributes:
        replicas: the number of this worker's replicas.
        number: the number of the next step. The caller counts them, also those without data.
    """

    replicas: int
    number = 0
    _readers: "Sequence[PositionedElements[Any] | StepSource]"
    """The iterators that it reads."""

    def _positions(self, position: Any) -> Sequence[Any]:
        """The position of each reader, where this is the position of all."""
        return [position]

    def _readers_at(self, position: Any) -> "Iterator[tuple[PositionedElements[Any] | StepSource, Any]]":
        return zip(self._readers, self._positions(position), strict=True)

    @property
    def statistics(self) -> Statistics | None:
        """The statistics of the first iterator that it reads; None where nothing is counted."""
        return self._readers[0].statistics if self._readers else None

    @abstractmethod
    def next(self) -> HostStep:
        """The next step.

        Raises:
            StopIteration: there is none.
        """

    @abstractmethod
    def position(self) -> Any:
        """The position after the last step given, as plain data; costs little."""

    @abstractmethod
    def place(self) -> list[int]:
        """Return where its steps are, in numbers that are the same on all workers: how many came before.

        Where all divide one dataset these are its epoch, its seed, and how many elements came before.
        """

    @abstractmethod
    def state_at(self, position: Any) -> Any:
        """The state to be restored at a position."""

    @abstractmethod
    def restore(self, state: Any) -> Any:
        """Continue after the step that a state was taken at; gives the position."""

    def explain(self) -> str:
        """The plans of the iterators that it reads, with how many calls of their maps run."""
        return "\n".join(reader.explain() for reader in self._readers)

    def rows_at(self, position: Any) -> list[Row]:
        """Return the rows of sources of which the last step before a position was made."""
        return [row for reader, own in self._readers_at(position) for row in reader.rows_at(own)]

    def errors_at(self, position: Any) -> SkippedRows:
        """The rows that were skipped before a position."""
        return together(reader.errors_at(own) for reader, own in self._readers_at(position))

    def consumed(self, position: Any) -> None:
        """Note that all steps before a position were used: no state will be taken of an earlier one."""
        for reader, own in self._readers_at(position):
            reader.consumed(own)

    def claim(self) -> None:
        """Tell the dispatcher that elements up to the last state must not be given to another reader."""
        for reader in self._readers:
            reader.claim()

    def close(self, position: Any) -> None:
        """End everything that runs for the steps; those after the position were not used."""
        for reader, own in self._readers_at(position):
            reader.close(own)


@dataclass(frozen=True)
class _Cut:
    """The slices of a global batch: the bounds of the local ones, their sizes, and the sizes of all.

    `whole` has the bounds of the local ones together; None where rows of others lie between them.
    """

    local: list[tuple[int, int]]
    whole: tuple[int, int] | None
    sizes: tuple[int, ...]
    all_sizes: tuple[int, ...]


@lru_cache
def _cut_of(rows: int, rule: SliceRule, local: Sequence[int], alone: bool) -> _Cut:
    """The slices of a batch of `rows` rows; `alone` says that only the local rows are there, one after the other."""
    bounds = rule.bounds(rows)
    sizes = tuple(stop - start for start, stop in bounds)
    own = tuple(sizes[number] for number in local)
    cut = [bounds[number] for number in local]
    if alone:
        cut = list(pairwise(accumulate(own, initial=0)))
    first, last = cut[0][0], cut[-1][1]
    return _Cut(cut, (first, last) if last - first == sum(own) else None, own, sizes)


def _cut_leaf(leaf: Any, cut: _Cut) -> StepLeaf:
    slices = [leaf[start:stop] for start, stop in cut.local]
    return StepLeaf(slices, np.concatenate(slices) if cut.whole is None else leaf[cut.whole[0] : cut.whole[1]])


class GlobalBatches(StepSource):
    """The global batches, of which this worker takes the slices of its replicas.

    Its state is that of the dataset's own iterator.

    Args:
        batches: gives the global batches, or the pairs of `Node.local_slices`.
        rule: how they are cut into a slice for each replica in sync.
        local: the numbers of this worker's; hashable.
        pairs: whether `batches` gives pairs.
    """

    def __init__(self, batches: PositionedElements[Any], rule: SliceRule, local: Sequence[int], *, pairs: bool) -> None:
        self.replicas = len(local)
        self._batches = batches
        self._readers = [batches]
        self._rule = rule
        self._local = local
        self._pairs = pairs

    def next(self) -> HostStep:
        element = next(self._batches)
        batch, whole = element if self._pairs else (element, None)
        leaves, structure = flatten(batch)
        rows = rows_of(leaves, structure)
        # In a pair the batch holds this worker's rows and no others.
        cut = _cut_of(rows if whole is None else int(whole), self._rule, self._local, whole is not None)
        return HostStep(structure, [_cut_leaf(leaf, cut) for leaf in leaves], cut.sizes, cut.all_sizes)

    def position(self) -> Any:
        return self._batches.position()

    def place(self) -> list[int]:
        return self._batches.place()

    def state_at(self, position: Any) -> Any:
        return self._batches.state_at(position)

    def restore(self, state: Any) -> Any:
        if isinstance(state, dict) and "worker" in state:
            number, count = state["worker"]
            raise StateMismatchError(
                f"the state is of worker {number} of {count}, which reads data of its own, but here all workers share "
                "global batches: restore it under the AutoShardPolicy that it was saved under"
            )
        return self._batches.restore(state)


class WorkerBatches(StepSource):
    """Batches of the worker's own: each is cut into a slice for every replica in sync, and these are taken R at a time.

    So a batch takes one step for each worker.
    """

    def __init__(
        self, batches: PositionedElements[Any], workers: int, worker: int, replicas: int, rule: SliceRule
    ) -> None:
        self.replicas = replicas
        self._rule = rule
        self._batches = batches
        self._readers = [batches]
        self._workers = workers
        self._worker = worker
        self._before = self._batches.position()
        self._leaves: list[Any] = []
        self._structure = Structure("none", leaf_count=0)
        self._bounds: list[tuple[int, int]] = []
        self._steps_of_batch = 0

    def next(self) -> HostStep:
        if self._steps_of_batch == 0:
            self._read()
        first = self._steps_of_batch * self.replicas
        bounds = self._bounds[first : first + self.replicas]
        self._steps_of_batch = (self._steps_of_batch + 1) % self._workers
        start, stop = bounds[0][0], bounds[-1][1]
        sizes = tuple(end - begin for begin, end in bounds)
        return HostStep(
            self._structure,
            [StepLeaf([leaf[begin:end] for begin, end in bounds], leaf[start:stop]) for leaf in self._leaves],
            sizes,
            sizes if self._workers == 1 else None,
        )

    def _read(self) -> None:
        self._before = self._batches.position()
        self._leaves, self._structure = flatten(next(self._batches))
        rows = rows_of(self._leaves, self._structure)
        self._bounds = self._rule.bounds(rows)

    def _positions(self, position: Any) -> Sequence[Any]:
        return [position["dataset"]]

    def rows_at(self, position: Any) -> list[Row]:
        """Return the rows of the batch of which the step is a part; none after the end of this worker's data."""
        begun = self._batches.place_at(position["dataset"]) + (position["steps_of_batch"] > 0)
        ended = begun * self._workers < position["step"]
        return [] if ended else self._batches.rows_at(position["dataset"], int(position["steps_of_batch"] > 0))

    def position(self) -> Any:
        dataset = self._before if self._steps_of_batch else self._batches.position()
        state = {"worker": [self._worker, self._workers], "replicas": self.replicas, "step": self.number}
        return {**state, "steps_of_batch": self._steps_of_batch, "dataset": dataset}

    def place(self) -> list[int]:
        return [*self._batches.place()[:2], self.number]

    def state_at(self, position: Any) -> Any:
        return {**position, "dataset": self._batches.state_at(position["dataset"])}

    def restore(self, state: Any) -> Any:
        _check_worker(state, self._worker, self._workers, "steps_of_batch", "dataset")
        if state["steps_of_batch"] and state["replicas"] != self.replicas:
            raise StateMismatchError(
                f"the state was taken in the middle of a batch that was cut for {state['replicas']} replicas on each "
                f"worker, here are {self.replicas}: only at the end of a batch can their number change"
            )
        position = self._batches.restore(state["dataset"])
        self._steps_of_batch = 0
        for _ in range(state["steps_of_batch"]):
            self.next()
        self.number = state["step"]
        return {**state, "dataset": position}


class Elements(StepSource):
    """The elements of the datasets that the user's function made: in every step one for each local replica.

    Args:
        datasets: the iterators, one for all replicas or one for each.
        replicas: the number of local replicas.
        scalars: whether elements may hold scalars, because no replica will ever need an empty one.
    """

    def __init__(
        self, datasets: list[PositionedElements[Any]], replicas: int, workers: int, worker: int, *, scalars: bool
    ) -> None:
        self.replicas = replicas
        self._rows_of = _rows_or_scalars if scalars else rows_of
        self._readers = self._datasets = datasets
        self._workers = workers
        self._worker = worker
        # Elements of a step that an exception has interrupted; `_ENDED` instead of one of a dataset that has ended.
        self._collected: list[Any] = []
        self._before = self._positions_now()

    def next(self) -> HostStep:
        if not self._collected:
            self._before = self._positions_now()
        while len(self._collected) < self.replicas:
            self._collected.append(next(self._datasets[len(self._collected) % len(self._datasets)], _ENDED))
        elements, self._collected = self._collected, []
        taken = [_as_arrays(element) for element in elements if element is not _ENDED]
        if not taken:
            raise StopIteration
        structure = taken[0][1]
        template = Template.of(taken[0][0], structure)
        rows = [_as_arrays(element)[0] if element is not _ENDED else template.empty() for element in elements]
        sizes = tuple(self._rows_of(leaves, structure) for leaves in rows)
        columns = [StepLeaf(list(slices)) for slices in zip(*rows, strict=True)]
        return HostStep(structure, columns, sizes, sizes if self._workers == 1 else None)

    def _positions_now(self) -> Any:
        return [dataset.position() for dataset in self._datasets]

    def _positions(self, position: Any) -> Sequence[Any]:
        return list(position["datasets"])

    def rows_at(self, position: Any) -> list[Row]:
        last = range(1 - self.replicas // len(self._datasets), 1)
        passes = zip(self._datasets, position["datasets"], strict=True)
        return [row for reader, own in passes for after in last for row in reader.rows_at(own, after)]

    def position(self) -> Any:
        positions = self._before if self._collected else self._positions_now()
        state = {"worker": [self._worker, self._workers], "replicas": self.replicas, "step": self.number}
        return {**state, "datasets": positions}

    def place(self) -> list[int]:
        return [self.number]

    def state_at(self, position: Any) -> Any:
        return {**position, "datasets": [reader.state_at(own) for reader, own in self._readers_at(position)]}

    def restore(self, state: Any) -> Any:
        _check_worker(state, self._worker, self._workers, "datasets")
        if self._workers > 1 and state["replicas"] != self.replicas:
            raise StateMismatchError(
                f"the state is of {state['replicas']} replicas on each worker, here are {self.replicas}: with several "
                "workers, whose steps are counted, their number cannot change"
            )
        if len(state["datasets"]) != len(self._datasets):
            raise StateMismatchError(
                f"the state is of {len(state['datasets'])} datasets on this worker, here are {len(self._datasets)}"
            )
        self._collected = []
        self.number = state["step"]
        return {**state, "datasets": [reader.restore(own) for reader, own in self._readers_at(state)]}


_ENDED = object()


def _as_arrays(element: Any) -> tuple[list[Any], Structure]:
    """The leaves of an element, a single string or other object as an array without axes."""
    leaves, structure = flatten(element)
    arrays = (np.ndarray, np.generic)
    return [leaf if isinstance(leaf, arrays) else np.array(leaf, dtype=object) for leaf in leaves], structure


def _check_worker(state: Any, worker: int, workers: int, *keys: str) -> None:
    """Refuse a state that is not of this worker's own data, or does not have the keys that its kind has."""
    if not isinstance(state, dict) or "worker" not in state:
        raise StateMismatchError(
            "the state is of global batches, but here every worker reads data of its own: restore it under the "
            "AutoShardPolicy that it was saved under"
        )
    number, count = state["worker"]
    if count != workers or number != worker:
        raise StateMismatchError(
            f"the state is of worker {number} of {count}, which reads data of its own; this is worker {worker} of "
            f"{workers}: under AutoShardPolicy.DATA a state can be restored on any number of workers"
        )
    missing = {"replicas", "step", *keys} - state.keys()
    if missing:
        raise StateMismatchError(
            f"the state has no {', '.join(sorted(missing))}: distribute_dataset, distribute_datasets_from_function and "
            "other versions of penstock each have states of their own"
        )


def _rows_or_scalars(leaves: list[Any], structure: Structure) -> int:
    """Variant of `rows_of`, where leaves may be scalars; 1 if all are."""
    arrays = [leaf for leaf in leaves if np.ndim(leaf)]
    if len(arrays) == len(leaves):
        return rows_of(leaves, structure)
    return max(map(len, arrays), default=1)


class JoinedWorkers(StepSource):
    """The rest of an epoch that other workers have begun: their steps, of which this worker takes its slices.

    In each step the rows are those that the other workers would have taken together, in their order. Every worker here
    reads what all of them would have read, so the rest of such an epoch reads more than an epoch that begins here.

    Args:
        others: the steps of each of the other workers.
        rule: how the rows of a step are cut into a slice for each replica in sync here.
        local: the numbers of the slices that this worker takes.
    """

    def __init__(self, others: list[StepSource], rule: SliceRule, local: Sequence[int]) -> None:
        self.replicas = len(local)
        self._readers = self._others = others
        self._rule = rule
        self._local = local
        # Parts of the next step, with the positions before them: kept until one that has failed is read again.
        self._taken: list[tuple[Any, HostStep | None]] = []

    def next(self) -> HostStep:
        for other in self._others[len(self._taken) :]:
            before = other.position()
            self._taken.append((before, _next_or_none(other)))
        steps = [step for _, step in self._taken if step is not None]
        self._taken = []
        if not steps:
            raise StopIteration
        for other in self._others:
            other.number += 1
        leaves = zip(*(step.leaves for step in steps), strict=True)
        columns = [_joined([part for leaf in column for part in leaf.slices]) for column in leaves]
        bounds = self._rule.bounds(len(columns[0]))
        sizes = tuple(stop - start for start, stop in bounds)
        own = [bounds[number] for number in self._local]
        cut = [StepLeaf([column[start:stop] for start, stop in own]) for column in columns]
        return HostStep(steps[0].structure, cut, tuple(sizes[number] for number in self._local), sizes)

    def _positions(self, position: Any) -> Sequence[Any]:
        return list(position)

    def position(self) -> Any:
        taken = [before for before, _ in self._taken]
        return [*taken, *(other.position() for other in self._others[len(taken) :])]

    def place(self) -> list[int]:
        return self._others[0].place()

    def state_at(self, position: Any) -> Any:
        return {"workers": [other.state_at(own) for other, own in self._readers_at(position)]}

    def restore(self, state: Any) -> Any:
        return [other.restore(own) for other, own in self._readers_at(state["workers"])]


def _next_or_none(source: StepSource) -> HostStep | None:
    try:
        return source.next()
    except StopIteration:
        return None


def _joined(parts: list[Any]) -> Any:
    """The rows of several arrays as one; those without rows may have been made without knowing their shape."""
    filled = [part for part in parts if len(part)] or parts[:1]
    return filled[0] if len(filled) == 1 else np.concatenate(filled)
