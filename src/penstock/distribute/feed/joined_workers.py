"""Steps that another number of workers would take, each with files of its own, as global batches for these workers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.distribute.feed.step_sources import StepSource
from penstock.distribute.feed.steps import HostStep, StepLeaf
from penstock.sharding import SliceRule


class JoinedWorkers(StepSource):
    """The rest of an epoch that other workers have begun: their steps, of which this worker takes its slices.

    In each step the rows are those that the other workers would have taken together, in their order. Every worker here
    reads what all of them would have read, so an epoch that goes on in this way reads more than one that begins so.

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
        # Parts of the next step, with the positions before them: they wait for what follows the failure of another one.
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
        columns = [_joined([part for step in steps for part in step.leaves[leaf].slices]) for leaf in _leaves(steps)]
        bounds = self._rule.bounds(len(columns[0]))
        sizes = tuple(stop - start for start, stop in bounds)
        own = [bounds[number] for number in self._local]
        leaves = [StepLeaf([column[start:stop] for start, stop in own]) for column in columns]
        return HostStep(steps[0].structure, leaves, tuple(sizes[number] for number in self._local), sizes)

    def _positions(self, position: Any) -> Sequence[Any]:
        found: list[Any] = position
        return found

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


def _leaves(steps: list[HostStep]) -> range:
    return range(len(steps[0].leaves))


def _joined(parts: list[Any]) -> Any:
    """The rows of several arrays as one; those without rows may have been made without knowing their shape."""
    filled = [part for part in parts if len(part)] or parts[:1]
    return filled[0] if len(filled) == 1 else np.concatenate(filled)
