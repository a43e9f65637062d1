"""Callers whose number is found while they work: threads only for functions that gain by them.

What was found is remembered for the next iteration that calls the same function, or one of the same code: a function
that makes a dataset makes the functions in it anew.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from threading import Lock, get_ident
from typing import Any
from weakref import WeakKeyDictionary

from penstock.runtime.callers import TASK_SECONDS, Bell, Callers, Result
from penstock.runtime.gains import Found, Gains
from penstock.runtime.threads import Threads
from penstock.runtime.waiting import Stopwatch

_UNSEEN = 31
"""Measuring a call costs as much as a short call, so only one in this many, plus one, is measured."""
_UNNOTED = 127
"""Even looking at the clock costs as much as a very short call: of calls for single rows one in this many, plus one,
is timed, as soon as as many before were short."""
_UNSEEN_SECONDS = 1e-3
"""A call that takes longer than this is not short."""

_found: WeakKeyDictionary[Any, Found] = WeakKeyDictionary()
_found_lock = Lock()


def _recall(function: Any) -> Found | None:
    key = getattr(function, "__code__", function)
    try:
        with _found_lock:
            found = _found.get(key)
            if found is not None:
                _found[key] = found.grown_old
            return found
    except TypeError:  # a function that takes no weak reference
        return None


def _remember(function: Any, found: Found) -> None:
    with suppress(TypeError), _found_lock:
        _found[getattr(function, "__code__", function)] = found


class TunedCallers(Callers):
    """Callers that begin without threads: the thread that reads makes the calls while `serial`.

    Args:
        function: what is called. Threads that gained in an earlier iteration are there after the first call, and from
            the beginning where a call took long.
    """

    def __init__(self, threads: Threads, bell: Bell, function: Any) -> None:
        super().__init__(threads, bell, 1)
        self._function = function
        self._gains = Gains(os.cpu_count() or 1, _recall(function))
        self.serial = True
        # So many calls are not measured, because those before them were short.
        self._unseen = 0
        # So many calls for single rows were not even timed.
        self._unnoted = 0
        # When the number of tasks that run has changed last, and the processor time of each thread when its task began.
        self._changed = 0.0
        self._begun: dict[int, float] = {}
        self._follow(None)

    @property
    def want_more(self) -> bool:
        """Whether a thread is without work, or soon will be."""
        return not self.serial and super().want_more

    @property
    def because(self) -> str:
        gain, tried = self._gains.gain, self._gains.tried
        return "" if gain is None else f": {tried} threads make {gain:.2g} times as many calls as the one that reads"

    def call_serially(
        self, call: Callable[[], Result], rows: int, made: Callable[[Result], int] | None = None
    ) -> Result:
        """As the class above says; notes how long the calls take."""
        if self._unseen:
            return self._call_unseen(call)
        watch = Stopwatch(exactly=self._gains.in_doubt)
        result = call()
        if made is not None:
            rows = max(1, made(result))
        seconds, computed, waited = watch.stop(rows)
        with self._lock:
            gain = self._gains.gain
            self._gains.serial_calls(seconds, computed, waited, rows)
            self._unseen = _UNSEEN if self._gains.short else 0
            self._follow(gain)
        return result

    def patience(self, rows: int) -> float:
        return self._gains.patience(rows)

    def _call_unseen(self, call: Callable[[], Result]) -> Result:
        """As `call_serially`, where calls were too short to gain anything; until one takes long, they are not noted."""
        begun = time.perf_counter()
        result = call()
        self._unseen = self._unseen - 1 if time.perf_counter() - begun < _UNSEEN_SECONDS else 0
        return result

    def calls_here(self, call: Callable[[Any], Any]) -> Iterator[Callable[[Any], Any]]:
        return chain.from_iterable(self._noted_and_not(call))

    def _noted_and_not(self, call: Callable[[Any], Any]) -> Iterator[Iterable[Callable[[Any], Any]]]:
        noted = (lambda row: self.call_serially(partial(call, row), 1),)
        while self.serial:
            yield noted
            yield repeat(call, self.unnoted())

    def unnoted(self) -> int:
        self._unnoted = min(2 * self._unnoted + 1, _UNNOTED) if self._unseen else 0
        return self._unnoted

    def _follow(self, gain: float | None) -> None:
        """Do what was decided, and remember it if the gain is another one now."""
        count = self._gains.count
        if count and self.serial:
            self._chunk = max(1, int(TASK_SECONDS / max(self._gains.serial_costs.row_seconds, 1e-9)))
        self.count, self.serial = count or self.count, count == 0
        if self._gains.gain is not gain:
            _remember(self._function, self._gains.found)

    def _start(self) -> None:
        now = time.perf_counter()
        if self.running == 0:
            self._changed = now
        self._begun[get_ident()] = time.thread_time()
        super()._start()

    def _note(self, seconds: float, rows: int) -> None:
        super()._note(seconds, rows)
        now = time.perf_counter()
        busy, self._changed = now - self._changed, now
        computed = time.thread_time() - self._begun.pop(get_ident())
        gain = self._gains.gain
        self._gains.thread_calls(busy, seconds, computed, rows)
        self._follow(gain)
