"""`penstock status` and `penstock stop`: what a service does, and how it ends."""

import argparse
import sys
import time
from contextlib import closing
from typing import Final

import msgspec

from penstock.cli.arguments import CLEAR, Commands, add_command, named_as_options, say, seconds
from penstock.cli.status_page import page
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import GetStatus, Stop

_PATIENCE_SECONDS: Final = 5.0


def add_status(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "status", _status)
    _add_service(parser)
    parser.add_argument("--watch", action="store_true", help="show it again and again, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of a page, for programs")
    parser.add_argument(
        "--interval", type=seconds, metavar="SECONDS", default=2.0, help="how often, with --watch (default: 2)"
    )


def add_stop(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "stop", _stop)
    _add_service(parser)
    parser.add_argument(
        "--now",
        action="store_true",
        help="do not wait for readers: they wait for a dispatcher, and raise at their timeout",
    )


def _add_service(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("service", metavar="HOST:PORT", help="where the dispatcher is")


def client_of(options: argparse.Namespace) -> DispatcherClient:
    """Return a client of the dispatcher that the user named."""
    with named_as_options():
        return DispatcherClient(options.service, patience_seconds=_PATIENCE_SECONDS)


def _status(options: argparse.Namespace) -> int:
    """Show the jobs, readers and data workers of a data service.

    The page has the data workers and their output, the jobs and their progress, and says who waits for whom.
    """
    with closing(client_of(options)) as client:
        while True:
            status = client.ask(GetStatus())
            shown = msgspec.json.encode(status).decode() if options.json else page(client.address, status)
            if not options.watch:
                say(shown)
                return 0
            say((CLEAR if sys.stdout.isatty() and not options.json else "") + shown)
            time.sleep(options.interval)


def _stop(options: argparse.Namespace) -> int:
    """End a data service: its data workers and its dispatcher.

    It refuses new epochs; when all readers have finished, the data workers end, and then the dispatcher. The command
    does not wait for that.
    """
    with closing(client_of(options)) as client:
        client.ask(Stop(drain=not options.now))
    say("penstock: the service is stopping" + ("" if options.now else ", as soon as its readers are done"))
    return 0
