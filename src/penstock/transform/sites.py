"""The line of a preprocessing function that asked for something."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_OTHERS = (f"{Path(__file__).parent.parent}/", f"{Path(np.__file__).parent}/")


def user_line() -> str:
    """The innermost line that is neither penstock's nor NumPy's, whose operators call penstock: "file.py:12"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OTHERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of(function: Callable[..., Any]) -> str:
    """Return where a function is defined: "file.py:12"; its name if it has no lines."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
