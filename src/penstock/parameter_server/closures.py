"""Functions, arguments and results as bytes, between processes that one program has started for itself."""

import pickle
import sys
from typing import Any

import cloudpickle
import numpy as np

from penstock.errors import InvalidTypeError, WorkerError


def dumps(what: str, value: Any) -> bytes:
    """A function or its arguments as bytes; functions of the main program travel as code.

    Raises:
        InvalidTypeError: something in it exists in this process only.
    """
    try:
        content: bytes = cloudpickle.dumps(value, protocol=5)
    except InvalidTypeError:
        raise
    except Exception as error:
        raise InvalidTypeError(
            f"{what} cannot be sent to another process: {type(error).__name__}: {error}; "
            "make what is to blame where it is used, inside the function"
        ) from error
    return content


def loads(content: bytes) -> Any:
    """What `dumps` wrote."""
    return pickle.loads(content)


def result_bytes(value: Any) -> bytes:
    """What a closure has returned; arrays of JAX as NumPy's.

    Raises:
        InvalidTypeError: something in it cannot leave the worker.
    """
    jax = sys.modules.get("jax")
    if jax is not None:
        value = jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, value)
    return dumps("what the function has returned", value)


def error_bytes(error: BaseException, trace: str) -> bytes:
    """An exception of a closure, with where it was raised as a note."""
    error.add_note(f"raised on a worker:\n{trace}")
    try:
        content: bytes = cloudpickle.dumps(error, protocol=5)
        pickle.loads(content)  # some exceptions can be written and not read
    except Exception:
        replaced = WorkerError(f"the function raised {type(error).__name__}: {error}")
        replaced.add_note(f"raised on a worker:\n{trace}")
        content = cloudpickle.dumps(replaced, protocol=5)
    return content
