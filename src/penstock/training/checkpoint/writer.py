"""Writes in a background thread; an error is raised by the caller's next call."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from penstock.runtime.at_exit import finish_before_pools_close, forget

_logger = logging.getLogger(__name__)


class Writer:
    """Runs one task at a time; the interpreter does not end before it has."""

    def __init__(self) -> None:
        self._task: Future[None] | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Begin a task. The one before must have been waited for."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-checkpoint")
        self._task = thread.submit(task)
        # Orbax writes with pools of threads of its own, which must still take work.
        finish_before_pools_close(self._task, partial(_finish, self._task))
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Wait for the task, and raise the error that ended it, once."""
        if self._task is None:
            return
        error = self._task.exception()  # Ctrl-C leaves the task, to be waited for again
        forget(self._task)
        self._task = None
        if error is not None:
            raise error


def _finish(task: Future[None]) -> None:
    error = task.exception()
    if error is not None:  # there is no later call that could raise it
        _logger.error("at the end of the program: %s", error)
