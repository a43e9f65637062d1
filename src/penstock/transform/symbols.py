"""Symbolic columns: what a preprocessing function computes with while it is traced.

NumPy's functions and operators on them are noted in a graph, and computed later for every block of rows.
"""

import json
import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from penstock.data.arguments import user_site
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.transform.constants import plain_array
from penstock.transform.graph import Graph, GraphNode
from penstock.transform.operations import NUMPY_FUNCTIONS, UFUNCS


class Recorder:
    """Notes operations; one that was noted before is not noted again."""

    def __init__(self) -> None:
        self._nodes: list[GraphNode] = []
        self._known: dict[str, int] = {}
        self._with_rows: set[int] = set()
        self._ended = False

    def add(self, operation: str, inputs: list[Any], arguments: dict[str, Any]) -> "Column":
        """The column that this operation gives; inputs that are no columns become constants.

        Raises:
            InvalidArgumentError: the preprocessing function has returned, or it is a column of another call of it.
        """
        if self._ended:
            raise InvalidArgumentError(f"{user_site()}: a column of another call of a preprocessing function")
        numbers = tuple(self.column(entry)._number for entry in inputs)
        key = json.dumps([operation, numbers, arguments], sort_keys=True)
        if key not in self._known:
            self._known[key] = len(self._nodes)
            if operation == "input" or (not operation.startswith("analyze.") and self._with_rows.intersection(numbers)):
                self._with_rows.add(len(self._nodes))
            self._nodes.append(GraphNode(operation, numbers, arguments, user_site()))
        return Column(self, self._known[key])

    def column(self, entry: Any) -> "Column":
        """The column, or that of a constant."""
        if isinstance(entry, Column):
            if entry._recorder is not self:
                raise InvalidArgumentError(f"{user_site()}: a column of another call of a preprocessing function")
            return entry
        return self.add("constant", [], constant(entry))

    def node(self, column: "Column") -> GraphNode:
        """The operation that gives a column."""
        return self._nodes[column._number]

    def has_rows(self, column: "Column") -> bool:
        """Return whether a column has a value for each row; otherwise it was learned from all, or is constant."""
        return column._number in self._with_rows

    def graph(self, outputs: Mapping[str, "Column"]) -> Graph:
        """Everything that was noted; nothing more is."""
        self._ended = True
        return Graph(tuple(self._nodes), {name: column._number for name, column in outputs.items()})


def constant(value: Any) -> dict[str, Any]:
    """A number, a string or an array as plain data.

    Raises:
        InvalidTypeError: anything else.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, (bool, int, str)):
        return {"value": value}
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, (list, tuple, np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            return plain_array(array)
        if array.dtype.kind in "US" and array.ndim == 1:
            return {"texts": array.astype(str).tolist()}
    raise InvalidTypeError(
        f"{user_site()}: expected a column, a number, a string or an array in a preprocessing function, "
        f"got {value!r:.100}"
    )


class Column(np.lib.mixins.NDArrayOperatorsMixin):
    """A column of a preprocessing function, or a value learned from all of its rows."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder = recorder
        self._number = number

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> "Column":
        if method != "__call__" or ufunc.__name__ not in UFUNCS or kwargs:
            given = f" with {', '.join(kwargs)}" if kwargs else "" if method == "__call__" else f".{method}"
            _refuse(f"np.{ufunc.__name__}{given}")
        return self._recorder.add(f"numpy.{ufunc.__name__}", list(inputs), {})

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> "Column":
        name = function.__name__
        if name not in NUMPY_FUNCTIONS:
            _refuse(f"np.{name}")
        inputs, arguments = NUMPY_FUNCTIONS[name].split(name, args, kwargs)
        return self._recorder.add(f"numpy.{name}", inputs, arguments)

    def __getitem__(self, index: Any) -> "Column":
        entries = index if isinstance(index, tuple) else (index,)
        whole = entries and (entries[0] is Ellipsis or entries[0] == slice(None))
        if not whole or not all(entry is None or entry is Ellipsis or _is_plain(entry) for entry in entries):
            raise InvalidArgumentError(
                f"{user_site()}: a column of all rows takes indices such as [:, 0] or [:, None], whose first is ':', "
                f"got {index!r}: choose rows by dataset.filter"
            )
        return self._recorder.add("index", [self], {"index": [_plain_index(entry) for entry in entries]})

    def astype(self, dtype: Any) -> "Column":
        """The same numbers in another dtype."""
        return self._recorder.add("cast", [self], {"dtype": np.dtype(dtype).str})

    def __bool__(self) -> NoReturn:
        raise InvalidTypeError(
            f"{user_site()}: a column has no single truth value: a preprocessing function is traced once, for all "
            "rows. Use np.where(condition, then, otherwise), np.logical_and, np.logical_or and np.logical_not in "
            "place of if, and, or and not"
        )

    def _no_values(self, *_: Any) -> NoReturn:
        raise InvalidTypeError(
            f"{user_site()}: the values of a column are not known while the preprocessing function is traced: use "
            "NumPy's functions and those of ps.transform, or ps.transform.call for a function of your own"
        )

    __float__ = __int__ = __index__ = __len__ = __iter__ = __array__ = __contains__ = _no_values
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise InvalidTypeError(
            f"{user_site()}: a column has no .{name}: while a preprocessing function is traced it has only operators "
            "and astype; use NumPy's functions and those of ps.transform"
        )

    def __repr__(self) -> str:
        return f"<column {self._number}: {self._recorder.node(self).operation}>"


class Columns(dict[str, Any]):
    """The columns of a dataset, by name."""

    def __missing__(self, name: str) -> NoReturn:
        raise InvalidArgumentError(
            f"{user_site()}: there is no column {name!r}; the dataset has {', '.join(map(repr, self))}"
        )


def trace(shapes: Mapping[str, tuple[int | None, ...]], function: Callable[[Any], Any]) -> Graph:
    """The graph of a preprocessing function of columns whose rows have these shapes.

    Raises:
        InvalidTypeError: it computes with columns in a way that cannot be noted, or does not return columns by name.
        InvalidArgumentError: it asks for a column that the dataset does not have.
    """
    recorder = Recorder()
    columns = Columns(
        {name: recorder.add("input", [], {"name": name, "shape": list(shape)}) for name, shape in shapes.items()}
    )
    outputs = function(columns)
    if not isinstance(outputs, Mapping) or not outputs:
        raise InvalidTypeError(
            f"{_site(function)}: preprocessing_fn must return a dictionary of columns, got {outputs!r:.100}: "
            "return {'name': column, ...}"
        )
    for name, column in outputs.items():
        if not isinstance(name, str) or not isinstance(column, Column):
            raise InvalidTypeError(
                f"{_site(function)}: preprocessing_fn must return columns by name, got {column!r:.100} for {name!r}: "
                "add it to a column, as in 0 * column + value"
            )
        recorder.column(column)
    graph = recorder.graph(outputs)
    _check_files(graph)
    for name, column in outputs.items():
        if not recorder.has_rows(column):
            raise InvalidTypeError(
                f"{recorder.node(column).site}: preprocessing_fn returns {name!r}, which has no rows, because it was "
                "learned from all of them: combine it with a column"
            )
    return graph


def _site(function: Callable[..., Any]) -> str:
    """Return where a function is defined: "file.py:12"; its name if it has no lines."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def _check_files(graph: Graph) -> None:
    """Refuse two vocabularies in one file."""
    sites: dict[str, str] = {}
    for node in graph.nodes:
        if (file := node.arguments.get("vocab_filename")) is not None:
            if file in sites:
                raise InvalidArgumentError(
                    f"{node.site}: vocab_filename={file!r} names another vocabulary already, of {sites[file]}: "
                    "give each its own name"
                )
            sites[file] = node.site


def _refuse(name: str) -> NoReturn:
    raise InvalidTypeError(
        f"{user_site()}: {name} cannot be used on a column of a preprocessing function: a transform is saved as a "
        "closed set of operations. ps.transform.call(function, ...) uses a function of a module of yours"
    )


def _is_plain(entry: Any) -> bool:
    if isinstance(entry, slice):
        return all(part is None or isinstance(part, int) for part in (entry.start, entry.stop, entry.step))
    return isinstance(entry, int) and not isinstance(entry, bool)


def _plain_index(entry: Any) -> Any:
    if entry is Ellipsis:
        return "..."
    if isinstance(entry, slice):
        return {"slice": [entry.start, entry.stop, entry.step]}
    return None if entry is None else operator.index(entry)
