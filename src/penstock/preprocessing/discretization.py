"""Discretization, and the summary of values that its boundaries are learned from."""

from collections.abc import Iterator, Sequence
from inspect import signature
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from penstock.data.dataset import Dataset
from penstock.errors import InvalidArgumentError
from penstock.options import check_integer
from penstock.preprocessing.boundaries import Boundaries
from penstock.preprocessing.configuration import arguments_of
from penstock.preprocessing.encode import encode
from penstock.preprocessing.layer import LearningLayer, as_floats, check_choice, in_pieces

_VALUES_AT_ONCE = 1 << 16

Floats = npt.NDArray[np.floating[Any]]


class Discretization(LearningLayer):
    """Maps numbers to the bins between boundaries: int32, as in Keras.

    Args:
        bin_boundaries: boundaries in ascending order. A bin includes its lower boundary and excludes its upper one; the
            first and the last bin are open-ended.
        num_bins: the number of bins, whose boundaries `adapt` learns. Give either this or `bin_boundaries`.
        epsilon: the largest error of a learned boundary, as a fraction of the number of values.
        output_mode: "int", or a vector: "one_hot" for each number, "multi_hot" or "count" for all along the last axis.

    Raises:
        InvalidArgumentError: both or none of bin_boundaries and num_bins, boundaries out of order, or an unknown mode.

    Example:
        >>> Discretization(bin_boundaries=[0.0, 1.0, 2.0])([[-1.5, 1.0, 3.4, 0.5], [0.0, 3.0, 1.3, 0.0]])
        array([[0, 2, 3, 1],
               [1, 3, 2, 1]], dtype=int32)
    """

    def __init__(
        self,
        bin_boundaries: Sequence[float] | None = None,
        num_bins: int | None = None,
        epsilon: float = 0.01,
        output_mode: str = "int",
    ) -> None:
        if (bin_boundaries is None) == (num_bins is None):
            raise InvalidArgumentError(
                "Discretization takes either bin_boundaries or num_bins: how many bins adapt is to learn"
            )
        if not 0 < epsilon < 1:
            raise InvalidArgumentError(f"Discretization(epsilon=...) takes a share between 0 and 1, got {epsilon!r}")
        self.num_bins = None if num_bins is None else check_integer("Discretization", "num_bins", num_bins, minimum=1)
        self.epsilon = epsilon
        modes = ("int", "one_hot", "multi_hot", "count")
        self.output_mode = check_choice("Discretization", "output_mode", output_mode, modes)
        self.bin_boundaries = None if bin_boundaries is None else _checked(bin_boundaries)

    @property
    def can_adapt(self) -> bool:
        return self.num_bins is not None

    def summary(self) -> Boundaries:
        if self.num_bins is None:
            raise InvalidArgumentError(
                "Discretization.adapt(data): the layer has bin_boundaries, make one with num_bins"
            )
        return Boundaries(self.epsilon)

    def _samples(self, rows: Any) -> npt.NDArray[np.float32]:
        return as_floats("Discretization.adapt(data)", rows).reshape(-1)

    def _pieces(self, columns: Iterator[Any], dataset: Dataset) -> Iterator[Any]:
        # An array is summarised as a whole, as in Keras.
        return in_pieces(map(self._samples, columns), _VALUES_AT_ONCE)

    def _add(self, summary: Boundaries, samples: Any) -> None:
        summary.add(samples)

    def learn(self, summary: Boundaries) -> None:
        boundaries = summary.result(self.num_bins or 1)
        if boundaries is None:
            raise InvalidArgumentError("Discretization.adapt(data): there are no values to learn boundaries from")
        self.bin_boundaries = boundaries

    def _transform(self, inputs: Any, leading: int) -> Any:
        if self.bin_boundaries is None:
            raise InvalidArgumentError("Discretization has no boundaries yet: give bin_boundaries or call adapt(data)")
        bins = np.asarray(
            np.digitize(as_floats("Discretization", inputs), np.asarray(self.bin_boundaries, np.float32)), np.int32
        )
        if self.output_mode == "int":
            return bins[()]
        return encode(bins, self.output_mode, self.depth or 0, leading)

    @property
    def depth(self) -> int | None:
        return None if self.bin_boundaries is None else len(self.bin_boundaries) + 1

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The layer that `get_config` described; that of an adapted layer has both boundaries and `num_bins`."""
        arguments = arguments_of(cls.__name__, config, signature(cls).parameters)
        if arguments.get("num_bins") is None:
            return cls(**arguments)
        boundaries = arguments.pop("bin_boundaries", None)
        layer = cls(**arguments)
        layer.bin_boundaries = None if boundaries is None else _checked(boundaries)
        return layer

    def _keras_config(self) -> dict[str, Any]:
        if self.bin_boundaries is None:
            raise InvalidArgumentError("Discretization.to_keras(): call adapt(data) first")
        return {**self.get_config(), "num_bins": None}


def _checked(boundaries: Sequence[float]) -> list[float]:
    as_floats("Discretization(bin_boundaries=...)", boundaries)
    values = [float(boundary) for boundary in boundaries]
    if any(a > b for a, b in pairwise(values)):
        raise InvalidArgumentError(f"Discretization(bin_boundaries=...) must be in ascending order, got {values}")
    return values
