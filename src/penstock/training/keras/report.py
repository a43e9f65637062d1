"""`WriteReport`: the report of a `fit`, written at the end of each epoch."""

from typing import Any

import keras

from penstock.distribute.jax.for_trainers import workers_of
from penstock.errors import InvalidArgumentError
from penstock.report.report import ReportWriter
from penstock.training.keras.input import DatasetInput


class WriteReport(ReportWriter, keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Callback of `fit` that writes a report of what the model waits for, at the end of each epoch.

    A report is about the last epoch. Of several workers, worker 0 writes. A file that cannot be written is an error in
    the log, and training continues.

    Args:
        paths: the files: a page for a name that ends in .html, otherwise JSON, as `Report.save` writes them.
        metrics: whether the numbers of `DatasetIterator.metrics` go into the epoch's logs: into Keras's `History`, and
            to all callbacks after this one, such as `TensorBoard`.

    Raises:
        InvalidArgumentError: it has nothing to write; when `fit` begins, it trains on something else than a dataset.

    Example:
        >>> import tempfile, keras, numpy as np, penstock as ps
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> dataset = ps.Dataset.from_tensor_slices((np.ones((6, 2)), np.ones((6, 1)))).batch(2)
        >>> write = ps.keras.WriteReport(tempfile.mkdtemp() + "/run.html", metrics=True)
        >>> history = model.fit(dataset, epochs=2, callbacks=[write], verbose=0)
        >>> history.history["penstock/steps"]
        [3.0, 3.0]
    """

    feed: DatasetInput | None = None
    """What the present `fit` reads, which says it."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras."""
        if self.feed is None or not self.feed.is_read_by(self.model):
            raise InvalidArgumentError(
                "WriteReport tells of the dataset that fit trains on: give model.fit a ps.Dataset, or what "
                "ps.keras.as_input gave; under a ps.ParameterServerStrategy the workers read theirs"
            )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        assert self.feed is not None
        strategy = self.feed.strategy
        if strategy is None or workers_of(strategy).index == 0:
            numbers = self._write(self.feed)
            if logs is not None:
                logs.update(numbers)
