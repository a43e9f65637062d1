"""Files that are kept open: those that were used last."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_ROOM: Final = 1024
_LARGE: Final = 16
"""What is kept open takes at most so much room: 1 for a file that is small and in memory, else this."""

Opened = TypeVar("Opened")


class OpenFiles(Generic[Opened]):
    """What was made of files when they were opened. One is closed when it is left out and no thread reads it.

    Args:
        is_small: whether something holds a small file in memory, so that many can be kept; opening it is a request.
    """

    def __init__(self, is_small: Callable[[Opened], bool] = lambda opened: False) -> None:
        self._is_small = is_small
        self._lock = threading.Lock()
        self._files: OrderedDict[str, Opened] = OrderedDict()
        self._taken = 0

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
            if found is opened:
                self._taken += self._room_for(opened)
            while self._taken > _ROOM:
                self._taken -= self._room_for(self._files.popitem(last=False)[1])
            return found

    def drop(self, name: str) -> None:
        """Open a file anew when it is asked for again."""
        with self._lock:
            dropped = self._files.pop(name, None)
            if dropped is not None:
                self._taken -= self._room_for(dropped)

    def all(self) -> list[Opened]:
        """Those that are open."""
        with self._lock:
            return list(self._files.values())

    def _room_for(self, opened: Opened) -> int:
        return 1 if self._is_small(opened) else _LARGE
