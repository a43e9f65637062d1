"""Normalization and Rescaling."""

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from penstock.accumulators.moments import Moments
from penstock.data.block import Column, is_ragged
from penstock.data.dataset import Dataset
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer
from penstock.preprocessing.layer import ArrayLayer, LearningLayer, as_floats, in_pieces

_NUMBERS_AT_ONCE = 1 << 18
_SMALLEST_DEVIATION = np.float32(1e-7)

Floats = npt.NDArray[np.float32]


class Rescaling(ArrayLayer):
    """inputs * scale + offset, as float32.

    Args:
        scale: a number, or an array that is broadcast against each element.
        offset: a number, or an array as well.

    Raises:
        InvalidTypeError: a scale, an offset or inputs that are not numbers.

    Example:
        >>> Rescaling(scale=1 / 127.5, offset=-1)([0, 255])
        array([-1.,  1.], dtype=float32)
    """

    def __init__(self, scale: Any, offset: Any = 0.0) -> None:
        as_floats("Rescaling(scale=...)", scale)
        as_floats("Rescaling(offset=...)", offset)
        self.scale = scale
        self.offset = offset

    def _transform(self, inputs: Any, leading: int) -> Any:
        values, scale, offset = as_floats("Rescaling", inputs), np.float32(self.scale), np.float32(self.offset)
        missing = max(np.ndim(scale), np.ndim(offset)) - (values.ndim - leading)
        if leading and missing > 0:  # elements with fewer axes than the scale are broadcast, not the rows of the block
            rows, element = values.shape[:leading], values.shape[leading:]
            values = values.reshape(*rows, *[1] * missing, *element)
        return values * scale + offset


class Normalization(LearningLayer):
    """(inputs - mean) / deviation, as float32.

    `adapt` takes elements of a dataset with two or more axes as batches, others as single samples. Arrays and lists are
    batches.

    Args:
        axis: the axis or axes whose positions each have their own mean; None for one mean of all values.
        mean: the mean of each position; give it together with `variance`, or let `adapt` learn both.
        variance: the variance of each position.
        invert: inputs * deviation + mean.

    Raises:
        InvalidArgumentError: only one of mean and variance, or shapes that do not fit each other or `axis`.

    Example:
        >>> Normalization(axis=None, mean=3.0, variance=4.0)([1, 3, 5])
        array([-1.,  0.,  1.], dtype=float32)
        >>> Normalization().adapt([[0.0, 7.0, 4.0], [2.0, 9.0, 6.0]])([[0.0, 7.0, 4.0]])
        array([[-1., -1., -1.]], dtype=float32)
    """

    def __init__(
        self,
        axis: int | Sequence[int] | None = -1,
        mean: Any = None,
        variance: Any = None,
        *,
        invert: bool = False,
    ) -> None:
        axes = () if axis is None else (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
        self.axis = tuple(check_integer("Normalization", "axis", number, minimum=-64) for number in axes)
        self.invert = bool(invert)
        if (mean is None) != (variance is None):
            raise InvalidArgumentError("Normalization takes mean and variance together, got one of them")
        self.mean = None if mean is None else as_floats("Normalization(mean=...)", mean)
        self.variance = None if variance is None else as_floats("Normalization(variance=...)", variance)
        self._given = self.mean is not None
        if np.shape(mean) != np.shape(variance) or np.ndim(mean) > len(self.axis):
            raise InvalidArgumentError(
                f"Normalization: mean and variance must have one shape of at most {len(self.axis)} axes, one for each "
                f"of axis={self.axis}; got {np.shape(mean)} and {np.shape(variance)}"
            )

    @property
    def can_adapt(self) -> bool:
        return not self._given

    def summary(self) -> Moments:
        if self._given:
            raise InvalidArgumentError("Normalization.adapt(data): the layer was given mean and variance")
        return Moments(elementwise=True, finite=False)

    def summarize(self, summary: Moments, column: Column) -> None:
        if self.axis and column.ndim < 2 and not is_ragged(column):
            self._refuse_single_numbers("")
        super().summarize(summary, column)

    def _samples(self, rows: Any) -> npt.NDArray[np.float64]:
        """An array whose first axis is what the mean is taken over; each position along the others has its own mean."""
        batch = _doubles(rows)
        return _kept_axes_last(batch, self._kept(batch.ndim))

    def _add(self, summary: Moments, samples: npt.NDArray[np.float64]) -> None:
        if samples.size:
            summary.add(samples)

    def learn(self, summary: Moments) -> None:
        if not np.any(summary.count):
            raise InvalidArgumentError("Normalization.adapt(data): there is no data to learn from")
        self.mean, self.variance = np.asarray(summary.mean, np.float32), np.asarray(summary.variance, np.float32)

    def _pieces(self, columns: Iterator[Any], dataset: Dataset) -> Iterator[Any]:
        return in_pieces(self._samples_of(columns, dataset), _NUMBERS_AT_ONCE)

    def _samples_of(self, columns: Iterator[Any], dataset: Dataset) -> Iterator[npt.NDArray[np.float64]]:
        places = None
        for column in columns:
            elements = _doubles(column)
            axes = elements.ndim - 1
            if self.axis and axes < 2:
                self._check_axes_exist(dataset, axes)
            batch = elements.reshape(-1, *elements.shape[2:]) if axes > 1 else elements
            kept = self._kept(batch.ndim)
            if 0 in kept:
                raise InvalidArgumentError(
                    f"Normalization(axis={_shown(self.axis)}).adapt(dataset): axis 0 counts the samples of a batch, "
                    "which a dataset has any number of: give the axes of a sample, counted from 1 or from the end"
                )
            samples = _kept_axes_last(batch, kept)
            if places is not None and samples.shape[1:] != places:
                raise InvalidArgumentError(
                    f"Normalization(axis={_shown(self.axis)}).adapt(dataset): the elements differ along axis, got "
                    f"{places} and then {samples.shape[1:]}: use axis=None for one mean of all numbers"
                )
            places = samples.shape[1:]
            if samples.size:
                yield samples

    def _check_axes_exist(self, dataset: Dataset, axes: int) -> None:
        """Refuse single numbers, batched or not: they have no axis whose positions could have separate means."""
        if axes == 0 or dataset.element_spec.shape == (None,):
            self._refuse_single_numbers("batches of " if axes else "")

    def _refuse_single_numbers(self, batches: str) -> NoReturn:
        raise InvalidArgumentError(
            f"Normalization(axis={_shown(self.axis)}).adapt(dataset): the elements of the dataset are "
            f"{batches}single numbers: use axis=None for one mean of all of them"
        )

    def _kept(self, axes: int) -> list[int]:
        if any(not -axes <= axis < axes for axis in self.axis):
            raise InvalidArgumentError(
                f"Normalization(axis={_shown(self.axis)}): the data has {axes} axes; use axis=None for single numbers"
            )
        return sorted(axis % axes for axis in self.axis)

    def _transform(self, inputs: Any, leading: int) -> Any:
        if self.mean is None or self.variance is None:
            raise InvalidArgumentError("Normalization has no mean yet: give mean and variance, or call adapt(data)")
        values = as_floats("Normalization", inputs)
        axes = values.ndim - leading
        kept = self._kept(axes)
        shape = [1] * axes
        for axis, length in zip(reversed(kept), reversed(self.mean.shape)):
            shape[axis] = length
        mean = self.mean.reshape(shape)
        deviation = np.maximum(np.sqrt(self.variance), _SMALLEST_DEVIATION).reshape(shape)
        return mean + values * deviation if self.invert else (values - mean) / deviation

    def _keras_config(self) -> dict[str, Any]:
        if self.mean is None:
            raise InvalidArgumentError("Normalization.to_keras(): call adapt(data) first")
        return self.get_config()


def _shown(axis: tuple[int, ...]) -> str:
    """An axis as it is written in a call."""
    return str(axis[0]) if len(axis) == 1 else str(axis)


def _doubles(values: Any) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(values).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"Normalization.adapt(data) takes numbers: {error}") from error


def _kept_axes_last(batch: npt.NDArray[np.float64], kept: list[int]) -> npt.NDArray[np.float64]:
    """The values with the axes to keep at the end, and all other axes merged into the first."""
    moved = np.moveaxis(batch, kept, range(batch.ndim - len(kept), batch.ndim))
    return moved.reshape(-1, *moved.shape[batch.ndim - len(kept) :]) if batch.size else moved.reshape(0)
