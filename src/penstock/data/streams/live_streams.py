"""Streams whose elements come from elsewhere, in an order that does not come again by itself.

The states of what stands above such a stream name its elements by number. How to have the same elements again in the
same order, from the oldest one that a state names, is the stream's *replay*: it stands beside the position in the state
of the whole iteration.
"""

import os
from abc import abstractmethod
from threading import RLock
from zlib import crc32

from penstock.data.streams.stream import State, Stream


class LiveStream(Stream):
    """A stream that is restored with its replay.

    Attributes:
        key: names it in an iteration, and again in one that is restored from its state.
    """

    key: str

    @property
    @abstractmethod
    def shared(self) -> bool:
        """Whether others have had elements of it."""

    @property
    @abstractmethod
    def number(self) -> int:
        """The number of the next element, failures counted."""

    def state(self) -> State:
        return {"live": self.key, "number": self.number}

    def advanced(self, state: State, rows: int) -> State:
        return {**state, "number": state["number"] + rows}

    @abstractmethod
    def consumed(self, number: int) -> None:
        """Note that the caller has consumed whatever was made of the elements before this one."""

    @abstractmethod
    def replay_from(self, number: int, *, bare: bool) -> State:
        """What it takes to read the elements again from this one on.

        Args:
            bare: nobody has used any of them yet, so they may come in another order.
        """

    @abstractmethod
    def claim(self) -> None:
        """Tell the dispatcher that no other reader may get what the last replay holds; wait until it knows."""

    @abstractmethod
    def leave_to(self, replay: State) -> None:
        """Note that it will be closed now, and another stream goes on from this replay."""


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
        """Whether others have had elements of what is read."""
        with self._lock:
            return any(stream.shared for stream in self._streams.values())

    def continue_from(self, replays: dict[str, State]) -> None:
        """Note the replays of the state that the iteration is restored from."""
        self.restored, self.any = replays, bool(replays)
        for replay in replays.values():
            if isinstance(replay, dict):
                self.continued, self._reader = True, str(replay.get("consumer", "")).partition("-")[0]

    def consumer_of(self, key: str) -> str:
        """The name under which elements of a stream are had, also by an iteration that goes on from a state."""
        with self._lock:
            self._reader = self._reader or os.urandom(8).hex()
        return f"{self._reader}-{crc32(key.encode()):08x}"

    def add(self, stream: LiveStream) -> None:
        """Take a stream in. One of equal key that is there already stays: the dataset is read in several places."""
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
        """Note that the caller asks for more, so it has consumed everything before this position."""
        named = _named(position)
        with self._lock:
            self._forget(set(named))
            streams = [(self._streams[key], number) for key, number in named.items() if key in self._streams]
        for stream, number in streams:
            stream.consumed(number)

    def _forget(self, named: set[str]) -> None:
        """Forget what no later state can name: what was named before, and what was opened before all that are."""
        keys = list(self._streams)
        first = next((number for number, key in enumerate(keys) if key in named), 0)
        for key in {*keys[:first], *self._named} - named:
            self._streams.pop(key, None)
            self.restored.pop(key, None)
        self._named, self.any = named, bool(self._streams or self.restored)

    def replays(self, position: State) -> dict[str, State]:
        """What a state at this position needs besides."""
        if not self:
            return {}
        named = _named(position)
        with self._lock:
            streams = dict(self._streams)
            replays = {key: replay for key, replay in self.restored.items() if key not in streams}
        for key, stream in streams.items():
            # What the position does not name is read again from its beginning.
            number = named.get(key, 0)
            replays[key] = stream.replay_from(number, bare=_is_bare(position, key, number))
        return replays

    def claim(self) -> None:
        """Tell the dispatcher that no other reader may get what the last replays hold; wait until it knows."""
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.claim()

    def give_back(self, position: State) -> None:
        """What comes after this position was not used, and nothing more will be read."""
        for key, number in _named(position).items():
            stream = self._streams.get(key)
            if stream is not None and _is_bare(position, key, number):
                stream.unread(stream.number - number)

    def leave_to(self, replays: dict[str, State]) -> None:
        """Note that the iteration will be closed now, and another goes on from these replays."""
        with self._lock:
            streams = [(stream, replays[key]) for key, stream in self._streams.items() if key in replays]
        for stream, replay in streams:
            stream.leave_to(replay)


def _is_bare(position: State, key: str, number: int) -> bool:
    """Whether this is the position of an iteration in which nothing above a stream holds elements of it."""
    state, rows, _ = position
    return bool(state == {"live": key, "number": number} and rows == 0)


def from_beginning(position: State, before: State) -> list[State]:
    """The first positions of the streams that a position names, and one before it does not.

    What is read again from there on goes on into these streams, as a window does that began in the epoch before.
    """
    missing = _named(position).keys() - _named(before).keys()
    return [{"live": key, "number": 0} for key in sorted(missing)]


def _named(position: State) -> dict[str, int]:
    """The number of the first element that a position names, for each stream that it names."""
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
