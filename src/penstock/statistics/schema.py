"""The schema of statistics: plain structs that are sent, merged, saved and read by all that shows them."""

import heapq
import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, Self

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

SLOWEST: Final = 10
"""The number of slow steps that are kept."""
_PARTS: Final = 8
"""The number of buckets between a value and its double: percentiles are exact within 9 %."""


class Histogram(Struct):
    """Numbers above 0 counted in buckets that grow with the numbers.

    Attributes:
        buckets: how many numbers fell into each bucket.
        count: how many numbers there are.
        total: their sum.
        most: the largest.
    """

    buckets: dict[int, int] = field(default_factory=dict)
    count: int = 0
    total: float = 0.0
    most: float = 0.0

    def add(self, values: Sequence[float]) -> None:
        """Count numbers: many at a time cost little for each."""
        parts, powers = np.frexp(values)
        found = powers * _PARTS + ((parts - 0.5) * 2 * _PARTS).astype(np.int64)
        for bucket, count in zip(*np.unique(found, return_counts=True), strict=True):
            self.buckets[int(bucket)] = self.buckets.get(int(bucket), 0) + int(count)
        self.count += len(values)
        self.total += float(np.sum(values))
        self.most = max([self.most, *values])

    def copy(self) -> "Histogram":
        """Return a copy, also while another thread adds numbers."""
        return replace(self, buckets=dict(self.buckets))

    def merge(self, other: "Histogram") -> None:
        """Count the numbers of another histogram too."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.count += other.count
        self.total += other.total
        self.most = max(self.most, other.most)

    @property
    def mean(self) -> float:
        """The mean; 0 where there are no numbers."""
        return self.total / max(1, self.count)

    def by_doubling(self) -> list[tuple[float, int]]:
        """Return how many numbers are at most 2^n, and above the one before, for each n from the lowest on."""
        powers: dict[int, int] = {}
        for bucket, count in sorted(self.buckets.items()):
            powers[bucket // _PARTS] = powers.get(bucket // _PARTS, 0) + count
        return [(2.0**power, count) for power, count in powers.items()]

    def percentile(self, percent: float) -> float:
        """Return about the number that `percent` % of all do not exceed; 0 where there are none."""
        left = self.count * percent / 100
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                power, part = divmod(bucket, _PARTS)
                return min(self.most, math.ldexp(0.5 + (part + 1) / (2 * _PARTS), power))
        return self.most


class _Sums(Struct):
    """Numbers that are added up."""

    def merge(self, other: Self) -> None:
        """Add those of another thread, rank or epoch."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Counts(_Sums):
    """Work of one operator in one stage, counted by block.

    Attributes:
        rows: rows made; those of calls count where they are taken.
        sampled_rows: the rows of those blocks whose size was measured.
        sampled_bytes: about how many bytes they hold.
        seconds: time of its own work, without that of its inputs and without waiting.
        waited: time in which its thread waited for other threads, or for other processes.
        sampled: the part of `seconds` for which processor time was measured.
        processor: processor time in that part.
        lock_asked: how often it was tried whether another thread waits for Python's lock.
        lock_waited: how often one did.
    """

    rows: int = 0
    sampled_rows: int = 0
    sampled_bytes: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    sampled: float = 0.0
    processor: float = 0.0
    lock_asked: int = 0
    lock_waited: int = 0

    @property
    def nbytes(self) -> int:
        """About how many bytes all blocks hold."""
        return self.rows * self.sampled_bytes // max(1, self.sampled_rows)

    @property
    def processor_share(self) -> float:
        """The processor's share of the time of the work: 1 where it computes, about 0 where it waits for a device."""
        return min(1.0, self.processor / self.sampled) if self.sampled else 1.0

    @property
    def lock_share(self) -> float:
        """The share of the time in which other threads waited for Python's lock."""
        return self.lock_waited / self.lock_asked if self.lock_asked else 0.0


class Operator(Struct):
    """An operator of a dataset.

    Attributes:
        label: the operator and its arguments.
        site: the line of the user's program that added it.
        inputs: the numbers of the operators that it reads.
        maker: the number of the operator whose function has made its dataset; -1 for those of the dataset itself.
        memory: what it holds, and what a row costs, in words.
        threads: how many calls of its function may run at a time; 0 where the reading thread makes them.
        waste: which part of the training's work its elements leave unused, in words.
        source: the name of the source of a mixture that it belongs to; "" for others.
    """

    name: str
    label: str
    site: str
    inputs: list[int] = field(default_factory=list)
    maker: int = -1
    memory: str = ""
    threads: int = 0
    waste: str = ""
    source: str = ""


class Stage(Struct):
    """Threads that do the same kind of work.

    Attributes:
        name: "consumer" for the thread that asks for elements, "worker" for those that make calls, otherwise what the
            thread is for, as "prefetch".
        owner: the number of the operator that started them, and takes what they make; -1 for none.
        operators: the counts of each operator that ran in them, by its number.
        threads: how many there are.
    """

    name: str
    owner: int = -1
    operators: dict[int, Counts] = field(default_factory=dict)
    threads: int = 0

    def merge(self, other: "Stage") -> None:
        """Add the counts of other threads of this kind."""
        self.threads = max(self.threads, other.threads)
        for number, counts in other.operators.items():
            self.operators.setdefault(number, Counts()).merge(counts)

    @property
    def busy(self) -> float:
        """The seconds of work of all threads together."""
        return sum(counts.seconds for counts in self.operators.values())

    @property
    def waited(self) -> float:
        """The seconds in which its threads waited while they made a block."""
        return sum(counts.waited for counts in self.operators.values())


class Requests(_Sums):
    """Requests to remote stores.

    Attributes:
        requests: how many were sent, repeats among them. Those that a client repeats by itself count once.
        repeats: how many were sent again, after a temporary fault.
        nbytes: the bytes of files in the answers.
        waited: the seconds that threads waited before repeats.
    """

    requests: int = 0
    repeats: int = 0
    nbytes: int = 0
    waited: float = 0.0


class SlowStep(Struct):
    """A step that waited long.

    Attributes:
        number: the number of the step, from 0.
        blocked: the seconds that it waited.
        operator: the number of the operator that had the largest share of them; -1 where none is known.
        rows: the files and rows of which it was made, in words, where they are known.
    """

    number: int
    blocked: float
    operator: int = -1
    rows: str = ""


def slowest_of(*steps: SlowStep) -> list[SlowStep]:
    """Return the steps with the longest waits."""
    return heapq.nlargest(SLOWEST, steps, key=attrgetter("blocked"))


class Steps(Struct):
    """Times of the consumer's steps, in seconds.

    Attributes:
        count: how many elements or steps were taken.
        blocked: the waits in `next`. Several elements may come by one.
        yours: the time between the end of one wait and the beginning of the next.
        exposed: the part of `blocked` in which the device had nothing to do, where steps were marked.
        slowest: the steps with the longest waits.
        first: the seconds of the first request.
        first_yours: the seconds until the second one, in which a program is compiled.
        left: the elements of the last request, if no further one has told how long the caller had them.
    """

    count: int = 0
    blocked: Histogram = field(default_factory=Histogram)
    yours: Histogram = field(default_factory=Histogram)
    exposed: Histogram = field(default_factory=Histogram)
    slowest: list[SlowStep] = field(default_factory=list)
    first: float = 0.0
    first_yours: float = 0.0
    left: int = 0

    @property
    def own(self) -> float:
        """The seconds of the caller's own work in a step, without the first of several, which compiles a program."""
        several = self.yours.count > 1
        total = self.yours.total - (self.first_yours if several else 0.0)
        return max(0.0, total) / max(1, self.count - self.left - several)

    @property
    def seconds(self) -> float:
        """The seconds of a step, without the first request."""
        return self.own + max(0.0, self.blocked.total - self.first) / max(1, self.count - 1)

    @property
    def share(self) -> float:
        """The share of a step that is waiting: what the device noticed of it, if steps were marked."""
        waiting = self.seconds - self.own
        if self.exposed.count:  # of some steps, which may have waited longer than others
            together = max(1, self.count - 1) / max(1, self.blocked.count - 1)  # steps that come by one request
            waiting = min(waiting, self.exposed.mean / together)
        return min(1.0, waiting / max(1e-9, self.seconds))

    def merge(self, earlier: "Steps") -> None:
        """Count the steps of an earlier epoch before these."""
        for name in ("blocked", "yours", "exposed"):
            getattr(self, name).merge(getattr(earlier, name))
        later = [replace(one, number=one.number + earlier.count) for one in self.slowest]
        self.slowest = slowest_of(*earlier.slowest, *later)
        self.count += earlier.count
        self.left += earlier.left
        self.first, self.first_yours = earlier.first, earlier.first_yours


class Snapshot(Struct):
    """Statistics of one process at one time.

    Attributes:
        elapsed: the seconds since the first element was asked for.
        rank: the number of the process among those that train together.
        host: its machine.
        cores: how many processors it may use.
        machine: sentences about what the machine has too little of.
        off: whether nothing is counted, by an option or after a fault.
        start: the seconds until the second step, by what took them; imports and files are those of the whole process.
        stores: the requests of the process to stores during the iteration.
    """

    elapsed: float = 0.0
    operators: list[Operator] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    steps: Steps = field(default_factory=Steps)
    rank: int = 0
    host: str = ""
    cores: int = 1
    machine: list[str] = field(default_factory=list)
    off: bool = False
    start: dict[str, float] = field(default_factory=dict)
    stores: Requests = field(default_factory=Requests)

    def of(self, number: int) -> Counts:
        """Return all counts of an operator."""
        merged = Counts()
        for stage in self.stages:
            if number in stage.operators:
                merged.merge(stage.operators[number])
        return merged

    def merge(self, earlier: "Snapshot") -> None:
        """Count an earlier epoch of the same operators too; one of others is left out."""
        self.operators = self.operators or earlier.operators
        if [one.name for one in self.operators] != [one.name for one in earlier.operators]:
            return
        self.elapsed += earlier.elapsed
        self.steps.merge(earlier.steps)
        self.start = earlier.start
        self.stores.merge(earlier.stores)
        stages = {(stage.name, stage.owner): stage for stage in self.stages}
        for stage in earlier.stages:
            own = stages.get((stage.name, stage.owner))
            if own is None:
                self.stages.append(stage)
            else:
                own.merge(stage)

    def metrics(self, skipped: int) -> dict[str, float]:
        """Return the numbers by name, for those that plot a run; those of operators with their place in the dataset."""
        steps = self.steps
        blocked, yours = steps.blocked, steps.yours
        found: dict[str, float] = {
            "steps": steps.count,
            "steps_per_second": steps.count / self.elapsed if self.elapsed else 0.0,
            "waiting_share": steps.share,
            "blocked_seconds": blocked.total,
            "blocked_seconds_mean": blocked.mean,
            "blocked_seconds_p99": blocked.percentile(99),
            "yours_seconds": yours.total,
            "yours_seconds_mean": yours.mean,
            "skipped_rows": skipped,
        }
        for number, operator in enumerate(self.operators):
            counts = self.of(number)
            own = {
                "rows": counts.rows,
                "bytes": counts.nbytes,
                "seconds": counts.seconds,
                "waited_seconds": counts.waited,
            }
            found |= {f"{number}_{operator.name}/{name}": value for name, value in own.items()}
        return {f"penstock/{name}": float(value) for name, value in found.items()}
