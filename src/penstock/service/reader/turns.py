"""Whose turn it is, where a reader fetches each of its passes in one go.

Where there are few, each has a lane, which fetches it to its end. Where there are more than `MOST_STREAMS`, a lane asks
for one piece of a pass and then for one of another, so that no more lanes are needed and none waits long for a worker.

Pure bookkeeping without threads: the reader holds a lock around it.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from penstock.service.reader.fetched import Part

MOST_LANES: Final = 128
"""Threads of one reader."""
MOST_STREAMS: Final = 96
"""So many passes have a lane each; fewer than there can be lanes, so that some are free for those that come later."""
TURN_SECONDS: Final = 1.0
"""How long a worker is waited for that has nothing yet."""
LOOK_SECONDS: Final = 10.0
"""How often a reader that holds others back looks in where it has no room for more."""
_LISTENING = 4
"""One lane in this many is for workers that had nothing the last time, also while others have something."""


class Turns:
    """The parts of passes that have not come yet: those that wait for a lane, and those that are being fetched.

    Those that gave something the last time come first, but for a few lanes: a worker that has nothing keeps a lane for
    as long as it is waited for.

    Args:
        holds_back: whether others wait for this reader where it reads, and so must know that it is there.
    """

    def __init__(self, holds_back: bool) -> None:
        self._holds_back = holds_back
        self._giving: deque[Part] = deque()
        self._silent: deque[Part] = deque()
        self._fetched: dict[Part, int] = {}  # how much each gave the last time
        self._listening = 0  # how many of these gave nothing then

    @property
    def count(self) -> int:
        """How many parts have not come yet."""
        return len(self._giving) + len(self._silent) + len(self._fetched)

    @property
    def crowded(self) -> bool:
        """Whether they are too many to have a lane each."""
        return self.count > MOST_STREAMS

    def add(self, part: Part) -> None:
        """Let a new part wait for its turn."""
        self._giving.append(part)

    def next(self, lanes: int, has_room: Callable[[int], bool], awaited: Callable[[], Sequence[Part]]) -> Part | None:
        """The part whose turn it is; None while there is none, or no room for what it may give.

        Args:
            lanes: how many there are.
            has_room: whether so many more elements may arrive.
            awaited: the parts without which nothing can be handed on, for which there is always room.
        """
        queue = self._queue(lanes)
        if not queue:
            return None
        part = queue[0]
        part.looks_in = False
        if self.crowded and not has_room(sum(self._fetched.values()) + max(1, part.came)):
            needed = next((part for part in awaited() if self._lacks(part)), None)
            if needed is None and not self._is_to_look_in(part):
                return None
            part = needed or part
            part.looks_in = needed is None
        self._begin(part)
        return part

    def _lacks(self, part: Part) -> bool:
        """Whether nothing of a part is there, nor being fetched."""
        return not (part.items or part.complete or part in self._fetched)

    def _queue(self, lanes: int) -> deque[Part]:
        if self._silent and (not self._giving or self._listening < lanes // _LISTENING):
            return self._silent
        return self._giving

    def _is_to_look_in(self, part: Part) -> bool:
        return self._holds_back and part.fetched_at + LOOK_SECONDS < time.monotonic()

    def _begin(self, part: Part) -> None:
        (self._giving if part.came else self._silent).remove(part)
        self._fetched[part] = part.came
        self._listening += part.came == 0
        if not part.looks_in:
            part.came = 0

    def over(self, part: Part) -> None:
        """The turn of a part is over; if it is not complete it waits for another one."""
        self._listening -= self._fetched.pop(part) == 0
        part.fetched_at = time.monotonic()
        if not part.complete:
            (self._giving if part.came else self._silent).append(part)
