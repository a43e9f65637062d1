"""Feeds a dataset to a Keras model: pass by pass, with batches and variables on a strategy's devices.

Each batch is one global JAX array per leaf, split over the strategy's devices where they divide its rows, and whole
on every device where they do not. Keras's compiled step follows the data: see docs/design/training-keras.md.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import jax
import numpy as np

from penstock.data.dataset import Dataset
from penstock.data.iterator import DatasetIterator
from penstock.data.skipped import SkippedRows
from penstock.distribute.feed.dataset import DistributedDataset, DistributedIterator
from penstock.distribute.feed.steps import StepLeaf, check_spec, rows_of
from penstock.distribute.jax.device_dtypes import check_width, fits_device
from penstock.distribute.jax.devices import moving_explicitly
from penstock.distribute.jax.for_trainers import (
    distribute_placed,
    placement_of,
    runs_one_program_at_a_time,
    workers_of,
)
from penstock.distribute.jax.mesh_strategy import MeshStrategy
from penstock.distribute.jax.placement import without_aliases
from penstock.distribute.values import PerReplica
from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.options import INFINITE_CARDINALITY
from penstock.report.report import Report
from penstock.runtime.dashboard import open_dashboard
from penstock.statistics.schema import Snapshot
from penstock.structure import flatten
from penstock.training.keras.class_weight import ClassWeight
from penstock.training.keras.interface import DataAdapter, has_value, set_values, values_of


class DatasetInput(DataAdapter):  # type: ignore[misc]  # Keras has no types
    """A dataset as Keras's `fit`, `evaluate` and `predict` take it, pass by pass; from `ps.keras.as_input`.

    Each pass over it is the next epoch of the dataset; a batch that Keras reads only to build the model belongs to
    none. Keras and `fit` call what is not described in the reference.

    Attributes:
        strategy: over whose devices the batches are split; None for JAX's default device.
        taken: the number of batches handed out so far, all passes together; `KeepPosition` sets where it begins.
        on_take: called before each batch is read, with `taken`, whether a pass begins, and what gives the state.

    Example:
        >>> import penstock as ps
        >>> ps.keras.as_input(ps.Dataset.range(10).batch(4)).num_batches
        3
    """

    batch_size = None
    has_partial_batch = None
    partial_batch_size = None

    def __init__(self, dataset: Dataset) -> None:
        check_spec(dataset.node.spec, dataset.node)
        for leaf in flatten(dataset.node.spec)[0]:
            if leaf.ragged_rank:
                raise _ragged()
        self._dataset = dataset
        self._steps: Dataset | DistributedDataset = dataset
        self._model: Any = None
        self._whole = False
        self._class_weight: ClassWeight | None = None
        self._iterator: DatasetIterator | DistributedIterator | None = None
        self._errors, self._report = SkippedRows(), Report([Snapshot()])
        self._metrics: dict[str, float] = {}
        self._next_pass: Any = None
        self._in_use = False
        self._agreed = False
        self.strategy: MeshStrategy | None = None
        self.taken = 0
        self.on_take: Callable[[int, bool, Callable[[], Any]], None] = lambda taken, begins, state: None
        if dataset.cardinality() == 0:
            raise InvalidArgumentError(f"a Keras model needs at least one batch, and this dataset has none: {dataset}")

    def prepare(
        self, model: Any, strategy: MeshStrategy | None, *, whole: bool, class_weight: ClassWeight | None
    ) -> None:
        """Prepare for the model that is going to read.

        Args:
            model: its variables are placed on the devices before the first batch.
            strategy: the attribute `strategy`.
            whole: whether every worker gets all rows of every batch: Keras fetches predictions, and a worker can
                fetch only parts on its own devices.
            class_weight: adds weights to each batch.
        """
        self._model, self._whole, self._class_weight = model, whole, class_weight
        self._in_use = self._agreed = False
        if strategy is not None and strategy is not self.strategy:
            self._steps = distribute_placed(strategy, "model.fit(dataset)", self._dataset, self._place)
        elif strategy is None:
            self._steps = self._dataset
        self.strategy = strategy

    def is_read_by(self, model: Any) -> bool:
        """Return whether `prepare` was last called for this model."""
        return self._model is model

    def resume(self, state: Any, skip: int) -> bool:
        """Resume a number of batches after a state: with the rest of that pass, or, if nothing is left, with the next.

        Returns:
            Whether the pass has more batches.
        """
        with self._open_pass() as iterator:
            iterator.load_state_dict(state)
            for _ in range(skip):
                next(iterator)
            state = iterator.state_dict()
            rest = next(iterator, None) is not None
        self._next_pass = state if rest else None
        return rest

    def on_epoch_begin(self) -> None:
        """Called by Keras before each pass, when metrics were reset and callbacks may have changed the weights."""
        if self.strategy is not None:
            self.place_variables()
        self._agreed = self._in_use

    def place_variables(self) -> None:
        """Put the model's variables on all devices, with the values of worker 0."""
        assert self.strategy is not None
        self._wait()
        model = self._model
        groups = [model.variables, model.metrics_variables if model.compiled else []]
        groups.append(model.optimizer.variables if getattr(model, "optimizer", None) is not None else [])
        placement = placement_of(self.strategy)
        placed = placement.for_all if self._agreed else placement.from_worker_0
        variables = [one for one in {id(one): one for group in groups for one in group}.values() if has_value(one)]
        set_values(variables, [placed(value) for value in without_aliases(values_of(variables))])

    def on_epoch_end(self) -> None:
        """Called by Keras after each pass, and when Keras has built the model."""
        self._in_use = True

    def get_jax_iterator(self) -> Iterator[Any]:
        """The batches of the next pass, which begins when the first one is asked for."""
        with self._open_pass() as iterator:
            if self._next_pass is not None:
                iterator.load_state_dict(self._next_pass)
            if not self._in_use:
                # Keras reads a batch to build the model. This is not an epoch: the next pass begins here again.
                self._next_pass = iterator.state_dict()
                yield from map(self._batch, iterator)
                return
            self._next_pass = None
            self.on_take(self.taken, True, iterator.state_dict)
            for step in iterator:
                self.taken += 1
                yield self._batch(step)
                self.on_take(self.taken, False, iterator.state_dict)

    def _open_pass(self) -> DatasetIterator | DistributedIterator:
        """Open a new pass, and close the previous one."""
        self.close()
        self._iterator = cast(DatasetIterator | DistributedIterator, iter(self._steps))
        return self._iterator

    def close(self) -> None:
        """End a pass that Keras has not read to its end."""
        if self._iterator is not None:
            self._errors, self._report, self._metrics = self.errors, self.report(), self.metrics()
            self._iterator.close()
            self._iterator = None

    @property
    def errors(self) -> SkippedRows:
        """The rows that the last pass skipped up to its last batch, as `DatasetIterator.errors` names them."""
        return self._errors if self._iterator is None else self._iterator.errors

    def report(self) -> Report:
        """Return what the model has waited for in the last pass, as `DatasetIterator.report`."""
        return self._report if self._iterator is None else self._iterator.report()

    def metrics(self) -> dict[str, float]:
        """Return the numbers of the last pass by name, as `DatasetIterator.metrics`."""
        return self._metrics if self._iterator is None else self._iterator.metrics()

    def dashboard(self, port: int = 0) -> str:
        """Serve the report of each pass as a page that is up to date, as `DatasetIterator.dashboard`."""
        return open_dashboard(self, port)

    @property
    def num_batches(self) -> int | None:
        """The number of batches of a pass; None where it is unknown or infinite."""
        cardinality = self._steps.cardinality()
        return None if cardinality < 0 else cardinality

    @property
    def endless(self) -> bool:
        """Return whether a pass never ends."""
        return self._dataset.cardinality() == INFINITE_CARDINALITY

    @moving_explicitly
    def _place(self, leaves: list[StepLeaf], even: bool) -> list[Any]:
        return [self._placed(leaf, even) for leaf in leaves]

    def _placed(self, leaf: StepLeaf, even: bool) -> Any:
        """A leaf of a step on the devices; if several workers have to exchange rows first, this worker's rows."""
        assert self.strategy is not None
        rows = np.concatenate(leaf.slices) if leaf.whole is None else leaf.whole
        _check(rows)
        workers, placement = workers_of(self.strategy), placement_of(self.strategy)
        if workers.count > 1 and (self._whole or not even):
            return PerReplica(leaf.slices)
        array = placement.rows(rows) if even else placement.for_all(rows)
        return PerReplica([array]) if workers.replicas_in_sync == 1 else array

    def _batch(self, step: Any) -> Any:
        """A step in the form that Keras takes."""
        leaves, structure = flatten(step)
        if self.strategy is None:
            rows_of(leaves, structure)
        batch = structure.unflatten([self._leaf(leaf) for leaf in leaves])
        return batch if self._class_weight is None else self._class_weight(batch)

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, PerReplica):
            assert self.strategy is not None
            self._wait()
            return placement_of(self.strategy).for_all(self.strategy.gather(leaf, axis=0))
        if self.strategy is None:
            _check(leaf)
        return leaf

    def _wait(self) -> None:
        """Wait for Keras's last step before the next collective, where one program must end before the next begins."""
        assert self.strategy is not None
        if workers_of(self.strategy).count > 1 and runs_one_program_at_a_time(self.strategy):
            for array in jax.live_arrays():  # type: ignore[no-untyped-call]
                if not array.is_deleted():
                    array.block_until_ready()


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


def _ragged() -> ElementError:
    return ElementError(
        "a Keras model takes arrays, and the batches of this dataset hold rows of various lengths: use padded_batch in "
        "place of ragged_batch, or pad the rows in a map"
    )


def _check(leaf: Any) -> None:
    array = np.asarray(leaf)
    if array.dtype.kind == "O" and array.size and isinstance(array.flat[0], np.ndarray):
        raise _ragged()
    if not fits_device(array):
        raise InvalidTypeError(
            f"a Keras model got an array of dtype {array.dtype}, which devices cannot hold: turn strings into numbers "
            "in the dataset, for instance by a layer of ps.preprocessing"
        )
    check_width("a batch", array)
