"""Functions of the user's in a transform: saved by their names, and found by them wherever it is used."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.data.arguments import user_site
from penstock.errors import InvalidArgumentError


def name_of(call: str, function: Any) -> str:
    """The name of a function's module and its own.

    Raises:
        InvalidArgumentError: it is not a function of a module.
    """
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if isinstance(function, np.ufunc):  # without either in older versions of NumPy
        module, path = module or "numpy", path or function.__name__
    name = f"{module}:{path}"
    if "<" in name or "None" in name or name.startswith("__main__:") or imported(name) is not function:
        raise InvalidArgumentError(
            f"{user_site()}: {call} takes a function that can be imported by its name, got {function!r}: "
            "define it at the top level of a module"
        )
    return name


def imported(name: str) -> Callable[..., Any]:
    """A function of the user's, by the name of its module and its own. A file that names it runs no other module.

    Raises:
        InvalidArgumentError: its module is not imported, or has no such function.
    """
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    if found is None:
        raise InvalidArgumentError(
            f"the transform calls {name}: import {module} before, as loading a transform imports nothing by itself"
        )
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InvalidArgumentError(f"the transform calls {name}, and {module} has no such function")
    return found  # type: ignore[no-any-return]
