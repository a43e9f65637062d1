"""An epoch that goes on with other workers: what they would have taken together."""

from typing import Any

import numpy as np
import pytest

from penstock.distribute.feed.step_sources import JoinedWorkers, StepSource
from penstock.distribute.feed.steps import HostStep, StepLeaf
from penstock.sharding import SliceRule
from penstock.structure import flatten


class Rows(StepSource):
    """Steps of a row each; one may fail."""

    replicas = 1

    def __init__(self, rows: list[int], failing: int = -1) -> None:
        self._left = rows
        self._given = 0
        self._failing = failing

    def next(self) -> HostStep:
        if self._given == len(self._left):
            raise StopIteration
        row = self._left[self._given]
        self._given += 1
        if row == self._failing:
            raise ValueError(f"no {row}")
        _, structure = flatten(0)
        return HostStep(structure, [StepLeaf([np.array([row])])], (1,))

    def position(self) -> int:
        return self._given

    def place(self) -> list[int]:
        return [self._given]

    def state_at(self, position: Any) -> Any:
        return position

    def restore(self, state: Any) -> Any:
        self._given = state
        return state


def joined(failing: int = -1) -> JoinedWorkers:
    return JoinedWorkers([Rows([1, 2]), Rows([10, 20, 30], failing), Rows([100, 200])], SliceRule(1), [0])


def rows(step: HostStep) -> list[int]:
    return [int(row) for part in step.leaves[0].slices for row in part]


@pytest.mark.parametrize("restored", [False, True])
def test_a_row_that_failed_took_the_parts_of_other_workers_with_it(restored: bool) -> None:
    steps = joined(failing=10)
    with pytest.raises(ValueError, match="no 10"):
        steps.next()
    assert steps.position() == [0, 1, 0]
    if restored:
        state, steps = steps.state_at(steps.position()), joined(failing=10)
        assert steps.restore(state) == [0, 1, 0]
    assert [rows(steps.next()) for _ in range(2)] == [[1, 20, 100], [2, 30, 200]]
    with pytest.raises(StopIteration):
        steps.next()
