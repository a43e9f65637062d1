"""Structures as plain data, which fits into JSON and MessagePack.

A structure is [kind, names, [children …]]. That of a named tuple or dataclass also names its class:
["class", names, [children …], module, class]; that of a dictionary names its keys in their order, and
["dict", names, [children …], "ordered"] is an OrderedDict.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from penstock.errors import InvalidArgumentError, InvalidTypeError, StorageError
from penstock.structure import LEAF, Structure, dictionary_of

_INNER_KINDS = ("none", "tuple", "dict", "class")
_KEY_TYPES = (str, int, float, bool)

FindClass = Callable[[str, str], type]
"""Finds a class by the name of its module and its own."""


def structure_to_data(structure: Structure) -> Any:
    """A structure as plain data.

    Raises:
        InvalidTypeError: a class that cannot be found by its name, or a dictionary with other keys than strings
            and numbers.
    """
    children = [structure_to_data(child) for child in structure.children]
    if structure.kind != "class":
        if unfit := [name for name in structure.names if type(name) not in _KEY_TYPES]:
            raise InvalidTypeError(f"a dictionary that is stored or sent must have strings as keys, got {unfit[0]!r}")
        names, children = map(list, (structure.shown_names, structure.in_order(children)))
        return [structure.kind, names, children, *(["ordered"] if structure.ordered else [])]
    assert structure.python_class is not None
    module, name = structure.python_class.__module__, structure.python_class.__qualname__
    if "<locals>" in name:
        raise InvalidTypeError(
            f"{module}.{name} values cannot be stored or sent: define the class at the top of a module"
        )
    return ["class", list(structure.names), children, module, name]


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
    if kind == "dict":
        return dictionary_of(names, children, ordered="ordered" in data[3:])
    python_class = find_class(data[3], data[4]) if kind == "class" else None
    return Structure(kind, children, tuple(names), python_class, sum(child.leaf_count for child in children))


def stored_class(module: str, name: str) -> type:
    """The class of a stored structure.

    Raises:
        StorageError: it cannot be imported.
    """
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise StorageError(f"the rows are {module}.{name} values, which cannot be imported: {error}") from error
    return found  # type: ignore[no-any-return]
