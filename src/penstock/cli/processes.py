"""`penstock dump` and `penstock top`: what a running process waits for, and its numbers."""

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import Final

from penstock.addresses import joined_address
from penstock.cli.arguments import CLEAR, Commands, add_command, positive, say, seconds
from penstock.errors import ServiceError
from penstock.rpc.listener import Access
from penstock.runtime.watchdog import VARIABLE, ask
from penstock.service.metrics import MetricsServer
from penstock.service.security.credentials import client_credentials

_IDLE: Final = "it iterates over nothing now; `penstock status HOST:PORT` shows what the data workers of a service do"


def add_dump(commands: Commands) -> None:
    """Add the command to the parser."""
    epilog = "A process answers from its first iter(dataset) on; data workers and dispatchers from their start."
    parser = add_command(commands, "dump", _dump, epilog)
    _add_process(parser)


def add_top(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "top", _top)
    _add_process(parser)
    parser.add_argument(
        "--interval", type=seconds, metavar="SECONDS", default=2.0, help="how often (default: 2; 0 for once)"
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve the numbers at http://HOST:PORT/metrics, to other machines with your token as bearer",
    )
    parser.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="where it serves (default: 127.0.0.1)")


def _add_process(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", type=positive, metavar="PID", help="the number of the process on this machine")


def _dump(options: argparse.Namespace) -> int:
    """Show what a running process waits for.

    Every thread of a process of yours is shown, operator by operator, with its stack, and the same of the processes
    that it has started. The process continues undisturbed.
    """
    say(answer_of(options.pid, "dump"))
    return 0


def answer_of(pid: int, question: str) -> str:
    """Return the answer of a process.

    Raises:
        ServiceError: it has not answered; the error says why, and what to do.
    """
    try:
        return ask(pid, question)
    except OSError as error:
        raise ServiceError(_reason(pid, error)) from error


def _top(options: argparse.Namespace) -> int:
    """Show what the operators of a running process do, again and again.

    The numbers of every iterator of a process of yours are shown until Ctrl-C or its end: how long its program waits,
    and what each operator has made, worked and waited. With --metrics-port they are served for Prometheus instead.
    """
    if options.metrics_port is None:
        while True:
            say((CLEAR if sys.stdout.isatty() else "") + (answer_of(options.pid, "top") or _IDLE))
            if not options.interval:
                return 0
            time.sleep(options.interval)
    trainer, access = _Trainer(options.pid), own_access()
    with MetricsServer(options.host, options.metrics_port, trainer.now, _prometheus, lambda: access) as server:
        address = joined_address(options.host, server.port)
        say(f"penstock: numbers of process {options.pid} at http://{address}/metrics")
        while answer_of(options.pid, "metrics"):
            time.sleep(options.interval or 1.0)
    return 0


def own_access() -> Access:
    """Return by which token other machines may read what this user shows; without one they may not."""
    token = client_credentials().token.encode()
    return Access((token,) if token else ())


@dataclass(frozen=True)
class _Trainer:
    """A process, and its last answer: the numbers of each iterator by name."""

    pid: int
    iterators: tuple[dict[str, float], ...] = ()
    trouble: str = ""

    def now(self) -> "_Trainer":
        """The present numbers, or why there are none."""
        try:
            return replace(self, iterators=tuple(json.loads(answer_of(self.pid, "metrics"))))
        except ServiceError as error:
            return replace(self, trouble=str(error))


def _prometheus(trainer: _Trainer) -> str:
    return "".join(
        f"{_name_of(name, place)} {value:.15g}\n"
        for place, found in enumerate(trainer.iterators)
        for name, value in found.items()
    )


def _name_of(name: str, place: int) -> str:
    """Return the name of a number, with its iterator and operator as labels."""
    _, *operator, kind = name.split("/")
    labels = f'iterator="{place}"' + "".join(f',operator="{one}"' for one in operator)
    return f"penstock_{'operator_' if operator else ''}{kind}{{{labels}}}"


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
