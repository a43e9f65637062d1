"""Losses of a step on each replica, scaled so that their sum over the replicas is the loss of the step.

Formulas and defaults are those of TensorFlow's `tf.nn.compute_average_loss` and `tf.nn.scale_regularization_loss`
(https://www.tensorflow.org/api_docs/python/tf/nn/compute_average_loss), `"actual"` apart.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from penstock.distribute.contexts import ReplicaContext, get_replica_context, in_replica
from penstock.errors import InvalidArgumentError, InvalidTypeError


def compute_average_loss(
    per_example_loss: Any, sample_weight: Any = None, global_batch_size: int | Literal["actual"] | None = None
) -> Any:
    """This replica's part of the average loss of a step: the sum of its examples' losses over the global batch size.

    The parts of all replicas add up to the average, so gradients of it are summed over replicas, and the loss of the
    step is `strategy.reduce("SUM", ...)` of what the replicas return.

    Args:
        per_example_loss: losses of this replica's examples, of shape (examples, ...). All axes are summed: if an
            example has several predictions, divide by their number first.
        sample_weight: factors of a shape that fits the losses, for instance one per example.
        global_batch_size: the denominator. None: the number of examples of this replica times the number of replicas,
            which weighs the examples of short slices more. A number: the same one in every step. "actual": the true
            number of examples of this step on all replicas.

    Returns:
        A scalar of the losses' dtype; 0, never NaN, for a replica without examples.

    Raises:
        InvalidTypeError: losses that are not floating point, or a denominator that is no integer.
        InvalidArgumentError: losses without an axis, a negative denominator, or none outside `strategy.run`.

    Example:
        >>> import jax.numpy as jnp, penstock as ps
        >>> strategy = ps.HostStrategy(replicas_per_worker=2)
        >>> losses = ps.PerReplica([jnp.array([2.0, 3.0]), jnp.array([4.0, 5.0])])
        >>> parts = strategy.run(ps.training.compute_average_loss, args=(losses,))
        >>> [float(part) for part in parts.values], float(strategy.reduce("SUM", parts))
        ([1.25, 2.25], 3.5)
    """
    losses = jnp.asarray(per_example_loss)
    if not jnp.issubdtype(losses.dtype, jnp.floating):
        raise InvalidTypeError(f"compute_average_loss takes floating-point losses, got {losses.dtype}")
    if losses.ndim == 0:
        raise InvalidArgumentError(
            "compute_average_loss takes one loss per example, got a scalar: give the loss of Keras reduction=None"
        )
    if sample_weight is not None:
        losses = losses * _fitting(jnp.asarray(sample_weight, losses.dtype), losses)
    total = jnp.sum(losses)
    denominator = _denominator(losses.shape[0], global_batch_size)
    # Without examples there is nothing to divide; the gradient must not be NaN either.
    return jnp.where(denominator == 0, 0.0, total / jnp.maximum(denominator, 1)).astype(losses.dtype)


def scale_regularization_loss(regularization_loss: Any) -> Any:
    """This replica's part of a regularisation loss that every replica computes in full: its sum by their number.

    Args:
        regularization_loss: a number or an array of losses, or a list of such.

    Returns:
        A scalar; 0.0 for an empty list. On a replica without rows a NaN counts as 0.

    Raises:
        InvalidArgumentError: called outside `strategy.run`.

    Example:
        >>> import penstock as ps
        >>> strategy = ps.HostStrategy(replicas_per_worker=2)
        >>> [float(part) for part in strategy.run(ps.training.scale_regularization_loss, args=([0.5, 1.5],)).values]
        [1.0, 1.0]
    """
    context = _context("scale_regularization_loss", "it needs no scaling there")
    parts = [jnp.sum(jnp.asarray(part)) for part in jax.tree.leaves(regularization_loss)]
    if not context.has_rows:  # a loss that depends on the input is often a mean, and that of no rows is not a number
        parts = [jnp.where(jnp.isnan(part), 0, part) for part in parts]
    return sum(parts, start=jnp.zeros(())) / context.num_replicas_in_sync


def _denominator(examples: int, global_batch_size: int | Literal["actual"] | None) -> Any:
    call, instead = "compute_average_loss", "give global_batch_size=... as a number"
    if global_batch_size is None:
        return _context(call, instead).num_replicas_in_sync * examples
    if global_batch_size == "actual":
        return _context(call, instead).all_reduce("SUM", np.int32(examples))
    if isinstance(global_batch_size, (bool, str)) or not hasattr(global_batch_size, "__index__"):
        raise InvalidTypeError(
            f'compute_average_loss(global_batch_size=...) takes an integer or "actual", got {global_batch_size!r}'
        )
    if int(global_batch_size) < 0:
        raise InvalidArgumentError(
            f"compute_average_loss(global_batch_size=...) must not be negative, got {global_batch_size}"
        )
    return int(global_batch_size)


def _context(call: str, instead: str) -> ReplicaContext:
    if not in_replica():
        raise InvalidArgumentError(
            f"{call} was called outside strategy.run(...), where it cannot know the replicas: {instead}"
        )
    return get_replica_context()


def _fitting(weights: Any, losses: Any) -> Any:
    """The weights with axes of length 1 added or taken away at the end, as Keras does."""
    if weights.ndim == losses.ndim + 1 and weights.shape[-1] == 1:
        return weights[..., 0]
    return weights.reshape(weights.shape + (1,) * (losses.ndim - weights.ndim))
