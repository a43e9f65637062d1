"""Workers that save and restore together: each waits for all others, and an error of one is raised on all."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from penstock.distribute.contexts import get_strategy
from penstock.distribute.control.channel import Control
from penstock.distribute.control.messages import CallDone, GatherItem
from penstock.distribute.jax.for_trainers import control_channel
from penstock.errors import InvalidArgumentError, WorkerError
from penstock.printing import text_of_error

Own = TypeVar("Own")


class WorkerGroup:
    """This worker among those that make the same calls.

    Attributes:
        index: the number of this worker.
        count: the number of workers.

    Args:
        control: the channel between them; None for a single worker.
    """

    def __init__(self, control: Control | None) -> None:
        self._control = control
        self.index = 0 if control is None else control.worker
        self.count = 1 if control is None else control.workers

    def barrier(self, topic: str) -> "WriteBarrier":
        """A barrier at which these workers wait for each other while they write."""
        assert self._control is not None
        return WriteBarrier(self._control, topic)

    def call(self, name: str, work: Callable[[], tuple[Own, Any]]) -> tuple[Own, list[Any]]:
        """Call `work` when all workers have come to this, and return when all have done so, however long it takes.

        Args:
            name: the call, for errors.
            work: returns something for this worker, and plain data for all workers.

        Returns:
            What `work` returned for this worker, and what each worker returned for all.

        Raises:
            WorkerError: it failed on another worker, or one was lost.
        """
        if self._control is None:
            own, shared = work()
            return own, [shared]
        self._control.check_in_main()
        self._control.gather(f"the beginning of {name}", None, type(None))
        try:
            own, shared = work()
        except Exception as error:
            self._control.gather(name, CallDone(error=text_of_error(error)), CallDone, timeout=math.inf)
            raise
        answers = self._control.gather(name, CallDone(shared), CallDone, timeout=math.inf)
        for worker, done in enumerate(answers):
            if done.error is not None:
                raise WorkerError(f"{name} failed on worker {worker} of {self.count}: {done.error}")
        return own, [done.shared for done in answers]


class WriteBarrier:
    """Barrier of the workers that write one checkpoint, in the background.

    It takes the place of Orbax's barrier, at which a worker waits for twenty minutes for one that failed to write.

    Args:
        control: where they talk to each other.
        topic: the save, by words that no other save has.
    """

    def __init__(self, control: Control, topic: str) -> None:
        self._control = control
        self._topic = topic
        self._passed = 0

    def wait(self, *, key: str, timeout_ms: int) -> None:
        """Wait until all workers have come as far as this one, however long writing takes them.

        Args:
            key: Orbax's name of this barrier; all workers reach the same barriers in the same order.
            timeout_ms: Orbax's limit, which does not count: the control channel notices a worker that is lost.

        Raises:
            WorkerError: a worker failed to write, or was lost.
        """
        answers = self._control.gather(self._next(), CallDone(), CallDone, timeout=math.inf, closed=lambda: False)
        self._passed += 1
        for worker, done in enumerate(answers):
            if done.error is not None:
                raise WorkerError(f"worker {worker} of {self._control.workers} failed: {done.error}")

    def __enter__(self) -> None:
        """A context for writing; if that fails, the workers that wait for this one, now or later, learn of it."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception):
            failed = CallDone(error=text_of_error(error))
            self._control.post(GatherItem.of(self._control.worker, self._next(), failed))

    def _next(self) -> str:
        return f"{self._topic}, barrier {self._passed + 1}"


def checkpoint_workers(iterators: list[Control | None]) -> WorkerGroup:
    """The workers of the strategy whose scope is open, or else of the one that made the first distributed iterator.

    Raises:
        InvalidArgumentError: there are several workers, and neither is there.
    """
    strategy = get_strategy()
    known = ([] if strategy is None else [control_channel(strategy)]) + iterators
    control = next((one for one in known if one is not None), None)
    if control is None and jax.distributed.is_initialized() and jax.process_count() > 1:
        raise InvalidArgumentError(
            f"with {jax.process_count()} workers ps.Checkpoint must be made inside strategy.scope(), or hold a "
            "loader of all of them: that is how it reaches the others"
        )
    return WorkerGroup(control)
