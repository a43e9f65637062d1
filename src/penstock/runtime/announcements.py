"""Messages of a worker to its launcher that a checkpoint is complete: a line in a named pipe."""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

VARIABLE: Final = "PENSTOCK_CHECKPOINT_PIPE"
"""The environment variable with the pipe's path, under launchers that want to know."""


def announce(path: str) -> None:
    """Tell the launcher, if one is listening, that the checkpoint `path` is complete."""
    pipe = os.environ.get(VARIABLE)
    if not pipe:
        return
    with suppress(OSError):  # the launcher no longer listens
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(descriptor, os.fsencode(path) + b"\n")
        finally:
            os.close(descriptor)


class Announcements:
    """A pipe for workers, and a thread that reads it; a new one for every group of workers.

    Args:
        heard: called with the path of each checkpoint, in the thread.
    """

    def __init__(self, heard: Callable[[str], None]) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-launch-"))
        self.path = self._directory / "checkpoints"
        os.mkfifo(self.path)
        # Open for writing too: otherwise reading would end whenever a worker has closed the pipe.
        self._descriptor = os.open(self.path, os.O_RDWR)
        self._heard = heard
        self._thread = threading.Thread(target=self._read, name="penstock-announcements", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with open(self._descriptor, "rb", closefd=False) as lines:
            for line in lines:
                if line == b"\n":
                    return
                self._heard(os.fsdecode(line.removesuffix(b"\n")))

    def close(self) -> None:
        """End the thread and remove the pipe. Later announcements are ignored."""
        os.write(self._descriptor, b"\n")
        self._thread.join()
        os.close(self._descriptor)
        shutil.rmtree(self._directory, ignore_errors=True)
