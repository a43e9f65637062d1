"""Serves many lines in one thread, which waits for none of them."""

import logging
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from penstock.rpc.connection import SocketConnection
from penstock.rpc.line import Line, TooLongError
from penstock.rpc.listener import Listener

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class LineServer(Generic[T]):
    """Takes the calls of a listener, and what comes over their lines, in a thread of its own until `stop`.

    Args:
        open_line: makes the line over a connection.
        hear: called in the thread with each message, or with a TooLongError in its place. It must not wait.
        ended: called in the thread with each line that has ended, which is then closed.
    """

    def __init__(
        self,
        name: str,
        listener: Listener,
        open_line: Callable[[SocketConnection], Line[T]],
        hear: Callable[[Line[T], T | TooLongError], None],
        ended: Callable[[Line[T]], None] = lambda _: None,
    ) -> None:
        self._listener = listener
        self._open_line, self._hear, self._ended = open_line, hear, ended
        self._lines: set[Line[T]] = set()
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stop_reader, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            for key, events in self._selector.select():
                if key.fileobj is self._stop_reader:
                    return
                if key.fileobj is self._listener:
                    self._admit()
                elif key.data in self._lines:
                    self._exchange(key.data, events)

    def _admit(self) -> None:
        _, connection = self._listener.take()
        line = self._open_line(connection)
        self._lines.add(line)
        self._selector.register(line, selectors.EVENT_READ, line)
        self._exchange(line, selectors.EVENT_READ)  # what came with its proof is here already

    def _exchange(self, line: Line[T], events: int) -> None:
        """Receive and send what can be without waiting for the other end, or note its end."""
        try:
            if events & selectors.EVENT_READ:
                line.fill()
            while line.has_more():
                self._hear_one(line)
            with suppress(BrokenPipeError):  # who hears nothing more may still say something
                line.flush()
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.unsent else 0)
            if self._selector.get_key(line).events != wanted:
                self._selector.modify(line, wanted, line)
        except (EOFError, OSError) as end:
            if isinstance(end, OSError) and end.errno is None:
                _logger.warning("a line has ended: %s", end)
            self._end(line)

    def _hear_one(self, line: Line[T]) -> None:
        try:
            message: T | TooLongError | None = line.receive_one()
        except TooLongError as error:
            message = error
        if message is not None:
            self._hear(line, message)

    def _end(self, line: Line[Any]) -> None:
        self._lines.discard(line)
        self._selector.unregister(line)
        self._ended(line)
        line.close()

    def stop(self) -> None:
        """End all lines, and listen no more. A second call does nothing."""
        self._stop_writer.close()
        self._thread.join()
        self._listener.close()
        with suppress(RuntimeError):
            for line in list(self._lines):
                self._end(line)
        self._selector.close()
        self._stop_reader.close()
