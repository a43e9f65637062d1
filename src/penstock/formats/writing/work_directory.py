"""The directory in which something is written before it appears, whole, under its own name.

    <path>.unfinished/owner   the writer's process, which holds a lock on this file until it has ended, however that
                              comes

A directory whose lock is free was left by a writer that was killed: the next writer of that path takes it over.
"""

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from penstock.errors import StorageError
from penstock.paths import link_of_others

UNFINISHED: Final = ".unfinished"
_OWNER: Final = "owner"
_CLEANING_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.02
_LINE_SECONDS: Final = 30.0

_logger = logging.getLogger(__name__)

Written = TypeVar("Written")


class BeingWritten(StorageError):
    """Another process is writing there.

    Attributes:
        process: its number; 0 if that is not known.
        directory: where it writes until the files are complete.
    """

    def __init__(self, path: Path, directory: Path) -> None:
        self.process = _process(directory)
        self.directory = directory
        super().__init__(f"{path} is being written by process {self.process or 'another one'}")


def written_once(
    path: Path,
    write: Callable[[], Written],
    *,
    patience: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Written | None:
    """Let one of several processes write at a path, which all others wait for; if it dies, another one takes over.

    Args:
        path: where it will be, when it is complete.
        write: called unless it is there; it makes a `WorkDirectory`.
        patience: the seconds without any writing after which this gives up waiting: the writer may itself wait for
            this process. A writer in this process is not waited for. None waits as long as the writer lives.
        stopped: whether to wait no longer.

    Returns:
        What `write` returns; None where another process has written, and where this does not wait for it.
    """
    size, grown = -1, time.monotonic()
    logged = grown
    while not path.exists() and not stopped():
        try:
            return write()
        except BeingWritten as error:
            now, found = time.monotonic(), _bytes_in(error.directory)
            if found != size:
                size, grown = found, now
            if patience is not None and error.process == os.getpid():
                return None
            if patience is not None and now - grown > patience:
                _logger.warning("%s, which stands still", error)
                return None
            if now - logged > _LINE_SECONDS:
                logged = now
                _logger.info("%s: this process waits", error)
            time.sleep(_PAUSE_SECONDS)
        except StorageError:
            if not path.exists():  # otherwise another process was faster
                raise
    return None


@contextmanager
def writing_at(path: Path) -> Iterator[None]:
    """A context within which errors of the system, such as a full disk, become a StorageError with the place."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"'{str(path).removesuffix(UNFINISHED)}' cannot be written: {error}") from error


class WorkDirectory:
    """The work directory of `path`, in which no other process writes until it is published or discarded.

    Args:
        path: where it shall appear.

    Attributes:
        path: where to write; it may hold the files of a writer that was killed.

    Raises:
        StorageError: `path` exists, another process is writing it, or another user decides where it leads.
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        if link := link_of_others(path):
            raise StorageError(f"'{path}' is not written to: {link}")
        if path.exists():
            raise StorageError(f"{path} exists: remove it first, or write to another place")
        self._final = path
        self.path = path.with_name(path.name + UNFINISHED)
        if link := link_of_others(self.path):
            raise StorageError(f"'{self.path}' is not written to: {link}")
        if self.path.exists() and (user := self.path.stat().st_uid) != os.getuid():
            raise StorageError(f"'{self.path}' is not continued: user {user} has made it")
        self._lock = self._claimed()
        if path.exists():  # another writer has just published it
            self.discard()
            raise StorageError(f"{path} exists: remove it first, or write to another place")

    def _claimed(self) -> int:
        until = time.monotonic() + _CLEANING_SECONDS
        while (lock := self._try_to_claim()) is None:
            if _process(self.path) == os.getpid() or time.monotonic() > until:
                raise BeingWritten(self._final, self.path)
            time.sleep(_PAUSE_SECONDS)
        return lock

    def _try_to_claim(self) -> int | None:
        """The lock; None where another process has it, which may only be removing the directory."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            if os.path.lexists(self.path):
                raise
            return None  # another writer has just removed it
        owner = self.path / _OWNER
        with suppress(FileNotFoundError):  # another writer has just removed the directory
            names = os.listdir(self.path)  # at once: another writer makes the owner first, and removes it last
            if names and _OWNER not in names:
                raise StorageError(f"{self.path} is there, and penstock has not made it: remove it, or write elsewhere")
        with suppress(FileNotFoundError), ExitStack() as undo:
            lock = os.open(owner, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            undo.callback(os.close, lock)
            if not self._locked(lock):
                return None
            if owner.stat().st_ino != os.fstat(lock).st_ino:  # it was removed meanwhile
                return None
            os.truncate(lock, 0)
            os.write(lock, str(os.getpid()).encode())
            undo.pop_all()
            return lock
        return None

    def _locked(self, owner: int) -> bool:
        """Lock the owner's file unless it is locked; where there are no locks, an owner that still runs counts."""
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return not _is_alive(_process(self.path))
        return True

    def clear(self) -> None:
        """Remove all but the owner."""
        for left in list(self.path.iterdir()):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            elif left.name != _OWNER:
                left.unlink(missing_ok=True)

    def publish(self, *, without: str = "") -> None:
        """Let it appear; without a directory in it that has served its purpose."""
        self.path.rename(self._final)
        if without:
            shutil.rmtree(self._final / without, ignore_errors=True)
        (self._final / _OWNER).unlink()
        self.leave()

    def discard(self) -> None:
        """Remove it, the owner last: files without one belong to no writer. Does nothing after `publish`, or twice."""
        if self._lock >= 0:
            with suppress(OSError):
                self.clear()
            shutil.rmtree(self.path, ignore_errors=True)
            self.leave()

    def leave(self) -> None:
        """Leave the files to the next writer."""
        os.close(self._lock)
        self._lock = -1


def _bytes_in(directory: Path) -> int:
    """Return the number of bytes that have been written there."""
    with suppress(OSError), os.scandir(directory) as entries:
        return sum(entry.stat().st_size for entry in entries)
    return 0


def _process(directory: Path) -> int:
    """The process that writes there; 0 if it is not known."""
    with suppress(OSError, ValueError):
        return int((directory / _OWNER).read_text())
    return 0


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return process > 0
