"""Statistics of a pass over a distributed dataset, and those that other workers have told of theirs."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from typing import Final, TypeVar

from penstock.distribute.control.channel import Control
from penstock.report.report import Report
from penstock.runtime.watchdog import hangs
from penstock.statistics import tracing
from penstock.statistics.collected import NO_METER, Statistics
from penstock.statistics.schema import Operator, Snapshot
from penstock.statistics.steps import StepMark

_TELL_SECONDS: Final = 5.0
Made = TypeVar("Made")


class MeasuredSteps:
    """Measures the making of steps and the waits for them, and tells other workers of it every few seconds.

    Args:
        statistics: those of the iterator that is read; None where nothing is counted.
        control: the channel to other workers, if there are any.
        topic: names the pass on it.
        worker: the number of this worker.

    """

    _earlier: Snapshot | None = None

    def __init__(self, statistics: Statistics | None, control: Control | None, topic: str, worker: int) -> None:
        self._statistics = statistics
        self._control = control
        self._topic = topic
        self._worker = worker
        self._told = -_TELL_SECONDS  # the first step is told at once, with the host
        self._meter = NO_METER
        if statistics is not None:
            cut = "step: cut into slices, agreed on and put on the devices"
            self._meter = statistics.meter(("step",), lambda: Operator("step", cut, ""))

    def make(self, outcome: Callable[[], Made]) -> Made:
        """Return what a function makes, a step or the end."""
        return self._meter.measured(outcome)

    def ask(self) -> None:
        """Note that the consumer asks for a step."""
        if self._statistics is not None:
            self._statistics.ask()

    def awaited(self, outcome: Callable[[], Made]) -> Made:
        """Return what the consumer waits for, marked in the trace of its framework, which may show no other thread."""
        mark = tracing.annotation_now()
        with nullcontext() if mark is None else mark("next: waits for a step"):
            return outcome()

    def given(self) -> None:
        """Note that the consumer gets it."""
        if self._statistics is not None:
            self._statistics.get(1)

    def tell(self, *, last: bool = False) -> None:
        """Tell the other workers of the last seconds; a fault of that is none of the training's."""
        if self._control is None or self._statistics is None or self._statistics.off:
            return
        if last or time.monotonic() - self._told > _TELL_SECONDS:
            self._told = time.monotonic()
            try:
                self._control.tell(self._topic, self._of_run())
            except Exception as error:
                self._statistics.fail(error)

    def snapshot(self) -> Snapshot:
        """Return the statistics of this worker."""
        if self._statistics is None:
            return Snapshot()
        snapshot = self._statistics.snapshot(self._worker)
        snapshot.machine += hangs()
        return snapshot

    def follow(self, earlier: "MeasuredSteps") -> None:
        """Let the report count the steps of an earlier epoch too."""
        self._earlier = earlier._of_run()

    def _of_run(self) -> Snapshot:
        """The statistics of this worker with those of earlier epochs."""
        snapshot = self.snapshot()
        if self._earlier is not None:
            snapshot.merge(deepcopy(self._earlier))
        return snapshot

    def step(self) -> StepMark:
        """Return the mark of a training step."""
        return StepMark(self._statistics)

    def report(self) -> Report:
        """Return the report of this worker, and of others as far as they have told; it waits for none of them."""
        if self._statistics is None:
            return Report([Snapshot(off=True)])
        others = {} if self._control is None else self._control.told(self._topic, Snapshot)
        ranks = {**others, self._worker: self._of_run()}
        missing = [] if self._control is None else _missing(self._control, ranks)
        return Report([ranks[worker] for worker in sorted(ranks)], missing)


def _missing(control: Control, ranks: dict[int, Snapshot]) -> list[str]:
    """Return a sentence for each worker that was lost, in that order, and for those of which nothing is known yet."""
    lost = [(worker, why) for worker, why in list(control.lost.items()) if worker != control.worker]
    found = [
        f"rank {worker} (host {ranks[worker].host}) {why}; its last word came at step {ranks[worker].steps.count}"
        if worker in ranks
        else f"rank {worker} {why}, before it told of its first step"
        for worker, why in lost
    ]
    silent = set(range(control.workers)) - ranks.keys() - dict(lost).keys()
    return [*found, *(f"rank {worker} has told nothing of its steps yet" for worker in sorted(silent))]
