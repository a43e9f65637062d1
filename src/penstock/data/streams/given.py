"""The order in which elements were given, where no rule decides it: what a state needs to give them in it again."""

from collections.abc import Iterator
from typing import Any


class GivenNext:
    """What was given after a certain moment: empty at first, and filled in as more is given.

    A state is taken before a block is read, and what stands above may say later "so many rows after this state". So the
    state must tell in which order these rows came, which nobody knows when it is taken.
    """

    __slots__ = ("_elements", "_then")

    def __init__(self) -> None:
        self._elements = (0, 0)
        self._then: GivenNext | None = None

    def give(self, number: int, count: int) -> "GivenNext":
        """Note that elements are given next, by the number of the first; returns what is given after them."""
        self._elements = number, count
        self._then = then = GivenNext()  # the last step: a thread that looks at the same time sees all of it or nothing
        return then

    def ranges(self) -> list[list[int]]:
        """The elements given until now, in order: [number of the first, how many]."""
        found: list[list[int]] = []
        for number, count in self._entries():
            if found and sum(found[-1]) == number:
                found[-1][1] += count
            else:
                found.append([number, count])
        return found

    def _entries(self) -> Iterator[tuple[int, int]]:
        here = self
        while here._then is not None:
            yield here._elements
            here = here._then


def settled(state: Any) -> Any:
    """A state as plain data, with what is known by now of the order after it."""
    if isinstance(state, GivenNext):
        return state.ranges()
    if isinstance(state, list):
        return [settled(part) for part in state]
    if isinstance(state, dict):
        return {key: settled(part) for key, part in state.items()}
    return state
