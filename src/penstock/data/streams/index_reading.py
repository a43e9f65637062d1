"""Reading by index as a coroutine, which yields where it waits for calls in other threads.

Everything but these calls runs in the thread that reads, one piece after the other: users' sources and serial functions
see one thread, and their rows in order.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block
from penstock.runtime.callers import Bell, Callers


class Awaited:
    """Work that a reading waits for.

    Attributes:
        done: whether the reading can resume.
    """

    done: bool = False


class Pending(Awaited, ABC):
    """Calls that other threads make.

    Attributes:
        callers: who makes them.
        tasks: the number of tasks into which they are divided.
        rows: the number of rows for which they are made.
        unwanted: whether those that have not begun may be skipped.
    """

    tasks: int = 0
    rows: int = 0
    unwanted: bool = False

    def __init__(self, callers: Callers) -> None:
        self.callers = callers

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The approximate number of bytes of the results, when all calls have ended."""

    @abstractmethod
    def outcome(self) -> Any:
        """Return the results of the calls."""


class Load(Awaited):
    """Rows that another reading of the same stream is loading; a reading that needs them too waits for it.

    Attributes:
        positions: the positions of the rows.
    """

    def __init__(self, positions: npt.NDArray[np.int64]) -> None:
        self.positions = positions


def to_keep(error: BaseException) -> BaseException:
    """Prepare an exception that a coroutine raised for being raised again later.

    The frame that caught it is removed from its traceback: it refers to all callers, so it would keep alive an iterator
    that is no longer used.
    """
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        error = error.__cause__  # coroutines cannot raise it
    elif error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
    return error


UNKNOWN_ROW = -1


@dataclass(frozen=True)
class Failure:
    """The row that failed, or UNKNOWN_ROW, and the exception."""

    row: int
    error: BaseException


Outcome = tuple[Block | None, Failure | None]
"""A block of results up to the first row that failed, and that failure."""
Reading = Generator[Awaited, None, Block]
"""A coroutine that yields the work it waits for, and returns the rows."""
Making = Generator[Awaited, None, Outcome]
"""Variant of a reading that returns the rows before the first that fails, too."""


def finished(reading: Reading, bell: Bell) -> Block:
    """Return the rows of a reading; waits for its calls, whose end the bell announces."""
    while True:
        try:
            awaited = next(reading)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        while not awaited.done:
            rung = bell.rung
            if not awaited.done:
                bell.wait(rung)
