"""rejection_resample: elements dropped at random, so that their classes come in given proportions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.data.block import Block
from penstock.data.functions.answers import integer
from penstock.data.functions.apply import checked_rows
from penstock.data.node import DependsOn, OneInput, Run, derived
from penstock.data.operator_streams import SelectingStream
from penstock.data.streams.stream import State
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.rng import mix, uniform_positions
from penstock.runtime.threads import failures
from penstock.spec import TensorSpec
from penstock.structure import LEAF, PAIR


class RejectionResample(OneInput, name="rejection_resample"):
    """(class, element) pairs, with elements dropped at random so that the classes come in the target proportions."""

    depends_on = DependsOn.ANY
    varies = True
    draws_random = True
    class_function: Callable[..., Any]
    target_distribution: tuple[float, ...]
    initial_distribution: tuple[float, ...] | None
    seed: int | None

    @derived
    def cardinality(self) -> int:
        return self.input.cardinality if self.input.cardinality in (0, INFINITE_CARDINALITY) else UNKNOWN_CARDINALITY

    def spec_over(self, *inputs: Any) -> Any:
        return TensorSpec((), np.int64), inputs[0]


class RejectionResampleStream(SelectingStream[RejectionResample], of=RejectionResample):
    """The state holds the counts of classes: they estimate a missing initial distribution."""

    def __init__(self, node: RejectionResample, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        self._key = mix(run.key(node, node.seed), epoch)
        self._target = np.array(node.target_distribution)
        self._counts = np.zeros(len(self._target), dtype=np.int64)

    def _selected(self, block: Block) -> Block | None:
        classes, kept = self._decide(block)
        if not kept:
            return None
        rows = np.array(kept, dtype=np.int64)
        taken = block.take(rows)
        numbers = np.array(classes, dtype=np.int64)[rows]
        return Block((numbers, *taken.columns), PAIR.nested([LEAF, block.structure]), len(kept))

    def _decide(self, block: Block) -> tuple[list[int], list[int]]:
        """Return the classes of the rows, and which rows are kept."""
        end = self._input.met
        draws = uniform_positions(self._key, range(end - len(block), end))
        classes: list[int] = []
        kept: list[int] = []
        try:
            for value in checked_rows(self._node.class_function, block):
                number = integer("rejection_resample(class_func)", value, low=0, high=len(self._target) - 1)
                self._counts[number] += 1
                if draws[len(classes)] < self._acceptance(number):
                    kept.append(len(classes))
                classes.append(number)
        except failures() as error:
            self._fail(error, len(block) - len(classes))
        return classes, kept

    def _acceptance(self, number: int) -> float:
        """Return the probability of keeping an element: target over initial, divided by the largest such ratio."""
        given = self._node.initial_distribution
        initial = np.array(given) if given is not None else self._counts / self._counts.sum()
        ratios = np.divide(self._target, initial, out=np.zeros_like(self._target), where=initial > 0)
        return float(ratios[number] / ratios.max()) if ratios.max() > 0 else 0.0

    def state(self) -> State:
        return [self._input.state(), self._counts.tolist()]

    def restore(self, state: State) -> None:
        position, counts = state
        self._counts = np.array(counts, dtype=np.int64)
        self._input.restore(position)
