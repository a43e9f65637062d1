"""Finds mistakes in Keras steps that would silently give wrong numbers, while the steps are traced."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from penstock.errors import InvalidArgumentError
from penstock.training.keras.objects import made_inside, was_seen

_AVERAGING = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


_refusing: ContextVar[bool] = ContextVar("penstock_refuses_averages", default=False)


@contextmanager
def averaging_losses_refused() -> Iterator[None]:
    """A context in which calls of Keras losses that take a mean over their batch are refused."""
    token = _refusing.set(True)
    try:
        yield
    finally:
        _refusing.reset(token)


def refusing_averages(call: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `keras.losses.Loss.__call__`."""

    @wraps(call)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _refusing.get() and self.reduction in _AVERAGING:
            raise InvalidArgumentError(
                f"the Keras loss {self.name!r} has reduction={self.reduction!r} and was called inside "
                "strategy.run(...), where it sees one replica's slice of the batch: the sum over the replicas of "
                "such means is too large, and wrong where slices differ in size. Give it reduction=None and use "
                'ps.training.compute_average_loss(...), or give it reduction="sum"'
            )
        return call(self, *args, **kwargs)

    return checked


def check_made_inside(variables: Sequence[Any], exempt: set[int]) -> None:
    """Refuse variables that were made outside every strategy's scope.

    Args:
        variables: those that a step writes.
        exempt: the ids of those that the step itself has made.

    Raises:
        InvalidArgumentError: there is one.
    """
    candidates = [variable for variable in variables if id(variable) not in exempt]
    inside = made_inside(candidates)
    for variable in candidates:
        if not was_seen(variable):
            raise InvalidArgumentError(
                f"strategy.run got a function that writes to the Keras variable {variable.path}, which was made before "
                "penstock was imported, so that its purpose is unknown: import penstock first, and make "
                "the model, the optimizer and the metrics inside `with strategy.scope():`"
            )
        if id(variable) not in inside:
            raise InvalidArgumentError(
                f"strategy.run got a function that writes to the Keras variable {variable.path}, which was made "
                "outside strategy.scope(): make the model, the optimizer and the metrics inside "
                "`with strategy.scope():`"
            )
