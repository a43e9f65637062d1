"""The verdict: how long a training waits, for which operator, what to change, and what that would gain."""

import math
import os
import re
from typing import Final

from msgspec import Struct

from penstock.report.cause import calls_of, causes, stage_seconds
from penstock.statistics.schema import Counts, Operator, Snapshot, Stage

KEEPS_UP: Final = 0.05
"""A smaller share of waiting is none to speak of."""
_COMPUTES: Final = 0.6
"""The processor's share of work from which on it computes, and more threads than processors gain nothing."""
_MOST_THREADS: Final = 64
_SPARE: Final = 1.25
"""Threads take turns unevenly: with no more than are busy all the time, some steps would wait."""


class Verdict(Struct):
    """Limit of a training.

    Attributes:
        waiting: the share of the step that is waited for the input.
        exact: whether that is what the device waited; otherwise it is at most this.
        step: the seconds of a step.
        operator: the number of the operator that limits; -1 for none.
        share: its share of the waits.
        change: what to change.
        gain: how much faster the training is then, 0.5 for half as fast again.
    """

    waiting: float = 0.0
    exact: bool = False
    step: float = 0.0
    operator: int = -1
    share: float = 0.0
    change: str = ""
    gain: float = 0.0

    @property
    def most(self) -> float:
        """Factor by which the training would be faster without any waiting."""
        return 1 / max(1 - self.waiting, 0.01) - 1


def verdict_of(snapshot: Snapshot) -> Verdict:
    """Return the verdict of one process."""
    steps = snapshot.steps
    if steps.seconds <= 0:
        return Verdict()
    verdict = Verdict(steps.share, steps.exposed.count > 0, steps.seconds)
    shares = causes(snapshot)
    if verdict.waiting >= KEEPS_UP and shares:
        verdict.operator = max(shares, key=lambda number: shares[number])
        verdict.share = shares[verdict.operator]
        verdict.change, seconds = _change(snapshot, verdict.operator, verdict.step)
        verdict.gain = max(0.0, min(verdict.step / max(seconds, 1e-9) - 1, verdict.most))
    return verdict


def _change(snapshot: Snapshot, number: int, now: float) -> tuple[str, float]:
    """Return what to change at an operator, and how long a step takes then that takes `now` seconds now."""
    operator, cores = snapshot.operators[number], snapshot.cores
    times, steps = stage_seconds(snapshot), max(1, snapshot.steps.count)
    calls = calls_of(snapshot).get(number)
    if calls is not None and operator.threads:
        del times["worker", number]
        work = calls.seconds / steps
        if holds_lock(snapshot, calls):
            count = max(2, min(cores, operator.threads))
            at_once = max(work * calls.processor_share, now) / count
            return (
                f"add processes=True and num_parallel_calls={count}: its calls wait for each other at Python's lock",
                _longest(times, at_once),
            )
        count, told = _threads(work, times, calls.processor_share, operator.threads, cores)
        if count <= operator.threads:
            more = (
                "its calls keep all processors busy: cache() results that are the same in every epoch, or move the "
                "work to other machines with ps.service"
                if calls.processor_share >= _COMPUTES
                else "its threads are enough for most steps, and a few steps wait long: a larger prefetch covers them, "
                "and the slowest step says where it was"
            )
            return more, max(times.values())
        return f"num_parallel_calls={count} instead of {operator.threads}{told}", _longest(times, work / count)
    stage = _stage_of(snapshot, number)
    # A shuffle with a small buffer gives the other operators few rows at a time, too.
    few = operator.name == "shuffle" and not operator.memory.startswith("moves indices")
    work = (stage.busy if few else stage.operators[number].seconds) / steps
    rest = {**times, (stage.name, stage.owner): times[stage.name, stage.owner] - work}
    beside = ""
    if stage.name == "consumer":
        beside = ", and .prefetch(ps.AUTOTUNE) at the end: the next batch is then made during your step"
        rest["consumer", -1] = snapshot.steps.own
        rest["prefetch", -1] = stage.busy / steps - work
        if work <= rest["consumer", -1]:
            return f"add{beside[5:]}", _longest(rest, stage.busy / steps)
    if operator.name == "map":
        count, told = _threads(work, rest, stage.operators[number].processor_share, 1, cores)
        return f"num_parallel_calls={count}{told}{beside}", _longest(rest, work / count)
    return _fewer_or_cheaper(operator, stage.operators[number]) + beside, max(rest.values())


def _fewer_or_cheaper(operator: Operator, counts: Counts) -> str:
    """Return what to change at an operator that is the limit in a thread of its own."""
    if operator.name == "distribute":
        return (
            "its data workers are slower than the training: start more, or give the slow operator before distribute "
            "more threads; `penstock status` shows how busy they are"
        )
    if operator.name == "step":
        return "steps wait for other ranks or for copies to the devices: raise InputOptions(per_replica_buffer_size)"
    if operator.name == "prefetch":
        return "its elements are tiny: use prefetch(ps.AUTOTUNE), which hands over many at a time, or larger batches"
    if operator.name == "shuffle" and operator.memory.startswith("moves indices"):
        return "its order is worked out in the first steps, so a longer epoch waits less for it"
    if operator.name == "shuffle":
        return "give shuffle a larger buffer_size: more rows move at a time"
    if (clump := re.search(r"decodes up to .*?(shuffle\(clump=\d+\))", operator.memory)) is not None:
        return f"each row in random order decodes a whole row group: use {clump[1]}, or save() the data once"
    if counts.processor_share < _COMPUTES:
        if operator.name == "from_source":
            return (
                "it waits for the storage, one row after the other: give the source __getitems__, or read in "
                "Dataset.range(n).map(read, num_parallel_calls=16)"
            )
        return "it waits for the storage: interleave reads several files at a time, cache(directory) keeps what it read"
    return "do it once for many rows, after batch, or keep its results by cache(directory)"


def _threads(
    work: float, others: dict[tuple[str, int], float], computes: float, now: int, cores: int
) -> tuple[int, str]:
    """Return how many threads make calls no longer the limit, and why there are no more."""
    wanted = math.ceil(_SPARE * work / max(*others.values(), 1e-9))
    if computes >= _COMPUTES:
        return max(
            now, min(wanted, cores)
        ), f" (this machine has {cores} processors; add processes=True if the function is Python code)"
    return max(
        now, min(wanted, _MOST_THREADS)
    ), " (its calls wait rather than compute, so more threads help on any number of processors)"


def _longest(times: dict[tuple[str, int], float], seconds: float) -> float:
    return max(*times.values(), seconds)


def _stage_of(snapshot: Snapshot, number: int) -> Stage:
    """Return the stage in which an operator works most."""
    own = [stage for stage in snapshot.stages if number in stage.operators]
    return max(own, key=lambda stage: stage.operators[number].seconds)


def holds_lock(snapshot: Snapshot, calls: Counts) -> bool:
    """Return whether calls keep Python's lock: others wait for it, and together they use one processor at most.

    On a machine with other work they use far less of it.
    """
    processors = calls.seconds * calls.processor_share / max(snapshot.elapsed, 1e-9)
    return calls.lock_share > 0.2 and 0.05 < processors < 1.2


def short_name(operator: Operator) -> str:
    """Return the name of an operator with that of its function, and the user's line: "map(decode) at train.py:12"."""
    function = re.search(r"(?:function|predicate)=([^,)]*\.)?([^,)]+)", operator.label)
    site = os.path.basename(operator.site)
    within = f" of {operator.source!r}" if operator.source else ""
    return f"{operator.name}{f'({function[2]})' if function else ''}{within}{f' at {site}' if site else ''}"


def duration(seconds: float) -> str:
    """Return a time in words."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
