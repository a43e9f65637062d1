"""The command `penstock`."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

from penstock import demo
from penstock.demo.settings import DATASET_NAMES, Settings
from penstock.errors import PenstockError
from penstock.launch import launch

_INTERRUPTED: Final = 130
"""What shells expect of a command that Ctrl-C ended: 128 + SIGINT."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit status."""
    try:
        options = _parser().parse_args(arguments)
        return int(options.command(options))
    except KeyboardInterrupt:
        return _failed("interrupted", _INTERRUPTED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock", description="Training data from storage to every replica of a model."
    )
    parser.add_argument("--version", action="version", version=f"penstock {version('penstock')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_launch(commands)
    return parser


def _add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo",
        help="train a small image classifier over several replicas",
        description="Train a small convolutional network on real images, over all accelerators of this machine, or "
        "over 4 virtual devices of its CPU. Interrupted and started again, it goes on from its last checkpoint. "
        "It needs more packages: pip install 'penstock[demo]'.",
    )
    parser.add_argument(
        "--dataset",
        choices=DATASET_NAMES,
        default="auto",
        help="the images: Fashion-MNIST (downloaded once), or the digits that come with scikit-learn; "
        "auto, the default, takes the digits where Fashion-MNIST cannot be had",
    )
    for name, meaning in {
        "--epochs": "how often every image is seen (default: 10 for Fashion-MNIST, 30 for the digits)",
        "--batch-size-per-replica": "images per replica and step (default: 64 for Fashion-MNIST, 16 for the digits)",
        "--replicas": "copies of the model that train together (default: one per accelerator, or 4 on the CPU)",
    }.items():
        parser.add_argument(name, type=_positive, metavar="N", help=meaning)
    parser.add_argument("--seed", type=_seed, metavar="N", default=0, help="decides the first weights and the order")
    parser.add_argument(
        "--checkpoints",
        metavar="DIRECTORY",
        default="checkpoints",
        help="where checkpoints are kept, in a directory for each combination of images, batch size and seed "
        "(default: checkpoints)",
    )
    parser.add_argument("--fresh", action="store_true", help="start anew, and delete the checkpoints of the run before")
    parser.set_defaults(command=_demo)


def _add_launch(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "launch",
        usage="penstock launch -n N [options] [-m] PROGRAM [ARGUMENT ...]",
        help="start several processes of one training script on this machine",
        description="Start N processes of one Python script on this machine, the workers of one training job, to try "
        "out and test what is to run on many machines. Their environment tells each which worker it is and where the "
        "first one listens. What they write comes line by line, after the number of the worker: [0], [1], and so on. "
        "The command ends when all have ended, with status 0 if all gave 0, otherwise with the status of the worker "
        "that failed first. Ctrl-C ends all of them; a second Ctrl-C kills them.",
        epilog="Each worker finds PENSTOCK_COORDINATOR_ADDRESS, PENSTOCK_NUM_PROCESSES and PENSTOCK_PROCESS_ID in its "
        "environment. Options of penstock stand before PROGRAM; all that follows it is for the program. "
        "Example: penstock launch -n 2 --devices-per-worker 2 train.py --epochs 3",
    )
    parser.add_argument("-n", "--num-workers", type=_positive, metavar="N", required=True, help="how many processes")
    parser.add_argument(
        "--devices-per-worker",
        type=_positive,
        metavar="N",
        help="give each worker N virtual CPU devices and no accelerators (default: JAX sees what it finds)",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        metavar="SECONDS",
        default=10.0,
        help="how long the other workers may go on when one has failed, and how long workers have to end when they are "
        "told to, before they are killed (default: 10)",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as for python -m")
    parser.add_argument("program", metavar="PROGRAM", help="the Python script, or with -m the module")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="what the program is given")
    parser.set_defaults(command=_launch)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _seed(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"must be at least 0 and less than 2**32, got {number}")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, at least 0, got {text}")
    return number


def _demo(options: argparse.Namespace) -> int:
    chosen = {name: value for name, value in vars(options).items() if name != "command"}
    try:
        run = demo.run
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _leave)
        run(Settings(**chosen), _say)
    except ModuleNotFoundError as error:
        return _failed(f"the demo needs the package {error.name}: pip install 'penstock[demo]'")
    except PenstockError as error:
        return _failed(str(error))
    return 0


def _launch(options: argparse.Namespace) -> int:
    if not options.module and not Path(options.program).exists():
        return _failed(f"there is no {options.program}: give the path of a Python script, or -m and a module", 2)
    program = ["-m", options.program] if options.module else [options.program]
    status = launch(
        [sys.executable, *program, *options.arguments],
        num_workers=options.num_workers,
        devices_per_worker=options.devices_per_worker,
        grace_seconds=options.grace,
    )
    if status == 128 + signal.SIGPIPE:
        # Nobody reads what is still to be written; Python would complain of that when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _leave(*_: Any) -> NoReturn:
    """End the process at once, for Ctrl-C while JAX runs.

    An exception would not do: some of JAX's callbacks lose it, and its compiler's threads crash when Python shuts down
    under them. The demo has nothing to put in order: its checkpoints are complete or not there.
    """
    # Not by `print`, which may be what was interrupted. A progress bar has left the cursor in its line.
    os.write(2, b"\n" * sys.stderr.isatty() + b"penstock: interrupted\n")
    os._exit(_INTERRUPTED)


def _say(line: str) -> None:
    """A line for the user, at once also where the output is a file."""
    print(line, flush=True)


def _failed(message: str, status: int = 1) -> int:
    print(f"penstock: {message}", file=sys.stderr)
    return status
