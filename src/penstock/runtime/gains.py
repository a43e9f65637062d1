"""Whether threads gain by making the calls of a function, and how many: decided by what calls have cost.

This file has no clock and no threads: `tuning.py` measures, and tells it. The two ways are compared by the time that a
row takes, each while it is in use: threads on trial with the calls of the reading thread before, and these, made now
and then while threads are in use, with the threads before. So what else the machine does counts for both.
"""

from dataclasses import dataclass, replace

from penstock.runtime.callers import TASK_SECONDS

_MOST = 16
WORTH_SECONDS = 2e-5
"""A call that takes less gains nothing, whatever it does."""
HANDING_SECONDS = 5e-5
"""What it costs the thread that reads to hand out a task and to take its result."""
_RECENT_SECONDS = 0.25
"""Measurements of serial calls weigh half as soon as so many seconds of others are there."""
_CHANGED_SECONDS = 1e-3
"""A call that takes this long, after calls that were too short for threads, begins the measurements anew."""

_PATIENCE_SECONDS = 0.02
"""For calls of which nothing is known, or that were short."""

_GAIN = 1.15
_KEEP = 1.05
_WAITING_GAIN = 1.5
"""A function that waits gains much more, and its time without threads may be known from a single call."""
_CLEAR_LOSS, _CLEAR_GAIN = 0.75, 1.5
"""A trial goes on while its result is between these."""
_FIRST_SECONDS = 0.05
"""A function that computes is called serially this long before threads are tried, and longer by this factor each
time."""
_BUSY = 0.75
"""Threads that wait are too few if each is busy for this share of the time, and the processors are not; at first there
are as many as keep Python's lock for this share of it."""
_ENOUGH_FOR = 16
"""More threads that gained nothing are not tried in so many iterations, with the one in which they were."""
_PATIENCE = 5
_LONGEST_SECONDS = 60.0
_TRIAL_SECONDS = 0.02
_LONG_TRIAL_SECONDS = 0.1
_WINDOW_SECONDS = 0.5
_CHECK_SECONDS = 0.025
"""So long the reading thread makes the calls again, to compare."""
_CHECK_SHARE = 30
"""A check comes after so many times what one costs at least."""
_CHANGE = 2.0
"""Calls whose processor time differs by this factor from what it was have changed."""
_ALIKE = 4.0
"""Calls of one function in two iterations are alike if they differ by less than this factor."""


@dataclass
class Costs:
    """What the calls of the reading thread have cost.

    Attributes:
        seconds: how long they took.
        computed: how much of that was processor time.
        waited: how much was waiting for something other than the processor.
        rows: for how many rows they were made.
        calls: in how many pieces.
    """

    seconds: float = 0.0
    computed: float = 0.0
    waited: float = 0.0
    rows: int = 0
    calls: int = 0

    def add(self, seconds: float, computed: float, waited: float, rows: int) -> None:
        """Note calls for some rows."""
        self.seconds += seconds
        self.computed += computed
        self.waited += waited
        self.rows += rows
        self.calls += 1

    def halve(self) -> None:
        """Halve their weight."""
        self.seconds, self.computed, self.waited = self.seconds / 2, self.computed / 2, self.waited / 2
        self.rows, self.calls = max(1, self.rows // 2), max(1, self.calls // 2)

    @property
    def row_seconds(self) -> float:
        """How long a row takes."""
        return self.seconds / max(1, self.rows)

    @property
    def waiting(self) -> bool:
        """Whether they waited for longer than they computed."""
        return self.waited > self.computed

    @property
    def own_seconds(self) -> float:
        """How long they took without the time in which other processes had the processor."""
        return self.computed + self.waited

    @property
    def worthwhile(self) -> bool:
        """Whether they took so long that threads could gain anything, beside what handing them out costs."""
        return self.own_seconds >= WORTH_SECONDS * self.rows + HANDING_SECONDS * self.calls


@dataclass
class _Window:
    """What threads have done since they began, or since they were judged."""

    busy: float = 0.0
    worked: float = 0.0
    computed: float = 0.0
    rows: int = 0
    tasks: int = 0

    @property
    def handing(self) -> float:
        return self.tasks * HANDING_SECONDS

    @property
    def row_seconds(self) -> float:
        return (self.busy + self.handing) / max(1, self.rows)


@dataclass(frozen=True)
class Found:
    """What an iteration has found out about a function.

    Attributes:
        row_seconds: how long a row takes in the reading thread.
        count: how many threads gained; 0 for none.
        until_trial: how many seconds of serial calls must have passed before threads are tried again.
        enough_for: in how many iterations, with this one, more threads are not tried because they gained nothing.
    """

    row_seconds: float
    count: int
    until_trial: float = _FIRST_SECONDS
    enough_for: int = 0

    @property
    def grown_old(self) -> "Found":
        """The same for the iteration after the next: what did not gain is tried sooner."""
        return replace(self, until_trial=max(_FIRST_SECONDS, self.until_trial / 2))


class Gains:
    """Decides who makes the calls of one function in one iteration.

    Args:
        cores: how many processors there are.
        earlier: what was found in an earlier iteration.

    Attributes:
        count: how many threads make the calls; 0 if the reading thread does.
        gain: how many times as many calls threads make in a second as the reading thread, in the last comparison; None
            before the first.
        tried: how many threads these were.
        serial_costs: what the calls of the reading thread have cost of late.
    """

    def __init__(self, cores: int, earlier: Found | None = None) -> None:
        self._cores = cores
        self._earlier = earlier
        self.count = 0
        self.gain: float | None = None
        self.tried = 0
        self.serial_costs = Costs()
        # The seconds of serial calls since threads were tried, and how many must have passed before they are again.
        self._since = 0.0
        self._until_trial = _FIRST_SECONDS
        self._on_trial = False
        self._window = _Window()
        # While threads make the calls: the seconds since the last comparison, how many must have passed before the
        # next, and of a row the processor time and how long a thread worked.
        self._unchecked = 0.0
        self._until_check = _WINDOW_SECONDS
        self._computed_row = self._worked_row = 0.0
        # While more threads are tried than gained: how many gained, and how long a row took.
        self._fewer: tuple[int, float] | None = None
        # In how many iterations, with this one, more are not tried.
        self._enough_for = 0
        # While the reading thread makes calls only to compare: how many threads did, and what these have done.
        self._checked: tuple[int, _Window] | None = None
        if earlier is not None and earlier.count and earlier.row_seconds > TASK_SECONDS:
            self._earlier = None
            self._go_on_with(earlier)

    @property
    def found(self) -> Found:
        """What another iteration should know."""
        return Found(self.serial_costs.row_seconds, self.count, self._until_trial, self._enough_for)

    @property
    def short(self) -> bool:
        """Whether the reading thread makes calls that are too short for threads, and need not be looked at closely."""
        return self.count == 0 and self._checked is None and not self.serial_costs.worthwhile

    @property
    def in_doubt(self) -> bool:
        """Whether the next decision depends on how long exactly calls of the reading thread wait."""
        return self.serial_costs.rows == 0 or self.serial_costs.waiting

    def patience(self, rows: int) -> float:
        """How many seconds calls for so many rows may take in the reading thread: others may gain if it is more."""
        return max(_PATIENCE_SECONDS, _ALIKE * rows * self.serial_costs.row_seconds)

    def serial_calls(self, seconds: float, computed: float, waited: float, rows: int) -> None:
        """Note what calls of the reading thread have cost, and decide who makes the next."""
        if self._have_become_long(seconds, rows):
            self.serial_costs, self._since = Costs(), 0.0
        costs = self.serial_costs
        if costs.seconds > _RECENT_SECONDS:
            costs.halve()
        costs.add(seconds, computed, waited, rows)
        self._since += computed + waited
        if self._checked is not None:
            self._check(*self._checked)
        elif costs.worthwhile and not self._goes_on_as_before():
            self._try_threads()

    def _have_become_long(self, seconds: float, rows: int) -> bool:
        """Whether calls take long, after many that were too short for threads and would hide it."""
        costs = self.serial_costs
        longer = seconds > max(_CHANGED_SECONDS, _ALIKE * rows * costs.row_seconds)
        return costs.rows > 0 and not costs.worthwhile and longer

    def _try_threads(self) -> None:
        waiting = self.serial_costs.waiting
        if self._since < (TASK_SECONDS if waiting and self._until_trial == _FIRST_SECONDS else self._until_trial):
            return
        count = self._wanted()
        if count > 1:
            self._begin_trial(count)
        else:
            self._try_later()

    def _wanted(self) -> int:
        """How many threads keep the processors busy, or Python's lock where they wait as well; more may be tried."""
        costs = self.serial_costs
        if not costs.waiting:
            return self._cores
        return min(_MOST, max(self._cores + 1, round(_BUSY * costs.own_seconds / max(costs.computed, 1e-9))))

    def _goes_on_as_before(self) -> bool:
        """Use the threads that gained in an earlier iteration, if a call takes about as long as it did then."""
        found, self._earlier = self._earlier, None
        if found is None:
            return False
        if not found.row_seconds / _ALIKE < self.serial_costs.row_seconds < _ALIKE * found.row_seconds:
            return False
        if found.count == 0:  # another process may have been busy, so they are tried again, but not at once
            self._until_trial = found.until_trial
            return False
        self._go_on_with(found)
        return True

    def _go_on_with(self, found: Found) -> None:
        self.serial_costs = Costs(found.row_seconds, found.row_seconds, 0.0, 1, 1)
        self._begin_trial(found.count, max(0, found.enough_for - 1))

    def _begin_trial(self, count: int, enough_for: int = 0) -> None:
        self.count, self._on_trial = count, True
        self._fewer, self._enough_for = None, enough_for
        self._window = _Window()

    def _try_later(self) -> None:
        self.count, self._on_trial, self._since = 0, False, 0.0
        longer = _PATIENCE if self._until_trial == _FIRST_SECONDS else 2
        self._until_trial = min(longer * self._until_trial, _LONGEST_SECONDS)

    @property
    def _least_gain(self) -> float:
        if self.count > self._cores:
            return _WAITING_GAIN
        return _GAIN if self._on_trial else _KEEP

    def thread_calls(self, busy: float, worked: float, computed: float, rows: int) -> None:
        """Note that a thread has made calls for some rows, and decide who makes the next.

        Args:
            busy: for how many seconds any thread has worked since the last of these notes.
            worked: for how many seconds this one did.
            computed: its processor time.
            rows: for how many rows.
        """
        window = self._window
        window.busy += busy
        window.worked += worked
        window.computed += computed
        window.rows += rows
        window.tasks += 1
        cheaper = not self._on_trial and window.worked < window.rows * self._worked_row / _ALIKE
        soon = self._on_trial or cheaper or self._fewer is not None
        usual = _LONG_TRIAL_SECONDS if self._may_want_more else _WINDOW_SECONDS
        if self.count and window.busy + window.handing >= (_TRIAL_SECONDS if soon else usual):
            if cheaper:  # threads may have nothing to do because handing out such calls takes longer than making them
                self._begin_check(window)
            else:
                self._judge(window)

    def _judge(self, window: _Window) -> None:
        """Check whether threads have gained since they began, or since the last check."""
        if window.handing < window.busy and window.worked < 1.5 * window.busy:  # nobody wants more than one at a time
            self._window = _Window()
            return
        # A call cannot take longer without threads than it does in one: elements may have become smaller.
        gain = min(self.serial_costs.row_seconds, window.worked / window.rows) / window.row_seconds
        if self._on_trial and _CLEAR_LOSS < gain < _CLEAR_GAIN and window.busy < _LONG_TRIAL_SECONDS:
            return
        self.gain, self.tried = gain, self.count
        if self._on_trial:
            if gain < self._least_gain:
                self._try_later()
            else:
                self._keep(window, _WINDOW_SECONDS)
                self._try_more(window)
        else:
            self._unchecked += window.busy + window.handing
            self._compare_with_fewer(window)
            if gain < self._least_gain or self._should_check(window):
                self._begin_check(window)
            else:
                self._try_more(window)
        self._window = _Window()

    @property
    def _may_want_more(self) -> bool:
        """Whether more threads may gain: for a function that waits, if more have not been tried in vain."""
        return self._cores < self.count < _MOST and self._enough_for == 0

    def _try_more(self, window: _Window) -> None:
        """Try more threads for a function that waits, if all have work and the processors have time left.

        How many are wanted follows from few calls at first, perhaps from one, which may have computed more than others.
        """
        idle = window.computed < _BUSY * self._cores * window.busy
        if self._may_want_more and idle and window.worked > _BUSY * self.count * window.busy:
            self._fewer = self.count, window.row_seconds
            self.count = min(_MOST, 2 * self.count)

    def _compare_with_fewer(self, window: _Window) -> None:
        """Go back to fewer threads if more do not gain."""
        if self._fewer is None:
            return
        (count, row_seconds), self._fewer = self._fewer, None
        if row_seconds < _GAIN * window.row_seconds:
            self.count, self._enough_for = count, _ENOUGH_FOR

    def _keep(self, window: _Window, until_check: float) -> None:
        """Go on with threads, which gained."""
        self._on_trial, self._until_trial = False, _FIRST_SECONDS
        self._unchecked, self._until_check = 0.0, until_check
        self._computed_row, self._worked_row = window.computed / window.rows, window.worked / window.rows

    def _should_check(self, window: _Window) -> bool:
        """Whether the reading thread should make some calls to compare: never if most of the time all threads wait."""
        if window.computed < window.busy / 2:
            return False
        cost = self.serial_costs.seconds / max(1, self.serial_costs.calls)
        computed, before = window.computed / window.rows, self._computed_row
        changed = computed > _CHANGE * before or computed < before / _CHANGE
        return changed or self._unchecked >= max(self._until_check, _CHECK_SHARE * cost)

    def _begin_check(self, window: _Window) -> None:
        self._checked, self._fewer = (self.count, window), None
        self.count, self._since, self.serial_costs, self._window = 0, 0.0, Costs(), _Window()

    def _check(self, count: int, window: _Window) -> None:
        """Compare calls of the reading thread with those that so many threads made before."""
        costs = self.serial_costs
        if costs.worthwhile and self._since < _CHECK_SECONDS:
            return
        self._checked, self.count, self.tried = None, count, count
        self.gain = costs.row_seconds / window.row_seconds
        if costs.worthwhile and self.gain >= self._least_gain:
            self.count = max(count, self._wanted()) if costs.waiting else self._wanted()
            self._keep(window, min(2 * self._until_check, _LONGEST_SECONDS))
        else:
            self._try_later()
