"""Starting, waiting for and stopping a server that runs in separate threads."""

import threading
import weakref
from abc import ABC, abstractmethod
from functools import partial
from queue import SimpleQueue
from typing import ClassVar, Generic, Literal, Self, TypeVar

from penstock.errors import ClosedError, PenstockError, ServiceError
from penstock.runtime.at_exit import end_at_exit

Ending = Literal["stop", "drain"]


class Running:
    """The running part of a server. It refers to nothing that the user holds, so that an unreferenced server can end.

    Attributes:
        endings: how it should end is put here. The garbage collector may write to a queue of this kind.
        ended: set when it has ended.
        failure: why it ended by itself, if it did.
    """

    _thread: threading.Thread

    def __init__(self) -> None:
        self.endings: SimpleQueue[Ending] = SimpleQueue()
        self.ended = threading.Event()
        self.failure: PenstockError | None = None

    def stop(self, ending: Ending) -> None:
        """End it, and wait until it has ended."""
        self.endings.put(ending)
        self._thread.join()


R = TypeVar("R", bound=Running)


class BackgroundServer(ABC, Generic[R]):
    """The object that a user has of a server.

    It stops by `stop`, at the end of a `with` block, when it is no longer referenced, and when the interpreter ends.

    Args:
        start: whether it runs at once.
    """

    _name: ClassVar[str]
    """The name of the server in errors."""

    def __init__(self, *, start: bool) -> None:
        self._started: R | None = None
        self._stopped = False
        if start:
            self.start()

    @abstractmethod
    def _run(self) -> R:
        """Begin to run."""

    def start(self) -> None:
        """Listen, as when it is made with `start=True`; do nothing if it listens already.

        Raises:
            ClosedError: it was stopped.
            PenstockError: as when it is made.
        """
        if self._stopped:
            raise ClosedError(
                f"a {self._name} cannot be started after it was stopped: make a new {type(self).__name__}"
            )
        if self._started is None:
            self._started = started = self._run()
            weakref.finalize(self, started.endings.put, "stop").atexit = False
            end_at_exit(started, partial(type(started).stop, ending="stop"))

    def _running(self) -> R:
        if self._started is None:
            raise ServiceError(f"the {self._name} has no address before it is started: call start()")
        return self._started

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most `timeout` seconds.

        Raises:
            PenstockError: why it ended by itself, for instance because it lost its dispatcher, or its journal is
                incomplete.
        """
        running = self._running()
        running.ended.wait(timeout)
        if running.failure is not None:
            raise running.failure

    def stop(self, *, drain: bool = False) -> None:
        """Stop, and wait until it has stopped. A second call does nothing.

        Args:
            drain: first finish what others are waiting for.
        """
        self._stopped = True
        if self._started is not None:
            self._started.stop("drain" if drain else "stop")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
