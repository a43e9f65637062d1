"""NumPy's functions that a preprocessing function may use: a closed set, each computed for a block of rows."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.preprocessing.tokens import TEXT
from penstock.transform.columns import Ragged, is_text
from penstock.transform.sites import user_line

UFUNCS = frozenset(
    (
        "absolute",
        "add",
        "arccos",
        "arccosh",
        "arcsin",
        "arcsinh",
        "arctan",
        "arctan2",
        "arctanh",
        "cbrt",
        "ceil",
        "copysign",
        "cos",
        "cosh",
        "deg2rad",
        "divide",
        "equal",
        "exp",
        "exp2",
        "expm1",
        "fabs",
        "float_power",
        "floor",
        "floor_divide",
        "fmax",
        "fmin",
        "fmod",
        "greater",
        "greater_equal",
        "heaviside",
        "hypot",
        "invert",
        "isfinite",
        "isinf",
        "isnan",
        "less",
        "less_equal",
        "log",
        "log10",
        "log1p",
        "log2",
        "logaddexp",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "matmul",
        "maximum",
        "minimum",
        "mod",
        "multiply",
        "negative",
        "not_equal",
        "positive",
        "power",
        "rad2deg",
        "reciprocal",
        "remainder",
        "rint",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "subtract",
        "tan",
        "tanh",
        "true_divide",
        "trunc",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "left_shift",
        "right_shift",
    )
)


@dataclass(frozen=True)
class NumpyFunction:
    """How the arguments of a function divide into columns and plain data.

    Attributes:
        columns: the names of the arguments that may be columns.
        plain: those that are plain data, with NumPy's defaults.
        many: whether the first argument is a list of columns.
        along: whether an axis must be given, which is not that of the rows.
    """

    columns: tuple[str, ...]
    plain: tuple[tuple[str, Any], ...] = ()
    many: bool = False
    along: bool = False

    def split(self, name: str, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """The columns and the plain arguments of a call.

        Raises:
            InvalidTypeError: an argument that has no meaning here.
            InvalidArgumentError: an axis that is missing, or that of the rows.
        """
        kind = Parameter.POSITIONAL_OR_KEYWORD
        parameters = [Parameter(column, kind) for column in self.columns]
        parameters += [Parameter(plain, kind, default=default) for plain, default in self.plain]
        try:
            bound = Signature(parameters).bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidTypeError(f"{user_line()}: np.{name} of columns: {error}") from error
        bound.apply_defaults()
        arguments = {plain: bound.arguments[plain] for plain, _ in self.plain}
        if self.along and (not isinstance(arguments["axis"], int) or arguments["axis"] == 0):
            raise InvalidArgumentError(
                f"{user_line()}: np.{name} of a column takes an axis of its elements, such as axis=-1, got "
                f"axis={arguments['axis']!r}: over all rows use an analyzer, such as ps.transform.mean"
            )
        inputs = [bound.arguments[column] for column in self.columns]
        return list(inputs[0]) if self.many else inputs, arguments


_REDUCED = NumpyFunction(("a",), (("axis", None), ("keepdims", False)), along=True)

NUMPY_FUNCTIONS = {
    **dict.fromkeys(
        ("sum", "mean", "max", "min", "amax", "amin", "prod", "std", "var", "median", "any", "all"), _REDUCED
    ),
    "argmax": NumpyFunction(("a",), (("axis", None),), along=True),
    "argmin": NumpyFunction(("a",), (("axis", None),), along=True),
    "cumsum": NumpyFunction(("a",), (("axis", None),), along=True),
    "clip": NumpyFunction(("a", "a_min", "a_max")),
    "column_stack": NumpyFunction(("tup",), many=True),
    "concatenate": NumpyFunction(("arrays",), (("axis", 0),), many=True, along=True),
    "digitize": NumpyFunction(("x", "bins"), (("right", False),)),
    "expand_dims": NumpyFunction(("a",), (("axis", None),), along=True),
    "full_like": NumpyFunction(("a", "fill_value")),
    "interp": NumpyFunction(("x", "xp", "fp")),
    "isin": NumpyFunction(("element", "test_elements")),
    "nan_to_num": NumpyFunction(("x",), (("copy", True), ("nan", 0.0), ("posinf", None), ("neginf", None))),
    "ones_like": NumpyFunction(("a",)),
    "round": NumpyFunction(("a",), (("decimals", 0),)),
    "squeeze": NumpyFunction(("a",), (("axis", None),), along=True),
    "stack": NumpyFunction(("arrays",), (("axis", 0),), many=True, along=True),
    "where": NumpyFunction(("condition", "x", "y")),
    "zeros_like": NumpyFunction(("a",)),
}

_LISTS = frozenset(name for name, function in NUMPY_FUNCTIONS.items() if function.many)


def numpy_operation(name: str) -> Callable[..., Any]:
    """What computes a function or ufunc of NumPy on values."""
    if name in ("equal", "not_equal", "where", "isin"):
        chosen: dict[str, Callable[..., Any]] = {
            "equal": _equal,
            "not_equal": _not_equal,
            "where": _where,
            "isin": _is_in,
        }
        return chosen[name]
    function: Callable[..., Any] = getattr(np, name)
    if name in _LISTS:
        return lambda *values, **arguments: function([_dense(name, value) for value in values], **arguments)

    def compute(*values: Any, **arguments: Any) -> Any:
        return elementwise(name, lambda *parts: function(*parts, **arguments), *values)

    return compute


def elementwise(name: str, function: Callable[..., Any], *values: Any) -> Any:
    """The results of a function on values of equal rows; a value for each row counts for all values of a ragged one.

    Raises:
        ElementError: ragged columns whose rows differ in length.
        InvalidTypeError: strings.
    """
    for value in values:
        if is_text(value) or isinstance(value, str) or (isinstance(value, Ragged) and is_text(value.values)):
            raise InvalidTypeError(f"{name} takes numbers, got strings")
    ragged, parts = aligned(name, *values)
    result = function(*parts)
    return result if ragged is None else ragged.with_values(result)


def aligned(name: str, *values: Any) -> tuple[Ragged | None, tuple[Any, ...]]:
    """The first ragged column, if there is one, and what all values have for each of its values."""
    ragged = next((value for value in values if isinstance(value, Ragged)), None)
    if ragged is None:
        return None, values
    return ragged, tuple(_along(name, ragged, value) for value in values)


def _along(name: str, ragged: Ragged, value: Any) -> Any:
    if isinstance(value, Ragged):
        if not np.array_equal(value.lengths, ragged.lengths):
            raise ElementError(f"{name}: the rows of its ragged columns must be of equal lengths")
        return value.values
    if is_text(value):
        return value.take(pa.array(ragged.rows)) if len(value) == len(ragged.lengths) else value
    if isinstance(value, np.ndarray) and value.ndim and len(value) == len(ragged.lengths):
        return np.repeat(value.reshape(len(value)), ragged.lengths)
    return value


def _dense(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    raise InvalidTypeError(
        f"np.{name} takes dense numbers, got {'ragged rows' if isinstance(value, Ragged) else 'strings'}"
    )


def text_scalar(value: Any) -> Any:
    """A string as Arrow's; anything else as it is."""
    return pa.scalar(value.encode("utf-8", "surrogateescape"), TEXT) if isinstance(value, str) else value


def _equal(one: Any, other: Any) -> Any:
    ragged, parts = aligned("==", one, other)
    if any(is_text(part) or isinstance(part, str) for part in parts):
        result = pc.equal(*map(text_scalar, parts)).to_numpy(zero_copy_only=False)
    else:
        result = np.equal(*parts)
    return result if ragged is None else ragged.with_values(result)


def _not_equal(one: Any, other: Any) -> Any:
    result = _equal(one, other)
    return result.with_values(~result.values) if isinstance(result, Ragged) else ~result


def _where(condition: Any, then: Any, otherwise: Any) -> Any:
    ragged, parts = aligned("np.where", condition, then, otherwise)
    if any(is_text(part) or isinstance(part, str) for part in parts[1:]):
        if not all(is_text(part) or isinstance(part, str) for part in parts[1:]):
            raise InvalidTypeError("np.where: expected strings in both places, or numbers in both")
        result = pc.if_else(pa.array(np.asarray(parts[0], bool)), *map(text_scalar, parts[1:]))
    else:
        result = np.where(*parts)
    return result if ragged is None else ragged.with_values(result)


def _is_in(column: Any, chosen: Any) -> Any:
    values = column.values if isinstance(column, Ragged) else column
    if is_text(values):
        result = pc.is_in(values, value_set=chosen).to_numpy(zero_copy_only=False)
    else:
        result = np.isin(values, chosen)
    return column.with_values(result) if isinstance(column, Ragged) else result
