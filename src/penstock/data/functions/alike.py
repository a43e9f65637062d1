"""Loops over rows of one structure, whose text is written for it, as `dataclasses` writes methods.

A loop over the leaves of each row would cost several times as much as all else that is done with the row. Nothing of
the user's stands in the text: keys, names of fields and classes reach it as values.

A leaf is taken in one of these ways:

* "value": a value of one type, which nobody can change, is collected;
* "number": so is a number, if it is between two bounds;
* "array": an array of one dtype and shape is written to its row of a column;
* "copy": an array of one dtype, and of a shape that fits, is copied and collected.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final

import numpy as np

from penstock.structure import Form, Structure, instance_of

ALL_ALIKE: Final = object()
"""What a loop gives when it has taken all rows."""


class Unlike(Exception):
    """A value that differs from the first, and must be checked; as a type, that of no value."""


# What a text reads of each leaf, by the way in which it is taken.
_READ: Final = {
    "value": ("kind",),
    "number": ("kind", "least", "most", "low", "high"),
    "array": ("column",),
    "copy": ("dtype", "fits"),
}
# What tells that a leaf must be looked at. Python compares integers of one digit in a fifth of the time of others.
_TESTS: Final = {
    "value": "type({leaf}) is not kind{n}",
    "number": "type({leaf}) is not kind{n} or "
    "({leaf} > most{n} or {leaf} < least{n}) and not low{n} <= {leaf} <= high{n}",
    "array": "type({leaf}) is not ndarray or {leaf}.dtype is not dtype{n} or {leaf}.shape != shape{n}",
    "copy": "type({leaf}) is not ndarray or {leaf}.dtype is not dtype{n} or not fits{n}({leaf}.shape)",
}
_TAKEN: Final = {
    "value": "add{n}({leaf})",
    "number": "add{n}({leaf})",
    "array": "column{n}[row] = {leaf}",
    "copy": "add{n}({leaf}.copy())",
}
_GLOBALS: Final = {
    "ALL_ALIKE": ALL_ALIKE,
    "ndarray": np.ndarray,
    "OrderedDict": OrderedDict,
}


def given_by_users(structure: Structure, name: str = "value") -> dict[str, Any]:
    """What the text for a structure needs that is the user's: keys, names of fields and classes."""
    found: dict[str, Any] = {}
    if structure.kind == "class":
        assert structure.python_class is not None
        found[f"class_{name}"] = structure.python_class
        found[f"fields_{name}"] = attrgetter(*structure.names) if structure.names else None
        found[f"make_{name}"] = partial(instance_of, structure.python_class, structure.names)
    for number, child in enumerate(structure.children):
        part = f"{name}_{number}"
        if structure.kind == "dict":
            found[f"key_{part}"] = structure.names[number]
        found.update(given_by_users(child, part))
    return found


@cache
def take_loop(form: Form, ways: tuple[str, ...]) -> Callable[[Any, Sequence[Any], dict[str, Any], Iterator[Any]], Any]:
    """The loop that takes rows of a form as long as they are alike.

    Its arguments are what counts the rows, in its `row`; for each leaf an object that says what it must be like, and
    where it goes; what is the user's; and the rows. It gives the first row that must be looked at, which it has not
    taken, or `ALL_ALIKE`.
    """
    leaves = _leaves(form, "value")
    columns = [n for n, way in enumerate(ways) if way == "array"]
    counted = columns or not ways  # else the last list tells how many rows there are
    lines = [
        "def take(counter, leaves, given, values):",
        *(f"    {line}" for line in _read(form, ways)),
        *(f"    shape{n}, dtype{n} = column{n}.shape[1:], column{n}.dtype" for n in columns),
        *(f"    add{n} = leaves[{n}].found.append" for n in range(len(ways)) if n not in columns),
        "    row = counter.row" if counted else "    found = leaves[-1].found; before = counter.row - len(found)",
        "    try:",
        "        for value in values:",
        *(f"            {line}" for line in _apart(form, "value", "return value")),
        f"            if {_tests(ways, leaves) or False}: return value",
        *(f"            {_TAKEN[way].format(n=n, leaf=leaves[n])}" for n, way in enumerate(ways)),
        *(["            row += 1"] if counted else []),
        "    finally:",
        f"        counter.row = {'row' if counted else 'before + len(found)'}",
        "    return ALL_ALIKE",
    ]
    return _written(lines, "take")  # type: ignore[no-any-return]  # the function that was just made


def _written(lines: list[str], name: str) -> Any:
    names = dict(_GLOBALS)
    exec("\n".join(lines), names)
    return names[name]


def _read(form: Form, ways: tuple[str, ...]) -> Iterator[str]:
    """Lines that make local names of all that the rows are compared with."""
    for number, way in enumerate(ways):
        for attribute in _READ[way]:
            yield f"{attribute}{number} = leaves[{number}].{attribute}"
    yield from (f"{name} = given[{name!r}]" for name in _names(form, "value"))


def _tests(ways: tuple[str, ...], leaves: list[str]) -> str:
    return " or ".join(_TESTS[way].format(n=n, leaf=leaf) for n, (way, leaf) in enumerate(zip(ways, leaves)))


def _parts(form: Form, name: str) -> list[tuple[Form, str]]:
    """The forms below this one, and what the text calls the parts of the value that have them."""
    return [(child, f"{name}_{number}") for number, child in enumerate(form[1])]


def _leaves(form: Form, name: str) -> list[str]:
    """What the text calls the leaves of a value."""
    return [name] if form[0] == "leaf" else [leaf for part in _parts(form, name) for leaf in _leaves(*part)]


def _names(form: Form, name: str) -> list[str]:
    """What the text calls that which `given_by_users` gives."""
    kind = form[0]
    parts = _parts(form, name)
    own = [f"class_{name}", f"fields_{name}", f"make_{name}"] if kind == "class" else []
    own += [f"key_{part}" for _, part in parts if form[2]]
    return own + [each for part in parts for each in _names(*part)]


def _apart(form: Form, name: str, otherwise: str) -> list[str]:
    """Lines that take a value apart, and do something else with one of another form."""
    kind = form[0]
    parts = _parts(form, name)
    if kind == "leaf":
        return []
    if kind == "none":
        return [f"if {name} is not None: {otherwise}"]
    targets = "".join(f"{part}, " for _, part in parts)
    if kind == "tuple" and parts:  # in two thirds of the time of comparing its length
        lines = [f"if type({name}) is not tuple: {otherwise}"]
        lines += [f"try: {targets}= {name}", f"except ValueError: {otherwise}"]
    elif kind == "class":
        lines = [f"if type({name}) is not class_{name}: {otherwise}"]
        if parts:
            taken = targets if len(parts) > 1 else f"{parts[0][1]} "  # `attrgetter` gives no tuple of one
            lines += [f"{taken}= fields_{name}({name})"]
    else:
        lines = [f"if type({name}) is not {kind} or len({name}) != {len(parts)}: {otherwise}"]
        if parts:
            lines += ["try:", *(f"    {part} = {name}[key_{part}]" for _, part in parts)]
            lines += [f"except KeyError: {otherwise}"]
    return lines + [line for part in parts for line in _apart(*part, otherwise)]
