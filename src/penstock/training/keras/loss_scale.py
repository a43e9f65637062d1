"""`keras.optimizers.LossScaleOptimizer` in `strategy.run`.

Its `apply` changes variables inside branches of `jax.lax.cond`, which a compiled step cannot do. Its `stateless_apply`,
which `fit` uses, gives their new values instead.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from penstock.distribute.contexts import in_replica
from penstock.errors import InvalidArgumentError


def applying_without_state(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `LossScaleOptimizer.apply`; outside of `strategy.run` it does the same."""

    @wraps(apply)
    def method(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        if not in_replica():
            apply(self, grads, trainable_variables)
            return
        if trainable_variables is None:
            raise InvalidArgumentError(
                f"{self.name}.apply(gradients) was called inside strategy.run(...) without variables: use "
                "apply_gradients(zip(gradients, variables))"
            )
        variables = list(trainable_variables)
        if not self.built:
            self.build(variables)
        values = [variable.value for variable in variables], [variable.value for variable in self.variables]
        new_values, new_own = self.stateless_apply(values[1], list(grads), values[0])
        for variable, value in zip([*variables, *self.variables], [*new_values, *new_own], strict=True):
            variable.assign(value)

    return method
