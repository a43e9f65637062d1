"""Agreement of the workers: before the first epoch on files, seeds and lengths, and then on each step.

JAX needs the same program in every process, so before a step runs all workers must know whether the replicas' slices
are equal. Where lengths are known this is arithmetic; otherwise the workers exchange them over the control channel,
ahead of the step.
"""

import itertools
import logging
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from penstock.data.contents import NodeFacts
from penstock.data.listed_names import digest_of_names
from penstock.data.skipped import SkippedRows
from penstock.distribute.control.channel import CALL_SECONDS, Control
from penstock.distribute.control.messages import StepSkips, WorkerInput, WorkerStep
from penstock.distribute.feed.inputs import Inputs, Lengths, longest, rows_of_batches
from penstock.distribute.feed.options import PartialBatch
from penstock.distribute.feed.shards import last_may_be_short
from penstock.distribute.feed.steps import HostStep, Layout, Sizes
from penstock.errors import StorageError, WorkerError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, AutoShardPolicy
from penstock.rng import draw_seed
from penstock.sharding import slice_bounds
from penstock.structure import flatten

_WHOLE = "Give every {} the whole dataset, of which each then gets its part"
_OWN_DATASETS = "ps.Options(auto_shard_policy=ps.AutoShardPolicy.OFF)"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgreedInput:
    """Inputs on which the workers have agreed, and the facts about the others that follow.

    Attributes:
        inputs: what this worker reads, with the seeds and the files that all use.
        partial: the treatment of a batch that does not fill all replicas equally.
        steps: the number of steps, for the worker that has most.
        lengths: of each worker's own data, where every worker knows its own.
        same_layout: whether all workers know the dtypes and shapes of their rows beforehand, and have the same.
        full_rows: the rows of a replica in a full step; 0 where the workers' batches have no one size.
        exact: whether that is known, and no function of the user's may have changed them.
    """

    inputs: Inputs
    partial: PartialBatch
    steps: int
    lengths: list[Lengths] | None
    same_layout: bool
    full_rows: int
    exact: bool

    @property
    def full(self) -> int:
        """The rows of a replica in a full step; 0 where each step is full or partial for itself."""
        return self.full_rows if self.partial is not PartialBatch.DROP or self.exact else 0

    def cardinality(self) -> int:
        """The number of steps."""
        if self.partial is not PartialBatch.DROP or self.steps == INFINITE_CARDINALITY:
            return self.steps
        if self.lengths is None:
            return UNKNOWN_CARDINALITY
        return min(self.inputs.full_steps_of(one.count - (one.last < one.rows)) for one in self.lengths)

    def of_every_step(self) -> int | None:
        """The rows of every replica in every step; None where they differ or cannot be known."""
        inputs = self.inputs
        cut, batch_rows = inputs.slices_per_batch, self._rows_of_batches()
        if self.partial is PartialBatch.RAGGED and inputs.workers.replicas_in_sync == 1:
            return batch_rows
        if self.partial is not PartialBatch.RAGGED and self.exact:
            return self.full
        if self.partial is PartialBatch.PAD and batch_rows is not None and not inputs.has_own_data:
            return max(self.full, -(-batch_rows // cut))
        if self.partial is not PartialBatch.RAGGED:
            return None
        if not inputs.has_own_data:
            return batch_rows // cut if batch_rows is not None and batch_rows % cut == 0 else None
        sizes = {size for step in self._kinds_of_steps() for size in step}
        return sizes.pop() if len(sizes) == 1 else None

    def _kinds_of_steps(self) -> list[set[int]]:
        """The numbers of rows that replicas have in each kind of step; none where lengths are not known."""
        kinds = self.inputs.kinds_of_steps(self.lengths or [])
        return [sizes for _, of_workers in kinds if any(sizes := {size for own in of_workers for size in own})]

    def _rows_of_batches(self) -> int | None:
        """The rows of every batch; None where functions may change them and the last batch may be short."""
        dataset = self.inputs.dataset
        spec = dataset.element_spec
        assumed = 0 in flatten(spec)[0][0].assumed_axes
        return None if assumed and last_may_be_short(dataset.node) else rows_of_batches(spec)

    def of_a_ragged_step(self, full: int) -> set[int]:
        """The numbers of rows that replicas may have in one ragged step; empty if there is no ragged step.

        Where they cannot be known, the answer is that of a full step and one fewer.
        """
        if self.partial is not PartialBatch.RAGGED:
            return set()
        if self.lengths is None:
            return {full, full - 1} if self.of_every_step() is None else set()
        return next((sizes for sizes in self._kinds_of_steps() if len(sizes) > 1), set())

    def may_be_none(self) -> bool:
        """Return whether some replica may be left without rows in a step that others have, as far as is known."""
        inputs = self.inputs
        if self.partial is not PartialBatch.RAGGED or inputs.workers.replicas_in_sync == 1:
            return False
        if self.lengths is not None:
            return any(0 in sizes for sizes in self._kinds_of_steps())
        spec = inputs.dataset.element_spec
        rows = None if 0 in flatten(spec)[0][0].assumed_axes else rows_of_batches(spec)
        ends = inputs.has_own_data and self.steps != INFINITE_CARDINALITY
        return (
            rows is None or ends or 0 in {stop - start for start, stop in slice_bounds(rows, inputs.slices_per_batch)}
        )


def agree_on_input(call: str, inputs: Inputs, partial: PartialBatch, control: Control | None) -> AgreedInput:
    """Agree with the other workers on what all read.

    Raises:
        WorkerError: they distribute different datasets, or one of them did not come.
        StorageError: a worker cannot read a file that worker 0 has listed.
    """
    own_lengths, layout, steps = inputs.lengths, inputs.layout(), inputs.cardinality()
    full = inputs.full_rows, inputs.exact
    if inputs.shard is not None and inputs.workers.count > 1:
        _logger.info("%s shards by %s: %s", call, inputs.shard.policy.name, inputs.shard.reason)
    if control is None:
        inputs.fix_seeds_alone()
        lengths, same_layout = inputs.lengths_of_all(), layout is not None
    else:
        known = None if own_lengths is None else (own_lengths.count, own_lengths.rows, own_lengths.last)
        listed = [digest_of_names(names) for names in inputs.listed]
        facts = (inputs.labels, inputs.facts(), inputs.workers.share)
        own = WorkerInput(*facts, draw_seed(), inputs.drawn, steps, known, layout, listed, full)
        answers = control.gather(call, own, WorkerInput, timeout=CALL_SECONDS)
        others = [one.listed for one in answers]
        if any(one != others[0] for one in others) and len(set(map(len, others))) == 1:
            return agree_on_input(call, _over_files_of_the_first(call, inputs, control), partial, control)
        _check_same_dataset(call, control.member, answers)
        inputs.fix_seeds(answers[0].seed, answers[0].drawn)
        counted = [Lengths(*one.lengths) for one in answers if one.lengths]
        lengths = counted if len(counted) == len(answers) else None
        steps = longest([one.cardinality for one in answers])
        same_layout = layout is not None and all(one.leaves == layout for one in answers)
        if any(one.full_rows != full for one in answers):
            full = 0, False
    if inputs.has_own_data and inputs.workers.count > 1 and steps != INFINITE_CARDINALITY:
        steps = inputs.steps_with_rows(lengths) if lengths else UNKNOWN_CARDINALITY
    return AgreedInput(inputs, partial, steps, lengths, same_layout, *full)


def _check_same_dataset(call: str, member: str, answers: list[WorkerInput]) -> None:
    """Refuse datasets that differ; under AutoShardPolicy.OFF between workers that read the same share."""
    apart = f"policy {AutoShardPolicy.OFF.name}" in answers[0].labels
    first_with: dict[int, int] = {}
    for worker, answer in enumerate(answers):
        other = first_with.setdefault(answer.share if apart else 0, worker)
        difference = _difference(answers[0].labels, answer.labels) or _difference(answers[other].nodes, answer.nodes)
        if difference is not None:
            own = "distribute_datasets_from_function" if call.startswith("distribute") else _OWN_DATASETS
            raise WorkerError(
                f"{call}: the {member}s distribute different datasets: {difference[0]} on {member} {other} is "
                f"{difference[1]} on {member} {worker}. {_WHOLE.format(member)}; if each shall read all of a dataset "
                f"of its own, say so by {own}"
            )


def _difference(first: Sequence[str | NodeFacts], other: Sequence[str | NodeFacts]) -> tuple[str, str] | None:
    """The first of two labels, or facts of nodes, that differ."""
    for one, another in itertools.zip_longest(first, other, fillvalue="nothing"):
        if one != another and not (isinstance(one, NodeFacts) and one.is_as(another)):
            return str(one), str(another) if str(one) != str(another) else f"{another} with other data or code"
    return None


def _few(listed: list[list[str]]) -> str:
    """The names of files, shortly."""
    return reprlib.repr([name for several in listed for name in several])


def _over_files_of_the_first(call: str, inputs: Inputs, control: Control) -> Inputs:
    """The inputs over the files that worker 0 has listed.

    If files are added or deleted meanwhile, the workers may have listed different ones.

    Raises:
        StorageError: a worker cannot read one of them; the same on every worker.
        WorkerError: a worker has listed hardly any of them.
    """
    own = inputs.listed
    (names, *_) = control.gather(
        f"{call}: files", own if control.worker == 0 else [], list[list[str]], timeout=CALL_SECONDS
    )
    unread = others = ""
    if own != names:
        mine, first = ({name for several in listed for name in several} for listed in (own, names))
        if 2 * len(mine & first) < max(len(mine), len(first)):
            several = [
                f"{control.member} 0 has listed {_few(names)}",
                f"{control.member} {control.worker} has listed {_few(own)}",
            ]
            others = f"different datasets: {' and '.join(several)}. {_WHOLE.format(control.member)}"
        _logger.warning(
            "%s: this worker has listed other files than worker 0, and reads those: %d names differ, such as %s",
            call,
            len(mine ^ first),
            sorted(mine ^ first)[:3] or "in their order",
        )
        try:
            inputs = inputs if others else inputs.over_files(names)
        except StorageError as failure:
            member = control.member
            unread = f"{member} {control.worker} cannot read the files that {member} 0 has listed: {failure}"
    failed = control.gather(f"{call}: files read", (others, unread), tuple[str, str], timeout=CALL_SECONDS)
    for different, unreadable in failed:
        if different:
            raise WorkerError(f"{call}: {different}")
        if unreadable:
            raise StorageError(f"{call}: {unreadable}")
    return inputs


@dataclass(frozen=True)
class StepFacts:
    """Known facts of one step.

    Attributes:
        ended: whether no worker has one.
        sizes: the rows of each replica, per worker.
        regular: whether the replicas with rows agree in dtypes and in shapes without the rows.
        layout: dtype and shape of each leaf, where the replicas agree and this worker knows them.
    """

    ended: bool
    sizes: Sizes
    regular: bool = True
    layout: Layout | None = None

    @property
    def empty(self) -> bool:
        """Return whether no replica gets a row: there is nothing to take a step for."""
        return self.largest == 0

    @cached_property
    def even(self) -> bool:
        """Return whether all replicas' slices are equal in shape."""
        return self.regular and self.smallest == self.largest

    @cached_property
    def largest(self) -> int:
        """The most rows that a replica gets."""
        return max((size for sizes in self.sizes for size in sizes), default=0)

    @cached_property
    def smallest(self) -> int:
        """The fewest rows that a replica gets."""
        return min((size for sizes in self.sizes for size in sizes), default=0)


class Agreement(ABC):
    """Source of the facts about each step of all workers."""

    @abstractmethod
    def facts_of(self, number: int, step: HostStep | None) -> StepFacts:
        """Return the facts of the step of this number; this worker has `step`, or None if its data has ended.

        Raises:
            WorkerError: another worker failed or was lost, or reads other data.
            Closed: the iteration was closed meanwhile.
        """

    def close(self) -> None:  # noqa: B027  # most never wait
        """End a call of `facts_of` that waits for other workers."""


class LocalAgreement(Agreement):
    """For a single worker, or workers with the same steps: this worker's own batch says everything."""

    def facts_of(self, number: int, step: HostStep | None) -> StepFacts:
        if step is None:
            return StepFacts(ended=True, sizes=[])
        return _facts_alone(step.all_sizes or step.sizes, step.regular)


@lru_cache
def _facts_alone(sizes: tuple[int, ...], regular: bool) -> StepFacts:
    return StepFacts(ended=False, sizes=[sizes], regular=regular)


class ComputedAgreement(Agreement):
    """The lengths of every worker's data are known, so nothing has to be exchanged.

    Args:
        sizes_at: for a step's number the rows of each replica, per worker.
        layout: the layout of all of them according to the specification; None if that leaves it open.
    """

    def __init__(self, sizes_at: Callable[[int], Sizes], layout: Layout | None) -> None:
        self._sizes_at = sizes_at
        self._layout = layout

    def facts_of(self, number: int, step: HostStep | None) -> StepFacts:
        sizes = self._sizes_at(number)
        return StepFacts(ended=step is None and not any(map(sum, sizes)), sizes=sizes, layout=self._layout)


class ExchangedAgreement(Agreement):
    """Agreement by exchange: the workers send each other the facts of every step.

    Args:
        control: the control channel.
        topic: which iteration this is about, the same on all workers.
        same: whether all must have the same batches, because each reads the whole dataset.
        share: which part of the dataset this worker reads.
        skipped: gives the rows that it has skipped so far; None where it skips none.
    """

    def __init__(
        self,
        control: Control,
        topic: str,
        *,
        same: bool,
        share: int = 0,
        skipped: Callable[[], SkippedRows] | None = None,
    ) -> None:
        self._control = control
        self._topic = topic
        self._same = same
        self._share = share
        self._skipped = skipped
        self._told = 0
        self._closed = False

    def facts_of(self, number: int, step: HostStep | None) -> StepFacts:
        skips = self._new_skips()
        own = WorkerStep(None, skips=skips)
        if step is not None:
            own = WorkerStep(step.sizes, step.all_sizes or (), step.layout(), skips)
        answers = self._control.gather(self._topic, own, WorkerStep, closed=lambda: self._closed)
        self._check_skips([one.skips for one in answers])
        if self._same and any(
            (one.sizes is None) != (step is None) or one.all_sizes != answers[0].all_sizes for one in answers
        ):
            member = self._control.member
            raise WorkerError(
                f"{self._topic}: the {member}s read different data: "
                + ", ".join(
                    f"{member} {worker} has "
                    + ("no further batch" if one.sizes is None else f"a batch of {sum(one.all_sizes)} rows")
                    for worker, one in enumerate(answers)
                )
                + ". Under AutoShardPolicy.DATA the dataset must be the same on all of them: use "
                "distribute_datasets_from_function for a source of each worker's own"
            )
        present = [one for one in answers if one.sizes is not None]
        # A worker without a step takes part with empty slices.
        none = (0,) * (len(present[0].sizes or ()) if present else 0)
        sizes = [none if one.sizes is None else one.sizes for one in answers]
        layout = _common([one.leaves for one in present])
        return StepFacts(ended=not present, sizes=sizes, regular=layout is not None, layout=layout)

    def _new_skips(self) -> StepSkips:
        if self._skipped is None:
            return StepSkips(self._share)
        skipped = self._skipped()
        new, self._told = skipped.rows[self._told :], len(skipped.rows)
        return StepSkips(self._share, skipped.count, skipped.digest, tuple(map(str, new)))

    def _check_skips(self, answers: list[StepSkips]) -> None:
        """Refuse rows that one worker has skipped and another one with the same rows has not."""
        member = self._control.member
        for share in {one.share for one in answers}:
            readers = [worker for worker, one in enumerate(answers) if one.share == share]
            if len({(answers[worker].count, answers[worker].digest) for worker in readers}) == 1:
                continue
            failed: dict[str, list[int]] = {}
            for worker in readers:
                for row in answers[worker].rows:
                    failed.setdefault(row, []).append(worker)
            apart = [
                f"on {member} {' and '.join(map(str, those))} alone {row}"
                for row, those in failed.items()
                if len(those) < len(readers)
            ]
            counts = ", ".join(f"{answers[worker].count} on {member} {worker}" for worker in readers)
            raise WorkerError(
                f"{self._topic}: a row was skipped {'; '.join(apart[:3]) or f'on some {member}s alone: {counts}'}. "
                f"Their next batches would be of different rows: mend the row or its file there, or start again from "
                "the last state"
            )

    def close(self) -> None:
        self._closed = True
        self._control.wake()


def _common(layouts: list[Layout]) -> Layout | None:
    """The one layout of all; None where they differ."""
    first = layouts[0] if layouts else None
    if first is None or any(layout != first for layout in layouts) or any(leaf.shape is None for leaf in first):
        return None
    return first
