"""What analyzers and mappers have in common: columns checked, and operations noted."""

import os
from typing import Any

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_integer
from penstock.transform.sites import user_line
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
        f"{user_line()}: {call} takes columns of a preprocessing function, got {inputs[0]!r:.100}: call it in the "
        "function that ps.transform.analyze is given"
    )


def results(analyzer: str, count: int, *inputs: Any, **arguments: Any) -> tuple[Column, ...]:
    """The results of an analyzer, each as a column."""
    found = noted(f"analyze.{analyzer}", *inputs, **arguments)
    return tuple(noted("item", found, number=number) for number in range(count))


def present(*inputs: Any) -> list[Any]:
    """The inputs that were given."""
    return [entry for entry in inputs if entry is not None]


def checked_buckets(call: str, num_buckets: Any, epsilon: float | None) -> int:
    """A number of buckets, at least one; epsilon is at most that of the summaries."""
    if epsilon is not None and not 0 < epsilon < 1:
        raise InvalidArgumentError(f"{call}(epsilon=...) takes a share between 0 and 1, got {epsilon!r}")
    return check_integer(call, "num_buckets", num_buckets, minimum=1)


def checked_path(call: str, name: str, path: Any) -> str:
    """The absolute path of a file that is there."""
    found = str(os.path.abspath(os.fspath(path)))
    if not os.path.isfile(found):
        raise InvalidArgumentError(f"{call}({name}={path!r}): there is no such file")
    return found
