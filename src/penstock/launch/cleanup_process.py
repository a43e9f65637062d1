"""Ends the workers of a launcher that was killed and could not do so itself.

`CleanupProcess` starts this file as a small process, which reads a pipe that only the launcher can write to.
When the launcher ends, in whatever way, the system closes the pipe: the process then kills all that are still listed.
The file runs without the rest of penstock.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress

_END_SECONDS = 5.0


class CleanupProcess:
    """A process that outlives this one just long enough to kill the process groups that are listed with it."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", __file__]  # without site packages: it starts in some milliseconds
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, start_new_session=True
        )

    def add(self, group: int) -> None:
        self._say(f"+{group}\n")

    def remove(self, group: int) -> None:
        self._say(f"-{group}\n")

    def close(self) -> None:
        """Kill the groups that are still listed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # a process that was forked from this one has the pipe open too
            self._process.wait(_END_SECONDS)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it was killed: the launcher works without it
            self._process.stdin.write(line.encode())


def kill_listed(lines: Iterable[str]) -> None:
    """Read `+group` and `-group` to the end, then kill the groups that are left."""
    groups: set[int] = set()
    for line in lines:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    kill_listed(sys.stdin)
