"""The summary of values that the boundaries of `Discretization` are learned from, as Keras makes it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.accumulators.accumulator import Accumulator, State

Floats = npt.NDArray[np.floating[Any]]


class Boundaries(Accumulator):
    """Some of the sorted values, and how many values each represents.

    Args:
        epsilon: the largest error of a boundary, as a fraction of the number of values.
    """

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon
        self._summary: Floats = np.zeros((2, 0), np.float32)

    def add(self, values: Floats) -> None:
        """Add the values of one array, which is summarised as a whole."""
        ordered = np.sort(values)
        step = max(len(ordered) * self._epsilon, 1)
        chosen = ordered[int(step - 1) :: int(step)]
        self._take(np.stack([chosen, np.full_like(chosen, step)]))

    def _take(self, new: Floats) -> None:
        both = np.concatenate([new, self._summary], axis=1)
        self._summary = _compressed(both[:, np.argsort(both[0])], self._epsilon)

    def merge(self, other: "Boundaries") -> None:
        if self._summary.shape[1] == 0:
            self._summary = other._summary
        else:
            self._take(other._summary)

    def result(self, num_bins: int) -> list[float] | None:
        """Return the boundaries between bins; None without values."""
        if self._summary.shape[1] == 0:
            return None
        return [float(value) for value in _compressed(self._summary, 1 / num_bins)[0, :-1]]

    def state(self) -> State:
        return {"summary": self._summary}

    def load(self, state: State) -> None:
        self._summary = state["summary"]


def _compressed(summary: Floats, epsilon: float) -> Floats:
    """A summary of 1 / epsilon values, interpolated from this one."""
    if summary.shape[1] * epsilon < 1:
        return summary
    shares = epsilon + np.arange(0.0, 1.0, epsilon)
    weights = summary[1].cumsum()
    have = weights / weights[-1]
    new = np.interp(shares, have, weights)
    return np.stack([np.interp(shares, have, summary[0]), np.diff(new, prepend=0)]).astype(np.float32)
