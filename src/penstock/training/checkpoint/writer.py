"""One piece of writing in a background thread, whose error is raised in the next call of the caller's."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from penstock.runtime.threading_interface import call_before_pools_close

_logger = logging.getLogger(__name__)

_unfinished: "set[Writer]" = set()


class Writer:
    """Runs one task at a time; the interpreter does not end before it has."""

    def __init__(self) -> None:
        self._task: Future[None] | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Begin a task. The one before must have been waited for."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-checkpoint")
        _unfinished.add(self)
        self._task = thread.submit(task)
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Wait for the task, and raise the error that ended it, once."""
        if self._task is None:
            return
        error = self._task.exception()  # Ctrl-C leaves the task, to be waited for again
        self._task = None
        _unfinished.discard(self)
        if error is not None:
            raise error


def _finish_all() -> None:
    for writer in list(_unfinished):
        try:
            writer.wait()
        except Exception as error:  # nobody is left to raise it to
            _logger.error("at the end of the program: %s", error)


# By then the pools of threads that Orbax writes with must still take work.
call_before_pools_close(_finish_all)
