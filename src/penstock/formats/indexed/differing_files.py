"""Files whose rows should be of one kind, and are not: what distinguishes them, and what to do."""

from typing import Any, Final

_WITH_COLUMNS: Final = ("MdsDataset", "ParquetDataset")
_WITH_TYPES: Final = ("ParquetDataset",)
"""What takes the names of columns, and types for them."""


def difference(call: str, first: tuple[str, Any], other: tuple[str, Any]) -> str:
    """What distinguishes the rows of two files, each given by its name and the kind of its rows.

    Example:
        >>> difference("ParquetDataset", ("a", {"x": "int64"}), ("b", {"x": "int32"}))
        "'b' has int32 in its column 'x', and 'a' int64: types={'x': ...} reads both as one type"
    """
    (first_name, columns), (other_name, others) = first, other
    if not isinstance(columns, dict) or not isinstance(others, dict):
        return f"{other_name!r} has rows of {others}, and {first_name!r} of {columns}"
    for (name, mine), (less_name, less) in ((first, other), (other, first)):
        extra = [column for column in mine if column not in less]
        if extra:
            advice = ": name those to read by columns=[...]" if call in _WITH_COLUMNS else ""
            return f"{name!r} has a column {extra[0]!r}, and {less_name!r} has only {list(less)}{advice}"
    column = next(column for column in columns if others[column] != columns[column])
    advice = f": types={{{column!r}: ...}} reads both as one type" if call in _WITH_TYPES else ""
    return f"{other_name!r} has {others[column]} in its column {column!r}, and {first_name!r} {columns[column]}{advice}"
