"""`model.fit` under a `ps.ParameterServerStrategy`: its steps are functions that a coordinator schedules."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import jax
import keras
import numpy as np

from penstock.errors import InvalidArgumentError, OutOfRangeError
from penstock.options import check_integer
from penstock.parameter_server.coordinator import ClusterCoordinator, RemoteValue
from penstock.parameter_server.datasets import PerWorkerDataset, check_dataset, dataset_of_worker, first_context
from penstock.parameter_server.strategy import ParameterServerStrategy
from penstock.training.keras.interface import build_by, metrics_after, set_values, trains_by_own_step, values_of


def fit(
    model: Any,
    strategy: ParameterServerStrategy,
    data: Any,
    *,
    steps_per_epoch: int | None = None,
    epochs: int = 1,
    initial_epoch: int = 0,
    verbose: Any = "auto",
    callbacks: Any = None,
    validation_data: Any = None,
    validation_steps: int | None = None,
    validation_freq: Any = 1,
) -> Any:
    """Keras's `fit`: every step, or every `steps_per_execution` steps, are one function, which any worker runs.

    Args:
        model: made and compiled in the strategy's scope.
        data: as `coordinator.create_per_worker_dataset` takes it, or what that returned.
        steps_per_epoch: how many steps are an epoch, by all workers together.
        validation_data: what `evaluate` takes; it runs here after an epoch.

    Returns:
        Keras's `History`.

    Raises:
        InvalidArgumentError: no `steps_per_epoch`; or a model that is not compiled, or has its own `train_step`.
        OutOfRangeError: a worker's dataset has ended.
        Exception: what a step raised, or a callback.
    """
    if steps_per_epoch is None:
        raise InvalidArgumentError(
            "model.fit under a ps.ParameterServerStrategy takes steps_per_epoch=...: workers have no common end of an "
            "epoch"
        )
    check_integer("model.fit", "steps_per_epoch", steps_per_epoch, minimum=1)
    _check(model)
    with strategy.scope():
        _build(model, strategy, data)
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = keras.callbacks.CallbackList(
            callbacks, add_history=True, add_progbar=verbose not in (0, False), verbose=verbose, epochs=epochs,
            steps=steps_per_epoch, model=model,
        )  # fmt: skip
    coordinator = strategy.coordinator or ClusterCoordinator(strategy)
    epoch_of = _Epochs(model, coordinator, data, steps_per_epoch, callbacks)
    model.stop_training = False
    logs: dict[str, Any] = {}
    callbacks.on_train_begin()
    for epoch in range(initial_epoch, epochs):
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        epoch_of.run()
        logs = {name: float(value) for name, value in model.get_metrics_result().items()}
        if validation_data is not None and _validates(epoch, validation_freq):
            found = model.evaluate(
                validation_data, steps=validation_steps, callbacks=callbacks, return_dict=True, verbose=0
            )
            logs |= {f"val_{name}": value for name, value in found.items()}
        callbacks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    model.optimizer.finalize_variable_values(model.trainable_weights)
    callbacks.on_train_end(logs)
    return model.history


def _check(model: Any) -> None:
    if not model.compiled or model.optimizer is None:
        raise InvalidArgumentError(
            "model.fit needs model.compile(optimizer=..., loss=...) in the strategy's scope first"
        )
    if not trains_by_own_step(model):
        raise InvalidArgumentError(
            f"{type(model).__name__} has its own train_step, which would apply gradients on the worker: schedule "
            "functions with ps.ClusterCoordinator instead"
        )


def _build(model: Any, strategy: ParameterServerStrategy, data: Any) -> None:
    """Make missing variables of the model, its metrics and its optimizer."""
    if isinstance(data, PerWorkerDataset):
        data = data.dataset
    check_dataset("model.fit", data)
    if not build_by(model, None):
        with iter(dataset_of_worker(data, first_context(strategy.num_workers))) as elements:
            batch = next(elements, None)
        if batch is None:
            raise InvalidArgumentError("model.fit got a dataset without any batch")
        build_by(model, batch)


def _validates(epoch: int, frequency: Any) -> bool:
    return (epoch + 1) % frequency == 0 if isinstance(frequency, int) else epoch + 1 in frequency


class _Epochs:
    """Runs the steps of one epoch after the other."""

    def __init__(self, model: Any, coordinator: ClusterCoordinator, data: Any, steps: int, callbacks: Any) -> None:
        per_worker = data if isinstance(data, PerWorkerDataset) else coordinator.create_per_worker_dataset(data)
        self._iterator = iter(per_worker)
        self._model = model
        self._coordinator = coordinator
        self._steps = steps
        self._callbacks = callbacks
        self._function = _function_of(model)

    def run(self) -> None:
        """Run an epoch, with just enough functions queued that no worker waits."""
        at_once = max(1, self._model.steps_per_execution)
        most = 2 * self._coordinator.strategy.num_workers
        waiting: deque[tuple[int, RemoteValue]] = deque()
        try:
            for begin in range(0, self._steps, at_once):
                if self._model.stop_training:
                    break
                count = min(at_once, self._steps - begin)
                self._callbacks.on_train_batch_begin(begin)
                waiting.append((begin + count - 1, self._coordinator.schedule(self._function, (self._iterator, count))))
                if len(waiting) >= most:
                    self._end(*waiting.popleft())
            while waiting:
                self._end(*waiting.popleft())
            self._coordinator.join()
        except OutOfRangeError as error:
            self._clear()
            raise OutOfRangeError(
                "a worker's dataset has ended before the epochs of model.fit: use dataset.repeat()"
            ) from error
        except BaseException:
            self._clear()
            raise

    def _end(self, step: int, value: RemoteValue) -> None:
        self._callbacks.on_train_batch_end(step, {"loss": value.fetch()})

    def _clear(self) -> None:
        """Wait for running calls; their error has been raised already."""
        with suppress(Exception):
            self._coordinator.join()


_functions: WeakKeyDictionary[Any, Callable[..., float]] = WeakKeyDictionary()
"""The function of each model's steps, so that workers compile it once."""


def _function_of(model: Any) -> Callable[..., float]:
    if model not in _functions:
        _functions[model] = _scheduled(model)
    return _functions[model]


def _scheduled(model: Any) -> Callable[..., float]:
    steps = TrainSteps(model)

    def train(iterator: Any, count: int) -> float:
        return steps(iterator, count)

    return train


class TrainSteps:
    """Steps of a model on a worker, which push gradients and additions to metrics and moving averages."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._compiled: Callable[..., Any] | None = None
        self._changed: list[int] = []

    def __reduce__(self) -> Any:
        return TrainSteps, (self._model,)

    def __call__(self, iterator: Any, count: int) -> float:
        """Take `count` steps; returns the mean of their losses."""
        if self._compiled is None:
            self._compiled = jax.jit(self._step)
        model = self._model
        losses = []
        for _ in range(count):
            variables = (model.trainable_variables, model.non_trainable_variables, model.metrics_variables)
            gradients, loss, others, metrics = self._compiled(*map(values_of, variables), next(iterator))
            model.optimizer.apply(gradients)
            set_values([variables[1][number] for number in self._changed], others)
            set_values(variables[2], metrics)
            losses.append(loss)
        return float(np.mean(losses))

    def _step(self, weights: Sequence[Any], others: Sequence[Any], metrics: Sequence[Any], batch: Any) -> Any:
        model = self._model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        compute = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)
        (_, (loss, predicted, new_others, new_metrics)), gradients = compute(
            weights, others, metrics, x, y, sample_weight, training=True, optimizer_variables=[]
        )
        new_metrics = metrics_after(model, new_metrics, loss, x, y, predicted, sample_weight)
        # Frozen weights do not change, so they need not be pushed.
        pairs = enumerate(zip(others, new_others, strict=True))
        self._changed = [number for number, (old, new) in pairs if old is not new]
        return gradients, loss, [new_others[number] for number in self._changed], new_metrics
