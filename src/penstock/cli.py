"""The command `penstock`."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final, NoReturn

from penstock import demo
from penstock.demo.settings import DATASET_NAMES, DemoError, Settings

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
    return parser


def _add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo",
        help="train a small image classifier over several replicas",
        description="Train a small convolutional network on real images, over all accelerators of this machine, or "
        "over 4 virtual devices of its CPU. It needs more packages: pip install 'penstock[demo]'.",
    )
    parser.add_argument(
        "--dataset",
        choices=DATASET_NAMES,
        default="auto",
        help="the images: Fashion-MNIST (downloaded once), or the digits that come with scikit-learn; "
        "auto, the default, takes the digits where Fashion-MNIST cannot be had",
    )
    for name, meaning in {
        "--epochs": "how often every image is seen (default: 10 for Fashion-MNIST, 40 for the digits)",
        "--batch-size-per-replica": "images per replica and step (default: 64 for Fashion-MNIST, 16 for the digits)",
        "--replicas": "copies of the model that train together (default: one per accelerator, or 4 on the CPU)",
    }.items():
        parser.add_argument(name, type=_positive, metavar="N", help=meaning)
    parser.add_argument("--seed", type=_seed, metavar="N", default=0, help="decides the first weights and the order")
    parser.set_defaults(command=_demo)


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


def _demo(options: argparse.Namespace) -> int:
    chosen = {name: value for name, value in vars(options).items() if name != "command"}
    try:
        run = demo.run
    except ModuleNotFoundError as error:
        return _failed(f"the demo needs the package {error.name}: pip install 'penstock[demo]'")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    try:
        run(Settings(**chosen), _say)
    except DemoError as error:
        return _failed(str(error))
    return 0


def _leave(*_: Any) -> NoReturn:
    """End the process at once, for Ctrl-C while JAX runs.

    An exception would not do: some of JAX's callbacks lose it, and its compiler's threads crash when Python shuts down
    under them. The demo has nothing to put in order.
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
