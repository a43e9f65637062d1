"""Base of all layers: a configuration, and calls on one element, on a batch, or on a block of rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from inspect import signature
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.accumulators.passes import Mergeable
from penstock.data.block import Column, column_of, is_ragged
from penstock.data.dataset import Dataset
from penstock.data.iterator import blocks_of
from penstock.data.node import Node
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.preprocessing import convert
from penstock.preprocessing.configuration import arguments_of, plain
from penstock.structure import LEAF

Array = npt.NDArray[Any]

_ENDING = ("take", "take_while")  # the operators that end an infinite dataset


class Layer:
    """A function that can be described by plain data, and built again from it."""

    why_not_keras: ClassVar[str] = ""
    """Why this layer cannot be used inside a Keras model; empty if it can."""

    def get_config(self) -> dict[str, Any]:
        """The arguments that rebuild this layer, including its learned values.

        Plain data for JSON, except for functions of yours.
        """
        return {name: plain(getattr(self, name)) for name in signature(type(self)).parameters}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The layer that `get_config` described, or that of Keras's layer of the same name.

        Raises:
            InvalidArgumentError: the configuration of another layer, or an unknown argument.
        """
        return cls(**arguments_of(cls.__name__, config, signature(cls).parameters))

    def to_keras(self) -> Any:
        """Keras's own layer with the same configuration and state, for use inside a model.

        Raises:
            InvalidTypeError: Keras has no such layer that could be compiled.
        """
        name = type(self).__name__
        if self.why_not_keras:
            raise InvalidTypeError(
                f"{name}.to_keras(): {self.why_not_keras}; use the layer before the model, in dataset.map(layer)"
            )
        return convert.to_keras(name, self._keras_config())

    def _keras_config(self) -> dict[str, Any]:
        return self.get_config()

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self.get_config().items() if isinstance(value, (int, str))]
        return f"{type(self).__name__}({', '.join(shown)})"


class ArrayLayer(Layer, ABC):
    """A layer that is called on an element, on a batch, or on a block of rows."""

    classes: ClassVar[dict[str, type["ArrayLayer"]]] = {}
    """All layers by their names."""

    def __init_subclass__(cls) -> None:
        ArrayLayer.classes.setdefault(cls.__name__, cls)

    @property
    def depth(self) -> int | None:
        """Return how many different integers the layer can return; None if it returns something else."""
        return None

    @abstractmethod
    def _transform(self, *inputs: Any, **leading: Any) -> Any:
        """The results for inputs whose first `leading` axes only count the rows of a block."""

    def __call__(self, *inputs: Any) -> Any:
        return self._transform(*inputs, leading=0)

    def _map_block(self, *columns: Column) -> Any:
        """The results for all rows of some columns, for `dataset.map`: the same as for each row alone."""
        if any(map(is_ragged, columns)):
            return column_of([self(*row) for row in zip(*columns, strict=True)])
        return np.asarray(self._transform(*columns, leading=1))


class LearningLayer(ArrayLayer):
    """A layer that learns from data what its arguments do not say."""

    @property
    @abstractmethod
    def can_adapt(self) -> bool:
        """Return whether there is something to learn, which no argument has given."""

    def adapt(self, data: Any) -> Self:
        """Learn from a finite dataset of batches or of single elements, an array or a list.

        Raises:
            InvalidArgumentError: the layer's arguments leave nothing to learn, the dataset never ends, or there is no
                data.
        """
        summary, columns = self.summary(), columns_of(type(self).__name__, data)
        for samples in self._pieces(columns, data) if isinstance(data, Dataset) else map(self._samples, columns):
            self._add(summary, samples)
        self.learn(summary)
        return self

    @abstractmethod
    def summary(self) -> Mergeable:
        """An empty summary of what the layer learns from.

        Raises:
            InvalidArgumentError: its arguments leave nothing to learn.
        """

    def summarize(self, summary: Any, column: Column) -> None:
        """Add the rows of a column to a summary."""
        for rows in (row[None] for row in column) if is_ragged(column) else (column,):
            self._add(summary, self._samples(rows))

    def _samples(self, rows: Any) -> Any:
        """Return what is added to a summary, of rows of one shape."""
        return rows

    def _pieces(self, columns: Iterator[Array], dataset: Dataset) -> Iterator[Any]:
        """Return what is added to a summary, of a dataset's columns."""
        return map(self._samples, columns)

    @abstractmethod
    def _add(self, summary: Any, samples: Any) -> None:
        """Add samples to a summary."""

    @abstractmethod
    def learn(self, summary: Any) -> None:
        """Learn from a summary of all rows."""


def columns_of(call: str, data: Any) -> Iterator[Array]:
    """The data that a layer is adapted to, in pieces whose leading axis counts elements.

    Raises:
        InvalidTypeError: neither a dataset of arrays nor an array nor a list.
        InvalidArgumentError: an infinite dataset.
    """
    if isinstance(data, Dataset):
        check_finite(f"{call}.adapt(data)", data)
        with iter(data) as iterator:
            for block in blocks_of(iterator):
                if block.structure != LEAF:
                    raise InvalidTypeError(
                        f"{call}.adapt(data) takes elements of one array, got {block.structure}: "
                        "map the dataset to the feature first"
                    )
                column = block.columns[0]
                yield from (entry[None] for entry in column) if is_ragged(column) else (column,)
        return
    if not isinstance(data, (list, tuple, np.ndarray, pa.Array, pa.ChunkedArray)):
        raise InvalidTypeError(f"{call}.adapt(data) takes a ps.Dataset, an array or a list, got {data!r:.100}")
    yield data  # type: ignore[misc]  # the layer turns lists into arrays


def check_finite(call: str, dataset: Dataset) -> None:
    """Refuse a dataset that never ends."""
    if _never_ends(dataset.node):
        raise InvalidArgumentError(f"{call}: the dataset never ends, take(n) some of its elements")


def _never_ends(node: Node) -> bool:
    """Return whether a dataset never ends, such as one with an infinite length, or a filter of one."""
    while node.cardinality == UNKNOWN_CARDINALITY and len(node.inputs) == 1 and node.name not in _ENDING:
        (node,) = node.inputs
    return node.cardinality == INFINITE_CARDINALITY


def in_pieces(columns: Iterable[Array], numbers: int) -> Iterator[Array]:
    """The same rows in pieces of so many numbers, so that the rounding of sums does not depend on block sizes."""
    pending: list[Array] = []
    count = 0
    for column in columns:
        rows = max(1, numbers // max(1, int(np.prod(column.shape[1:]))))
        pending.append(column)
        count += len(column)
        if count >= rows:
            joined = np.concatenate(pending)
            whole = count - count % rows
            yield from (joined[start : start + rows] for start in range(0, whole, rows))
            pending, count = [joined[whole:]], count - whole
    if count:
        yield np.concatenate(pending)


def check_choice(call: str, name: str, value: object, choices: tuple[str, ...]) -> str:
    """`value`, which must be one of these strings."""
    if value not in choices:
        raise InvalidArgumentError(f"{call}({name}=...) takes one of {', '.join(map(repr, choices))}, got {value!r}")
    return str(value)


def as_floats(call: str, values: Any) -> npt.NDArray[np.float32]:
    """`values`, which must be numbers, as float32."""
    try:
        return np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"{call} takes numbers: {error}") from error
