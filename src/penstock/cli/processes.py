"""`penstock dump`: what a running process waits for."""

import argparse
import os

from penstock.cli.arguments import failed, positive, say
from penstock.runtime.watchdog import VARIABLE, ask


def add_dump(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "dump",
        help="show what a running process waits for",
        description="Show what every thread of a running process of yours waits for, operator by operator, with its "
        "stack, and the same of the processes that it has started. The process continues undisturbed.",
        epilog="A process answers from its first iter(dataset) on; data workers and dispatchers from their start.",
    )
    parser.add_argument("pid", type=positive, metavar="PID", help="the number of the process on this machine")
    parser.set_defaults(command=_dump)


def _dump(options: argparse.Namespace) -> int:
    try:
        say(ask(options.pid, "dump"))
        return 0
    except OSError as error:
        return failed(_reason(options.pid, error))


def _reason(pid: int, error: OSError) -> str:
    """Say why a process has not answered, and what to do."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return f"there is no process {pid} on this machine, or in this container"
    except PermissionError:
        return f"process {pid} belongs to another user: only that user and root can ask it"
    if isinstance(error, TimeoutError):
        return (
            f"process {pid} has not answered in time: a call of native code holds Python's lock. "
            f"`py-spy dump --pid {pid}` reads its stacks from outside"
        )
    return (
        f"process {pid} does not answer ({error.strerror or error}): a process answers from its first iter(dataset) "
        f"on, unless {VARIABLE} or Options(watchdog_seconds=...) is 0"
    )
