"""`penstock demo`."""

import argparse
import os
import signal
import sys
from typing import Any, NoReturn

from penstock import demo
from penstock.cli.arguments import INTERRUPTED, Commands, add_command, failed, positive, say
from penstock.demo.settings import DATASET_NAMES, ENGINES, DemoSettings
from penstock.errors import PenstockError


def add_demo(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "demo", _demo)
    images = parser.add_mutually_exclusive_group()
    images.add_argument(
        "--data",
        metavar="DIRECTORY",
        help="images of your own: a directory with one folder for each class, of which a fifth is kept for testing",
    )
    images.add_argument(
        "--dataset",
        choices=DATASET_NAMES,
        default="auto",
        help="the images: Fashion-MNIST (downloaded once), or the digits that come with scikit-learn; "
        "auto, the default, uses the digits if Fashion-MNIST is not available",
    )
    for name, meaning in {
        "--epochs": "how often every image is seen (default: 30 for the digits, else 10)",
        "--batch-size-per-replica": "images per replica and step (default: 64 for Fashion-MNIST, else 16)",
        "--replicas": "copies of the model that train together (default: one per accelerator, or 4 on the CPU)",
    }.items():
        parser.add_argument(name, type=positive, metavar="N", help=meaning)
    parser.add_argument(
        "--seed", type=_seed, metavar="N", default=0, help="of the initial weights and the order of the data"
    )
    parser.add_argument(
        "--checkpoints",
        metavar="DIRECTORY",
        default="checkpoints",
        help="where checkpoints are kept, in a directory for each combination of images, batch size and seed "
        "(default: checkpoints)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="start from the beginning, and delete the checkpoints of the previous run"
    )
    parser.add_argument(
        "--service", action="store_true", help="let two worker processes make the batches; the result is the same"
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="local",
        help="what starts the worker processes: this command, or Ray, in the cluster that RAY_ADDRESS names or one of "
        "its own (pip install 'penstock-data[ray]'); ray implies --service",
    )


def _seed(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"must be at least 0 and less than 2**32, got {number}")
    return number


def _demo(options: argparse.Namespace) -> int:
    """Train a small image classifier over several replicas.

    It is a convolutional network on real images, over all accelerators of this machine, or over 4 virtual devices of
    its CPU. Interrupted and started again, it resumes from its last checkpoint. It needs more packages: pip install
    'penstock-data[demo]'.
    """
    chosen = {name: value for name, value in vars(options).items() if name != "command"}
    try:
        run = demo.run
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _leave)
        run(DemoSettings(**chosen), say)
    except ModuleNotFoundError as error:
        return failed(f"the demo needs the package {error.name}: pip install 'penstock-data[demo]'")
    except PenstockError as error:
        return failed(str(error))
    return 0


def _leave(*_: Any) -> NoReturn:
    """End the process at once, for Ctrl-C while JAX runs.

    An exception would not do: some of JAX's callbacks lose it, and its compiler's threads crash when Python shuts down
    under them. The demo has nothing to put in order: its checkpoints are complete or not there,
    and worker processes end with it.
    """
    # Not by `print`, which may have been interrupted. A progress bar has left the cursor in its line.
    os.write(2, b"\n" * sys.stderr.isatty() + b"penstock: interrupted\n")
    os._exit(INTERRUPTED)
