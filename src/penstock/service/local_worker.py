"""A data worker process of this machine: its start, its output, and its end."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, TimeoutExpired
from typing import Final

from penstock.errors import ServiceError
from penstock.runtime.child_process import start_child, status_in_words
from penstock.runtime.forking import close_in_forked_processes

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 5.0
_LAST_OUTPUT_SECONDS: Final = 1.0
_LONGEST_LINE: Final = 1 << 16
_READY: Final = b"penstock: data worker at "
"""The beginning of the line that a worker prints once the dispatcher knows it; its address follows."""


class LocalWorker:
    """A data worker that this process has started. It ends with this process, even if that is killed.

    What the functions of datasets print goes to this program's standard error, each line with the worker's process in
    front.

    Attributes:
        address: "host:port", once it is ready.
        killed: whether this process has killed it.
    """

    def __init__(self, dispatcher: str, token: str) -> None:
        arguments = ["worker", "--dispatcher", dispatcher, "--log-level", "warning", "--until-input-ends"]
        with _token_pipe(token) as file:
            descriptors = [int(Path(file).name)]
            self._process = start_child(
                "penstock", *arguments, "--token-file", file, descriptors=descriptors, stdin=PIPE, stdout=PIPE
            )
        assert self._process.stdin is not None
        self._input = self._process.stdin
        close_in_forked_processes(self._input)
        self.address = ""
        self.killed = False
        self._ready = threading.Event()
        self._relay = threading.Thread(target=self._pass_on, name="penstock-output", daemon=True)
        self._relay.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The status that it has ended with; None while it runs."""
        return self._process.poll()

    def wait_until_ready(self) -> None:
        """Wait until the dispatcher knows it.

        Raises:
            ServiceError: it ended instead, or took too long.
        """
        if not self._ready.wait(_START_SECONDS):
            self.kill()
        if not self.address:
            status = status_in_words(self._process.wait())
            raise ServiceError(f"a local data worker ended with {status} before it was ready: see its output")

    def kill(self) -> None:
        """Kill it, without waiting until it has ended."""
        self.killed = True
        self._process.kill()

    def finish(self) -> None:
        """Let it complete its requests and end, without waiting for that."""
        self._input.close()

    def wait_until_ended(self, until: float | None = None) -> None:
        """Kill it if it has not ended in 5 seconds, or until then by `time.monotonic`."""
        try:
            self._process.wait(_STOP_SECONDS if until is None else max(0.0, until - time.monotonic()))
        except TimeoutExpired:  # it hangs in a user's function
            self._process.kill()
            self._process.wait()
        self._relay.join(_LAST_OUTPUT_SECONDS)  # a process that it has forked may hold its output open

    def _pass_on(self) -> None:
        """Pass on its output, except the line by which it reports that it is ready."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while line := output.readline(_LONGEST_LINE):
                if not self.address and line.startswith(_READY):
                    self.address = line.removeprefix(_READY).decode().partition(",")[0].rpartition("://")[2]
                    self._ready.set()
                else:
                    _write(f"[data worker {self.pid}] {line.decode(errors='replace').rstrip()}\n")
        self._ready.set()


def _write(line: str) -> None:
    with suppress(AttributeError, OSError, ValueError):  # there is no standard error, or it is closed
        sys.stderr.write(line)


@contextmanager
def _token_pipe(token: str) -> Iterator[str]:
    """Pass a token as a file that no other process can open: the end of a pipe."""
    reading, writing = os.pipe()
    try:
        os.write(writing, token.encode())
        os.close(writing)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
