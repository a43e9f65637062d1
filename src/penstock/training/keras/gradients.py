"""Gradients of a Keras training step, summed over replicas."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from penstock.distribute.contexts import get_replica_context, in_replica
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.training.keras.connection import check_backend

check_backend("ps.keras")


def value_and_grad(
    fn: Callable[..., Any], variables: Sequence[Any], has_aux: bool = False
) -> Callable[..., tuple[Any, list[Any]]]:
    """A function that returns the result of `fn`, and its gradients with respect to Keras variables.

    Inside `strategy.run` the gradients are summed over all replicas, so that every replica applies the same update:
    losses are to be scaled accordingly, as `ps.training.compute_average_loss` does. What `fn` writes to other variables
    (metrics, moving statistics, seeds) is kept.

    Args:
        fn: returns a scalar loss, or with `has_aux` a pair of the loss and anything else.
        variables: the variables, usually `model.trainable_variables`.
        has_aux: whether `fn` returns such a pair.

    Returns:
        A function of the arguments of `fn` that returns (result of `fn`, list of gradients in the variables' order).

    Raises:
        InvalidTypeError: something that is no Keras variable.
        InvalidArgumentError: no variables; when called, a loss that is no scalar.

    Example:
        >>> import keras, penstock as ps
        >>> weight = keras.Variable(3.0)
        >>> loss, gradients = ps.keras.value_and_grad(lambda x: (weight * x) ** 2, [weight])(2.0)
        >>> float(loss), float(gradients[0])
        (36.0, 24.0)
    """
    targets = list(variables)
    if not targets:
        raise InvalidArgumentError(
            "value_and_grad(variables=...) got none: build the model first, by calling it once or by model.build(shape)"
        )
    for variable in targets:
        if not isinstance(variable, keras.Variable):
            raise InvalidTypeError(f"value_and_grad(variables=...) takes Keras variables, got {variable!r}")

    def call(*args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        def loss_of(values: list[Any]) -> tuple[Any, tuple[Any, list[Any]]]:
            with _NestedScope(zip(targets, values, strict=True)) as scope:
                result = fn(*args, **kwargs)
                written.extend(scope.written.values())
                loss, aux = result if has_aux else (result, None)
                return loss, (aux, [scope.get_current_value(variable) for variable in written])

        written: list[Any] = []
        values = [variable.value for variable in targets]
        (loss, (aux, updates)), gradients = jax.value_and_grad(loss_of, has_aux=True)(values)
        for variable, update in zip(written, updates, strict=True):
            variable.assign(update)
        if in_replica():
            context = get_replica_context()
            if not context.has_rows:  # means of no rows are not numbers, and add nothing
                gradients = [jnp.where(jnp.isnan(gradient), 0, gradient) for gradient in gradients]
            gradients = context.all_reduce("SUM", gradients)
        return ((loss, aux) if has_aux else loss), gradients

    return call


class _NestedScope(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
    """A scope in which some variables have other values, and all others the values of the surrounding scope."""

    def __init__(self, mapping: Any) -> None:
        super().__init__(list(mapping), initialize_variables=False)
        self.written: dict[int, Any] = {}

    def get_current_value(self, variable: Any) -> Any:
        value = super().get_current_value(variable)
        if value is None and self.original_scope is not None:  # the scope around this one
            return self.original_scope.get_current_value(variable)
        return value

    def add_update(self, update: Any) -> None:
        self.written.setdefault(id(update[0]), update[0])
        super().add_update(update)
