"""Accepts connections at a Unix socket, and keeps them without a thread each until they send something."""

import logging
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Final

from penstock.service.transport.line import peer_is_this_user

_logger = logging.getLogger(__name__)

MOST_SILENT: Final = 256
"""The most silent connections; if more come, the one that has been silent for longest is closed."""
_RETRY_SECONDS: Final = 0.1


class AcceptedConnections:
    """Accepts connections of this user from a listener, and passes on those at which something can be read.

    Args:
        hand_on: called with a connection at which something can be read.
        stopped: whether to end, looked at when another connection comes.
    """

    def __init__(
        self, listener: socket.socket, hand_on: Callable[[socket.socket], None], stopped: threading.Event
    ) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._hand_on = hand_on
        self._stopped = stopped
        self._silent: dict[socket.socket, None] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Accept connections until it is stopped."""
        while not self._stopped.is_set():
            for key, _ in self._selector.select():
                line = key.fileobj
                assert isinstance(line, socket.socket)
                if line is self._listener:
                    self._take()
                elif line in self._silent:  # an earlier connection of this round has not closed it
                    self._pass_on(line)
                    self._hand_on(line)
        while self._silent:
            self._close_oldest()
        self._selector.close()

    def _take(self) -> None:
        try:
            line, _ = self._listener.accept()
        except BlockingIOError:  # the peer has left already
            return
        except OSError as error:
            _logger.warning("a line from a consumer was not taken: %s", error)
            if self._silent:
                self._close_oldest()
            else:
                self._stopped.wait(_RETRY_SECONDS)
            return
        line.setblocking(True)
        if self._stopped.is_set() or not peer_is_this_user(line):
            line.close()
            return
        if len(self._silent) >= MOST_SILENT:
            self._close_oldest()
        self._silent[line] = None
        self._selector.register(line, selectors.EVENT_READ)

    def _close_oldest(self) -> None:
        line = next(iter(self._silent))
        self._pass_on(line)
        line.close()

    def _pass_on(self, line: socket.socket) -> None:
        self._selector.unregister(line)
        del self._silent[line]
