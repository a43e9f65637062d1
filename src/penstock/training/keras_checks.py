"""Mistakes of a Keras step that would give wrong numbers in silence, found while the step is traced."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.errors import InvalidArgumentError
from penstock.training.keras_objects import keras, made_inside

_AVERAGING = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


@contextmanager
def averaging_losses_refused() -> Iterator[None]:
    """Within it a Keras loss that takes a mean over its batch is refused when it is called, in this thread.

    Keras offers no place to ask; Python tells of every call while a step is traced, which happens once. It can tell one
    listener only: under a profiler nothing is refused.
    """
    code = keras().losses.Loss.__call__.__code__

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is code:
            loss = frame.f_locals["self"]
            if loss.reduction in _AVERAGING:
                raise InvalidArgumentError(
                    f"the Keras loss {loss.name!r} has reduction={loss.reduction!r} and was called inside "
                    "strategy.run(...), where it sees one replica's share of the batch: the sum over the replicas of "
                    "such means is too large, and wrong where shares differ in size. Give it reduction=None and use "
                    'ps.compute_average_loss(...), or give it reduction="sum"'
                )

    if sys.getprofile() is not None:
        yield
        return
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


def check_made_inside(variables: Sequence[Any], exempt: set[int]) -> None:
    """Refuse variables that were made outside every strategy's scope.

    Args:
        variables: those that a step writes.
        exempt: the ids of those that the step itself has made.

    Raises:
        InvalidArgumentError: there is one.
    """
    inside = made_inside() | exempt
    for variable in variables:
        if id(variable) not in inside:
            raise InvalidArgumentError(
                f"strategy.run got a function that writes to the Keras variable {variable.path}, which was made "
                "outside strategy.scope(): make the model, the optimizer and the metrics inside "
                "`with strategy.scope():`"
            )
