"""`penstock rows`."""

import argparse
import json

from penstock.cli.arguments import Commands, add_command, count, say
from penstock.cli.check import add_dataset, dataset_in
from penstock.errors import InvalidArgumentError


def add_rows(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "rows", _rows, "Example: penstock rows train.py:dataset --step 1234")
    add_dataset(parser, "ps.Dataset of batches")
    parser.add_argument("--step", type=count, metavar="N", required=True, help="the number of the step, from 0")
    parser.add_argument("--epoch", type=count, metavar="N", default=0, help="its epoch (default: 0, the first)")


def _rows(options: argparse.Namespace) -> int:
    """Tell which rows of which files were in a step.

    The source, the file and the row of everything in a step of a dataset are printed, a line of JSON for each row. They
    are worked out from the number of the step: nothing is read, and nothing was logged.
    """
    dataset = dataset_in("rows", options.dataset)
    random = [node for node in dataset.node.walk() if node.draws_unseeded]
    if random and dataset.options().seed is None:
        raise InvalidArgumentError(
            f"{random[0].where()} has no seed, so its order here is not that of the training: add "
            ".with_options(ps.Options(seed=...)) to the dataset, with the seed in a state that the training saved"
        )
    for row in dataset.rows(options.step, epoch=options.epoch):
        say(json.dumps(row._asdict()))
    return 0
