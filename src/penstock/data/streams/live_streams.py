"""Streams of elements from other processes, in an order that cannot be reproduced from a seed.

The states of operators above such a stream name its elements by number. The stream's *replay* describes how to read the
same elements again in the same order, from the oldest one that a state names; it is saved beside the position in the
state of the whole iteration.
"""

import os
from abc import abstractmethod
from threading import RLock
from zlib import crc32

from penstock.data.streams.stream import State, Stream


class LiveStream(Stream):
    """A stream that is restored with its replay.

    Attributes:
        key: its name in an iteration, and in one that is restored from its state.
    """

    key: str

    @property
    @abstractmethod
    def shared(self) -> bool:
        """Return whether other readers may have received elements of it."""

    @property
    @abstractmethod
    def number(self) -> int:
        """The number of the next element, counting failures."""

    def state(self) -> State:
        return {"live": self.key, "number": self.number}

    def advanced(self, state: State, rows: int) -> State:
        return {**state, "number": state["number"] + rows}

    @abstractmethod
    def consumed(self, number: int) -> None:
        """Note that the caller has consumed all results of the elements before this one."""

    @abstractmethod
    def replay_from(self, number: int, *, bare: bool) -> State:
        """Return the replay from this element on.

        Args:
            bare: whether none of them was used yet, so that their order may change.
        """

    @abstractmethod
    def claim(self) -> None:
        """Claim the elements of the last replay, and wait until the dispatcher gives them to no other reader."""

    @abstractmethod
    def leave_to(self, replay: State) -> None:
        """Note that this stream will be closed now, and another one continues from this replay."""


class LiveStreams:
    """The live streams of an iteration, in the order in which they were opened.

    Attributes:
        restored: the replays of the state that the iteration was restored from, by key.
        continued: whether it was restored from a state, with replays.
        any: whether there are such streams, or were before the state.
    """

    def __init__(self) -> None:
        self.restored: dict[str, State] = {}
        self.continued = self.any = False
        self._reader = ""
        self._streams: dict[str, LiveStream] = {}
        self._named: set[str] = set()
        self._lock = RLock()  # a signal handler may ask for the state in the middle of any method

    def __bool__(self) -> bool:
        return self.any

    @property
    def shared(self) -> bool:
        """Return whether other readers may have received elements of a stream."""
        with self._lock:
            return any(stream.shared for stream in self._streams.values())

    def continue_from(self, replays: dict[str, State]) -> None:
        """Set the replays of the state that the iteration is restored from."""
        self.restored, self.any = replays, bool(replays)
        for replay in replays.values():
            if isinstance(replay, dict):
                self.continued, self._reader = True, str(replay.get("consumer", "")).partition("-")[0]

    def consumer_of(self, key: str) -> str:
        """Return the consumer's name for a stream, which stays the same when an iteration is restored."""
        with self._lock:
            self._reader = self._reader or os.urandom(8).hex()
        return f"{self._reader}-{crc32(key.encode()):08x}"

    def add(self, stream: LiveStream) -> None:
        """Add a stream, unless one has its key already: a dataset may be read in several places."""
        with self._lock:
            self._streams.setdefault(stream.key, stream)
            self.any = True

    def remove(self, stream: LiveStream) -> None:
        """Forget a stream that was never read."""
        with self._lock:
            if self._streams.get(stream.key) is stream:
                del self._streams[stream.key]
                self.any = bool(self._streams or self.restored)

    def consumed(self, position: State) -> None:
        """Note that the caller has consumed everything before this position: it requests more."""
        named = _named(position)
        with self._lock:
            self._forget(set(named))
            streams = [(self._streams[key], number) for key, number in named.items() if key in self._streams]
        for stream, number in streams:
            stream.consumed(number)

    def _forget(self, named: set[str]) -> None:
        """Forget the streams that no later state can name: those named before, and those opened before all `named`."""
        keys = list(self._streams)
        first = next((number for number, key in enumerate(keys) if key in named), 0)
        for key in {*keys[:first], *self._named} - named:
            self._streams.pop(key, None)
            self.restored.pop(key, None)
        self._named, self.any = named, bool(self._streams or self.restored)

    def replays(self, position: State) -> dict[str, State]:
        """Return the replays that a state at this position needs."""
        if not self:
            return {}
        named = _named(position)
        with self._lock:
            streams = dict(self._streams)
            replays = {key: replay for key, replay in self.restored.items() if key not in streams}
        for key, stream in streams.items():
            # A stream that the position does not name is read again from its beginning.
            number = named.get(key, 0)
            replays[key] = stream.replay_from(number, bare=_is_bare(position, key, number))
        return replays

    def claim(self) -> None:
        """Claim the elements of the last replays of all streams."""
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.claim()

    def give_back(self, position: State) -> None:
        """Return the elements after this position, which were not used; nothing more will be read."""
        for key, number in _named(position).items():
            stream = self._streams.get(key)
            if stream is not None and _is_bare(position, key, number):
                stream.unread(stream.number - number)

    def leave_to(self, replays: dict[str, State]) -> None:
        """Note that the iteration will be closed now, and another one continues from these replays."""
        with self._lock:
            streams = [(stream, replays[key]) for key, stream in self._streams.items() if key in replays]
        for stream, replay in streams:
            stream.leave_to(replay)


def _is_bare(position: State, key: str, number: int) -> bool:
    """Return whether no operator above a stream holds elements of it in an iteration at this position."""
    state, rows, _ = position
    return bool(state == {"live": key, "number": number} and rows == 0)


def from_beginning(position: State, before: State) -> list[State]:
    """Return the first positions of the streams that a position names, and an earlier one does not.

    Reading again from the earlier one continues into these streams, like a window that began in the epoch before.
    """
    missing = _named(position).keys() - _named(before).keys()
    return [{"live": key, "number": 0} for key in sorted(missing)]


def _named(position: State) -> dict[str, int]:
    """Return the number of the first element that a position names, for each stream that it names."""
    numbers: dict[str, int] = {}
    left, seen = [position], set[int]()
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        if isinstance(part, (dict, list, tuple)):
            seen.add(id(part))
        if isinstance(part, dict):
            if "live" in part:
                key, number = part["live"], part["number"]
                numbers[key] = min(number, numbers.get(key, number))
            left += part.values()
        elif isinstance(part, (list, tuple)):
            left += part
    return numbers
