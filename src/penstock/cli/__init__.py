"""The command `penstock`: a file for each group of commands."""

import argparse
import os
import sys
from collections.abc import Sequence

from penstock.cli.arguments import INTERRUPTED, failed
from penstock.cli.check import add_check, add_rows
from penstock.cli.convert import add_convert
from penstock.cli.dashboard import add_dashboard
from penstock.cli.demo import add_demo
from penstock.cli.environment import CommandParser
from penstock.cli.inspect import add_inspect
from penstock.cli.launch import add_launch
from penstock.cli.processes import add_dump, add_top
from penstock.cli.report import add_report
from penstock.cli.servers import add_dispatcher, add_worker
from penstock.cli.status import add_status, add_stop
from penstock.errors import InvalidArgumentError, PenstockError
from penstock.version import VERSION

WRONG_USAGE = 2  # the exit status of argparse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit status."""
    parser = _parser()
    try:
        options = parser.parse_args(arguments)
        if options.command is None:
            parser.print_help(sys.stderr)
            return WRONG_USAGE
        return int(options.command(options))
    except InvalidArgumentError as error:
        return failed(str(error), WRONG_USAGE)
    except PenstockError as error:
        return failed(str(error))
    except PermissionError as error:  # of a file that the user named, or of one below it
        return failed(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        return failed("interrupted", INTERRUPTED)
    except BrokenPipeError:  # who read the output has seen enough, as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # its rest is not missed at exit
        return 0


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = CommandParser(
        prog="penstock", description="Training data from storage to every replica of a model."
    )
    parser.add_argument("--version", action="version", version=f"penstock {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.set_defaults(command=None)
    for add in (
        add_demo,
        add_launch,
        add_dispatcher,
        add_worker,
        add_status,
        add_stop,
        add_dump,
        add_top,
        add_dashboard,
        add_report,
        add_check,
        add_rows,
        add_inspect,
        add_convert,
    ):
        add(commands)
    return parser
