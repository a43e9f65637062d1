"""Live pages: the report of an input, or other HTML, which a browser shows anew every second."""

import weakref
from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING, Final

import penstock.runtime as runtime  # its web server is imported when it is needed: Python's takes long
from penstock.report.page import live_page
from penstock.report.report import Reporting
from penstock.runtime.forking import close_in_forked_processes

if TYPE_CHECKING:
    from penstock.runtime.web_server import Page, WebServer

_HTML: Final = "text/html; charset=utf-8"


def live_pages(fragment: Callable[[], str]) -> "dict[str, Page]":
    """Return the pages of a server that shows HTML: a whole page, and what it asks for every second."""
    answer = runtime.web_server.WebAnswer
    return {
        "/": lambda allowed: answer(live_page(fragment()), _HTML) if allowed else None,
        "/now": lambda allowed: answer(fragment(), _HTML) if allowed else None,
    }


_servers: weakref.WeakKeyDictionary[Reporting, "WebServer"] = weakref.WeakKeyDictionary()


def open_dashboard(source: Reporting, port: int) -> str:
    """Serve the live report of an input on this machine until it is closed or gone; return the address.

    Raises:
        ServiceError: the port is taken.
    """
    server = _servers.get(source)
    if server is None:
        asked = weakref.ref(source)

        def fragment() -> str:
            alive = asked()
            return "the input has ended" if alive is None else alive.report().html()

        server = _servers[source] = runtime.web_server.WebServer("127.0.0.1", port, live_pages(fragment))
        close_in_forked_processes(server.socket)
        # In a thread: it may be the server's own thread that frees the source.
        weakref.finalize(source, _close_soon, server).atexit = False
    return f"http://localhost:{server.port}/"


def close_dashboard(source: Reporting) -> None:
    """End the live report of an input, if it has one."""
    server = _servers.pop(source, None)
    if server is not None:
        _close_soon(server)


def _close_soon(server: "WebServer") -> None:
    Thread(target=server.close, name="penstock-pages-end", daemon=True).start()
