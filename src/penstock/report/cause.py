"""The cause of waits: which operator a consumer waits for, followed through the threads in between.

A wait at a prefetch is that of the threads that fill it, so its cause is among the operators that run in them.
"""

from collections import defaultdict

from penstock.statistics.schema import Counts, Snapshot, Stage


def causes(snapshot: Snapshot) -> dict[int, float]:
    """Return the share of the consumer's waits that each operator causes, by its number; empty if nothing ran."""
    found: dict[int, float] = defaultdict(float)
    roots = [stage for stage in snapshot.stages if stage.owner < 0 and stage.name != "worker"]
    if roots:
        _divide(snapshot, max(roots, key=lambda stage: stage.busy + stage.waited), 1.0, found, set())
    return dict(found)


def _divide(snapshot: Snapshot, stage: Stage, share: float, found: dict[int, float], seen: set[int]) -> None:
    """Divide a share of the wait among the operators of a stage, and those for which its threads wait."""
    whole = stage.busy + stage.waited
    for number, counts in stage.operators.items() if whole else ():
        found[number] += share * counts.seconds / whole
        waited = share * counts.waited / whole
        fillers = [other for other in snapshot.stages if other.owner == number and id(other) not in seen]
        calls = {one: made for one, made in calls_of(snapshot).items() if one in below(snapshot, number)}
        if fillers:
            filler = max(fillers, key=lambda one: one.busy + one.waited)
            theirs = waited * min(1.0, (filler.busy + filler.waited) / max(counts.waited, 1e-9))
            found[number] += waited - theirs  # in which threads only hand elements over to each other
            _divide(snapshot, filler, theirs, found, seen | {id(filler)})
        elif seconds := sum(made.seconds for made in calls.values()):
            for one, made in calls.items():
                found[one] += waited * made.seconds / seconds
        else:
            found[number] += waited


def calls_of(snapshot: Snapshot) -> dict[int, Counts]:
    """Return the counts of the calls that threads have made, by operator."""
    return next((stage.operators for stage in snapshot.stages if stage.name == "worker"), {})


def below(snapshot: Snapshot, number: int) -> set[int]:
    """Return an operator with all that it reads, and those of the datasets that its function makes."""
    found = {number}
    left = [number]
    while left:
        one = left.pop()
        made = [other for other, operator in enumerate(snapshot.operators) if operator.maker == one]
        new = {*snapshot.operators[one].inputs, *made} - found
        found |= new
        left += new
    return found


def stage_seconds(snapshot: Snapshot) -> dict[tuple[str, int], float]:
    """Return how long each kind of threads takes for a step, alone and with all of them at work.

    The consumer's is that of its own work with the operators that run in its thread; the calls of each operator count
    as a kind of their own.
    """
    steps = max(1, snapshot.steps.count)
    times = {("consumer", -1): snapshot.steps.own}
    for stage in snapshot.stages:
        if stage.name == "worker":
            for number, counts in stage.operators.items():
                times["worker", number] = counts.seconds / max(1, snapshot.operators[number].threads) / steps
        else:
            at_once = max(1.0, stage.busy / max(snapshot.elapsed, 1e-9))
            key = stage.name, stage.owner
            times[key] = times.get(key, 0.0) + stage.busy / at_once / steps
    return times
