"""NumPy's functions that a preprocessing function may use: a closed set, each computed for a block of rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.data.arguments import user_site
from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError, PenstockError
from penstock.preprocessing.tokens import TEXT
from penstock.transform.columns import Ragged, as_ragged, flat, in_rows_of, is_text

UFUNCS = frozenset(
    value.__name__
    for value in vars(np).values()
    if isinstance(value, np.ufunc) and value.nout == 1 and (value.signature is None or value is np.matmul)
)
"""The names of those that compute one array from arrays, number by number, and of the product of matrices."""


@dataclass(frozen=True)
class NumpyFunction:
    """A function of NumPy, its arguments divided into columns and plain data.

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
            raise InvalidTypeError(f"{user_site()}: np.{name} of columns: {error}") from error
        bound.apply_defaults()
        arguments = {plain: bound.arguments[plain] for plain, _ in self.plain}
        if self.along and (not isinstance(arguments["axis"], int) or arguments["axis"] == 0):
            raise InvalidArgumentError(
                f"{user_site()}: np.{name} of a column takes an axis of its elements, such as axis=-1, got "
                f"axis={arguments['axis']!r}: {along_rows(name)}"
            )
        inputs = [bound.arguments[column] for column in self.columns]
        return list(inputs[0]) if self.many else inputs, arguments


def along_rows(name: str) -> str:
    """Return what to do instead of computing along the rows."""
    if name in ("concatenate", "stack"):
        return "np.stack([...], axis=1) puts columns side by side, as for one vocabulary of several columns"
    return "over all rows use an analyzer, such as ps.transform.mean"


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


def numpy_operation(name: str, fixed: Sequence[bool]) -> Callable[..., Any]:
    """Return a function that computes a function or ufunc of NumPy on values.

    Args:
        name: that of NumPy's.
        fixed: of each input, whether it is the same for all rows.
    """
    if name in _OF_STRINGS_TOO:
        return partial(_OF_STRINGS_TOO[name], fixed)
    function: Callable[..., Any] = getattr(np, name)
    known = NUMPY_FUNCTIONS.get(name)
    if known is not None and known.many:
        return partial(_refused, name, partial(_joined, name, function, fixed))

    def compute(*values: Any, **arguments: Any) -> Any:
        if known is not None and known.along:
            _check_axis(name, values[0], arguments["axis"], name == "expand_dims")
        if name == "matmul":
            _check_matrices(values, fixed)
        elif name not in ("digitize", "interp"):
            return elementwise(name, lambda *parts: function(*parts, **arguments), *values, fixed=fixed)
        elif not all(fixed[1:]):
            raise InvalidTypeError(f"np.{name} takes boundaries that are the same for all rows, got a column")
        return elementwise(name, lambda part: function(part, *values[1:], **arguments), values[0])

    return partial(_refused, name, compute)


def _refused(name: str, function: Callable[..., Any], *values: Any, **arguments: Any) -> Any:
    """Return what a function returns; an exception of NumPy becomes an error of the elements."""
    try:
        return function(*values, **arguments)
    except PenstockError:
        raise
    except (IndexError, TypeError, ValueError) as error:
        raise ElementError(f"np.{name}: {error}") from error


def _check_axis(name: str, value: Any, axis: int, new: bool) -> None:
    """Refuse the axis of the rows, which a negative number may name."""
    if isinstance(value, Ragged):
        raise InvalidTypeError(f"np.{name}(axis={axis}) takes rows of one length, got ragged rows")
    if isinstance(value, np.ndarray) and axis + (value.ndim + new if axis < 0 else 0) < 1:
        raise InvalidArgumentError(
            f"np.{name}(axis={axis}) of a column whose elements have shape {value.shape[1:]} would be along its rows: "
            + along_rows(name)
        )


def _check_matrices(values: Sequence[Any], fixed: Sequence[bool]) -> None:
    """Refuse a product over the rows of a block."""
    shapes = [np.shape(value)[not own :] for value, own in zip(values, fixed, strict=True)]
    dims = [np.ndim(value) for value in values]
    if fixed[0] or dims[0] < 2 or (dims[1] > 2 if fixed[1] else not dims[0] == dims[1] > 2):
        raise ElementError(
            f"matmul takes rows of vectors or matrices and one matrix, or rows of matrices twice, got shapes {shapes}"
        )


def _joined(name: str, function: Callable[..., Any], fixed: Sequence[bool], *values: Any, **arguments: Any) -> Any:
    """Columns of numbers, or of strings, side by side."""
    if any(fixed):
        raise InvalidTypeError(f"np.{name} takes columns, got a value that is the same for all rows: add it to 0 * x")
    texts = [is_text(flat(value)) for value in values]
    if any(texts) and not all(texts):
        raise InvalidTypeError(f"np.{name} takes numbers alone or strings alone, got both")
    if any(isinstance(value, Ragged) and value.shape is None for value in values):
        return _joined_rows(name, values, arguments.get("axis"))
    arrays = list(values)
    if any(texts):  # their places are joined
        starts = np.cumsum([0, *(len(flat(value)) for value in values)])
        arrays = [in_rows_of(value, start + np.arange(len(flat(value)))) for value, start in zip(values, starts)]
    if "axis" in arguments:
        _check_axis(name, arrays[0], arguments["axis"], name == "stack")
    found = function(arrays, **arguments)
    if not any(texts):
        return found
    joined = pa.concat_arrays([flat(value) for value in values]).take(pa.array(found.reshape(-1)))
    return Ragged(joined, np.full(len(found), int(np.prod(found.shape[1:])), np.int64), found.shape[1:])


def _joined_rows(name: str, values: Sequence[Any], axis: Any) -> Ragged:
    """Rows of which some are ragged, one behind the other."""
    if name != "concatenate" or axis not in (1, -1) or any(np.ndim(value) not in (0, 2) for value in values):
        raise InvalidTypeError(f"np.{name} takes rows of one length, got ragged rows: np.concatenate joins lists")
    rows = list(map(as_ragged, values))
    order = np.argsort(np.concatenate([row.rows for row in rows]), kind="stable")
    lengths = np.sum([row.lengths for row in rows], axis=0)
    parts = [row.values for row in rows]
    if is_text(parts[0]):
        return Ragged(pa.concat_arrays(parts).take(pa.array(order)), lengths)
    return Ragged(np.concatenate(parts)[order], lengths)


def elementwise(name: str, function: Callable[..., Any], *values: Any, fixed: Sequence[bool] | None = None) -> Any:
    """The results of a function on values of equal rows; a value for each row counts for all values of a ragged one.

    Args:
        name: of the computation, for errors.
        function: of arrays.
        values: numbers and columns of them.
        fixed: as in `numpy_operation`; None where the values are known to fit.

    Raises:
        ElementError: ragged columns whose rows differ in length, or elements of shapes that do not fit.
        InvalidTypeError: strings.
    """
    for value in values:
        if is_text(value) or isinstance(value, str) or (isinstance(value, Ragged) and is_text(value.values)):
            raise InvalidTypeError(f"{name} takes numbers, got strings")
    column, parts = aligned(name, *values, fixed=fixed)
    result = function(*parts)
    return result if column is None else in_rows_of(column, result)


def aligned(name: str, *values: Any, fixed: Sequence[bool] | None = None) -> tuple[Ragged | None, tuple[Any, ...]]:
    """The first ragged column, if there is one, and what all values have for each of its values.

    Raises:
        ElementError: columns, and arrays that are the same for all rows, whose shapes have nothing to do with each
            other. They may agree by chance in a block of that number of rows.
    """
    own = fixed or [False] * len(values)
    ragged = next((value for value in values if isinstance(value, Ragged)), None)
    if ragged is not None:
        values = tuple(value if same else _along(name, ragged, value) for value, same in zip(values, own, strict=True))
    if fixed is not None:
        shapes = [(len(value),) if is_text(value) else np.shape(value) for value in values]
        dims = {len(shape) for shape, same in zip(shapes, own) if not same}
        most = max(dims, default=0)
        bare = [shape for shape, same in zip(shapes, own) if same and len(shape) >= most > 0]
        if len(dims) > 1 or any(len(shape) > most or shape[0] > 1 for shape in bare):
            shapes = [shape if same else shape[1:] for shape, same in zip(shapes, own)]
            raise ElementError(
                f"{name}: elements of shapes {shapes} do not fit together: give a number for each element more axes, "
                "as in x[:, None] * vector"
            )
    return ragged, values


def spread(call: str, column: Any, *others: Any) -> tuple[Any, ...]:
    """The values of a column one after the other, and what others have for each: one of the row, or each its own.

    Raises:
        ElementError: another number of values.
    """
    ragged = as_ragged(column)
    return ragged.values, *(flat(_along(call, ragged, other)) for other in others)


def _along(name: str, ragged: Ragged, value: Any) -> Any:
    """Return what a column has for each value of another one."""
    rows = len(ragged.lengths)
    if isinstance(value, Ragged):
        if np.array_equal(value.lengths, ragged.lengths):
            return value.values
        if value.shape != (1,):
            raise ElementError(f"{name}: the rows of its ragged columns must be of equal lengths")
        value = value.values
    if is_text(value):
        return value.take(pa.array(ragged.rows)) if len(value) == rows else value
    if not isinstance(value, np.ndarray) or not value.ndim or len(value) != rows:
        return value
    if value.size == rows:
        return np.repeat(value.reshape(rows), ragged.lengths)
    if value.ndim == 2 and ragged.shape is None and (ragged.lengths == value.shape[1]).all():
        return value.reshape(-1)
    if value.shape[1:] == ragged.shape:
        return value.reshape(-1)
    raise ElementError(f"{name}: a value for each row, or for each of its values, got elements of {value.shape[1:]}")


def text_scalar(value: Any) -> Any:
    """A string as Arrow's; anything else as it is."""
    return pa.scalar(value.encode("utf-8", "surrogateescape"), TEXT) if isinstance(value, str) else value


def _equal(fixed: Sequence[bool], one: Any, other: Any) -> Any:
    column, parts = aligned("==", one, other, fixed=fixed)
    if any(is_text(part) or isinstance(part, str) for part in parts):
        result = pc.equal(*map(text_scalar, parts)).to_numpy(zero_copy_only=False)
    else:
        result = np.equal(*parts)
    return result if column is None else in_rows_of(column, result)


def _not_equal(fixed: Sequence[bool], one: Any, other: Any) -> Any:
    result = _equal(fixed, one, other)
    return in_rows_of(result, ~flat(result))


def _where(fixed: Sequence[bool], condition: Any, then: Any, otherwise: Any) -> Any:
    column, parts = aligned("np.where", condition, then, otherwise, fixed=fixed)
    if any(is_text(part) or isinstance(part, str) for part in parts[1:]):
        if not all(is_text(part) or isinstance(part, str) for part in parts[1:]):
            raise InvalidTypeError("np.where: expected strings in both places, or numbers in both")
        result = pc.if_else(pa.array(np.asarray(parts[0], bool)), *map(text_scalar, parts[1:]))
    else:
        result = np.where(*parts)
    return result if column is None else in_rows_of(column, result)


def _is_in(fixed: Sequence[bool], column: Any, chosen: Any) -> Any:
    values = flat(column)
    if is_text(values):
        result = pc.is_in(values, value_set=chosen).to_numpy(zero_copy_only=False)
    else:
        result = np.isin(values, chosen)
    return in_rows_of(column, result)


_OF_STRINGS_TOO: dict[str, Callable[..., Any]] = {
    "equal": _equal,
    "not_equal": _not_equal,
    "where": _where,
    "isin": _is_in,
}
