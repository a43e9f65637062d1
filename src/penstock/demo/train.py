"""TensorFlow's custom training tutorial with Keras 3 on JAX: model, optimizer, metrics and loop, over all replicas.

Every image of an epoch counts exactly once, also those of its last, partial batch. A checkpoint holds the model, the
optimizer, the metrics and the position in the data of one moment, so a run that was killed continues as if nothing
had happened.
"""

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import keras
import numpy as np
from tqdm import tqdm

import penstock as ps
from penstock import demo
from penstock.demo.data import Images, load
from penstock.demo.settings import DemoError, DemoSettings

_VIRTUAL_DEVICES: Final = 4
_LEARNING_RATE: Final = 0.001
_REGULARISATION: Final = 1e-5
_STEPS_PER_SAVE: Final = 50
_SERVICE_WORKERS: Final = 2


class TrainingPosition(NamedTuple):
    """Position of the training: complete epochs, steps of the next one, and the sum of these steps' losses."""

    epoch: Any
    step: Any
    total_loss: Any


class Training:
    """A model in training, on all replicas of a strategy.

    Args:
        strategy: runs the steps.
        images: what to train and to test on.
        global_batch_size: images per step on all replicas together.
        seed: decides the first weights and the order of the images.
        prefix: of the names of the checkpoints.
        service: where worker processes make the batches to train on; None makes them in this one.
    """

    def __init__(
        self,
        strategy: ps.MirroredStrategy,
        images: Images,
        global_batch_size: int,
        seed: int,
        prefix: Path,
        service: str | None,
    ) -> None:
        self.strategy = strategy
        self.prefix = prefix
        train_dataset = images.train.shuffle(len(images.train), seed=seed).batch(global_batch_size)
        if service is not None:
            train_dataset = train_dataset.apply(ps.service.distribute("distributed_epoch", service))
        test_dataset = images.test.batch(global_batch_size)
        self.steps_per_epoch = train_dataset.cardinality()
        # One iterator for all epochs: its state says which epoch it is in, and where.
        self.train_iterator = iter(strategy.distribute_dataset(train_dataset.repeat()))
        self.test_dist_dataset = strategy.distribute_dataset(test_dataset)

        keras.utils.set_random_seed(seed)
        with strategy.scope():
            self.model = create_model(images.shape, images.classes)
            self.optimizer = keras.optimizers.Adam(_LEARNING_RATE)
            self.optimizer.build(self.model.trainable_variables)
            # One loss per image: the divisor is decided below.
            self.loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
            self.test_loss = keras.metrics.Mean(name="test_loss")
            self.train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
            self.test_accuracy = keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")
        self.position = TrainingPosition(0, 0, np.float32(0))
        self.checkpoint = ps.Checkpoint(
            model=self.model,
            optimizer=self.optimizer,
            train_accuracy=self.train_accuracy,
            iterator=self.train_iterator,
            position=self.position,
            max_to_keep=2,
            asynchronous=True,
        )

    def train_step(self, inputs: Any) -> Any:
        """One replica's share of a training step; gives its part of the loss."""
        images, labels = inputs

        def compute_loss() -> tuple[Any, Any]:
            predictions = self.model(images, training=True)
            per_example_loss = self.loss_object(labels, predictions)
            loss = ps.training.compute_average_loss(per_example_loss, global_batch_size="actual")
            return loss + ps.training.scale_regularization_loss(self.model.losses), predictions

        variables = self.model.trainable_variables
        (loss, predictions), gradients = ps.keras.value_and_grad(compute_loss, variables, has_aux=True)()
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.train_accuracy.update_state(labels, predictions)
        return loss

    def test_step(self, inputs: Any) -> None:
        """One replica's share of a test step."""
        images, labels = inputs
        predictions = self.model(images, training=False)
        self.test_loss.update_state(self.loss_object(labels, predictions))
        self.test_accuracy.update_state(labels, predictions)

    def epoch(self, say: Callable[[str], None]) -> None:
        """Train to the end of the epoch, then test, and say how good the model is."""
        epoch, step, total_loss = self.position
        left, steps = range(step, self.steps_per_epoch), self.steps_per_epoch
        bar = {"total": steps, "initial": step, "leave": False, "unit": "step", "disable": not sys.stderr.isatty()}
        started, waited_before = time.perf_counter(), self._waited()
        for done in tqdm(left, f"Epoch {epoch + 1}", **bar):
            per_replica_losses = self.strategy.run(self.train_step, args=(next(self.train_iterator),))
            total_loss += self.strategy.reduce("SUM", per_replica_losses)
            if (epoch * steps + done + 1) % _STEPS_PER_SAVE == 0:
                self.save(TrainingPosition(epoch, done + 1, np.float32(total_loss)))
        train_loss = float(total_loss) / steps
        seconds, waited = time.perf_counter() - started, self._waited() - waited_before

        for inputs in self.test_dist_dataset:
            self.strategy.run(self.test_step, args=(inputs,))
        say(
            f"Epoch {epoch + 1}, Loss: {train_loss:.4f}, Accuracy: {100 * self.train_accuracy.result():.2f}, "
            f"Test Loss: {self.test_loss.result():.4f}, Test Accuracy: {100 * self.test_accuracy.result():.2f} "
            f"(input: {100 * waited / seconds:.1f} % of the time, {len(left) / seconds:.1f} steps/s)"
        )
        for metric in (self.train_accuracy, self.test_loss, self.test_accuracy):
            metric.reset_state()
        self.position = TrainingPosition(epoch + 1, 0, np.float32(0))

    def _waited(self) -> float:
        """Return for how many seconds the loop has waited for its input; the devices may have been busy meanwhile."""
        return self.train_iterator.metrics()["penstock/blocked_seconds"]

    def save(self, position: TrainingPosition) -> None:
        """Write a checkpoint in the background."""
        self.checkpoint.save(self.prefix, position=position)

    def restore(self, path: str) -> None:
        """Resume from a checkpoint."""
        self.position = TrainingPosition(*self.checkpoint.restore(path)["position"])

    def close(self) -> None:
        """Wait until the last checkpoint is complete."""
        self.checkpoint.close()
        self.train_iterator.close()


def run(settings: DemoSettings, say: Callable[[str], None]) -> None:
    """Train as the settings say, from the newest checkpoint if there is one; `say` gets the lines meant for the user.

    Raises:
        DemoError: more replicas than devices, a data set that cannot be had, or a checkpoint from which it cannot
            resume.
        StorageError: the directory of checkpoints cannot be written to.
    """
    if settings.engine == "ray":
        # Before JAX starts threads: Ray forks this process to start its own.
        with demo.service_on_ray(_SERVICE_WORKERS) as service:
            _run(settings, say, service)
    else:
        _run(settings, say, None)


def _run(settings: DemoSettings, say: Callable[[str], None], service: str | None) -> None:
    """Train as the settings say, with the service that was started already, if any."""
    strategy = _strategy(settings.replicas)
    images = load(settings, say)
    replicas = strategy.num_replicas_in_sync
    epochs = settings.epochs or images.epochs
    per_replica = settings.batch_size_per_replica or images.batch_size_per_replica
    global_batch_size = per_replica * replicas
    say(
        f"{images.title}: {len(images.train):,} images to train on, {len(images.test):,} to test on. "
        f"{_counted(replicas, 'replica')} ({jax.default_backend()}), {per_replica} images per replica and step."
    )
    # The name holds what must be the same when a run resumes; the number of replicas is not part of it.
    directory = Path(settings.checkpoints, f"demo-{images.name}-batch-{global_batch_size}-seed-{settings.seed}")
    if settings.service or service is not None:
        directory = directory.with_name(f"{directory.name}-service")
    if settings.fresh and directory.exists():
        shutil.rmtree(directory)
    with ExitStack() as stack:
        if service is not None:
            say(f"{_SERVICE_WORKERS} actors of Ray make the batches.")
        elif settings.service:
            service = stack.enter_context(ps.service.local(num_workers=_SERVICE_WORKERS)).target
            say(f"{_SERVICE_WORKERS} worker processes make the batches.")
        training = Training(strategy, images, global_batch_size, settings.seed, directory / "ckpt", service)
        stack.enter_context(closing(training))
        _go_on(training, directory, epochs, say)
        remaining = epochs - training.position.epoch
        if remaining > 0:
            started = time.perf_counter()
            for _ in range(remaining):
                training.epoch(say)
            training.save(training.position)
            seconds = time.perf_counter() - started
            say(f"Trained {_counted(remaining, 'epoch')} on {_counted(replicas, 'replica')} in {seconds:.1f} s.")
    _evaluate(directory, images, global_batch_size, say)


def create_model(image_shape: tuple[int, ...], classes: int) -> keras.Model:
    """An untrained network for images of this height, width and number of channels; it gives a score for each class.

    It is the tutorial's, but for the padding: so it also fits images of 8x8 pixels.

    Example:
        >>> [variable.shape for variable in create_model((8, 8, 1), classes=10).trainable_variables[::2]]
        [(3, 3, 1, 32), (3, 3, 32, 64), (256, 64), (64, 10)]
    """
    regularizer = keras.regularizers.L2(_REGULARISATION)
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu", kernel_regularizer=regularizer),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu", kernel_regularizer=regularizer),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu", kernel_regularizer=regularizer),
            keras.layers.Dense(classes, kernel_regularizer=regularizer),
        ]
    )


def _strategy(replicas: int | None) -> ps.MirroredStrategy:
    """Replicas on local accelerators, or on virtual devices of the CPU where there are none."""
    # Decided before JAX is asked for its devices: that starts its backend, which fixes their number.
    jax.config.update("jax_num_cpu_devices", replicas or _VIRTUAL_DEVICES)  # type: ignore[no-untyped-call]
    devices = jax.local_devices()
    if replicas is not None and replicas > len(devices):
        raise DemoError(f"{replicas} replicas need {replicas} devices, but this machine has {len(devices)}: {devices}")
    return ps.MirroredStrategy(devices[:replicas])


def _go_on(training: Training, directory: Path, epochs: int, say: Callable[[str], None]) -> None:
    """Restore the newest checkpoint, where an earlier run has left one."""
    latest = ps.latest_checkpoint(directory)
    if latest is None:
        say(f"Saves every {_STEPS_PER_SAVE} steps in {directory}: interrupt it, start it again, and it resumes.")
        return
    try:
        training.restore(latest)
    except (ps.StorageError, ps.StateMismatchError) as error:
        raise DemoError(f"{error}. Delete it to resume from the one before, or start again with --fresh") from error
    epoch, step, _ = training.position
    if epoch < epochs:
        say(f"Resumes in epoch {epoch + 1} after step {step}, from {latest}; --fresh starts again.")
    else:
        say(f"{latest} has had {_counted(epoch, 'epoch')} already: more --epochs continue it, --fresh starts again.")


def _evaluate(directory: Path, images: Images, batch_size: int, say: Callable[[str], None]) -> None:
    """Restore the newest checkpoint into a new model, without a strategy, and test that one."""
    eval_accuracy = keras.metrics.SparseCategoricalAccuracy(name="eval_accuracy")
    new_model = create_model(images.shape, images.classes)
    latest = ps.latest_checkpoint(directory)
    ps.Checkpoint(model=new_model).restore(latest, partial=True)
    for pixels, labels in images.test.batch(batch_size):
        predictions = new_model(pixels, training=False)
        eval_accuracy.update_state(labels, predictions)
    say(
        f"Accuracy of {latest}, restored without a strategy: {100 * eval_accuracy.result():.2f} % "
        f"of the {len(images.test):,} test images."
    )


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
