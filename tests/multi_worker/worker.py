"""Runs a scenario in a worker process: `worker.py SCENARIO [CASE]`.

A scenario is a file in `scenarios/`; each of its public functions is a case, which is given the strategy. What all of
them gave is written to a file as JSON.
"""

import importlib
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import penstock as ps


def is_unexpected(record: logging.LogRecord) -> bool:
    """Whether a warning is a complaint, as all that is on standard error: scenarios leave replicas idle on purpose."""
    return "without rows in every step" not in record.getMessage()


logging.getLogger("penstock.distribute.strategy").addFilter(is_unexpected)


def plain(value: Any) -> Any:
    """What JSON has no word for."""
    return value.decode() if isinstance(value, bytes) else value.tolist()


def main(name: str, only: str | None = None) -> None:
    scenario = importlib.import_module(f"scenarios.{name}")
    cases = {
        key: value
        for key, value in vars(scenario).items()
        if callable(value) and value.__module__ == scenario.__name__ and not key.startswith("_")
    }
    strategy = None
    if getattr(scenario, "NEEDS_STRATEGY", True):
        strategy = ps.MultiWorkerMirroredStrategy(**getattr(scenario, "OPTIONS", {}))
    seen = {key: case(strategy) for key, case in cases.items() if only in (None, key)}
    Path(f"seen-{os.environ['PENSTOCK_WORKER_INDEX']}.json").write_text(json.dumps(seen, default=plain))


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(*sys.argv[1:])
