"""Shared steps of analyzers and mappers: they check columns and note operations."""

import os
from typing import Any

import numpy as np

from penstock.data.arguments import user_site
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer
from penstock.transform.symbols import Column


def noted(operation: str, *inputs: Any, **arguments: Any) -> Column:
    """The column that an operation gives.

    Raises:
        InvalidTypeError: none of the inputs is a column.
    """
    for entry in inputs:
        if isinstance(entry, Column):
            return entry._recorder.add(operation, list(inputs), arguments)
    call = operation.removeprefix("analyze.")
    raise InvalidTypeError(
        f"{user_site()}: {call} takes columns of a preprocessing function, got {str(inputs)[1:100]}: call it in the "
        "function that ps.transform.analyze is given"
    )


def results(analyzer: str, count: int, *inputs: Any, name: str | None = None, **arguments: Any) -> tuple[Column, ...]:
    """The results of an analyzer, each as a column."""
    if name is not None:
        arguments["name"] = name
    found = noted(f"analyze.{analyzer}", *inputs, **arguments)
    return tuple(noted("item", found, number=number) for number in range(count))


def present(*inputs: Any) -> list[Any]:
    """The inputs that were given."""
    return [entry for entry in inputs if entry is not None]


def without_rows(call: str, name: str, column: Column) -> Column:
    """Return a value learned from all rows.

    Raises:
        InvalidTypeError: a column with a value for each row.
    """
    if column._recorder.has_rows(column):
        raise InvalidTypeError(
            f"{user_site()}: {call}({name}=...) takes a value that is the same for all rows, got {column!r}"
        )
    return column


def checked_boundaries(call: str, name: str, boundaries: Any) -> Any:
    """Boundaries that were learned, or rows of numbers in order.

    Raises:
        InvalidTypeError: no numbers.
        InvalidArgumentError: they are not in order, in which no bucket can be found.
    """
    if isinstance(boundaries, Column):
        return without_rows(call, name, boundaries)
    try:
        found = np.asarray(boundaries)
    except ValueError:
        found = np.asarray("")
    if found.dtype.kind not in "iuf" or not 0 < found.ndim < 3 or not found.size:
        raise InvalidTypeError(f"{user_site()}: {call}({name}=...) takes a list of numbers, got {boundaries!r:.100}")
    if not (found[..., 1:] >= found[..., :-1]).all() or np.isnan(found).any():
        raise InvalidArgumentError(f"{user_site()}: {call}({name}=...) must be in order, got {boundaries!r:.100}")
    return found


def checked_integers(call: str, name: str, given: Any, count: int) -> list[int]:
    """Return a list of this many integers.

    Raises:
        InvalidTypeError: something else.
    """
    integers = isinstance(given, (list, tuple)) and all(
        isinstance(part, (int, np.integer)) and not isinstance(part, bool) for part in given
    )
    if not integers or len(given) != count:
        raise InvalidTypeError(f"{user_site()}: {call}({name}=...) takes {count} integers, got {given!r:.100}")
    return [int(part) for part in given]


def checked_buckets(call: str, num_buckets: Any, epsilon: float | None) -> int:
    """A number of buckets, at least one; epsilon is at most that of the summaries."""
    if epsilon is not None and not 0 < epsilon < 1:
        raise InvalidArgumentError(f"{call}(epsilon=...) takes a share between 0 and 1, got {epsilon!r}")
    return check_integer(call, "num_buckets", num_buckets, minimum=1)


def checked_path(call: str, name: str, path: Any) -> str:
    """The absolute path of a file that is there."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidTypeError(f"{user_site()}: {call}({name}=...) takes a path or a vocabulary, got {path!r:.100}")
    found = os.path.abspath(os.fspath(path))
    if not os.path.isfile(found):
        raise InvalidArgumentError(f"{user_site()}: {call}({name}={path!r}): there is no such file")
    return found
