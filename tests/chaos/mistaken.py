"""One of the workers that train together, of which one makes a mistake: `mistaken.py MISTAKE WORKER STEP LENGTH`.

It writes the sum of every step to `sums-N`.
"""

import asyncio
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import penstock as ps

STEPS = 100
ROWS = 6
"""Of a step: as many for each of two or three workers."""


def _leave(*_: Any) -> None:
    raise StopIteration


def _stay_away(*_: Any) -> None:
    threading.Event().wait()


def _iterate(strategy: Any, dataset: Any, iterator: Any) -> None:
    next(iter(dataset))


def _save(strategy: Any, dataset: Any, iterator: Any) -> None:
    ps.Checkpoint(iterator=iterator).save(os.path.join(tempfile.mkdtemp(dir="."), "checkpoint"))


def _load(strategy: Any, dataset: Any, iterator: Any) -> None:
    iterator.load_state_dict(iterator.state_dict())


def _gather(strategy: Any, dataset: Any, iterator: Any) -> None:
    strategy.gather(np.array([1.0]), axis=0)


def _reduce(strategy: Any, dataset: Any, iterator: Any) -> None:
    strategy.reduce("SUM", 1.0, axis=None)


def _signalled(number: signal.Signals) -> Callable[..., None]:
    return lambda *_: os.kill(os.getpid(), number)


MISTAKES: dict[str, Callable[..., None] | None] = {
    "iter": _iterate,
    "break": _leave,
    "stay": _stay_away,
    "save": _save,
    "load": _load,
    "gather": _gather,
    "reduce": _reduce,
    "cancelled": None,
    "stop": _signalled(signal.SIGSTOP),
    "kill": _signalled(signal.SIGKILL),
    "terminate": _signalled(signal.SIGTERM),
}


def _sum(rows: Any) -> Any:
    return rows.sum()


def main(mistake: str, worker: str, step: str, length: str) -> None:
    own = os.environ["PENSTOCK_WORKER_INDEX"]

    def picky(row: Any) -> Any:
        if own == worker and mistake == "cancelled" and row // ROWS == int(step):
            raise asyncio.CancelledError(int(row))
        return row

    strategy = ps.MultiWorkerMirroredStrategy(failure_timeout_seconds=3)
    rows = ps.Dataset.range(ROWS * STEPS).map(picky)
    rows = rows.filter(lambda row: row >= 0) if length == "unknown" else rows
    dataset = strategy.distribute_dataset(rows.batch(ROWS))
    iterator = iter(dataset)
    with open(f"sums-{own}", "w") as sums:
        for number, batch in enumerate(iterator):
            sums.write(f"{int(strategy.reduce('SUM', strategy.run(_sum, args=(batch,))))}\n")
            sums.flush()
            make = MISTAKES[mistake]
            if own == worker and number == int(step) and make is not None:
                try:
                    make(strategy, dataset, iterator)
                except StopIteration:
                    return


if __name__ == "__main__":
    main(*sys.argv[1:])
