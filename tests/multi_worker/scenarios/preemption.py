"""Workers of which some are asked to end: all save one checkpoint, and the rest of the data follows it."""

import os
import signal
from typing import Any

from scenarios.steps import shares_of

import penstock as ps

NEEDS_STRATEGY = False


def one_is_signalled(_: None) -> Any:
    return _saved_and_resumed({1: 3})


def all_are_signalled_at_other_steps(_: None) -> Any:
    return _saved_and_resumed({0: 5, 1: 2})


def _saved_and_resumed(signalled_at: dict[int, int]) -> Any:
    # It is entered before JAX connects the processes, which takes the signal too.
    with ps.preemption() as preempted:
        strategy = ps.MultiWorkerMirroredStrategy(failure_timeout_seconds=20)
        with strategy.scope():
            return _run(strategy, preempted, signalled_at.get(strategy._workers.index))


def _run(strategy: Any, preempted: Any, signalled_at: int | None) -> Any:
    steps = strategy.distribute_dataset(ps.Dataset.range(96).filter(lambda row: row % 3 != 1).batch(4))
    before, path = [], None
    with iter(steps) as iterator, ps.Checkpoint(iterator=iterator) as checkpoint:
        for number, step in enumerate(iterator):
            int(strategy.reduce("SUM", strategy.run(lambda rows: rows.sum(), args=(step,))))
            before.append(shares_of(strategy, step))
            if number == signalled_at:
                os.kill(os.getpid(), signal.SIGTERM)
            if preempted.requested:
                path = checkpoint.save("run/ckpt")
                break
    with iter(steps) as iterator, ps.Checkpoint(iterator=iterator) as checkpoint:
        checkpoint.restore(path)
        after = [shares_of(strategy, step) for step in iterator]
    return {"before": before, "after": after}
