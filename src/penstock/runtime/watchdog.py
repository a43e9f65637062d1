"""A thread that notices when no step comes, and tells other processes of this user what this one waits for.

There is one for each process that iterates. It looks a few times in the allowed time which call of `next` is under way,
so that calls cost nothing; and it answers at a Unix socket in this user's private directory.
"""

import errno
import json
import logging
import os
import selectors
import socket
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock, Thread
from typing import Any, Final

from penstock.paths import private_directory
from penstock.report.report import Reporting
from penstock.runtime.at_exit import end_at_exit
from penstock.runtime.forking import close_in_forked_processes
from penstock.runtime.stacks import threads_in_words

VARIABLE: Final = "PENSTOCK_WATCHDOG_SECONDS"
"""The seconds where `Options(watchdog_seconds=...)` gives none; 0 for no thread and no socket."""
_SECONDS: Final = 300.0
_HANGS: Final = 10
_LOOKS: Final = 4
"""How often it looks in the allowed time."""
_LONGEST_TICK_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 10.0
_CHILD_SECONDS: Final = 2.0

_logger = logging.getLogger(__name__)


@dataclass
class _Seen:
    """An iterator, and the last look at its calls."""

    seconds: float
    under_way: Callable[[Any], object]
    awaited: Callable[[Any], str]
    token: object = None
    since: float = 0.0
    told: bool = False


def watch(
    iterator: Reporting, seconds: float | None, under_way: Callable[[Any], object], awaited: Callable[[Any], str]
) -> None:
    """Let the log say what this process waits for when a call of `next` takes too long.

    Args:
        iterator: it is not kept alive by that.
        seconds: the longest time of a call; 0 is any, None takes the default.
        under_way: gives a value that differs for each call of the iterator; None while none is under way.
        awaited: says what such a call waits for, in words.
    """
    seconds = _by_default() if seconds is None else seconds
    if seconds > 0 and (watchdog := _running()) is not None:
        watchdog.add(iterator, _Seen(seconds, under_way, awaited))


def hangs() -> list[str]:
    """The last hangs of this process, a sentence each."""
    return [] if _watchdog is None else list(_watchdog.hangs)


def answer_dumps() -> None:
    """Let other processes of this user ask what this one waits for, also where it iterates over nothing."""
    if _by_default() > 0:
        _running()


def ask(pid: int, question: str, seconds: float = _ANSWER_SECONDS) -> str:
    """Return the answer of the process with this number.

    Args:
        pid: the number.
        question: "dump" for what it waits for, "top" for the reports of its iterators, "page" for the same as HTML,
            "metrics" for their numbers.
        seconds: how long it may take.

    Raises:
        OSError: it does not listen, or does not answer in time.
    """
    directory = private_directory(os.stat(f"/proc/{pid}").st_uid if os.path.exists("/proc") else None)
    if directory is None:
        raise FileNotFoundError("its user has no private directory under /tmp")
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(seconds)
        line.connect(str(_socket_of(directory, pid)))
        line.sendall(question.encode())
        line.shutdown(socket.SHUT_WR)
        with line.makefile(encoding="utf-8", errors="replace") as answer:
            return answer.read()


def dump() -> str:
    """Describe what this process and those that it has started wait for, with the stacks of all threads."""
    watchdog = _watchdog
    calls = [] if watchdog is None else watchdog.waiting()
    lines = [f"process {os.getpid()} on {socket.gethostname()}: {' '.join(sys.orig_argv)[:200]}", *calls]
    return "\n".join([*lines, threads_in_words(), *map(_dump_of_child, _children())])


class _Watchdog:
    """The thread, what it watches, and its socket."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._calls: weakref.WeakKeyDictionary[Reporting, _Seen] = weakref.WeakKeyDictionary()
        self.hangs: deque[str] = deque(maxlen=_HANGS)
        self._tick = _LONGEST_TICK_SECONDS
        self._wake_reader, self._wake_writer = socket.socketpair()  # its end is that of the thread
        self._socket, self._path = _listening()
        self._selector = selectors.DefaultSelector()
        for file in (self._wake_reader, self._socket):
            self._selector.register(file, selectors.EVENT_READ)
        close_in_forked_processes(self._wake_reader, self._wake_writer, self._socket)
        # A daemon: the interpreter waits for all other threads before it calls what ends this one.
        self._thread = Thread(target=self._run, name="penstock-watchdog", daemon=True)
        self._thread.start()
        end_at_exit(self, _Watchdog.close, last=True)

    def add(self, iterator: Reporting, seen: _Seen) -> None:
        with self._lock:
            self._calls[iterator] = seen
        if seen.seconds / _LOOKS < self._tick:
            self._wake_writer.send(b".")

    def close(self) -> None:
        """End the thread, and remove the socket."""
        self._path.unlink(missing_ok=True)
        self._wake_writer.close()
        self._thread.join(_LONGEST_TICK_SECONDS)

    def waiting(self) -> list[str]:
        """Every call of `next` that was under way at the last look, in words."""
        now = time.monotonic()
        under_way = [(iterator, call) for iterator, call in self._all() if call.token is not None]
        return [_waiting(now - call.since, call.awaited(iterator)) for iterator, call in under_way]

    def _all(self) -> list[tuple[Reporting, _Seen]]:
        with self._lock:
            return list(self._calls.items())

    def _run(self) -> None:
        while True:
            self._tick = min([_LONGEST_TICK_SECONDS, *(call.seconds / _LOOKS for _, call in self._all())])
            ready = [key.fileobj for key, _ in self._selector.select(self._tick)]
            if self._wake_reader in ready and not self._wake_reader.recv(64):
                break
            try:
                self._look(time.monotonic())
                if self._socket in ready:
                    self._answer()
            except Exception:  # nothing of this may end a training run
                _logger.debug("a look at what hangs failed", exc_info=True)
        self._selector.close()
        for file in (self._socket, self._wake_reader):
            file.close()

    def _look(self, now: float) -> None:
        late = False
        for iterator, call in self._all():
            token = call.under_way(iterator)
            if token is None or token != call.token:
                if call.told:
                    _logger.warning("%s came after %.0f s", call.awaited(iterator), now - call.since)
                call.token, call.since, call.told = token, now, False
            late = late or (not call.told and token is not None and now - call.since >= call.seconds)
        if late:
            for _, call in self._all():
                call.told = call.token is not None
            longest = max(now - call.since for _, call in self._all() if call.told)
            self.hangs.append(f"at {time.strftime('%H:%M:%S')} no step had come for {longest:.0f} s: see the log")
            _logger.warning("no step has come for too long; Options(watchdog_seconds=...) sets how long.\n%s", dump())

    def _answer(self) -> None:
        line, _ = self._socket.accept()
        with line:
            line.settimeout(_CHILD_SECONDS)
            answer = {b"top": self._reports, b"metrics": self._metrics, b"page": self._page}.get(line.recv(64), dump)
            line.sendall(answer().encode(errors="replace"))

    def _reports(self) -> str:
        return "\n\n".join(f"{call.awaited(iterator)}\n{iterator.report()}" for iterator, call in self._all())

    def _page(self) -> str:
        return "".join(iterator.report().html() for iterator, _ in self._all())

    def _metrics(self) -> str:
        return json.dumps([iterator.metrics() for iterator, _ in self._all()])


def _waiting(seconds: float, awaited: str) -> str:
    """Return what a call waits for, and for how long if that is known: it may have begun just before the first look."""
    return f"waits {f'at least {seconds:.0f} s ' if seconds >= 0.5 else ''}for {awaited}"


_watchdog: _Watchdog | None = None
_broken = False
"""Whether it could not be started."""
_starting = RLock()  # a signal handler may make an iterator too


def _running() -> _Watchdog | None:
    global _watchdog, _broken
    with _starting:
        if _watchdog is None and not _broken:
            try:
                _watchdog = _Watchdog()
            except (OSError, RuntimeError) as error:  # no thread can be started when the interpreter ends
                _broken = True
                _logger.info("hangs of this process are not noticed: %s", error)
        return _watchdog


def _forget() -> None:
    global _watchdog, _starting
    _watchdog, _starting = None, RLock()


os.register_at_fork(after_in_child=_forget)


def _by_default() -> float:
    given = os.environ.get(VARIABLE) or _SECONDS
    try:
        return float(given)
    except ValueError:
        _logger.warning("%s takes a number of seconds, got %r: %.0f are taken", VARIABLE, given, _SECONDS)
        return _SECONDS


def _socket_of(directory: Path, pid: int) -> Path:
    return directory / f"{pid}.dump"


def _listening() -> tuple[socket.socket, Path]:
    """The socket at which this process answers; those of processes that were killed are removed."""
    directory = private_directory()
    if directory is None:
        raise FileNotFoundError(f"another user has taken the directory /tmp/penstock-{os.getuid()}")
    path = _socket_of(directory, os.getpid())
    for other in directory.glob("*.dump"):
        if other == path or not os.path.exists(f"/proc/{other.stem}"):
            _remove_if_left(other)
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(str(path))
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening, path


def _remove_if_left(path: Path) -> None:
    """Remove a socket at which no process listens, also none of another container with the same /tmp."""
    with socket.socket(socket.AF_UNIX) as line, suppress(OSError):
        line.setblocking(False)
        if line.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink()


def _children() -> list[int]:
    """The processes that this one has started, where the system tells."""
    tasks = Path("/proc/self/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def _dump_of_child(pid: int) -> str:
    try:
        return f"\nstarted by process {os.getpid()}: {ask(pid, 'dump', _CHILD_SECONDS)}"
    except OSError as error:
        return f"\nprocess {pid}, started by process {os.getpid()}, does not answer: {error}"
