"""The training loop of the demo: one `ps.Dataset` over all replicas, a step per global batch, a line per epoch.

Every image of an epoch counts exactly once, also those of the last, partial batch: the metrics are sums over the images
that there are, and their count.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import optax
from tqdm import tqdm

import penstock as ps
from penstock.demo.data import Labelled, load
from penstock.demo.model import Array, Parameters, initial_parameters, logits, regularisation
from penstock.demo.settings import DemoError, Settings

_VIRTUAL_DEVICES: Final = 4
_LEARNING_RATE: Final = 0.001

Batch = tuple[Array, Array]


class State(NamedTuple):
    """What a training step changes; equal on every replica."""

    parameters: Parameters
    optimiser: Any


class Totals(NamedTuple):
    """Sums over the images seen since a pass began, by one replica or by all; the loss is that of the predictions."""

    loss: Any
    correct: Any
    count: Any


class Training:
    """A model in training: its state on every replica, its two distributed data sets and its two steps.

    Args:
        strategy: runs the steps.
        train: the images to train on.
        test: the images to test on.
        global_batch_size: images per step on all replicas together.
        seed: decides the first weights and the order of the images.
    """

    def __init__(
        self, strategy: ps.MirroredStrategy, train: Labelled, test: Labelled, global_batch_size: int, seed: int
    ) -> None:
        self._strategy = strategy
        self._global_batch_size = global_batch_size
        self._optimiser = optax.adam(_LEARNING_RATE)
        # Shuffled over the whole length, as the tutorial does. The last batch of an epoch is kept, however short.
        train_dataset = ps.Dataset.from_tensor_slices(train).shuffle(len(train[0]), seed=seed).batch(global_batch_size)
        test_dataset = ps.Dataset.from_tensor_slices(test).batch(global_batch_size)
        self._train_dataset = strategy.distribute_dataset(train_dataset)
        self._test_dataset = strategy.distribute_dataset(test_dataset)
        parameters = initial_parameters(jax.random.key(seed), train[0].shape[1:])
        state = State(parameters, self._optimiser.init(parameters))
        self._state = strategy.distribute_values_from_function(lambda context: state)

    def epoch(self, number: int, say: Callable[[str], None]) -> Totals:
        """Train on every image once, then test; gives the totals of the test."""
        waiting = Waiting()
        started = time.perf_counter()
        totals = self._no_totals()
        for batch in waiting.for_each(self._with_progress(number)):
            self._state, totals = self._strategy.run(self._train_step, args=(self._state, totals, batch))
        train = self._summed(totals)
        seconds = time.perf_counter() - started
        test = self._tested()
        say(
            f"Epoch {number}, Loss: {train.loss / train.count:.4f}, Accuracy: {_percentage(train):.2f}, "
            f"Test Loss: {test.loss / test.count:.4f}, Test Accuracy: {_percentage(test):.2f} "
            f"(input: {100 * waiting.seconds / seconds:.1f} % of the time, {train.count / seconds:,.0f} images/s)"
        )
        return test

    def _with_progress(self, number: int) -> Iterable[Any]:
        """The steps of an epoch, with a bar where somebody watches."""
        total = self._train_dataset.cardinality()
        hidden = not sys.stderr.isatty()
        bar: Iterable[Any] = tqdm(
            self._train_dataset, f"Epoch {number}", total, leave=False, unit="step", disable=hidden
        )
        return bar

    def _tested(self) -> Totals:
        totals = self._no_totals()
        for batch in self._test_dataset:
            totals = self._strategy.run(self._test_step, args=(self._state, totals, batch))
        return self._summed(totals)

    def _train_step(self, state: State, totals: Totals, batch: Batch) -> tuple[State, Totals]:
        """One replica's share of a step; the optimiser sees the gradients of all replicas together."""
        images, labels = batch
        replica = ps.get_replica_context()

        def loss_of(parameters: Parameters) -> tuple[Array, tuple[Array, Array]]:
            scores = logits(parameters, images)
            losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
            # Constant divisors: an image weighs the same in a short batch, and the replicas' losses add up to the loss.
            loss = losses.sum() / self._global_batch_size + regularisation(parameters) / replica.num_replicas_in_sync
            return loss, (losses, scores)

        gradients, (losses, scores) = jax.grad(loss_of, has_aux=True)(state.parameters)
        gradients = replica.all_reduce("sum", gradients)
        updates, optimiser = self._optimiser.update(gradients, state.optimiser, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        return State(parameters, optimiser), _added(totals, losses, scores, labels)

    def _test_step(self, state: State, totals: Totals, batch: Batch) -> Totals:
        images, labels = batch
        scores = logits(state.parameters, images)
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
        return _added(totals, losses, scores, labels)

    def _no_totals(self) -> Any:
        """Nothing seen yet, on every replica."""
        nothing = Totals(jnp.zeros(()), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
        return self._strategy.distribute_values_from_function(lambda context: nothing)

    def _summed(self, totals: Any) -> Totals:
        """The totals of all replicas, as Python numbers: the one place in a pass that waits for the devices."""
        return Totals(*(value.item() for value in self._strategy.reduce("sum", totals)))


class Waiting:
    """How long the loop waited for its input.

    The devices may still be busy with the steps before, so this is the most that a faster input could save.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def for_each(self, steps: Iterable[Any]) -> Iterator[Any]:
        """What `steps` gives; the time it takes to give it is added up."""
        iterator = iter(steps)
        while True:
            started = time.perf_counter()
            try:
                step = next(iterator)
            except StopIteration:
                return
            finally:
                self.seconds += time.perf_counter() - started
            yield step


def run(settings: Settings, say: Callable[[str], None]) -> None:
    """Train as the settings say; `say` gets the lines meant for the user.

    Raises:
        DemoError: more replicas than devices, or a data set that cannot be had.
    """
    started = time.perf_counter()
    strategy = _strategy(settings.replicas)
    images = load(settings.dataset, settings.seed, say)
    replicas = strategy.num_replicas_in_sync
    epochs = settings.epochs or images.epochs
    per_replica = settings.batch_size_per_replica or images.batch_size_per_replica
    train_count = len(images.train[0])
    say(
        f"{images.title}: {train_count:,} images to train on, {len(images.test[0]):,} to test on. "
        f"{_counted(replicas, 'replica')} ({jax.default_backend()}), {per_replica} images per replica and step."
    )
    training = Training(strategy, images.train, images.test, per_replica * replicas, settings.seed)
    for number in range(1, epochs + 1):
        test = training.epoch(number, say)
    seconds = time.perf_counter() - started
    say(
        f"Trained {_counted(epochs, 'epoch')} of {train_count:,} images on {_counted(replicas, 'replica')} "
        f"in {seconds:.1f} s: "
        f"{_percentage(test):.2f} % of the {test.count:,} test images are recognised."
    )


def _strategy(replicas: int | None) -> ps.MirroredStrategy:
    """Replicas on local accelerators, or on virtual devices of the CPU where there are none."""
    # Decided before JAX is asked for its devices: that starts its backend, which fixes their number.
    jax.config.update("jax_num_cpu_devices", replicas or _VIRTUAL_DEVICES)  # type: ignore[no-untyped-call]
    devices = jax.local_devices()
    if replicas is not None and replicas > len(devices):
        raise DemoError(f"{replicas} replicas need as many devices, but this machine has {len(devices)}: {devices}")
    return ps.MirroredStrategy(devices[:replicas])


def _added(totals: Totals, losses: Array, scores: Array, labels: Array) -> Totals:
    correct = jnp.sum(scores.argmax(axis=-1) == labels, dtype=jnp.int32)
    return Totals(totals.loss + losses.sum(), totals.correct + correct, totals.count + len(labels))


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _percentage(totals: Totals) -> float:
    return float(100 * totals.correct / totals.count)
