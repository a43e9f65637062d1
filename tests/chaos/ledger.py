"""What readers must have got, by what was read."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count as naturals

import numpy as np
from pipelines import pipeline
from schedule import Schedule


def in_process(schedule: Schedule, part: tuple[int, int] = (1, 0)) -> list[int]:
    """The numbers as they come without a service."""
    dataset = pipeline(schedule.shape, schedule.elements, manner=schedule.kind, quick=True, part=part)
    return [int(x) for element in dataset for x in np.ravel(element)]


def check(schedule: Schedule, finished: Sequence[Sequence[int]], dead: Sequence[Sequence[int]], passes: int) -> None:
    """Compare the numbers that each reader got with what it must have got.

    Args:
        finished: of readers that came to their end, or to their count.
        dead: of readers that died, and were not continued from a checkpoint.
        passes: the least number of passes under "parallel_epochs".

    Raises:
        AssertionError: something is lost, came twice, or came in another order.
    """
    if schedule.mode == "shared":
        _shared(schedule, finished, dead)
        return
    assert not dead, "a reader died for good"
    if schedule.mode == "coordinated":
        _any_fits(schedule.workers, lambda count: _same(finished, rounds(_parts(schedule, count), schedule.trainers)))
    elif schedule.mode == "cross_trainer":
        for numbers in finished:
            _any_fits(schedule.workers, lambda count, numbers=numbers: _in_windows(numbers, _parts(schedule, count)))
    elif schedule.mode == "ordered":
        _same(finished, [in_process(schedule)])
    else:
        (numbers,) = finished
        _as_often(numbers, in_process(schedule), passes if schedule.mode == "parallel_epochs" else None)


def _any_fits(workers: int, fits: Callable[[int], None]) -> None:
    """There are as many passes as there were workers when the first reader came: not always as many as at first."""
    for count in range(1, workers + 4):
        with suppress(AssertionError):
            fits(count)
            return
    fits(workers)


def _parts(schedule: Schedule, passes: int) -> list[list[int]]:
    """The passes into which coordinated and cross-trainer readers find a dataset divided."""
    return [in_process(schedule, (passes, index)) for index in range(passes)]


def rounds(parts: Sequence[Sequence[int]], trainers: int) -> list[list[int]]:
    """What coordinated reads give to each trainer: groups of neighbours, from each pass in turn."""
    groups = [[list(part[i : i + trainers]) for i in range(0, len(part) - trainers + 1, trainers)] for part in parts]
    given: list[list[int]] = [[] for _ in range(trainers)]
    for turn in naturals():
        if not any(turn < len(part) for part in groups):
            return given
        for part in groups:
            for trainer, number in enumerate(part[turn] if turn < len(part) else ()):
                given[trainer].append(number)
    raise AssertionError


def _shared(schedule: Schedule, finished: Sequence[Sequence[int]], dead: Sequence[Sequence[int]]) -> None:
    counts = Counter(number for numbers in finished for number in numbers)
    twice = sorted(number for number, times in counts.items() if times > 1)
    assert not twice, f"came twice: {twice[:10]}, {len(twice)} in all"
    lost = sorted(set(in_process(schedule)) - counts.keys() - {number for numbers in dead for number in numbers})
    assert not lost, f"lost: {lost[:10]}, {len(lost)} in all"
    for numbers in dead:
        assert len(set(numbers)) == len(numbers), "a reader that died later got something twice"


def _same(found: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> None:
    for reader, (numbers, wanted) in enumerate(zip(found, expected, strict=True)):
        for place, (number, other) in enumerate(zip(numbers, wanted, strict=False)):
            assert number == other, f"reader {reader} got {number} at place {place}, expected {other}"
        assert len(numbers) == len(wanted), f"reader {reader} got {len(numbers)} numbers, expected {len(wanted)}"


def _as_often(numbers: Sequence[int], expected: Sequence[int], at_least: int | None) -> None:
    """Every number once, or as often as there were passes."""
    counts = Counter(numbers)
    times = 1 if at_least is None else max(counts.values(), default=0)
    assert at_least is None or times >= at_least, f"{times} passes, expected at least {at_least}"
    wrong = {number: counts[number] for number in expected if counts[number] != times}
    assert not wrong, f"not {times} times: {dict(list(wrong.items())[:10])}, {len(wrong)} in all"
    assert len(counts) == len(expected)


def _in_windows(numbers: Sequence[int], parts: Sequence[Sequence[int]]) -> None:
    """Of each pass a reader has the beginning, in its order."""
    for index, part in enumerate(parts):
        own = [number for number in numbers if number in set(part)]
        for place, number in enumerate(own):
            expected = part[place % len(part)]
            assert number == expected, f"pass {index} gave {number} at place {place}, expected {expected}"
