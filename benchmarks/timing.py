"""Comparison of two ways of doing one thing: in the same process, in turn, by the median of their times."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        question: what was compared with what.
        value: the figure, with its unit in `unit` ("x" for ratios).
        goal: what it must reach.
        at_least: whether more is better.
        spread: the least and the largest of the ratios of single rounds, where there are some.
    """

    question: str
    value: float
    goal: float
    at_least: bool = True
    unit: str = "x"
    spread: tuple[float, float] | None = None

    @property
    def reached(self) -> bool:
        """Return True if the goal is reached."""
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def speed_ratio(ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 7) -> float:
    """Our speed over theirs: 1.0 is as fast, more is faster."""
    return 1 / cost_ratio(ours, theirs, rounds)


def cost_ratio(ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 9) -> float:
    """Our time over theirs: 1.0 is as fast, less is faster. The two run in turn, so that both meet the same machine."""
    ours()
    theirs()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)


def processor_ratio(
    question: str, ours: Callable[[], object], theirs: Callable[[], object], goal: float, rounds: int = 7
) -> Figure:
    """Our speed over theirs by processor time, the two in turn: what else the machine does weighs less."""
    ours()
    theirs()
    ratios = []
    for turn in range(rounds):  # the first of two is a little slower, whichever it is
        if turn % 2:
            ratios.append(1 / processor_seconds(ours) * processor_seconds(theirs))
        else:
            ratios.append(processor_seconds(theirs) / processor_seconds(ours))
    ratios.sort()
    return Figure(question, statistics.median(ratios), goal, spread=(ratios[0], ratios[-1]))


def processor_seconds(work: Callable[[], object]) -> float:
    """The processor time of one call, of all threads of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def best_in_turn(ways: Sequence[Callable[[], float]], rounds: int = 5) -> list[float]:
    """The least seconds that each way gives. They take turns, and so meet the same machine."""
    return [min(column) for column in _in_turn(ways, rounds)]


def medians_in_turn(ways: Sequence[Callable[[], float]], rounds: int = 5) -> list[float]:
    """Variant of `best_in_turn` with the median."""
    return [statistics.median(column) for column in _in_turn(ways, rounds)]


def _in_turn(ways: Sequence[Callable[[], float]], rounds: int) -> list[tuple[float, ...]]:
    """Return the results of each way in the rounds after a first one."""
    for way in ways:
        way()
    return list(zip(*[[way() for way in ways] for _ in range(rounds)], strict=True))
