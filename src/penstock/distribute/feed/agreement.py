"""Agree with the other workers on each step: whether there is one, and how many rows every replica gets.

JAX needs the same program in every process, so before a step runs all workers must know whether the replicas' slices
are equal. Where lengths are known this is arithmetic; otherwise the workers exchange them over the control channel,
ahead of the step.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from penstock.data.skipped import SkippedRows
from penstock.distribute.control.channel import Control
from penstock.distribute.control.messages import RowShape, StepSkips, WorkerStep
from penstock.distribute.feed.steps import HostStep
from penstock.errors import WorkerError

Sizes = list[tuple[int, ...]]
Layout = tuple[RowShape, ...]


@dataclass(frozen=True)
class StepFacts:
    """What is known of one step.

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
        """Whether no replica gets a row: there is nothing to take a step for."""
        return self.largest == 0

    @cached_property
    def even(self) -> bool:
        """Whether all replicas' slices are equal in shape."""
        return self.regular and self.all_have(self.largest)

    @cached_property
    def largest(self) -> int:
        """The most rows that a replica gets."""
        return max((size for sizes in self.sizes for size in sizes), default=0)

    @cached_property
    def smallest(self) -> int:
        """The fewest rows that a replica gets."""
        return min((size for sizes in self.sizes for size in sizes), default=0)

    def all_have(self, rows: int) -> bool:
        """Whether every replica gets this number of rows."""
        return all(size == rows for sizes in self.sizes for size in sizes)


class Agreement(ABC):
    """How this worker finds out what the others have in a step."""

    @abstractmethod
    def facts_of(self, number: int, step: HostStep | None) -> StepFacts:
        """What all workers have in the step of this number; this worker has `step`, or None if its data has ended.

        Raises:
            WorkerError: another worker failed or was lost, or reads other data.
            Closed: the iteration was closed meanwhile.
        """

    @abstractmethod
    def close(self) -> None:
        """End a call of `facts_of` that waits for other workers."""


class LocalAgreement(Agreement):
    """For a single worker, or workers with the same steps: this worker's own batch says everything."""

    def facts_of(self, number: int, step: HostStep | None) -> StepFacts:
        if step is None:
            return StepFacts(ended=True, sizes=[])
        return _facts_alone(step.all_sizes or step.sizes, step.regular)

    def close(self) -> None:
        """Nothing waits."""


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

    def close(self) -> None:
        """Nothing waits."""


class ExchangedAgreement(Agreement):
    """The workers tell each other what they have in every step.

    Args:
        control: the control channel.
        topic: which iteration this is about, the same on all workers.
        same: whether all must have the same batches, because each reads the whole dataset.
        share: which part of the dataset this worker reads.
        skipped: gives the rows that it has left out so far; None where it leaves out none.
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
                    + ("no further batch" if one.sizes is None else f"a batch of {one.rows} rows")
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
        """Refuse rows that one worker has left out and another one with the same rows has not."""
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
                f"{self._topic}: a row was left out {'; '.join(apart[:3]) or f'on some {member}s alone: {counts}'}. "
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
