"""`python -m penstock.data.functions.called_process`: calls a function for the rows that another process sends.

Its arguments are file descriptors of `runtime/processes.py`.
"""

import sys
from collections.abc import Callable
from typing import Any

from penstock.data.functions.in_processes import RowResults, answer_of, from_message, to_message
from penstock.errors import InvalidTypeError
from penstock.runtime.mailbox import Part
from penstock.runtime.processes import answer_until_told


class Called:
    """State of the called process: the first message holds the function, all others are questions."""

    def __init__(self) -> None:
        self._function: Callable[..., Any] | None = None
        self._failure: InvalidTypeError | None = None

    def answer(self, message: list[memoryview]) -> list[Part]:
        """Return the results for a question, and nothing for the function."""
        if self._failure is not None:
            return to_message(RowResults([], self._failure))
        if self._function is not None:
            return answer_of(self._function, from_message(message))
        try:
            self._function = from_message(message)
        except Exception as error:
            self._failure = InvalidTypeError(
                f"a process of map(processes=True) cannot load the function ({type(error).__name__}: {error}): "
                "define it in the main program, or in a module that can be imported"
            )
        return []


if __name__ == "__main__":
    answer_until_told([int(number) for number in sys.argv[1:]], Called().answer)
