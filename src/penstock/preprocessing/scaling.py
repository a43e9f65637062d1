"""Normalization and Rescaling."""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from penstock.data.dataset import Dataset
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer
from penstock.preprocessing.layer import Layer, as_floats, columns_of, in_pieces

_ROWS_AT_ONCE = 128
_SMALLEST_DEVIATION = np.float32(1e-7)

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]


class Rescaling(Layer):
    """inputs * scale + offset, as float32.

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
        return as_floats("Rescaling", inputs) * np.float32(self.scale) + np.float32(self.offset)

    def get_config(self) -> dict[str, Any]:
        return {"scale": self.scale, "offset": self.offset}


class Normalization(Layer):
    """(inputs - mean) / deviation, as float32.

    Args:
        axis: the axis or axes along which every place has a mean of its own; None for one mean of all values.
        mean: the mean of each place; given together with `variance`, or learned by `adapt`.
        variance: the variance of each place.
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

    def adapt(self, data: Any) -> Self:
        """Learn mean and variance from a finite dataset, an array or a list.

        Elements of a dataset with two or more axes are batches, others single samples. Arrays and lists are batches.

        Raises:
            InvalidArgumentError: mean and variance were given, there is no data, or `axis` does not exist in it.
            InvalidTypeError: data that are no numbers.
        """
        if self._given:
            raise InvalidArgumentError("Normalization.adapt(data): the layer was given mean and variance")
        pieces: Iterator[Array] = (np.asarray(column) for column in columns_of("Normalization", data))
        if isinstance(data, Dataset):
            rows = (piece.reshape(-1, *piece.shape[2:]) if piece.ndim > 2 else piece for piece in pieces)
            pieces = in_pieces(rows, _ROWS_AT_ONCE)
        count, mean, variance = 0, np.float64(0), np.float64(0)
        for piece in pieces:
            try:
                values = piece.astype(np.float64)
            except (TypeError, ValueError) as error:
                raise InvalidTypeError(f"Normalization.adapt(data) takes numbers: {error}") from error
            kept = self._kept(values.ndim)
            reduced = tuple(axis for axis in range(values.ndim) if axis not in kept)
            number = int(np.prod([values.shape[axis] for axis in reduced]))
            if number == 0:
                continue
            count += number
            new, spread = values.mean(axis=reduced), values.var(axis=reduced)
            _same_places(np.shape(mean), new.shape, count > number)
            share = number / count
            # The variance of two parts together: that within them, and that between their means.
            variance = variance * (1 - share) + spread * share + (new - mean) ** 2 * share * (1 - share)
            mean = mean + (new - mean) * share
        if count == 0:
            raise InvalidArgumentError("Normalization.adapt(data): there is no data to learn from")
        self.mean, self.variance = np.asarray(mean, np.float32), np.asarray(variance, np.float32)
        return self

    def _kept(self, axes: int) -> list[int]:
        if any(not -axes <= axis < axes for axis in self.axis):
            raise InvalidArgumentError(
                f"Normalization(axis={self.axis}): the data has {axes} axes; use axis=None for single numbers"
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

    def get_config(self) -> dict[str, Any]:
        return {
            "axis": self.axis,
            "mean": None if self.mean is None else self.mean.tolist(),
            "variance": None if self.variance is None else self.variance.tolist(),
            "invert": self.invert,
        }

    def _keras_config(self) -> dict[str, Any]:
        if self.mean is None:
            raise InvalidArgumentError("Normalization.to_keras(): call adapt(data) first")
        return self.get_config()


def _same_places(before: tuple[int, ...], now: tuple[int, ...], compare: bool) -> None:
    if compare and before != now:
        raise InvalidArgumentError(f"Normalization.adapt(data): batches differ along axis, got {before} and then {now}")
