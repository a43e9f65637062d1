"""Serves many lines in one thread, which waits for none of them."""

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from penstock.rpc.connection import SocketConnection
from penstock.rpc.line import TICK_SECONDS, Line, TooLongError
from penstock.rpc.listener import Listener

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class LineServer(Generic[T]):
    """Accepts the calls of a listener and receives over their lines, in a separate thread until `stop`.

    Args:
        open_line: makes the line over a connection, given the number of the caller; None closes the connection.
        hear: called in the thread with each message, or with a TooLongError instead. It must not wait.
        ended: called in the thread with each line that has ended, and why; the line is then closed.
        tick: called in the thread about every `TICK_SECONDS`, with the seconds since the last call.
    """

    def __init__(
        self,
        name: str,
        listener: Listener,
        open_line: Callable[[int, SocketConnection], Line[T] | None],
        hear: Callable[[Line[T], T | TooLongError], None],
        ended: Callable[[Line[T], Exception], None] = lambda line, error: None,
        tick: Callable[[float], None] | None = None,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._listener = listener
        self._open_line, self._hear, self._ended, self._tick = open_line, hear, ended, tick
        self._pause = None if tick is None else tick_seconds
        self._lines: set[Line[T]] = set()
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stop_reader, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        looked = time.monotonic()
        while True:
            for key, events in self._selector.select(self._pause):
                if key.fileobj is self._stop_reader:
                    return self._close()
                if key.fileobj is self._listener:
                    self._admit()
                elif key.data in self._lines:  # a message of another line may have ended it
                    self._exchange(key.data, events)
            if self._tick is not None:
                before, looked = looked, time.monotonic()
                self._tick(looked - before)

    def _admit(self) -> None:
        caller, connection = self._listener.take()
        line = self._open_line(caller, connection)
        if line is None:
            connection.close()
            return
        self._lines.add(line)
        self._selector.register(line, selectors.EVENT_READ, line)
        self._exchange(line, selectors.EVENT_READ)  # bytes that came with its proof are here already

    def _exchange(self, line: Line[T], events: int) -> None:
        """Receive and send without waiting for the other end, or handle its end."""
        try:
            if events & selectors.EVENT_READ:
                line.fill()
            while line in self._lines and line.has_more():
                self._hear_one(line)
            with suppress(BrokenPipeError):  # an end that reads no more may still send
                line.flush()
            self.watch(line)
        except (EOFError, OSError) as end:
            self.end(line, end)

    def _hear_one(self, line: Line[T]) -> None:
        try:
            message: T | TooLongError | None = line.receive_one()
        except TooLongError as error:
            message = error
        if message is not None:
            self._hear(line, message)

    def watch(self, line: Line[T]) -> None:
        """Have the rest of a message sent; called in the thread after `send`."""
        if line in self._lines:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.unsent else 0)
            if self._selector.get_key(line).events != wanted:
                self._selector.modify(line, wanted, line)

    def end(self, line: Line[T], error: Exception) -> None:
        """End a line, in the thread. A second call does nothing."""
        if line in self._lines:
            if isinstance(error, OSError) and error.errno is None:  # the line's own error, not the system's
                _logger.warning("a line has ended: %s", error)
            self._lines.discard(line)
            self._selector.unregister(line)
            self._ended(line, error)
            line.close()

    def close_listener(self) -> None:
        """Take no more calls; called in the thread."""
        self._selector.unregister(self._listener)
        self._listener.close()

    def leave(self) -> None:
        """End all lines and the thread soon, without waiting for it."""
        self._stop_writer.close()

    def stop(self) -> None:
        """End all lines, and listen no more. A second call does nothing."""
        self.leave()
        self._thread.join()

    def _close(self) -> None:
        self._listener.close()
        for line in list(self._lines):
            self.end(line, EOFError())
        self._selector.close()
        self._stop_reader.close()
