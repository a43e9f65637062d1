"""Finds the object of a dataset that cannot be sent to another process, and what holds it."""

import types
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from typing import Any

import cloudpickle

from penstock.data.node import Node, describe

_MAXIMUM_DEPTH = 20


def culprit_of(node: Node, error: Exception) -> str:
    """The object that cloudpickle refused with `error`, in words: its node, the way to it, and its kind."""
    for below in node.walk():
        for item in fields(below):
            value = getattr(below, item.name)
            if _is_input(value) or _is_sent(value):
                continue
            steps, found = _deepest(value)
            hangs = f" ({', '.join(steps)})" if steps else ""
            return (
                f"{below.where()}: {item.name} {describe(value)}{hangs} holds {_kind(found)}, which exists in this "
                f"process only ({type(error).__name__}: {error}); make it where it is used, inside the function"
            )
    return f"{type(error).__name__}: {error}"


def _is_input(value: Any) -> bool:
    return isinstance(value, Node) or (isinstance(value, tuple) and any(isinstance(entry, Node) for entry in value))


def _is_sent(value: Any) -> bool:
    try:
        cloudpickle.dumps(value, protocol=5, buffer_callback=lambda buffer: None)
    except Exception:
        return False
    return True


def _deepest(value: Any) -> tuple[list[str], Any]:
    """The path from a value that cannot be sent to the part of it that is to blame, and that part."""
    steps: list[str] = []
    seen = {id(value)}
    while len(steps) < _MAXIMUM_DEPTH:
        bad = ((step, part) for step, part in _parts(value) if id(part) not in seen and not _is_sent(part))
        found = next(bad, None)
        if found is None:
            break
        steps.append(found[0])
        value = found[1]
        seen.add(id(value))
    return steps, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The objects that a value holds, each with how it is reached."""
    if isinstance(value, types.MethodType):
        yield f"the object of {value.__name__}", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, partial):
        yield "the function", value.func
        yield from ((f"argument {number}", part) for number, part in enumerate(value.args))
        yield from ((f"argument {name}", part) for name, part in value.keywords.items())
    elif isinstance(value, dict):
        yield from ((f"entry {key!r:.50}", part) for key, part in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"entry {number}", part) for number, part in enumerate(value))
    yield from ((f"attribute {name}", part) for name, part in getattr(value, "__dict__", {}).items())


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"variable {name}", cell.cell_contents
        except ValueError:  # assigned later
            continue
    for number, part in enumerate(function.__defaults__ or ()):
        yield f"default {number}", part
    for name, part in (function.__kwdefaults__ or {}).items():
        yield f"default of {name}", part
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield f"global {name}", function.__globals__[name]


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _kind(value: Any) -> str:
    name = type(value).__qualname__
    module = type(value).__module__
    return f"a {name if module == 'builtins' else f'{module}.{name}'}"
