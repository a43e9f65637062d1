"""A second strategy in the same processes."""

from typing import Any

from scenarios.steps import steps_of

import penstock as ps


def second_strategy(strategy: Any) -> Any:
    second = ps.MultiWorkerMirroredStrategy()
    dataset = ps.Dataset.range(6).filter(lambda row: row != 4).batch(4)
    seen = [steps_of(one, dataset) for one in (strategy, second, strategy)]
    second.close()
    return [*seen, steps_of(strategy, dataset), repr(strategy)]
