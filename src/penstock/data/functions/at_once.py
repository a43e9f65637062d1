"""Functions that take all rows of a block in one call, as the layers of `ps.preprocessing` do.

Such a function has a method `_map_block`. Its arguments are those of a call for one row, each as a column: an array
whose leading axis counts the rows, or an object column where rows differ in shape. It returns its results in the same
form. A function with `draws = True` draws random numbers: the last argument of a call for one row is that row's
generator, and that of `_map_block` the `RowGenerators` of all rows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.data.block import Block
from penstock.errors import ElementError
from penstock.row_generators import RowGenerators
from penstock.runtime.threads import failures
from penstock.structure import flatten


def map_at_once(function: Callable[..., Any], block: Block, generators: RowGenerators | None) -> Block | None:
    """Return all results by one call, or None where the function must be called row by row.

    Args:
        generators: the rows' random generators, if `map` has a seed.

    Raises:
        ElementError: the number of results is not that of the rows.
    """
    of_block = getattr(function, "_map_block", None)
    if of_block is None or draws(function) != (generators is not None):
        return None
    value = block.structure.unflatten(block.columns)
    arguments = value if block.structure.kind == "tuple" else (value,)
    try:
        result = of_block(*arguments) if generators is None else of_block(*arguments, generators)
    except failures():  # calls row by row raise it again, after the rows before it
        return None
    columns, structure = flatten(result)
    for column in columns:
        if not isinstance(column, np.ndarray) or column.shape[:1] != (len(block),):
            has_rows = isinstance(column, np.ndarray) and column.ndim > 0
            found = f"{len(column)} rows" if has_rows else f"a {type(column).__name__} without rows"
            raise ElementError(
                f"{describe_function(function)}._map_block got {len(block)} rows and returned {found}: "
                "it must return arrays with as many rows as it got"
            )
    return Block(tuple(columns), structure, len(block))


def takes_blocks(function: Callable[..., Any]) -> bool:
    """Return whether the function takes all rows of a block in one call."""
    return hasattr(function, "_map_block")


def draws(function: Callable[..., Any]) -> bool:
    """Return whether the function takes a generator as its last argument."""
    return getattr(function, "draws", False) is True


def describe_function(function: Callable[..., Any]) -> str:
    """Return the name of the function, or of the class of a callable object."""
    return str(getattr(function, "__qualname__", type(function).__name__))
