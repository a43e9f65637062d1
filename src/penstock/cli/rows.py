"""`penstock rows`."""

import argparse
import json

from penstock.cli.arguments import count, say
from penstock.cli.check import dataset_in
from penstock.errors import InvalidArgumentError


def add_rows(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "rows",
        help="tell which rows of which files were in a step",
        description="Print the source, the file and the row of everything in a step of a dataset, a line of JSON for "
        "each row. They are worked out from the number of the step: nothing is read, and nothing was logged.",
        epilog="Example: penstock rows train.py:dataset --step 1234",
    )
    parser.add_argument(
        "dataset",
        metavar="SCRIPT.PY:NAME",
        help="a script, or a module as my.package.data, and the name in it of a ps.Dataset of batches, or of a "
        "function that returns one; the script is run, but not as __main__",
    )
    parser.add_argument("--step", type=count, metavar="N", required=True, help="the number of the step, from 0")
    parser.add_argument("--epoch", type=count, metavar="N", default=0, help="its epoch (default: 0, the first)")
    parser.set_defaults(command=_rows)


def _rows(options: argparse.Namespace) -> int:
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
