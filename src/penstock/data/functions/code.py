"""Descriptions of users' functions as plain data: equal in all processes, regardless of a function's name and place.

A description holds the code, with the constants that it uses: numbers, strings and tuples of them, other functions,
frozen dataclasses. Of lists, dictionaries, arrays and other objects only the kind counts, because they may change in
use: a filter may note the elements it has seen. A function of an installed package is described by its name.
"""

import dis
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import lru_cache, partial
from inspect import CO_NESTED
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from penstock.data.functions.reads_file import unmarked

SCALARS = (type(None), bool, int, float, complex, str, bytes, type(...), range, slice, np.dtype)
_INSTALLED = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OURS = __name__.partition(".")[0]


def facts_of_code(code: CodeType) -> tuple[Any, ...]:
    """Return code without its file and lines, and without the names of variables.

    The names of attributes and globals are part of it; its constants may be code themselves.
    """
    flags = code.co_flags & ~CO_NESTED
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, flags)
    return code.co_code, code.co_consts, code.co_exceptiontable, counts, code.co_names


@dataclass
class Describing:
    """Descriptions of values as nested tuples of numbers, strings and bytes, whose `repr` is equal in all processes.

    Args:
        other: describes values that this module does not know; returns None for others.
    """

    other: Callable[[Any], Any]
    _functions: dict[int, int] = field(default_factory=dict, init=False)
    _kept: list[Any] = field(default_factory=list, init=False)  # so that no number in `_functions` is used again

    def function(self, function: Any) -> Any:
        """Describe a function."""
        function = unmarked(function)
        if id(function) in self._functions:
            return "again", self._functions[id(function)]
        self._functions[id(function)] = len(self._functions)
        self._kept.append(function)
        if isinstance(function, partial):
            keywords = tuple((name, self.constant(value)) for name, value in sorted(function.keywords.items()))
            return "partial", self.function(function.func), self.constant(function.args), keywords
        if isinstance(function, MethodType):
            return "method", self.function(function.__func__), self._attributes(function.__self__, function.__func__)
        if isinstance(function, FunctionType) and not _is_installed(function.__module__):
            return self._of_function(function)
        if isinstance(function, (FunctionType, BuiltinFunctionType, type)) or hasattr(function, "__name__"):
            wrapped = getattr(function, "__wrapped__", None)
            return _name_of(function) if wrapped is None else self.function(wrapped)
        called = type(function).__call__
        return "object", self.function(called), self._attributes(function, called)

    def _of_function(self, function: FunctionType) -> Any:
        names, rebound = _globals_and_rebound(function.__code__)
        variables = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        return (
            self._code(function.__code__),
            self.constant(function.__defaults__),
            tuple((name, self.constant(value)) for name, value in sorted((function.__kwdefaults__ or {}).items())),
            tuple("rebound" if name in rebound else self._cell(cell) for name, cell in variables),
            tuple(
                "rebound" if name in rebound else self.constant(function.__globals__[name])
                for name in names
                if name in function.__globals__
            ),
        )

    def _code(self, code: CodeType) -> Any:
        names, _ = _globals_and_rebound(code)
        instructions, constants, exceptions, counts, all_names = facts_of_code(code)
        # The values of globals are described, so their names do not count; those of attributes do.
        attributes = tuple(name for name in all_names if name not in names)
        return instructions, tuple(map(self._code_or_constant, constants)), exceptions, counts, attributes

    def _code_or_constant(self, value: Any) -> Any:
        return self._code(value) if isinstance(value, CodeType) else self.constant(value)

    def _cell(self, cell: Any) -> Any:
        try:
            return self.constant(cell.cell_contents)
        except ValueError:  # assigned later
            return "unbound"

    def _attributes(self, value: Any, called: Any) -> Any:
        """Describe the attributes of an object, except those that its function `called` assigns."""
        if isinstance(value, ModuleType) or not hasattr(value, "__dict__"):
            return self.constant(value)
        assigned = _assigned_attributes(getattr(called, "__code__", None))
        known = sorted((name, part) for name, part in vars(value).items() if name not in assigned)
        return tuple((name, self.constant(part)) for name, part in known)

    def constant(self, value: Any) -> Any:
        """Describe a value that a function uses; of an object that may change, only its kind."""
        found = self.other(value)
        if found is not None:
            return found
        if isinstance(value, Enum):
            return type(value).__qualname__, value.name
        if isinstance(value, SCALARS):
            return repr(value)
        if isinstance(value, np.generic):
            return str(value.dtype), repr(value.item())
        if isinstance(value, tuple):
            return tuple(map(self.constant, value))
        if isinstance(value, frozenset):
            return "set", tuple(sorted(repr(self.constant(entry)) for entry in value))
        if isinstance(value, np.ndarray):
            return "array", str(value.dtype), value.shape
        if isinstance(value, (FunctionType, MethodType, BuiltinFunctionType, partial)):
            return self.function(value)
        if isinstance(value, ModuleType):
            return value.__name__
        if is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            return type(value).__qualname__, tuple(self.constant(getattr(value, item.name)) for item in fields(value))
        return "a", (value if isinstance(value, type) else type(value)).__qualname__


def scalars_of(function: Any) -> dict[str, Any]:
    """Return the numbers and strings that a function uses from its globals and closure, by name."""
    function = unmarked(function)
    if not isinstance(function, FunctionType):
        return {}
    names, _ = _globals_and_rebound(function.__code__)
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # assigned later
            found[name] = cell.cell_contents
    return {name: value for name, value in found.items() if isinstance(value, (bool, int, float, str))}


def _name_of(function: Any) -> Any:
    name = getattr(function, "__qualname__", None) or function.__name__
    return "named", str(getattr(function, "__module__", "")), str(name)


@lru_cache
def _is_installed(module: str | None) -> bool:
    """Return whether a module belongs to Python, to penstock, or to an installed package."""
    if module is None or module.partition(".")[0] == _OURS:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and str(Path(file).resolve()).startswith(_INSTALLED)


@lru_cache(maxsize=1024)
def _globals_and_rebound(code: CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the globals that code reads, in order, and the outer variables that it rebinds."""
    names: dict[str, None] = {}
    rebound: set[str] = set()
    for instruction in _instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names[instruction.argval] = None
        elif instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF"):
            rebound.add(instruction.argval)
    return tuple(names), frozenset(rebound)


@lru_cache(maxsize=1024)
def _assigned_attributes(code: CodeType | None) -> frozenset[str]:
    if code is None:
        return frozenset()
    return frozenset(found.argval for found in _instructions(code) if found.opname == "STORE_ATTR")


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
