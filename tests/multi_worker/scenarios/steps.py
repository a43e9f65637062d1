"""What a worker sees of a distributed dataset."""

from typing import Any

import penstock as ps


def shares_of(strategy: Any, step: Any) -> list[Any]:
    """What each local replica has of a step."""
    return list(strategy.local_results(step))


def all_of(strategy: Any, distributed: Any) -> list[Any]:
    """Every step of one pass, as the share of each local replica."""
    with iter(distributed) as steps:
        return [shares_of(strategy, step) for step in steps]


def steps_of(strategy: Any, dataset: ps.Dataset, **options: Any) -> list[Any]:
    """Every step of one pass over a dataset that is distributed."""
    return all_of(strategy, strategy.distribute_dataset(dataset, ps.InputOptions(**options)))


def partial_steps_of(strategy: Any, dataset: ps.Dataset, partial_batch: str) -> Any:
    """Every step of one pass, and what is known of them beforehand."""
    distributed = strategy.distribute_dataset(dataset, ps.InputOptions(partial_batch=partial_batch))
    return {
        "steps": all_of(strategy, distributed),
        "cardinality": distributed.cardinality(),
        "spec": repr(distributed.element_spec),
    }


def said(error: BaseException) -> list[str]:
    """An error as plain data."""
    return [type(error).__name__, str(error)]
