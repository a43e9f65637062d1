"""Positions that are taken on two workers and restored on other numbers of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from scenarios.steps import shares_of

import penstock as ps


def _augmented(row: Any, random: Any) -> Any:
    return np.float32(row + random.random())


def _datasets() -> dict[str, ps.Dataset]:
    """Global batches of 12 rows, which 4, 3, 2 and 1 replicas divide; the last one has fewer."""
    rows = ps.Dataset.range(100)
    return {
        "indexable": rows.shuffle(100, seed=3).map(_augmented, seed=5).batch(12),
        "unseeded": rows.shuffle(30).batch(12).repeat(2),
        "streaming": rows.filter(lambda row: row % 7 != 0).shuffle(10, seed=4).map(_augmented, seed=5).batch(12),
    }


def _rest(strategy: Any, steps: Any) -> list[Any]:
    return [[share.tolist() for share in shares_of(strategy, step)] for step in steps]


def taken(strategy: Any) -> Any:
    """All steps of each dataset, and the states before the first, after the third and after the last one."""
    seen = {}
    for name, dataset in _datasets().items():
        with iter(strategy.distribute_dataset(dataset)) as steps:
            states = [steps.state_dict()]
            whole = _rest(strategy, [next(steps) for _ in range(3)])
            states.append(steps.state_dict())
            whole += _rest(strategy, steps)
            states.append(steps.state_dict())
        seen[name] = {"steps": whole, "states": states}
    return seen


def restored(strategy: Any) -> Any:
    given = Path("given.json")
    return _restored(strategy, json.loads(given.read_text())) if given.exists() else None


def _restored(strategy: Any, given: Any) -> Any:
    """What follows each state, and the first step of the next epoch."""
    seen: Any = {}
    for name, dataset in _datasets().items():
        seen[name] = []
        for state in given[name]:
            distributed = strategy.distribute_dataset(dataset)
            with iter(distributed) as steps:
                steps.load_state_dict(state)
                rest = _rest(strategy, steps)
            with iter(distributed) as steps:
                seen[name].append({"rest": rest, "next epoch": _rest(strategy, [next(steps)])})
    return seen


def restored_in_one_process(strategy: Any) -> Any:
    """Only where this process is alone."""
    if strategy._workers.count > 1:
        return None
    given = json.loads(Path("given.json").read_text())
    strategies = [ps.MirroredStrategy(), ps.HostStrategy(), ps.HostStrategy(3)]
    return [_restored(one, given) for one in strategies]
