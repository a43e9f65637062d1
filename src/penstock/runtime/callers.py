"""The threads that call one function for one iteration, and how many more calls they can use.

This file decides how much a parallel map reads ahead: a stream starts a further piece of work as long as its callers
`want_more`, and threads cut it into tasks of `chunk` rows as they become free. So the number of calls that was asked
for runs, below any operator, and nothing is read before a thread is free for it.
"""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue
from threading import Lock

from penstock.runtime.channel import Closed
from penstock.runtime.memory_thresholds import keep_freed_memory
from penstock.runtime.threads import Threads
from penstock.statistics.collected import NO_METER, Meter
from penstock.statistics.lanes import waiting

TASK_SECONDS = 0.002
"""The time of a task: long enough that handing it out costs next to nothing, short enough to delay no other."""
HANDING_SECONDS = 5e-5
"""The time that it takes to hand out a task and to take its result."""
_LONG = 2.5
"""A thread that waits for a task which takes this many times as long as it should adds the next one in time."""
_MOST_ROWS = 1 << 14
_MOST_BYTES = 1 << 21
"""The results of a task hold no more than this, unless a row does."""
_LARGE_BYTES = 1 << 10
"""Results of this size and more are worth keeping the memory of those before."""


class Bell:
    """Wakes the threads that wait for calls of one iteration when one of the calls has ended.

    Each waiting thread has its own `SimpleQueue`. Ctrl-C that comes as a thread begins to wait at a `Condition`
    can leave its lock released: a RuntimeError, of releasing it again, then takes the place of the KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self._rings = count(1)
        self._rung = 0
        self._waiting: deque[SimpleQueue[None]] = deque()

    @property
    def rung(self) -> int:
        """Return how often it has rung; read this before checking whether there is something to wait for."""
        return self._rung

    def ring(self) -> None:
        """Wake all that wait."""
        self._rung = next(self._rings)
        while self._waiting:
            with suppress(IndexError):  # another thread rings too
                self._waiting.popleft().put(None)

    def wait(self, rung: int) -> None:
        """Wait until it has rung more often than `rung`."""
        woken: SimpleQueue[None] = SimpleQueue()
        while self._rung == rung:
            self._waiting.append(woken)
            if self._rung == rung:  # who rings from now on finds this thread waiting
                with waiting:
                    woken.get()


@dataclass
class Work:
    """Calls for some rows, which several threads may make.

    Attributes:
        call: makes those for rows start to stop; it must not raise.
        rows: how many there are, at least one.
        together: whether one thread must make all of them.
        begun: how many were given to a thread.
        ended: how many were made.
        unit: how many were thought to be one task when it was added.
    """

    call: Callable[[int, int], None]
    rows: int
    together: bool = False
    begun: int = 0
    ended: int = 0
    unit: int = 1

    def units(self, start: int, stop: int) -> int:
        """Return how many tasks the rows from start to stop were estimated to be."""
        return -(-stop // self.unit) - -(-start // self.unit)


class Callers:
    """Up to `count` threads at a time that take rows of the oldest work.

    Args:
        threads: where they are started.
        bell: rung when all calls of a work have ended, and when one has ended and more are wanted. Between them there
            is nothing to do for those who wait, and each time that they wake up takes longer than a short call.
        count: how many there are.
        task_seconds: how long a task should take.

    Attributes:
        serial: whether the reading thread makes all calls, until it is found that threads gain.
        running: how many tasks are being done at this moment.
        most: how many were at the same moment so far.
        meter: measures the calls.
    """

    serial = False
    meter: Meter = NO_METER

    def __init__(self, threads: Threads, bell: Bell, count: int, task_seconds: float = TASK_SECONDS) -> None:
        self.count = count
        self._task_seconds = task_seconds
        self._threads = threads
        self.bell = bell
        self._lock = Lock()
        self._work: deque[Work] = deque()
        self._working = 0
        self.running = 0
        self.most = 0
        # In tasks as large as they were thought to be at first: so a task that takes more rows does not ask for more.
        self._unfinished = 0
        self._chunk = 1
        self._most_rows: int | None = None
        self._long = True
        # How long a row took in the last calls.
        self._row_seconds: float | None = None

    @property
    def chunk(self) -> int:
        """Return how many rows a task should have: as many as take about as long as one should, or fewer large ones."""
        return self._chunk if self._most_rows is None else min(self._chunk, self._most_rows)

    @property
    def want_more(self) -> bool:
        """Return whether a thread is without work, or soon will be."""
        return self._unfinished < (self.count if self._long else 2 * self.count)

    def rows_here(self, rows: int) -> int:
        """The number of the next `rows` rows for which the reading thread makes the calls; 0 where threads do.

        Handing out a task takes longer than a few short calls, as those for rows that come one by one. While threads
        are at work, they get these too.
        """
        return rows if self._are_short(rows) and not self._unfinished else 0

    @property
    def here_one_by_one(self) -> bool:
        """Return whether the reading thread makes the calls for rows that come one by one."""
        return self._are_short(1)

    def _are_short(self, rows: int) -> bool:
        return self._row_seconds is not None and rows * self._row_seconds < HANDING_SECONDS

    def note_here(self, seconds: float, rows: int) -> None:
        """Note how long the reading thread took for its calls."""
        self._row_seconds = seconds / rows
        self._chunk = max(1, min(self._chunk, int(self._task_seconds / max(self._row_seconds, 1e-9))))

    @property
    def because(self) -> str:
        """The reason for the number of calls, for `explain()`; "" where a number was given."""
        return ""

    @property
    def know_results(self) -> bool:
        """Return whether it is known how many bytes the result of a row holds."""
        return self._most_rows is not None

    def results_hold(self, nbytes: int) -> None:
        """Note how many bytes the result of a row holds."""
        if nbytes >= _LARGE_BYTES:
            keep_freed_memory()  # each thread's own is given back sooner: half of what threads do would be page faults
        self._most_rows = max(1, _MOST_BYTES // max(1, nbytes))

    def add(self, work: Work) -> None:
        """Have work done.

        Raises:
            Closed: the threads were stopped.
        """
        with self._lock:
            self._work.append(work)
            work.unit = work.rows if work.together else self.chunk
            tasks = work.units(0, work.rows)
            self._unfinished += tasks
            starting = min(self.count - self._working, tasks)
            self._working += max(0, starting)
        for started in range(starting):
            try:
                self._threads.submit(self._do)
            except Closed:
                with self._lock:
                    self._working -= starting - started
                    if self._working == 0:  # otherwise the working threads notice that nothing more is wanted
                        raise
                return

    def _do(self) -> None:
        while self._do_task():
            pass

    def _do_task(self) -> bool:
        """Do a task of the oldest work; False where there is none, and the thread ends."""
        with self._lock:
            if not self._work:
                self._working -= 1
                return False
            work, start, stop = self._next_task()
            self._start()
        begun = time.perf_counter()
        self.meter.measured(work.call, start, stop)
        seconds = time.perf_counter() - begun
        with self._lock:
            self._unfinished -= work.units(start, stop)
            work.ended += stop - start
            ended = work.ended == work.rows
            self._note(seconds, stop - start)
        # An exception that a call has left refers to this frame, and must not lead to other calls by it.
        del work
        if ended or self.want_more:
            self.bell.ring()
        return True

    def _next_task(self) -> tuple[Work, int, int]:
        """The next rows of the oldest work, under the lock."""
        work = self._work[0]
        start = work.begun
        work.begun = stop = work.rows if work.together else min(start + self.chunk, work.rows)
        if stop == work.rows:
            self._work.popleft()
        return work, start, stop

    def _start(self) -> None:
        """Note that a task begins, under the lock."""
        self.running += 1
        self.most = max(self.most, self.running)

    def _note(self, seconds: float, rows: int) -> None:
        """Note that a task has ended, under the lock."""
        self.running -= 1
        self._row_seconds = seconds / rows
        self._long = seconds > _LONG * self._task_seconds
        if seconds > 2 * self._task_seconds:
            self._chunk = max(1, self._chunk // 2)
        elif seconds < self._task_seconds and rows >= self._chunk:
            self._chunk = min(2 * self._chunk, _MOST_ROWS)


class ReadingThread(Callers):
    """No threads: the one that reads makes all calls."""

    serial = True

    def rows_here(self, rows: int) -> int:
        return rows
