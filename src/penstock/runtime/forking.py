"""Files of this process alone, which are closed in every process that is forked from it.

Another process sees the end of this one by the end of a socket or a pipe. It would not come as long as a process that
the user's program has forked, such as a worker of PyTorch's DataLoader, holds a copy.
"""

import os
import weakref
from contextlib import suppress
from typing import Protocol


class Closable(Protocol):
    """A socket, or an unbuffered file."""

    def close(self) -> None: ...


_files: "weakref.WeakSet[Closable]" = weakref.WeakSet()


def close_in_forked_processes(*files: Closable) -> None:
    """Close these files in each process that is forked from this one, as long as anything refers to them here."""
    _files.update(files)


def _close_all() -> None:
    for file in list(_files):
        with suppress(OSError):
            file.close()


os.register_at_fork(after_in_child=_close_all)
