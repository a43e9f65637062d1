"""Workers that save and restore together: none goes on before all are done, and an error of one is an error of all."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from penstock.distribute.contexts import get_strategy
from penstock.distribute.control.channel import Control
from penstock.distribute.control.messages import Done
from penstock.errors import InvalidArgumentError, WorkerError

Own = TypeVar("Own")


class Together:
    """This worker among those that make the same calls.

    Attributes:
        index: the number of this worker.
        count: the number of workers.

    Args:
        control: where they talk to each other; None for a worker alone.
    """

    def __init__(self, control: Control | None) -> None:
        self._control = control
        self.index = 0 if control is None else control.worker
        self.count = 1 if control is None else control.workers

    def call(self, name: str, work: Callable[[], tuple[Own, Any]]) -> tuple[Own, list[Any]]:
        """Do a piece of work, and go on when all workers have done it.

        Args:
            name: the call, as errors say it.
            work: gives something for this worker, and plain data for all.

        Returns:
            What it gave for this worker, and what each worker's gave for all.

        Raises:
            WorkerError: it failed on another worker, or one was lost.
        """
        if self._control is None:
            own, shared = work()
            return own, [shared]
        self._control.check_in_main()
        try:
            own, shared = work()
        except Exception as error:
            self._control.gather(name, Done(error=f"{type(error).__name__}: {error}"), Done)
            raise
        told = self._control.gather(name, Done(shared), Done)
        for worker, done in enumerate(told):
            if done.error is not None:
                raise WorkerError(f"{name} failed on worker {worker} of {self.count}: {done.error}")
        return own, [done.shared for done in told]


def workers_of(iterators: list[Control | None]) -> Together:
    """The workers of the strategy whose scope is open, or else of the one that made the first distributed iterator.

    Raises:
        InvalidArgumentError: there are several workers, and neither is there.
    """
    strategy = get_strategy()
    known = ([] if strategy is None else [strategy._control]) + iterators
    control = next((one for one in known if one is not None), None)
    if control is None and jax.distributed.is_initialized() and jax.process_count() > 1:
        raise InvalidArgumentError(
            f"with {jax.process_count()} workers ps.Checkpoint must be made inside strategy.scope(): that is how it "
            "reaches the others"
        )
    return Together(control)
