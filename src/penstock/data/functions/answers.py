"""Checks of values that users' functions return: truth values and integers, which are never rounded or guessed."""

from operator import index
from typing import Any, Final

import numpy as np

from penstock.errors import ElementError, InvalidTypeError

_TRUTH_VALUES: Final = {bool, np.bool_}


def truth(function: str, answer: Any) -> bool:
    """Return the truth value that a predicate returned; `function` is its name, for errors.

    Raises:
        InvalidTypeError: `answer` is neither a truth value nor a NumPy number.
    """
    if type(answer) in _TRUTH_VALUES:
        return bool(answer)
    dtype = getattr(answer, "dtype", None)
    if getattr(answer, "shape", None) == () and getattr(dtype, "kind", "b") in "biufc":
        return bool(answer)
    raise _refused(function, "one truth value for each element", answer)


def integer(function: str, answer: Any, low: int | None = None, high: int | None = None) -> int:
    """Return the key, class or size that a function returned; `function` is its name, for errors.

    Raises:
        InvalidTypeError: `answer` is neither an integer nor a truth value.
        ElementError: it is below `low` or above `high`.
    """
    if type(answer) is np.int64:  # as most are
        found = int(answer)
    elif getattr(answer, "shape", ()) != ():
        raise _refused(function, "an integer", answer)
    else:
        try:
            found = int(answer) if getattr(getattr(answer, "dtype", None), "kind", "") == "b" else index(answer)
        except TypeError:
            raise _refused(function, "an integer", answer) from None
    if (low is not None and found < low) or (high is not None and found > high):
        bounds = f"at least {low}" if high is None else f"{low} to {high}"
        raise ElementError(f"{function} must return {bounds}, got {found}")
    return found


def _refused(function: str, expected: str, answer: Any) -> InvalidTypeError:
    advice = ": does it lack a `return`?" if answer is None else ""
    return InvalidTypeError(f"{function} must return {expected}, got {answer!r:.200}{advice}")
