"""A bounded, closable channel between one producing thread and one consumer."""

from collections import deque
from typing import Generic, TypeVar

from penstock.runtime.conditions import BoundedCondition

Item = TypeVar("Item")


class Closed(Exception):
    """The channel was closed: nothing can be put any more, or everything has been taken."""


class Channel(Generic[Item]):
    """Items in the order they were put, as many at a time as `capacity` allows.

    An item has a weight (its rows, say); the weights of the items inside never exceed the capacity, except that a
    single item may always pass.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[tuple[Item, int]] = deque()
        self._weight = 0
        self._closed = False
        self._changed = BoundedCondition()

    def put(self, item: Item, weight: int = 1) -> None:
        """Add an item; waits for room.

        Raises:
            Closed: the channel was closed, before or while waiting.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._items or self._weight + weight <= self._capacity)
            if self._closed:
                raise Closed
            self._items.append((item, weight))
            self._weight += weight
            self._changed.notify_all()

    def get(self) -> Item:
        """The oldest item; waits for one.

        Raises:
            Closed: the channel was closed and is empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._items))
            if not self._items:
                raise Closed
            item, weight = self._items.popleft()
            self._weight -= weight
            self._changed.notify_all()
            return item

    def room(self) -> int:
        """How much weight can be put at once (at least 1); waits until there is some.

        Raises:
            Closed: the channel was closed, before or while waiting.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._weight < self._capacity)
            if self._closed:
                raise Closed
            return self._capacity - self._weight

    def close(self) -> None:
        """End the channel for both sides; what is inside is dropped."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._weight = 0
            self._changed.notify_all()
