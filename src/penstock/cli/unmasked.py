"""Rows of tables as they are in their files, from rows whose nulls were masked."""

from collections import Counter
from typing import Any

import numpy as np


def unmasked(row: Any, nulls: Counter[str], path: str = "") -> tuple[Any, Any]:
    """A row without its masks, and the same with None for what was null.

    Args:
        row: of which each column has a mask, "x_is_valid" for "x", or had one in its file.
        nulls: counts the columns that were null, or lists that had nulls in them.
        path: the name of the struct that the row is of.
    """
    if not isinstance(row, dict):
        return row, row
    plain, shown = {}, {}
    for name, value in row.items():
        if name.endswith("_is_valid") and f"{name}_is_valid" not in row:  # a column of the file would have one too
            continue
        plain[name], shown[name] = unmasked(value, nulls, f"{path}{name}.")
        if not row.get(f"{name}_is_valid", True):
            nulls[f"{path}{name}"] += 1
            shown[name] = value if isinstance(value, np.ndarray) and len(value) else None
    return plain, shown
