"""A worker whose program fails while the other waits for it in a collective."""

from typing import Any

import penstock as ps

# Long enough for the news to come to a process that has to wait for its turn: who was not told by then is ended.
OPTIONS = {"failure_timeout_seconds": 8}


def broken_program(strategy: Any) -> Any:
    for number, step in enumerate(strategy.distribute_dataset(ps.Dataset.range(400).batch(4))):
        if strategy._workers.index == 1 and number == 3:
            raise RuntimeError("a mistake in the program")
        int(strategy.reduce("SUM", step, axis=0))
