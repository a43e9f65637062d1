"""The threads that call one function for one iteration, and how many more calls they can use.

This file decides how much a parallel map reads ahead: a stream starts a further piece of work as long as its callers
`want_more`, and threads cut it into tasks of `chunk` rows as they become free. So as many calls run as were asked for,
below any operator, and nothing is read before a thread is free for it.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeVar

from penstock.runtime.channel import Closed
from penstock.runtime.freed_memory import keep_freed_memory
from penstock.runtime.threads import Threads

TASK_SECONDS = 0.002
"""The time of a task: long enough that handing it out costs next to nothing, short enough to delay no other."""
_LONG = 2.5
"""A thread that waits for a task which takes this many times as long as it should adds the next one in time."""
_MOST_ROWS = 1 << 14
_MOST_BYTES = 1 << 21
"""The results of a task hold no more than this, unless a row does."""
_LARGE_BYTES = 1 << 10
"""Results of this size and more are worth keeping the memory of those before."""

Result = TypeVar("Result")


class Bell:
    """Wakes the threads that wait for calls of one iteration when one of the calls has ended.

    Whoever waits does so at a `SimpleQueue` of its own. Ctrl-C that comes as a thread begins to wait at a `Condition`
    can leave its lock released: a RuntimeError, of releasing it again, then takes the place of the KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self._rings = count(1)
        self._rung = 0
        self._waiting: deque[SimpleQueue[None]] = deque()

    @property
    def rung(self) -> int:
        """How often it has rung; read this before checking whether there is something to wait for."""
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
        """How many tasks the rows from start to stop were estimated to be."""
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
        serial: whether the reading thread should make the calls itself, by `call_serially`.
        running: how many tasks are being done at this moment.
        most: how many were at the same moment so far.
    """

    serial = False

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

    @property
    def chunk(self) -> int:
        """How many rows a task should have: as many as take about as long as one should, or fewer large ones."""
        return self._chunk if self._most_rows is None else min(self._chunk, self._most_rows)

    @property
    def want_more(self) -> bool:
        """Whether a thread is without work, or soon will be."""
        return self._unfinished < (self.count if self._long else 2 * self.count)

    def call_serially(
        self, call: Callable[[], Result], rows: int, made: Callable[[Result], int] | None = None
    ) -> Result:
        """Return what `call` returns, which makes the calls for `rows` rows in this thread.

        Args:
            made: tells from what it returned for how many rows calls were really made.
        """
        return call()

    def call_here(self, rows: int) -> bool:
        """Whether the reading thread should make the calls for so many rows itself."""
        return self.serial

    def calls_here(self, call: Callable[[Any], Any]) -> Iterator[Callable[[Any], Any]]:
        """What the reading thread calls in place of `call` for each row that comes alone, while it is `serial`."""
        return iter(())

    def patience(self, rows: int) -> float:
        """How many seconds calls for so many rows may take in this thread before the others are left to threads."""
        return math.inf

    @property
    def because(self) -> str:
        """Why so many calls may run, for `explain()`; "" where a number was given, or nothing was compared."""
        return ""

    def unnoted(self) -> int:
        """How many of the next calls this thread may make without `call_serially`: ever more, while all are short."""
        return 0

    @property
    def know_results(self) -> bool:
        """Whether it is known how many bytes the result of a row holds."""
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
        work.call(start, stop)
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
        self._long = seconds > _LONG * self._task_seconds
        if seconds > 2 * self._task_seconds:
            self._chunk = max(1, self._chunk // 2)
        elif seconds < self._task_seconds and rows >= self._chunk:
            self._chunk = min(2 * self._chunk, _MOST_ROWS)
