"""The workers that a reader may ask: the next one, connections to them, and those that could not be reached."""

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Condition, Lock

from penstock.errors import LostDataWorkerError, ServiceError
from penstock.service.wire.interfaces import Connection, UnreachedDataWorkerError, UnusableDataWorkerError
from penstock.service.wire.subjects import WorkerInfo

_logger = logging.getLogger(__name__)

_SUSPECT_SECONDS = 1.0
"""The time for which a worker that could not be reached is not asked."""
_RESTS = 4
"""If there are others, a lost worker is avoided for this many times as long as it took to notice the loss."""
_WARN_SECONDS = 2.0

_SHOWN = 4
"""The number of workers that one line of the log names."""

_logged: set[tuple[str, int]] = set()
_logged_lock = Lock()


@dataclass(frozen=True)
class _Loss:
    """The loss of a worker.

    Attributes:
        at: when it was noticed, on the clock of `time.monotonic`.
        until: until when it is better not asked, because finding out may take as long again.
    """

    at: float
    until: float
    reason: str


class WorkerPool:
    """The workers of one reader.

    Args:
        usable: whether a worker may be asked at all.
        connect: connects to a worker.
    """

    def __init__(self, usable: Callable[[WorkerInfo], bool], connect: Callable[[WorkerInfo], Connection]) -> None:
        self._usable = usable
        self._connect = connect
        self._changed = Condition()
        self._workers: dict[int, WorkerInfo] = {}
        self._lines: dict[int, Connection] = {}
        self._busy: Counter[int] = Counter()
        self._chosen: dict[int, float] = {}  # when each was chosen last, as a sequence number
        self._choices = 0
        self._suspects: dict[int, _Loss] = {}
        self._unusable: set[int] = set()  # among the workers tried most recently
        self._closed = False

    def update(self, come: Iterable[WorkerInfo], gone: Iterable[int] = (), *, whole: bool = False) -> int:
        """Take over the dispatcher's news of workers; returns how many there are.

        Args:
            whole: whether `come` lists all workers.
        """
        with self._changed:
            usable = {} if whole else self._workers
            usable |= {worker.worker_id: worker for worker in come if self._usable(worker)}
            for number in gone:
                usable.pop(number, None)
            self._workers = usable
            left = [self._lines.pop(number) for number in list(self._lines) if number not in usable]
            self._suspects = {number: loss for number, loss in self._suspects.items() if number in usable}
            self._unusable &= usable.keys()
            self._chosen = {number: turn for number, turn in self._chosen.items() if number in usable}
            self._changed.notify_all()
        for line in left:
            line.close()
        return len(usable)

    def has(self, worker_id: int) -> bool:
        """Return whether a worker is known, and may be asked."""
        with self._changed:
            return worker_id in self._workers

    def choose(self, preferred: int, stopped: Callable[[], bool]) -> WorkerInfo | None:
        """The worker to ask next: `preferred` if it can be reached, else the least busy; waits until there is one.

        It counts as busy until `release`. None if `stopped` returns true while there is none.
        """
        begun, warned = time.monotonic(), False
        with self._changed:
            while not stopped() and not self._closed:
                chosen = self._workers.get(preferred)  # looking at all of many workers takes time
                if chosen is None or preferred in self._suspects:
                    chosen = self._best(preferred)
                if chosen is not None:
                    self._busy[chosen.worker_id] += 1
                    self._choices += 1
                    self._chosen[chosen.worker_id] = self._choices
                    return chosen
                if not warned and time.monotonic() - begun > _WARN_SECONDS:
                    warned = True
                    _logger.warning("waiting: %s", self.why_silent())
                self._changed.wait(0.2)
        return None

    def _best(self, preferred: int) -> WorkerInfo | None:
        """The worker to ask; None if none can be reached. Those whose loss took long to notice come last.

        Workers that were never asked come first, in random order, the others in turn. Readers with fewer threads than
        workers then use all workers, and not all readers the same ones.
        """
        now = time.monotonic()

        def key(worker: WorkerInfo) -> tuple[bool, bool, int, float]:
            number = worker.worker_id
            loss = self._suspects.get(number)
            turn = self._chosen.setdefault(number, random.random() - 1)
            return loss is not None and loss.until >= now, number != preferred, self._busy[number], turn

        return min(self._reachable(), key=key, default=None)

    def none_reachable(self) -> bool:
        """Return whether no worker can be asked for anything."""
        with self._changed:
            return not self._reachable()

    def _reachable(self) -> list[WorkerInfo]:
        """Workers that could be reached when they were asked last, or were lost some time ago."""
        until = time.monotonic() - _SUSPECT_SECONDS
        return [
            worker
            for number, worker in self._workers.items()
            if number not in self._suspects or self._suspects[number].at < until
        ]

    def release(self, worker: WorkerInfo) -> None:
        """Count a chosen worker as less busy."""
        with self._changed:
            self._busy[worker.worker_id] -= 1
            if not self._busy[worker.worker_id]:
                del self._busy[worker.worker_id]
            self._changed.notify_all()

    def answered(self, worker: WorkerInfo) -> None:
        """Note that a worker has answered."""
        number = worker.worker_id
        with self._changed:
            self._unusable.discard(number)
            back = self._suspects.pop(number, None) is not None
        if back:
            with _logged_lock:
                _logged.discard((worker.endpoint.address, number))

    def unusable(self, worker: WorkerInfo) -> bool:
        """Note that this process cannot use a worker; returns whether it can use none."""
        with self._changed:
            self._unusable.add(worker.worker_id)
            return not self._workers.keys() - self._unusable

    def connection(self, worker: WorkerInfo) -> Connection:
        """The connection to a worker.

        Raises:
            LostDataWorkerError: it cannot be reached, or the reader was closed.
            UnusableDataWorkerError: this process cannot use it.
        """
        with self._changed:
            line, closed = self._lines.get(worker.worker_id), self._closed
        if line is not None:
            return line
        if not closed:
            try:
                made = self._connect(worker)  # may take seconds, for which heartbeats do not wait
            except LostDataWorkerError:
                raise
            except ServiceError as error:
                raise UnusableDataWorkerError(str(error)) from error
            with self._changed:
                line = None if self._closed else self._lines.setdefault(worker.worker_id, made)
            if line is not made:  # another thread was first, or the reader was closed
                made.close()
        if line is None:
            raise LostDataWorkerError("this reader was closed")
        return line

    def lost(self, worker: WorkerInfo, error: Exception, asked: float) -> None:
        """Note that a worker was lost.

        Args:
            asked: when it was asked.
        """
        number = worker.worker_id
        with self._changed:
            known = self._suspects.get(number)
            if known is None or known.at < asked:
                now = time.monotonic()
                rests = (
                    now + _RESTS * (now - asked)
                    if isinstance(error, (UnreachedDataWorkerError, UnusableDataWorkerError))
                    else now
                )
                self._suspects[number] = _Loss(now, rests, str(error))
            line = self._lines.pop(number, None)
        if line is not None:
            line.close()

    def log_loss(self, worker: WorkerInfo, error: Exception, *, left: bool) -> None:
        """Log the loss of a worker: once, however many readers of this process had asked it."""
        name = (worker.endpoint.address, worker.worker_id)
        with _logged_lock:
            if name in _logged:
                return
            _logged.add(name)
        if left:
            _logger.info("data worker %d at %s left; others take over", worker.worker_id, worker.endpoint.address)
        else:
            reason = error if self.has(worker.worker_id) else "the dispatcher does not hear it any more"
            _logger.warning(
                "data worker %d at %s is lost: %s; others take over", worker.worker_id, worker.endpoint.address, reason
            )

    def suspects(self) -> list[int]:
        """The workers that could not be reached when they were asked last."""
        with self._changed:
            return sorted(self._suspects.keys() & self._workers.keys())

    def why_silent(self) -> str:
        """Return the reason why a reader gets nothing."""
        with self._changed:
            workers, suspects = dict(self._workers), dict(self._suspects)
        if not workers:
            return "the dispatcher knows no data worker that this job may use; start one with `penstock worker`"
        unreachable = [
            f"{workers[number].endpoint.address} ({suspects[number].reason})"
            for number in sorted(suspects.keys() & workers.keys())
        ]
        if len(unreachable) == len(workers):
            return (
                f"no data worker can be reached at the address it advertises: {_first_names(unreachable)}; give "
                "`penstock worker --worker-address` an address that this machine can reach"
            )
        addresses = _first_names([worker.endpoint.address for worker in workers.values()])
        return f"the data workers have not sent it yet ({addresses}); `penstock status` shows their load"

    def close(self) -> None:
        """Close all connections; requests under way end."""
        with self._changed:
            self._closed = True
            lines = list(self._lines.values())
            self._lines.clear()
            self._changed.notify_all()
        for line in lines:
            line.close()


def _first_names(names: Sequence[str]) -> str:
    """The first few names, and the number of further ones."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
