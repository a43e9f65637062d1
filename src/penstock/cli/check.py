"""`penstock check` and `penstock rows`, of a dataset in a script."""

import argparse
import importlib
import inspect
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.cli.arguments import Commands, add_command, count, positive, say
from penstock.data.dataset import Dataset
from penstock.errors import InvalidArgumentError
from penstock.service.check import check


def add_check(commands: Commands) -> None:
    """Add the command to the parser."""
    example = "Example: penstock check train.py:dataset --workers 1 4 --limit 500"
    parser = add_command(commands, "check", _check, example)
    _add_dataset(parser, "ps.Dataset")
    parser.add_argument(
        "--workers", type=positive, nargs="+", metavar="N", default=[1, 3], help="numbers of workers (default: 1 3)"
    )
    parser.add_argument(
        "--kills", type=count, metavar="N", default=2, help="how many workers are killed while it is read (default: 2)"
    )
    parser.add_argument(
        "--limit", type=positive, metavar="N", default=1000, help="how many elements are read (default: 1000)"
    )


def add_rows(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "rows", _rows, "Example: penstock rows train.py:dataset --step 1234")
    _add_dataset(parser, "ps.Dataset of batches")
    parser.add_argument("--step", type=count, metavar="N", required=True, help="the number of the step, from 0")
    parser.add_argument("--epoch", type=count, metavar="N", default=0, help="its epoch (default: 0, the first)")


def _add_dataset(parser: argparse.ArgumentParser, kind: str) -> None:
    """Let a command take a dataset of a kind, which `_dataset_in` finds."""
    parser.add_argument(
        "dataset",
        metavar="SCRIPT.PY:NAME",
        help=f"a script, or a module as my.package.data, and the name in it of a {kind}, or of a function that returns "
        "one; the script is run, but not as __main__",
    )


def _check(options: argparse.Namespace) -> int:
    """Prove that a pipeline gives the same elements through a data service, even when workers die.

    The dataset is read in this process and through data services on this machine, with several numbers of workers,
    while workers are killed, and by iterators that are restored from a state in the middle. Digests of the elements are
    compared, in order. The status is 0 if all were the same; otherwise it is 1, and the first element that differs is
    shown. This finds functions that depend on the time, the process or their own random generator.
    """
    differences = check(
        _dataset_in("check", options.dataset),
        limit=options.limit,
        worker_counts=options.workers,
        kills=options.kills,
        say=say,
    )
    for difference in differences:
        say(f"penstock: {difference}")
    if not differences:
        say("penstock: the same elements in all runs")
    return 1 if differences else 0


def _rows(options: argparse.Namespace) -> int:
    """Tell which rows of which files were in a step.

    The source, the file and the row of everything in a step of a dataset are printed, a line of JSON for each row. They
    are worked out from the number of the step: nothing is read, and nothing was logged.
    """
    dataset = _dataset_in("rows", options.dataset)
    random = [node for node in dataset.node.walk() if node.draws_unseeded]
    if random and dataset.options().seed is None:
        raise InvalidArgumentError(
            f"{random[0].where()} has no seed, so its order here is not that of the training: add "
            ".with_options(ps.Options(seed=...)) to the dataset, with the seed in a state that the training saved"
        )
    for row in dataset.rows(options.step, epoch=options.epoch):
        say(json.dumps(row._asdict()))
    return 0


def _dataset_in(command: str, place: str) -> Dataset:
    """The dataset that a script or module holds, for a command.

    Raises:
        InvalidArgumentError: there is none.
    """
    source, colon, name = place.rpartition(":")
    if not colon or not name.isidentifier():
        raise InvalidArgumentError(f"{command} takes SCRIPT.PY:NAME, such as train.py:dataset, got {place!r}")
    names = _names_of(source)
    if name not in names:
        raise InvalidArgumentError(f"{source} has no {name!r}")
    found = names[name]
    if callable(found) and not isinstance(found, Dataset):
        found = _returned_by(found, place)
    if not isinstance(found, Dataset):
        raise InvalidArgumentError(f"{place} must be a ps.Dataset or a function that returns one, got {found!r:.200}")
    return found


def _returned_by(function: Callable[[], Any], place: str) -> Any:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InvalidArgumentError(f"{place} must be a function that needs no arguments: {error}") from None
    return function()


def _names_of(source: str) -> dict[str, Any]:
    if source.endswith(".py"):
        if not Path(source).exists():
            raise InvalidArgumentError(f"there is no {source}")
        sys.path.insert(0, str(Path(source).resolve().parent))  # as Python does for a script
        return runpy.run_path(source, run_name="__penstock_check__")
    sys.path.insert(0, os.getcwd())
    try:
        return vars(importlib.import_module(source))
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(f"there is no module {source!r}, and scripts end in .py: {error}") from error
