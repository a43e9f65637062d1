"""Values that are read from files, and again when these change: tokens, certificates and keys that somebody renews."""

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from penstock.errors import PenstockError

_logger = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 86_400.0
"""The time after which unchanged files are read again: certificates expire."""

T = TypeVar("T")


class Renewed(Generic[T]):
    """A value that is read when it is first asked for, and again after a change. Several threads may ask.

    Files that cannot be used, such as a new certificate whose key is still to come, leave the old value in use.

    Args:
        read: reads the value; a PenstockError says why it cannot be used.
        files: the paths that it is read from. Pipes and files that are missing do not change.
    """

    def __init__(self, read: Callable[[], T], files: Sequence[str]) -> None:
        self._read, self._files = read, files
        self._lock = threading.Lock()
        self._values: list[T] = []
        self._seen: list[tuple[int, ...]] = []
        self._read_at = 0.0

    def __call__(self) -> T:
        """Return the value.

        Raises:
            PenstockError: it could not be read the first time.
        """
        with self._lock:
            seen, now = [_stamp(path) for path in self._files], time.monotonic()
            if not self._values or seen != self._seen or now - self._read_at >= _AGAIN_SECONDS:
                changed, self._seen, self._read_at = bool(self._values) and seen != self._seen, seen, now
                self._renew(changed=changed)
            return self._values[0]

    def _renew(self, *, changed: bool) -> None:
        try:
            self._values = [self._read()]
        except PenstockError as error:
            if not self._values:
                raise
            _logger.warning("the token and certificates that were read before stay in use: %s", error)
        else:
            if changed:
                _logger.info("%s changed, and were read again", ", ".join(self._files))


def _stamp(path: str) -> tuple[int, ...]:
    """Numbers that change with a file, also with one behind a link."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino) if stat.S_ISREG(found.st_mode) else ()
