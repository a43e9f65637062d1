"""Functions of the user's: how rows are given to them, what they promise, and how they are recognised again.

What calls functions in processes is imported when a dataset uses it first: few do, and it needs much of the standard
library.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.data.functions import in_processes as in_processes


def __getattr__(name: str) -> Any:
    if name == "in_processes":
        return importlib.import_module("penstock.data.functions.in_processes")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
