"""A bounded, closable channel between one producing thread and its consumers."""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Generic, TypeVar

from penstock.statistics import tracing
from penstock.statistics.lanes import waiting

Item = TypeVar("Item")


class Closed(Exception):
    """The channel was closed: nothing can be put any more, or everything has been taken."""


class Channel(Generic[Item]):
    """Items in the order they were put, at most `capacity` at a time.

    An item has a weight (its rows, say); the weights of the items inside never exceed the capacity, except that a
    single item may always pass.

    Both sides wait at a `SimpleQueue`, which costs a third of a `Condition` and may be written to at any moment: Python
    may collect a forgotten iterator, and so close its channel, in the very thread that is about to wait here.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: SimpleQueue[tuple[Item, int] | None] = SimpleQueue()  # None: closed
        # The weight of all that was ever put, counted by the producer, and of all that was taken.
        self._put = self._taken = 0
        self._counting = Lock()
        self._closed = False
        self._producer_waits = False
        self._wake_producer: SimpleQueue[None] = SimpleQueue()

    @property
    def _weight(self) -> int:
        """Return the size of the items inside."""
        return self._put - self._taken

    def put(self, item: Item, weight: int = 1) -> None:
        """Add an item; waits for room.

        Raises:
            Closed: the channel was closed, before or while waiting.
        """
        self._wait_until(lambda: self._weight == 0 or self._weight + weight <= self._capacity)
        self._put += weight
        if tracing.recorder is not None:
            tracing.recorder.put(item, self._weight)
        self._items.put((item, weight))
        if self._closed:  # meanwhile
            self._drop()
            raise Closed

    def get(self) -> Item:
        """The oldest item; waits for one.

        Raises:
            Closed: the channel was closed.
        """
        if self._items.empty():
            with waiting:
                entry = self._items.get()
        else:
            entry = self._items.get()
        if entry is None or self._closed:
            self._items.put(None)  # for others that wait
            raise Closed
        item, weight = entry
        with self._counting:
            self._taken += weight
        if self._producer_waits:
            self._producer_waits = False
            self._wake_producer.put(None)
        if tracing.recorder is not None:
            tracing.recorder.take(item, self._weight)
        return item

    def room(self) -> int:
        """Return how much weight can be put at once (at least 1); waits until there is some.

        Raises:
            Closed: the channel was closed, before or while waiting.
        """
        self._wait_until(lambda: self._weight < self._capacity)
        return self._capacity - self._weight

    def close(self) -> None:
        """End the channel for both sides; its items are dropped."""
        self._closed = True
        self._drop()
        self._wake_producer.put(None)

    def _drop(self) -> None:
        try:
            while True:
                self._items.get_nowait()
        except Empty:
            self._items.put(None)

    def _wait_until(self, fits: Callable[[], bool]) -> None:
        while not self._closed and not fits():
            self._producer_waits = True
            if not fits():  # a consumer that takes something from now on sees that the producer waits
                self._wake_producer.get()
        if self._closed:
            raise Closed
