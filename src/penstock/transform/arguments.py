"""Arguments of the functions of `ps.transform`, checked at the call by what a function declares them to be."""

import inspect
import os
from collections.abc import Callable
from functools import wraps
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from penstock.data.arguments import user_site
from penstock.errors import InvalidTypeError
from penstock.transform.symbols import Column

Given = ParamSpec("Given")
Result = TypeVar("Result")

_COLUMNS = ("x", "key", "strings", "tokens", "input_tensor", "weights", "labels", "indices")
_DTYPES = ("dtype", "output_dtype")
_MOST = 1 << 62


def checked(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The function, which refuses arguments of another kind than it declares.

    Example:
        >>> import penstock as ps
        >>> ps.transform.analyze(ps.Dataset.range(3), None, 3, servce="here")
        Traceback (most recent call last):
        penstock.errors.InvalidTypeError: ...: analyze: got an unexpected keyword argument 'servce'
    """
    signature = inspect.signature(function)
    kinds = {
        name: get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        for name, hint in get_type_hints(function).items()
    }

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        name = function.__name__
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidTypeError(f"{user_site()}: {name}: {error}") from error
        for argument, value in given.items():
            default = signature.parameters[argument].default
            if value is not None or (default is not None and type(None) not in kinds[argument]):
                wanted = _misfit(argument, kinds[argument], value)
                if wanted:
                    raise InvalidTypeError(f"{user_site()}: {name}({argument}=...) takes {wanted}, got {value!r:.100}")
        return function(*args, **kwargs)

    return call


def _misfit(argument: str, kinds: tuple[Any, ...], value: Any) -> str:
    """Return in words what an argument takes, if it got something else."""
    if argument in _COLUMNS and Any in kinds:
        advice = "columns of a preprocessing function, in the function that ps.transform.analyze is given"
        return "" if isinstance(value, Column) else advice
    if argument in _DTYPES:
        return "" if _is_float(value) else "a dtype of floats"
    if bool in kinds:
        return "" if isinstance(value, (bool, np.bool_)) else "True or False"
    if float in kinds:
        return "" if _is_number(value, (int, float, np.integer, np.floating)) and abs(value) < _MOST else "a number"
    if int in kinds:
        return "" if _is_number(value, (int, np.integer)) and abs(value) < _MOST else "an integer"
    if str in kinds:
        fitting = tuple(get_origin(kind) or kind for kind in kinds)
        return "" if isinstance(value, fitting) else "a path" if os.PathLike in fitting else "a string"
    return ""


def _is_number(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_float(value: Any) -> bool:
    try:
        return value is not None and np.dtype(value).kind == "f"
    except TypeError:
        return False
