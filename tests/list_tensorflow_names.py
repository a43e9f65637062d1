"""Writes tensorflow_names.json: the public names of tf.data and tf.distribute, with the parameters of what is called.

Run it where TensorFlow is installed, which penstock's own environment need not have:

    python tests/list_tensorflow_names.py

A member that a class has from another listed class stands under that one alone, and what has several names has its
members under the first of them.
"""

import enum
import inspect
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

MODULES = {"tf.data": tf.data, "tf.distribute": tf.distribute}


def public(value: Any) -> list[str]:
    return [name for name in dir(value) if not name.startswith("_")]


def symbols(name: str, module: Any) -> Iterator[tuple[str, Any]]:
    """Every public name of a module and of the modules in it."""
    for part in public(module):
        value = getattr(module, part)
        if isinstance(value, types.ModuleType):
            yield from symbols(f"{name}.{part}", value)
        else:
            yield f"{name}.{part}", value


def members(kind: type, listed: set[type]) -> list[str]:
    """The members that are a class's own: not those of a listed class, nor of the base of all specifications."""
    if issubclass(kind, enum.Enum):
        return list(kind.__members__)
    other = listed | {tf.TypeSpec}
    above = [base for base in kind.__mro__[1:] if base in other or base.__module__ == "builtins"]
    return [name for name in public(kind) if not any(hasattr(base, name) for base in above)]


def parameters(value: Any) -> list[str] | None:
    """The names of the parameters; None for what is not called."""
    if not callable(value) or isinstance(value, property):
        return None
    try:
        found = inspect.signature(value).parameters.values()
    except ValueError:  # tells no signature
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in found if one.name != "self" and one.kind not in several]


def listing() -> dict[str, list[str] | None]:
    found = [entry for name, module in MODULES.items() for entry in symbols(name, module)]
    listed = {value for _, value in found if isinstance(value, type)}
    names: dict[str, list[str] | None] = {}
    told: set[type] = set()
    for name, value in sorted(found, key=lambda entry: entry[0]):
        names[name] = None if isinstance(value, type) and issubclass(value, enum.Enum) else parameters(value)
        if isinstance(value, type) and value not in told:
            told.add(value)
            names |= {f"{name}.{part}": parameters(getattr(value, part)) for part in members(value, listed)}
    return names


if __name__ == "__main__":
    path = Path(__file__).parent / "tensorflow_names.json"
    text = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(listing().items()))
    path.write_text(f'{{\n  "tensorflow": "{tf.__version__}",\n{text}\n}}\n')
