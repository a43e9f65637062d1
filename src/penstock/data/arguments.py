"""Checks of the arguments of a dataset's methods, and the line of the user's program that called one."""

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import AUTOTUNE, check_integer
from penstock.spec import LeafSpec, assuming
from penstock.structure import flatten, map_structure

# The files of penstock, and of NumPy, whose operators call penstock for the columns of `ps.transform`.
_NOT_THE_USERS = (
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""),
    os.path.join(os.path.dirname(np.__file__), ""),
)


def user_site() -> str:
    """The line of the user's code that called penstock: "file.py:12"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return f"{_cell_of(frame.f_code.co_filename)}:{frame.f_lineno}"


def _cell_of(file: str) -> str:
    """Return "Cell In[3]" for the file that stands for a cell of a notebook, or of IPython; other names as they are."""
    python = sys.modules.get("IPython")
    shell = python and python.get_ipython()
    cell = shell and shell.compile.format_code_name(file)
    return " ".join(cell) if cell else file


def check_function(call: str, name: str, function: object) -> Callable[..., Any]:
    """Return `function`, which must be callable."""
    if not callable(function):
        raise InvalidTypeError(f"{call}({name}=...) takes a function, got {function!r}")
    return function


def check_parallel_calls(call: str, number: int | None) -> None:
    """Check that `num_parallel_calls` is None, AUTOTUNE, or at least 1."""
    if number is not None and number != AUTOTUNE:
        check_integer(call, "num_parallel_calls", number, minimum=1)


def check_encoding(call: str, encoding: str) -> None:
    """Refuse encodings in which records cannot be separated byte by byte."""
    try:
        divides = all(sign.encode().decode(encoding) == sign for sign in '\n\r",')
    except UnicodeDecodeError:
        divides = False
    except LookupError:
        raise InvalidArgumentError(
            f"{call}(encoding=...) takes an encoding that Python knows, got {encoding!r}"
        ) from None
    if not divides:
        raise InvalidArgumentError(
            f"{call}(encoding=...) takes an encoding that keeps ASCII, such as 'utf-8' or 'latin-1', got {encoding!r}: "
            "convert the file to UTF-8, for example with iconv"
        )


def as_seed(call: str, seed: int | None) -> int | None:
    """`seed` as an integer of Python, if one was given."""
    return None if seed is None else check_integer(call, "seed", seed, minimum=0)


def as_signature(call: str, signature: Any) -> Any:
    """Return `output_signature`, a structure of specifications; the user promises them, so none counts as assumed."""
    for leaf in flatten(signature)[0]:
        if not isinstance(leaf, LeafSpec):
            raise InvalidTypeError(
                f"{call}(output_signature=...) takes ps.TensorSpec leaves, got {leaf!r}: such as "
                "ps.TensorSpec((), 'int64') for a number"
            )
    return map_structure(lambda leaf: assuming(leaf, (), dtype=False), signature)


def as_numbers(call: str, name: str, values: object) -> tuple[float, ...]:
    """`values`, which must be numbers."""
    try:
        return tuple(float(value) for value in values)  # type: ignore[attr-defined]  # refused below
    except (TypeError, ValueError):
        raise InvalidTypeError(f"{call}({name}=...) takes numbers, got {values!r}") from None
