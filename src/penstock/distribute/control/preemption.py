"""`ps.preemption`: all workers learn at the same step that one of them was asked to end, in time to save."""

import signal
import threading
from typing import Any, Self

from penstock.distribute.control.channel import first_open_channel
from penstock.errors import InvalidArgumentError


def preemption() -> "Preemption":
    """A context in which SIGTERM ends no process, but asks the training loops of all workers to end.

    Schedulers send SIGTERM some seconds before they kill a process. Without this, it ends the process at once, or JAX
    keeps it from being heard; with it, `requested` becomes true, on all workers at the same step, and they can save one
    checkpoint together. Workers are those of a strategy, the ranks of `ps.torch.loader`, or the processes of
    `ps.jax.loader`; with neither, this process is alone.

    Returns:
        A `Preemption`, which is also what `with` gives.

    Raises:
        InvalidArgumentError: it is entered in another thread than the main one, which alone hears signals.

    Example:
        >>> import os, signal
        >>> import penstock as ps
        >>> with iter(ps.Dataset.range(8)) as iterator, ps.preemption() as preempted:
        ...     for row in iterator:
        ...         if row == 2:
        ...             os.kill(os.getpid(), signal.SIGTERM)  # as a scheduler does
        ...         if preempted.requested:
        ...             state = iterator.state_dict()
        ...             break
        >>> int(row)
        2
    """
    return Preemption()


class Preemption:
    """Request to this process, or to another worker, to end; from `ps.preemption`."""

    def __init__(self) -> None:
        self._signalled = False
        self._asked = False
        self._before: Any = None

    @property
    def requested(self) -> bool:
        """Return whether the loop is to save and end: one answer for all workers, which ask once in each step.

        That costs nothing until a worker has got SIGTERM. It stays true from then on.

        Raises:
            WorkerError: another worker failed or was lost.
        """
        if not self._asked and self._before is not None:
            self._asked = True
            self._listen()  # again: `jax.distributed.initialize` takes the signal, and may have come after `with`
        control = first_open_channel()
        return self._signalled if control is None else control.asked_to_end(self._signalled)

    def _listen(self) -> Any:
        return signal.signal(signal.SIGTERM, self._note)

    def _note(self, *_: object) -> None:
        self._signalled = True

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise InvalidArgumentError(
                "ps.preemption() hears signals, as the main thread alone does: enter it there, and ask "
                "preempted.requested in any thread"
            )
        # A handler that was not set by Python, such as JAX's, is not known, and cannot come back.
        self._before = self._listen() or signal.SIG_DFL
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
