"""Functions, arguments and results as bytes, between processes that one program has started for itself."""

import io
import pickle
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import InvalidTypeError, PenstockError, WorkerError
from penstock.printing import text_of_error
from penstock.runtime.sending import Pickler


@dataclass(frozen=True)
class FilledLater:
    """Writes objects whose attributes refer to others like them: first all the objects, then their attributes.

    A model of a thousand layers would otherwise be a thousand levels deep, which pickle refuses.
    """

    kind: type
    attributes: dict[str, Any]


Reduce = Callable[[Any], Any]


class _Pickler(Pickler):
    """Writes objects as `reduce` says, where that returns something other than NotImplemented."""

    def __init__(self, file: io.BytesIO, reduce: Reduce) -> None:
        super().__init__(file, protocol=5)
        self._reduce = reduce
        self._unfilled: deque[tuple[Any, dict[str, Any]]] = deque()

    def reducer_override(self, value: Any) -> Any:
        reduced = self._reduce(value)
        if isinstance(reduced, FilledLater):
            self._unfilled.append((value, reduced.attributes))
            return _blank, (reduced.kind,)
        return super().reducer_override(value) if reduced is NotImplemented else reduced

    def write(self, value: Any) -> None:
        """Write an object, and then the attributes of those that are filled later."""
        self.dump(value)
        while self._unfilled:
            self.dump(self._unfilled.popleft())
        self.dump(None)


def _blank(kind: type) -> Any:
    return object.__new__(kind)


def dumps(what: str, value: Any, reduce: Reduce = lambda value: NotImplemented) -> bytes:
    """A function or its arguments as bytes; functions of the main program travel as code.

    Raises:
        InvalidTypeError: something in it exists in this process only.
        PenstockError: what `reduce` raises.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, reduce).write(value)
    except PenstockError:
        raise
    except Exception as error:
        raise InvalidTypeError(
            f"{what} cannot be sent to another process: {text_of_error(error)}; "
            "create the object to blame inside the function that uses it"
        ) from error
    return file.getvalue()


def loads(content: bytes) -> Any:
    """Return what `dumps` wrote."""
    reader = pickle.Unpickler(io.BytesIO(content))
    value = reader.load()
    while (unfilled := reader.load()) is not None:
        made, attributes = unfilled
        vars(made).update(attributes)
    return value


def result_bytes(value: Any) -> bytes:
    """Return what a closure has returned; arrays of JAX as NumPy's.

    Raises:
        InvalidTypeError: something in it cannot leave the worker.
    """
    jax = sys.modules.get("jax")
    if jax is not None:
        value = jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, value)
    return dumps("what the function has returned", value)


def error_bytes(error: BaseException, trace: str) -> bytes:
    """An exception of a closure, with where it was raised as a note; one that is raised again has no note of before."""
    note = f"raised on a worker:\n{trace}"
    error.add_note(note)
    try:
        content = dumps("the error", error)
        loads(content)  # some exceptions can be written and not read
    except Exception:
        replaced = WorkerError(f"the function raised {text_of_error(error)}")
        replaced.add_note(note)
        content = dumps("the error", replaced)
    error.__notes__.remove(note)
    return content
