"""One worker process: its start, its output, and the end of everything that it has started."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import IO, BinaryIO, Final

from penstock.launch.cleanup_process import CleanupProcess

_COLOURS: Final = (36, 33, 35, 32, 34, 31)
_LAST_OUTPUT_SECONDS: Final = 2.0
"""How long output is waited for when all that could write it was killed: only a process that left the session could."""


class Output:
    """A stream that the lines of all workers go to, each whole, with the number of its worker in front.

    Args:
        lock: held while a line is written; one for streams that may be the same terminal.
        when_lost: called when the stream cannot be written to any longer. What still comes is dropped.
    """

    def __init__(self, stream: BinaryIO, lock: threading.Lock, when_lost: Callable[[], None]) -> None:
        self._stream = stream
        self._lock = lock
        self._when_lost = when_lost
        self.lost = False
        self._coloured = stream.isatty() and "NO_COLOR" not in os.environ

    def pass_on(self, number: int, source: IO[bytes]) -> None:
        """Write every line of `source`, to its end."""
        prefix = b"[%d] " % number
        if self._coloured:
            prefix = b"\x1b[%dm[%d]\x1b[0m " % (_COLOURS[number % len(_COLOURS)], number)
        with source:
            for line in source:
                self.write(prefix + line)

    def write(self, line: bytes) -> None:
        """Write one line, which may or may not have its end."""
        with self._lock:
            if self.lost:
                return
            try:
                self._stream.write(line.removesuffix(b"\n") + b"\n")
                self._stream.flush()
            except OSError:
                self.lost = True
                self._when_lost()


class WorkerProcess:
    """A process that leads its own session, so that its children can be ended with it.

    Two threads pass its output on, and one waits for its end.

    Args:
        outputs: where its standard output and its standard error go.
        ended: called with its number and its status, as `subprocess` gives it, when it has ended.
        grace_seconds: how long processes that it leaves behind have between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        number: int,
        outputs: tuple[Output, Output],
        cleanup: CleanupProcess,
        ended: Callable[[int, int], None],
        grace_seconds: float,
    ) -> None:
        self.number = number
        self._cleanup = cleanup
        self._ended = ended
        self._grace_seconds = grace_seconds
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,  # several cannot share a terminal
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        cleanup.add(self._process.pid)
        sources = (self._process.stdout, self._process.stderr)
        self._relays = [
            _thread(partial(output.pass_on, number, source)) for output, source in zip(outputs, sources) if source
        ]
        self._follower = _thread(self._follow)

    def send(self, signal_number: int) -> None:
        """Signal the process and its children."""
        try:
            os.killpg(self._process.pid, signal_number)
        except (ProcessLookupError, PermissionError):  # gone; macOS says the latter of processes about to go
            return

    def join(self) -> None:
        """Wait until the process, its children, and its output have ended."""
        self._follower.join()

    def _follow(self) -> None:
        status = self._process.wait()
        self._ended(self.number, status)
        self.send(signal.SIGTERM)
        # The rest of the session holds the output open, such as multiprocessing's resource tracker at its work.
        self._join_relays(self._grace_seconds)
        self.send(signal.SIGKILL)
        self._cleanup.remove(self._process.pid)
        self._join_relays(_LAST_OUTPUT_SECONDS)

    def _join_relays(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for relay in self._relays:
            relay.join(max(0.0, until - time.monotonic()))


def _thread(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, name="penstock-launch", daemon=True)
    thread.start()
    return thread
