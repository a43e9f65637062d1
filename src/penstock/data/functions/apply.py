"""A user's function applied to the rows of a block, each result written straight into its slot of the output block."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from types import GeneratorType
from typing import Any, Protocol

import numpy as np

from penstock.data.block import Block, Column, column_of, object_column, own
from penstock.data.functions.promise import Promise
from penstock.data.node import Node, Run
from penstock.errors import ElementError, InvalidTypeError
from penstock.runtime.channel import Closed
from penstock.runtime.memory import empty
from penstock.runtime.threads import failures
from penstock.spec import TensorSpec, alike, as_leaf, spec_of_leaf
from penstock.structure import LEAF, Structure, flatten

_SLOW_SECONDS = 1e-4
"""From here on asking after every call whether its result is still wanted costs nothing that could be measured."""


class Results(Protocol):
    """Gives the results of rows start to stop, one by one; some write them to their rows of an output block."""

    def __call__(self, start: int, stop: int, output: "OutputBlock | None" = None) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Failure:
    """The row at which a function raised, and what."""

    row: int
    error: BaseException


@dataclass(frozen=True)
class Layout:
    """What every result of one function must look like: its structure, and the dtype of each leaf.

    The shapes are those of the result it was taken from; others may differ.
    """

    structure: Structure
    dtypes: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...] = field(compare=False)

    @staticmethod
    def of(value: Any) -> "Layout":
        """The layout of one result."""
        leaves, structure = flatten(value)
        if value is None:
            raise InvalidTypeError("the function returned None: does it lack a `return`?")
        if any(isinstance(leaf, GeneratorType) for leaf in leaves):
            raise InvalidTypeError(
                "the function returned a generator, which can be read once only: return a list or an array, or use "
                "flat_map with ps.Dataset.from_generator"
            )
        leaves = [as_leaf(leaf) for leaf in leaves]
        shapes = tuple(leaf.shape if isinstance(leaf, (np.ndarray, np.generic)) else () for leaf in leaves)
        return Layout(structure, tuple(map(_dtype, leaves)), shapes)

    @staticmethod
    def promised(promise: Promise | None) -> "Layout | None":
        """The layout of results whose shapes and dtypes were promised; None where some are not known."""
        if promise is None:
            return None
        shapes, dtypes = [], []
        for spec in promise.leaves:
            if not isinstance(spec, TensorSpec) or spec.assumed or spec.dtype.kind not in "biufc" or None in spec.shape:
                return None
            shapes.append(tuple(length for length in spec.shape if length is not None))
            dtypes.append(spec.dtype)
        return Layout(promise.structure, tuple(dtypes), tuple(shapes))

    def check(self, other: "Layout") -> None:
        """Raise an ElementError if the other layout differs from this one, but for the width of fixed-width strings."""
        if self == other:
            return
        same = self.structure == other.structure and all(
            alike(a, b) for a, b in zip(self.dtypes, other.dtypes, strict=True)
        )
        if not same:
            raise ElementError(
                f"the function returned {other} after it had returned {self}; return one kind of element "
                "(object stands for strings, bytes and other Python objects)"
            )

    def __str__(self) -> str:
        return self.structure.shown([str(dtype) for dtype in self.dtypes])


def _dtype(leaf: Any) -> np.dtype[Any]:
    return leaf.dtype if isinstance(leaf, (np.ndarray, np.generic)) else np.dtype(object)


def call_rows(function: Callable[..., Any], block: Block) -> Iterator[Any]:
    """The function's result for each row; tuple elements are unpacked into its arguments."""
    if block.structure.kind == "leaf":
        return map(function, block.columns[0])
    if block.structure.is_flat_tuple and block.columns:
        return map(function, *block.columns)
    if block.structure.kind == "tuple":
        return (function(*row) for row in block.rows())
    return map(function, block.rows())


def checked_rows(function: Callable[..., Any], block: Block) -> Iterator[Any]:
    """As `call_rows`, but a StopIteration that the function raises is an error: it would end a loop in silence."""
    count = 0
    for value in call_rows(function, block):
        yield value
        count += 1
    if count < len(block):
        _result(iter(()))


def call_rows_in_place(function: Any, block: Block, output: "OutputBlock", start: int) -> Iterator[Any]:
    """As `call_rows`, of a function that has a method `_call_in_place`.

    Its first argument is a `Place`: memory in the result's row of the output block, where it may write the result and
    return what it got. Only a function that keeps no reference to its result has such a method.
    """
    call = getattr(function, "_call_in_place")  # noqa: B009  # a protocol for penstock's own, as `_map_block` is
    unpack = block.structure.kind == "tuple"
    for number, row in enumerate(block.rows(), start):
        place = partial(output.place, number)
        yield call(place, *row) if unpack else call(place, row)


def call_rows_with_randomness(
    function: Callable[..., Any], block: Block, generators: Iterable[np.random.Generator]
) -> Iterator[Any]:
    """As `call_rows`, with the generator of each row as the last argument."""
    unpack = block.structure.kind == "tuple"
    for generator, row in zip(generators, block.rows(), strict=True):
        yield function(*row, generator) if unpack else function(row, generator)


def integer_key(function: str, key: Any) -> int:
    """What a function of keys returned, which must be an integer."""
    if isinstance(key, (int, np.integer)) or getattr(key, "shape", None) == ():
        return int(key)
    raise InvalidTypeError(f"{function} must return an integer, got {key!r}")


def note(error: BaseException, node: Node, element: object) -> None:
    """Say in an exception of the user's function where it happened."""
    error.add_note(f"penstock: in {node.where()}, element {element}")


def map_rows(
    run: Run,
    node: Node,
    results: Results,
    rows: int,
    promise: Promise | None = None,
) -> tuple[Block | None, Failure | None]:
    """The block of `results(0, rows)`, up to the first row that fails.

    Args:
        results: gives those of rows start to stop, one by one.
        promise: what the results are said to be; a row that is not so fails.
    """
    return as_promised(*_mapped(run, node, results, rows, promise), promise)


def as_promised(
    block: Block | None, failure: Failure | None, promise: Promise | None
) -> tuple[Block | None, Failure | None]:
    """A block of results, up to the first row that is not as promised."""
    broken = promise.broken_at(block) if promise is not None and block is not None else None
    if block is None or broken is None:
        return block, failure
    row, error = broken
    return (block.slice(0, row) if row else None), Failure(row, error)


def _mapped(
    run: Run, node: Node, results: Results, rows: int, promise: Promise | None
) -> tuple[Block | None, Failure | None]:
    if run.threads.stopped:
        return None, Failure(0, Closed())
    begun = perf_counter()
    try:
        first = _result(results(0, 1))
        value = first if promise is None else promise.kept(first)
        found = Layout.of(value)
        layout = run.agreed(node, found)
        layout.check(found)
    except failures() as error:
        return None, Failure(0, error)
    if perf_counter() - begun > _SLOW_SECONDS:
        results = until_stopped(run, results)
    if layout.structure == LEAF and not isinstance(value, np.ndarray):
        return _map_scalars(results, rows, first, layout, promise)
    output = OutputBlock(found, rows, promise)
    output.put(0, value)
    return output.finished(output.fill(results, 1, rows), rows)


def until_stopped(run: Run, results: Results) -> Results:
    """`results` that end when the iteration is closed: slow calls for a whole batch would keep its threads alive."""

    def guarded(start: int, stop: int, output: OutputBlock | None = None) -> Iterator[Any]:
        if run.threads.stopped:
            raise Closed
        for value in results(start, stop, output):
            yield value
            if run.threads.stopped:
                raise Closed

    return guarded


def _result(results: Iterator[Any]) -> Any:
    for value in results:
        return value
    raise InvalidTypeError("the function raised StopIteration: return a value for each element")


def _map_scalars(
    results: Results, rows: int, first: Any, layout: Layout, promise: Promise | None
) -> tuple[Block, Failure | None]:
    """One leaf per row and no axes: results are collected as Python objects and converted together."""
    values: list[Any] = [first]
    failure = None
    try:
        values.extend(results(1, rows))  # keeps what came before an exception
        if len(values) < rows:
            _result(iter(()))
    except failures() as error:
        failure = Failure(len(values), error)
    if set(map(type, values)) == {type(first)} and (promise is None or _becomes(first, layout.dtypes[0])):
        with suppress(FloatingPointError, OverflowError):  # which row it was is found below
            return Block((_column_of_scalars(values, layout.dtypes[0]),), LEAF, len(values)), failure
    for row, value in enumerate(values):
        try:
            if promise is not None:
                value = values[row] = promise.fit_value(value)
                if Layout.of(value) != layout:
                    promise.kept(value)
            layout.check(Layout.of(value))
        except failures() as error:
            return Block((column_of([as_leaf(v) for v in values[:row]]),), LEAF, row), Failure(row, error)
    return Block((_column_of_scalars(values, layout.dtypes[0]),), LEAF, len(values)), failure


def _becomes(value: Any, dtype: np.dtype[Any]) -> bool:
    """Whether values of this one's type become the dtype together as they do one by one."""
    if type(value) is int:
        return dtype.kind == "f" or dtype == np.int64
    return dtype.kind == "f" if type(value) is float else _dtype(as_leaf(value)) == dtype


def _column_of_scalars(values: list[Any], dtype: np.dtype[Any]) -> Column:
    if dtype.kind in "biufc":
        try:
            with np.errstate(over="raise"):
                return np.fromiter(values, dtype, len(values))
        except (TypeError, ValueError):  # some of them are arrays
            return column_of([as_leaf(value) for value in values])
    return column_of([as_leaf(value) for value in values])


class OutputBlock:
    """The output block of one call, allocated for results of a known layout; threads fill disjoint rows."""

    def __init__(self, layout: Layout, rows: int, promise: Promise | None) -> None:
        self._layout = layout
        self._promise = promise
        self._structure = layout.structure
        self._columns = [
            empty((rows, *shape), dtype) for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True)
        ]
        # Results of another shape than the layout's, by row: their columns become ragged in the end.
        self._odd: list[dict[int, Any]] = [{} for _ in self._columns]

    @property
    def nbytes(self) -> int:
        """How many bytes it holds."""
        return sum(column.nbytes for column in self._columns)

    def place(self, row: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Column | None:
        """Where an array of this row's result will stand; None where none of this shape and dtype is expected."""
        for column in self._columns:
            if column.shape[1:] == shape and column.dtype == dtype:
                place: Column = column[row]
                return place
        return None

    def put(self, row: int, value: Any) -> None:
        """Write one result. What stands in its place already is not moved by NumPy."""
        self._put(row, self._leaves(value))

    def fill(self, results: Results, start: int, stop: int) -> Failure | None:
        """Write rows start to stop; gives the failure at which it ended, if it did."""
        row = start
        try:
            if self._structure == LEAF:
                column = self._columns[0]
                shape, dtype = column.shape[1:], column.dtype
                odd = self._odd[0]
                for value in results(start, stop, self):
                    if type(value) is np.ndarray and value.dtype is dtype:
                        if value.shape == shape:
                            column[row] = value
                        else:
                            odd[row] = value.copy()
                    else:
                        self._put(row, self._leaves(value))
                    row += 1
            else:
                for value in results(start, stop, self):
                    self._put(row, self._leaves(value))
                    row += 1
            if row < stop:
                _result(iter(()))
        except failures() as error:
            return Failure(row, error)
        return None

    def _leaves(self, value: Any) -> list[Any]:
        leaves = self._structure.flatten_like(value)
        return [as_leaf(leaf) for leaf in leaves] if self._promise is None else self._promise.fit(leaves)

    def _put(self, row: int, leaves: list[Any]) -> None:
        for number, leaf in enumerate(leaves):
            column = self._columns[number]
            if not isinstance(leaf, (np.ndarray, np.generic)):
                if column.dtype != object:
                    self._refuse(number, leaf)
                column[row] = leaf
            elif leaf.dtype == column.dtype and leaf.shape == column.shape[1:]:
                column[row] = leaf
            elif alike(leaf.dtype, column.dtype):
                self._odd[number][row] = own(leaf)
            else:
                self._refuse(number, leaf)

    def _refuse(self, number: int, leaf: Any) -> None:
        if self._promise is not None:
            raise self._promise.broken_by(number, leaf)
        path = self._structure.paths()[number]
        raise ElementError(
            f"the function returned {spec_of_leaf(leaf)}{' at ' + path if path else ''} after it had returned "
            f"{self._layout.dtypes[number]}; return one kind of element"
        )

    def finished(self, failure: Failure | None, rows: int) -> tuple[Block | None, Failure | None]:
        """The block up to the failure, if there was one; None if nothing came before it."""
        done = rows if failure is None else failure.row
        return (self._block(done) if done else None), failure

    def _block(self, rows: int) -> Block:
        columns = [
            self._with_odd(column, odd, rows) if odd and rows else column[:rows]
            for column, odd in zip(self._columns, self._odd, strict=True)
        ]
        return Block(tuple(columns), self._structure, rows)

    @staticmethod
    def _with_odd(column: Column, odd: dict[int, Any], rows: int) -> Column:
        if len(odd) >= rows or column.dtype.kind in "US":  # they may agree among each other
            return column_of([odd[row] if row in odd else column[row] for row in range(rows)])
        return object_column([odd[row] if row in odd else column[row, ...] for row in range(rows)])
