"""Starts processes of penstock's own on this machine."""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from subprocess import DEVNULL, Popen
from typing import Final

_PARENT_SECONDS: Final = 1.0
"""How often a child looks whether its parent is there."""


def status_in_words(status: int | None) -> str:
    """Return the end of a process in words by its return code; None if it is about to end."""
    if status is None:
        return "no status yet"
    if status == -signal.SIGKILL:
        return "SIGKILL, which a system sends that has no memory left"
    return f"status {status}" if status >= 0 else signal.Signals(-status).name


def end_with_parent() -> None:
    """Let this child end when its parent has ended, even in the middle of a call that never returns.

    The end of a pipe between them shows it too, but only between calls.
    """
    threading.Thread(target=_end_without, args=(os.getppid(),), name="penstock-parent", daemon=True).start()


def _end_without(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    os._exit(1)


def leave_sigterm_to_parent() -> None:
    """Let SIGTERM not end this child: a scheduler may send it to all processes of a job, whose trainer saves first.

    Its own children do not inherit this.
    """
    signal.signal(signal.SIGTERM, lambda *_: None)


def start_child(
    module: str,
    *arguments: str,
    descriptors: Sequence[int] = (),
    stdin: int = DEVNULL,
    stdout: int | None = None,
) -> "Popen[bytes]":
    """Start `python -m module arguments`, which finds the modules that this process finds.

    Ctrl-C at a terminal does not reach it: that is for this process, which ends its children.

    Args:
        module: the module's name.
        arguments: its arguments.
        descriptors: open files of this process that it gets, under the same numbers.
        stdin, stdout: as for `subprocess.Popen`.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return Popen(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdin=stdin,
        stdout=stdout,
        pass_fds=descriptors,
        start_new_session=True,
    )
