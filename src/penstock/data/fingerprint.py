"""The fingerprint of a dataset: the same in every process that describes the same dataset.

A digest of the bytes that are sent to workers would differ between processes. They name files and lines, for errors;
the order of a set of strings is random in each process, and so is the name of a class of the main program. Readers that
share a job would get an error that each reads another dataset.
"""

import hashlib
import re
from dataclasses import fields, replace
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, Final

import cloudpickle
import numpy as np
import numpy.typing as npt

from penstock.data.functions.code import Describing, facts_of_code
from penstock.data.node import BY_CHANCE, Node
from penstock.errors import InvalidTypeError
from penstock.options import Options
from penstock.runtime.sending import place_in_file

_OF_THE_PROCESS: Final = frozenset({"__slotnames__", "__static_attributes__", "__firstlineno__"})
"""Attributes of a class that depend on the process, not on its definition."""
_HEXADECIMAL_DIGITS: Final = 32
_FEW_OBJECTS: Final = 1000
"""In larger arrays, strings are not pickled one by one."""
_MUCH_BYTES: Final = 64 << 20
"""Of larger maps of files, some rows are looked at."""
_SAMPLED_ROWS: Final = 1000
_SAMPLED_BYTES: Final = 4 << 20


def _digest(content: bytes = b"") -> Any:
    """SHA-1, the fastest of hashlib on processors with instructions for it; equal digests are no security risk."""
    return hashlib.sha1(content, usedforsecurity=False)


def fingerprint(value: Any) -> str:
    """Return the digest of a value that `definition.to_bytes` can send, with everything that it refers to.

    Equal where functions have the same code and use equal values; where they were written, in which file and on which
    line, does not matter.
    """
    digest = _digest()
    file = SimpleNamespace(write=digest.update)
    pickler = _Canonical(file, protocol=5, buffer_callback=lambda buffer: digest.update(buffer.raw()))
    pickler.dump(value)
    return str(digest.hexdigest()[:_HEXADECIMAL_DIGITS])


def fingerprint_of(node: Node, options: Options) -> str:
    """Return the digest of a dataset, with the code of functions of the user's modules, not only their names.

    Raises:
        InvalidTypeError: something in it exists in this process only, such as a lock or an open file.
    """
    deciding = replace(options, watchdog_seconds=None, statistics=None)
    try:
        return fingerprint(([*node.walk_all()], deciding, done_by_functions(node)))
    except Exception as error:
        raise InvalidTypeError(
            f"fingerprint: {node.where()} uses something that exists in this process only: {error}"
        ) from error


def done_by_functions(node: Node) -> list[Any]:
    """Describe the functions of a dataset by their code, as plain data."""
    describing = Describing(lambda value: None)
    arguments = [value for below in node.walk_all() for value in below.arguments_by_name.values()]
    return [describing.function(value) for value in arguments if callable(value)]


class _Canonical(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """A pickler for digests: sorts or skips whatever differs between processes by chance."""

    def persistent_id(self, value: Any) -> Any:
        if type(value) is str:  # a new object: otherwise the digest tells which equal strings are one object
            return bytearray(value, "utf-8", "surrogatepass")
        if type(value) is bytes:
            return [bytearray(value)]
        if type(value) is set or type(value) is frozenset:
            return type(value).__name__, sorted(fingerprint(entry) for entry in value)
        if type(value) is np.ndarray and value.dtype == object and value.size > _FEW_OBJECTS:
            return _of_strings(value)
        return None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Node):
            return tuple, (
                (type(value), *(getattr(value, item.name) for item in fields(value) if item.name not in BY_CHANCE)),
            )
        if isinstance(value, CodeType):
            return tuple, (facts_of_code(value),)
        if isinstance(value, np.ndarray) and value.nbytes > _MUCH_BYTES and place_in_file(value) is not None:
            return tuple, (("mapped", value.dtype.str, value.shape, _sample(value)),)
        reduced = super().reducer_override(value)
        if not isinstance(reduced, tuple) or len(reduced) < 3:  # sent by name
            return reduced
        make, arguments, (attributes, more), *rest = reduced
        if isinstance(value, FunctionType):
            for argument in arguments:
                if isinstance(argument, dict):  # the first of its globals
                    argument.pop("__file__", None)
            more.pop("_cloudpickle_submodules")  # which modules were imported by then
        else:
            arguments = tuple(argument for argument in arguments if not _is_random_number(argument))
            attributes = {name: part for name, part in attributes.items() if name not in _OF_THE_PROCESS}
        return make, arguments, (attributes, more), *rest


def _sample(array: npt.NDArray[Any]) -> str:
    """A digest of some rows of an array, from the first to the last: to read a large file takes minutes."""
    rows = min(_SAMPLED_ROWS, max(2, _SAMPLED_BYTES // array[0].nbytes))
    places = np.linspace(0, len(array) - 1, rows).astype(np.int64)
    return str(_digest(np.ascontiguousarray(array[places]).tobytes()).hexdigest())


def _of_strings(array: npt.NDArray[Any]) -> Any:
    """A digest of an array of strings or of bytes, without a call for each; None of any other."""
    entries = array.reshape(-1).tolist()
    gap: Any = b"\0" if isinstance(entries[0], bytes) else "\0"
    try:
        joined = gap.join(entries)
    except TypeError:  # others among them
        return None
    if joined.count(gap) != len(entries) - 1:  # then other entries could give the same
        return None
    content = joined if isinstance(joined, bytes) else joined.encode("utf-8", "surrogatepass")
    return "strings", type(joined).__name__, array.shape, _digest(content).hexdigest()


def _is_random_number(argument: object) -> bool:
    """Return whether this is cloudpickle's name for a class of the main program: a UUID, which differs by process."""
    return isinstance(argument, str) and re.fullmatch("[0-9a-f]{32}", argument) is not None
