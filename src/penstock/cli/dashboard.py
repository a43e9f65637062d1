"""`penstock dashboard`: a live page of a data service or of a running process."""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from html import escape
from typing import Final

from penstock.addresses import joined_address
from penstock.cli.arguments import Commands, add_command, say
from penstock.cli.processes import answer_of, own_access
from penstock.cli.status import client_of
from penstock.cli.status_page import alive_of, epoch_title, reader_rows, sorted_workers, summary, verdict, worker_rows
from penstock.report.page import bar, framed, table
from penstock.runtime.dashboard import live_pages
from penstock.runtime.web_server import WebServer
from penstock.service.wire.dispatcher_messages import GetStatus, Status

_EVERY_SECONDS: Final = 1.0


def add_dashboard(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "dashboard", _dashboard)
    parser.add_argument(
        "service", metavar="TARGET", help="HOST:PORT of a dispatcher, or the number of a process of yours"
    )
    parser.add_argument("--port", type=int, metavar="PORT", default=0, help="where it is served (default: a free one)")
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="where it is served; for other machines with your token as the password (default: 127.0.0.1)",
    )


def _dashboard(options: argparse.Namespace) -> int:
    """Serve a live page of a data service, or of a running process.

    A browser shows for a service who waits for whom, and for a process the reports of its iterators. It is served until
    Ctrl-C, or until the service or the process has ended.
    """
    if options.service.isdecimal():
        pid = int(options.service)
        return _serve(options, lambda: answer_of(pid, "page") or framed("<h1>it iterates over nothing now</h1>"))
    with closing(client_of(options)) as client:
        return _serve(options, lambda: status_html(client.address, client.ask(GetStatus())))


def _serve(options: argparse.Namespace, make: Callable[[], str]) -> int:
    shown, access = [make()], own_access()
    with WebServer(options.host, options.port, live_pages(lambda: shown[0]), lambda: access) as server:
        say(f"penstock: http://{joined_address(options.host, server.port)}/")
        while True:
            time.sleep(_EVERY_SECONDS)
            shown[0] = make()


def status_html(address: str, status: Status) -> str:
    """Return the status of a service as HTML."""
    verdicts = [line for epoch in status.epochs if epoch.consumers for line in verdict(epoch, alive_of(status))]
    busy = [bar(worker.busy_fraction) for worker in sorted_workers(status)]
    title = "; ".join(verdicts) or "no reader asks for elements now"
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(summary(address, status))}</p>",
        _section("data workers", worker_rows(status), busy),
    ]
    for epoch in status.epochs:
        waits = [bar(0, reader.waiting_fraction) for reader in epoch.consumers]
        parts.append(_section(epoch_title(epoch), reader_rows(epoch), waits))
    return framed("".join(parts))


def _section(title: str, rows: Sequence[Sequence[str]], bars: Sequence[str]) -> str:
    """Return a table with its title, and a bar after the first column: of work or waiting; without empty columns."""
    if not bars:
        return f"<h2>{escape(title)}</h2><p>none</p>"
    first, *columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    heads, *body = zip(map(escape, first), ("", *bars), *(map(escape, column) for column in columns), strict=True)
    return f"<h2>{escape(title)}</h2>{table(heads, body)}"
