"""Structures as plain data, which fits into JSON and MessagePack.

A structure is [kind, names, [children …]]. A named tuple or dataclass is found again by the name of its class, which
stands behind: ["record", names, [children …], module, class].
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.structure import LEAF, Structure

_INNER_KINDS = ("none", "tuple", "dict", "record")
_KEY_TYPES = (str, int, float, bool)

FindClass = Callable[[str, str], type]
"""Gives the class of a record, by the names of its module and of itself."""


def structure_to_data(structure: Structure) -> Any:
    """A structure as plain data.

    Raises:
        InvalidTypeError: a record whose class cannot be found by its name, or a dictionary with other keys than strings
            and numbers.
    """
    children = [structure_to_data(child) for child in structure.children]
    if structure.kind != "record":
        if unfit := [name for name in structure.names if type(name) not in _KEY_TYPES]:
            raise InvalidTypeError(f"a dictionary that is stored or sent must have strings as keys, got {unfit[0]!r}")
        return [structure.kind, list(structure.names), children]
    assert structure.record is not None
    module, name = structure.record.__module__, structure.record.__qualname__
    if "<locals>" in name:
        raise InvalidTypeError(
            f"{module}.{name} records cannot be stored or sent: define the class at the top of a module"
        )
    return ["record", list(structure.names), children, module, name]


def structure_of_data(data: Sequence[Any], find_class: FindClass) -> Structure:
    """The structure that `structure_to_data` wrote; what `find_class` raises is passed on.

    Raises:
        InvalidArgumentError: what stands there is no structure. Of data of another form ValueError, TypeError or
            IndexError.
    """
    kind, names, below = data[:3]
    if kind == "leaf":
        return LEAF
    if kind not in _INNER_KINDS or len(names) != len(below) or any(type(name) not in _KEY_TYPES for name in names):
        raise InvalidArgumentError(f"there is no structure of kind {kind!r} with the names {names!r}")
    children = tuple(structure_of_data(child, find_class) for child in below)
    record = find_class(data[3], data[4]) if kind == "record" else None
    return Structure(kind, children, tuple(names), record, sum(child.leaf_count for child in children))


def class_of_record(module: str, name: str) -> type:
    """The class of a record that is stored.

    Raises:
        StorageError: it cannot be imported.
    """
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise StorageError(f"the rows are {module}.{name} records, which cannot be imported: {error}") from error
    return found  # type: ignore[no-any-return]
