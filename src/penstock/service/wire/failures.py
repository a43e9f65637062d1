"""Carries exceptions of the user's functions from a data worker to the trainer, as text and plain values."""

import builtins
import os
import socket
import sys
import traceback
from typing import Any

from penstock.errors import ServiceError
from penstock.service.wire.subjects import Span
from penstock.service.wire.worker_messages import Failed, LeftOut

_LARGEST_INTEGER = 1 << 63


def failed_of(error: Exception, following: Span, left_out: LeftOut | None = None) -> Failed:
    """The message for an exception.

    Args:
        following: the rest of the span after the element that failed.
        left_out: the rows skipped before it.
    """
    trace = traceback.TracebackException.from_exception(error)
    trace.__notes__ = None  # they are sent separately
    where = f"penstock: raised on the data worker with process id {os.getpid()} on {socket.gethostname()}:"
    if isinstance(error, MemoryError):
        where = (
            "penstock: the data worker is out of memory: give it more, make batches and buffers smaller, or have it "
            f"run fewer calls at once (num_parallel_calls)\n{where}"
        )
    return Failed(
        next=following,
        module=type(error).__module__,
        name=type(error).__qualname__,
        arguments=[_plain(argument) for argument in error.args],
        notes=[*map(str, getattr(error, "__notes__", ())), f"{where}\n{''.join(trace.format()).rstrip()}"],
        message=_text_of(error) or "",
        left_out=left_out,
    )


def to_exception(failed: Failed) -> Exception:
    """The exception of a worker, of the same class if this process knows that, else a `ServiceError`.

    If it can no longer be printed, because its arguments were not plain, it becomes its nearest built-in base class.
    Its class is one of Python's or penstock's, or from a module that this process has imported: finding it imports
    nothing, and computes no attribute. Its notes are those of the worker's, with the worker's
    traceback last.
    """
    found = _class_of(failed)
    if found is None:
        arguments = ", ".join(map(str, failed.arguments))
        error: Exception = ServiceError(
            f"a data worker met {failed.module}.{failed.name}{': ' + arguments if arguments else ''}"
        )
    else:
        error = _make_exception(found, failed.arguments)
        if _text_of(error) is None:
            error = _make_exception(_of_python(found), [failed.message])
    for note in failed.notes:
        error.add_note(note)
    return error


def _plain(argument: Any) -> Any:
    if argument is None or isinstance(argument, (bool, float, str, bytes)):
        return argument
    if isinstance(argument, int) and -_LARGEST_INTEGER <= argument < _LARGEST_INTEGER:
        return int(argument)
    try:
        return repr(argument)
    except Exception:
        return f"a {type(argument).__name__}"


def _class_of(failed: Failed) -> type[Exception] | None:
    found: Any = sys.modules.get(failed.module, builtins if failed.module == "builtins" else None)
    for name in failed.name.split("."):
        found = getattr(found, "__dict__", {}).get(name)  # an attribute that is looked up could import something
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _text_of(error: Exception) -> str | None:
    """An exception as text; None if its class fails at that."""
    try:
        return str(error)
    except Exception:
        return None


def _of_python(found: type[Exception]) -> type[Exception]:
    """The nearest base class that is built into Python."""
    return next(above for above in found.__mro__ if above.__module__ == "builtins")


def _make_exception(found: type[Exception], arguments: list[Any]) -> Exception:
    """An exception of this class with these arguments; no code of the user's makes it, which may do more than that."""
    error = _of_python(found).__new__(found, *arguments)
    error.args = tuple(arguments)
    return error
