"""What all layers have in common: they are called on one element, on a batch, or on a block of rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.data.block import Column, column_of, is_ragged
from penstock.data.dataset import Dataset
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import INFINITE_CARDINALITY
from penstock.preprocessing import convert
from penstock.structure import LEAF

Array = npt.NDArray[Any]


class Layer(ABC):
    """A function of arrays that can be described by plain data, and built again from it."""

    why_not_keras: ClassVar[str] = ""
    """Why Keras cannot have this layer inside of a model; empty where it can."""

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """The arguments that make this very layer again, with what it has learned."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The layer that `get_config` described."""
        return cls(**config)

    @abstractmethod
    def _transform(self, inputs: Any, leading: int) -> Any:
        """The results for inputs whose first `leading` axes only count the rows of a block."""

    def __call__(self, inputs: Any) -> Any:
        return self._transform(inputs, 0)

    def map_block(self, column: Column) -> Column:
        """The results for all rows of a column, as `dataset.map` wants them: as if each row were given alone."""
        if is_ragged(column):
            return column_of([self(row) for row in column])
        return np.asarray(self._transform(column, 1))

    def to_keras(self) -> Any:
        """Keras's own layer of the same configuration and state, for use inside of a model.

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


def columns_of(call: str, data: Any) -> Iterator[Array]:
    """What a layer is adapted to, piece by piece; the leading axis of a piece counts elements.

    Raises:
        InvalidTypeError: neither a dataset of arrays nor an array nor a list.
        InvalidArgumentError: a dataset without end.
    """
    if isinstance(data, Dataset):
        if data.cardinality() == INFINITE_CARDINALITY:
            raise InvalidArgumentError(f"{call}.adapt(data): the dataset never ends, take(n) some of its elements")
        with iter(data) as iterator:
            for block in iterator.blocks():
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
    yield data  # type: ignore[misc]  # lists become arrays where the kind of layer is known


def in_pieces(columns: Iterable[Array], rows: int) -> Iterator[Array]:
    """The same rows in pieces of `rows`, the last one shorter: what is added up must not depend on block sizes."""
    pending: list[Array] = []
    count = 0
    for column in columns:
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
    """`value`, which must be one of these words."""
    if value not in choices:
        raise InvalidArgumentError(f"{call}({name}=...) takes one of {', '.join(map(repr, choices))}, got {value!r}")
    return str(value)


def as_floats(call: str, values: Any) -> npt.NDArray[np.float32]:
    """`values`, which must be numbers, as float32."""
    try:
        return np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"{call} takes numbers: {error}") from error
