"""Files that are kept open: those that were used last."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_MOST: Final = 64

Opened = TypeVar("Opened")


class OpenFiles(Generic[Opened]):
    """What was made of files when they were opened. One is closed when it is left out and no thread reads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[str, Opened] = OrderedDict()

    def get(self, name: str, open_file: Callable[[str], Opened]) -> Opened:
        """An open file, which `open_file` opens if it is not; several threads may open several at a time."""
        with self._lock:
            found = self._files.get(name)
            if found is not None:
                self._files.move_to_end(name)
                return found
        opened = open_file(name)
        with self._lock:
            found = self._files.setdefault(name, opened)
            if len(self._files) > _MOST:
                self._files.popitem(last=False)
            return found

    def drop(self, name: str) -> None:
        """Open a file anew when it is asked for again."""
        with self._lock:
            self._files.pop(name, None)

    def all(self) -> list[Opened]:
        """Those that are open."""
        with self._lock:
            return list(self._files.values())
