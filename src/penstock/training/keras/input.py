"""The data adapter that Keras's own `fit`, `evaluate` and `predict` are given for a dataset."""

from collections.abc import Iterator
from typing import Any

from penstock.data.dataset import Dataset
from penstock.data.skipped import SkippedRows
from penstock.distribute.feed.dataset import DistributedDataset
from penstock.errors import InvalidTypeError
from penstock.report.report import Report
from penstock.runtime.dashboard import open_dashboard
from penstock.training.keras.feed import ModelFeed
from penstock.training.keras.interface import DataAdapter


class DatasetInput(DataAdapter):  # type: ignore[misc]  # Keras has no types
    """A dataset as Keras's `fit`, `evaluate` and `predict` take it; from `ps.keras.as_input`.

    Each pass over it is the next epoch of the dataset. Keras calls its methods.

    Example:
        >>> import penstock as ps
        >>> ps.keras.as_input(ps.Dataset.range(10).batch(4)).num_batches
        3
    """

    batch_size = None
    has_partial_batch = None
    partial_batch_size = None

    def __init__(self, dataset: Dataset) -> None:
        self._feed = ModelFeed(dataset)

    @property
    def num_batches(self) -> int | None:
        """The number of batches of a pass; None where it is unknown or infinite."""
        return self._feed.num_batches

    @property
    def errors(self) -> SkippedRows:
        """The rows that the last pass skipped up to its last batch, as `DatasetIterator.errors` names them."""
        return self._feed.errors

    def report(self) -> Report:
        """Return what the model has waited for in the last pass, as `DatasetIterator.report`."""
        return self._feed.report()

    def metrics(self) -> dict[str, float]:
        """Return the numbers of the last pass by name, as `DatasetIterator.metrics`."""
        return self._feed.metrics()

    def dashboard(self, port: int = 0) -> str:
        """Serve the report of each pass as a page that is up to date, as `DatasetIterator.dashboard`."""
        return open_dashboard(self, port)

    def get_jax_iterator(self) -> Iterator[Any]:
        """The batches of the next pass, which begins when the first one is asked for."""
        return self._feed.batches()

    def on_epoch_begin(self) -> None:
        """Called by Keras before each pass."""
        self._feed.begin_epoch()

    def on_epoch_end(self) -> None:
        """Called by Keras after each pass, and when it has built the model."""
        self._feed.end_epoch()


def feed_of(data: DatasetInput) -> ModelFeed:
    """Return what reads the dataset for Keras's models."""
    return data._feed


def as_input(dataset: Any) -> DatasetInput:
    """A dataset for Keras's `fit`, `evaluate` and `predict`, which can be given to several of them in turn.

    `model.fit(dataset)` makes one itself. `ps.keras.KeepPosition` needs the one that is trained on.

    Args:
        dataset: gives global batches: x, (x, y) or (x, y, sample_weight), each an array or a structure of arrays.

    Returns:
        What Keras takes as `x` and as `validation_data`.

    Raises:
        InvalidTypeError: no `ps.Dataset`.
        ElementError: elements that are no batches.
        InvalidArgumentError: no batches.

    Example:
        >>> import keras, numpy as np, penstock as ps
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> data = ps.keras.as_input(ps.Dataset.from_tensor_slices(np.ones((5, 2), "float32")).batch(2))
        >>> data.num_batches, model.predict(data, verbose=0).shape
        (3, (5, 1))
    """
    if not isinstance(dataset, Dataset):
        hint = ": give it the plain dataset" if isinstance(dataset, DistributedDataset) else ""
        raise InvalidTypeError(f"a Keras model takes a ps.Dataset, got {type(dataset).__name__}{hint}")
    return DatasetInput(dataset)
