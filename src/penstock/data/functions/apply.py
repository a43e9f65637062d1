"""Calls of a user's function for the rows of a block, and the block of its results."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from penstock.data.block import Block, own
from penstock.data.column_builder import ColumnBuilder, block_of_row
from penstock.data.layout import Layout
from penstock.data.node import Node, Run
from penstock.data.output_signature import OutputSignature
from penstock.data.skipped import MADE_OF
from penstock.data.streams.index_reading import Failure, Outcome
from penstock.errors import InvalidTypeError
from penstock.runtime.channel import Closed
from penstock.runtime.threads import Threads, failures
from penstock.spec import as_leaf
from penstock.structure import map_structure

_PIECE_SECONDS: Final = 0.01
"""The approximate time that calls run between checks whether their results are still wanted."""
_PIECE_ROWS: Final = 1024
"""This many collected results stay in the processor's cache."""

Results = Callable[[int, int], Iterator[Any]]
"""A function that yields the results of rows start to stop."""


def call_rows(
    function: Callable[..., Any], block: Block, generators: Iterable["np.random.Generator"] | None = None
) -> Iterator[Any]:
    """Yield the function's result for each row; tuple elements are unpacked into its arguments.

    Args:
        generators: the random generator of each row, which becomes the last argument.
    """
    if generators is not None:
        rows = zip(generators, block.rows(), strict=True)
        if block.structure.kind == "tuple":
            return (function(*row, generator) for generator, row in rows)
        return (function(row, generator) for generator, row in rows)
    if block.structure.kind == "leaf":
        return map(function, block.columns[0])
    if block.structure.is_flat_tuple and block.columns:
        return map(function, *block.columns)
    if block.structure.kind == "tuple":
        return (function(*row) for row in block.rows())
    return map(function, block.rows())


def no_result() -> InvalidTypeError:
    """Return the error for a function that raised StopIteration."""
    return InvalidTypeError("the function raised StopIteration: return a value for each element")


def checked_rows(function: Callable[..., Any], block: Block) -> Iterator[Any]:
    """Variant of `call_rows` that refuses a function which raises StopIteration: it would end a loop silently."""
    count = 0
    for value in call_rows(function, block):
        yield value
        count += 1
    if count < len(block):
        raise no_result()


def owned_leaves(value: Any) -> Any:
    """Return a value with copies of arrays that others could change, or that keep larger arrays alive."""
    return map_structure(lambda leaf: own(as_leaf(leaf)), value)


def note(error: BaseException, node: Node, element: object = None, source_row: str = "") -> None:
    """Add notes to an exception about where it was raised; one that is raised again has those of the last time."""
    where = f"penstock: in {node.where()}"
    notes = [where if element is None else f"{where}, element {element}"]
    if source_row:
        notes.append(f"{MADE_OF}{source_row}")
    if isinstance(error, ValueError) and "read-only" in str(error):
        notes.append("penstock: the source, or a cache, keeps this memory: write to a copy, as x = x.copy() makes one")
    before = getattr(error, "__notes__", [])
    again = (where, *notes)
    error.__notes__ = [one for one in before if one.partition(", element ")[0] not in again] + notes


def dataset_node(node: Node, call: Callable[[], Any], element: object) -> Node:
    """Return the node of the dataset that the user's function of `node` makes of an element or a window.

    Args:
        call: calls the function.
        element: the name of the element, for errors.

    Raises:
        InvalidTypeError: the function returned no dataset.
        Exception: the function's own, with a note that names `element`.
    """
    try:
        dataset = call()
    except failures() as error:
        note(error, node, element)
        raise
    made = getattr(dataset, "node", None)
    if not isinstance(made, Node):
        raise InvalidTypeError(
            f"{node.where()}: the function must return a ps.Dataset, got {dataset!r:.200}: make one by "
            "ps.Dataset.from_tensor_slices(...)"
        )
    return made


def map_row(
    run: Run, node: Node, function: Callable[..., Any], block: Block, signature: OutputSignature | None, position: int
) -> Outcome:
    """Return a block of the function's result for the only row of a block, or its failure."""
    if run.threads.stopped:
        return None, Failure(0, Closed())
    try:
        element = block.row(0)
        value = function(*element) if block.structure.kind == "tuple" else function(element)
        layout = run.known(node) or _agreed(run, node, value, signature, position)[1]
        return block_of_row(layout, value), None
    except StopIteration:
        return None, Failure(0, no_result())
    except failures() as error:
        return None, Failure(0, error)


def map_rows(
    run: Run, node: Node, results: Results, rows: int, signature: OutputSignature | None, position: int
) -> Outcome:
    """Return the block of `results(0, rows)`, up to the first row that fails.

    Args:
        results: yields the results of rows start to stop.
        signature: the declared kind of the results; a row of another kind fails.
        position: the position of the first row.
    """
    if run.threads.stopped:
        return None, Failure(0, Closed())
    try:
        made = list(results(0, 1))
        if not made:
            raise no_result()
        found, layout = _agreed(run, node, made[0], signature, position)
    except failures() as error:
        return None, Failure(0, error)
    if found.untold and rows > 1 and run.known(node) is None:
        with suppress(*failures()):  # `fill` meets it again, after the rows before it
            for value in results(1, rows):  # empty lists, up to a result that has the layout of all
                made.append(value)
                found, layout = _layouts(run, node, value, signature)
                if not found.untold:
                    break
    builder = ColumnBuilder(replace(found, structure=layout.structure), rows)
    failure = fill(run.threads, builder, results, rows, made)
    return builder.block(rows if failure is None else failure.row), failure


def _agreed(
    run: Run, node: Node, value: Any, signature: OutputSignature | None, position: int
) -> tuple[Layout, Layout]:
    """Return the layout of the result at `position`, and the common one, against which it is checked."""
    if signature is None and run.known(node) is None:
        run.settle(node, position)
    found, layout = _layouts(run, node, value, signature)
    layout.check(found)
    return found, layout


def _layouts(run: Run, node: Node, value: Any, signature: OutputSignature | None) -> tuple[Layout, Layout]:
    """Return the layout of a result and the common one, which a result of empty lists does not determine."""
    known = run.known(node)
    found = Layout.of(value, signature, like=known)
    return found, found if known is None and found.untold else run.agreed(node, found)


def fill(
    threads: Threads, builder: ColumnBuilder, results: Results, stop: int, first: Sequence[Any] = ()
) -> Failure | None:
    """Let a builder take results up to row `stop`; returns the failure at which it stopped, if any.

    Args:
        first: the results of the first of these rows, if they are known already.
    """
    failure: Failure | None = None
    piece = 1
    try:
        values = chain(first, results(builder.row + len(first), stop))
        while builder.row < stop:
            if threads.stopped:
                raise Closed
            until = min(builder.row + piece, stop)
            begun = time.perf_counter()
            builder.take(islice(values, until - builder.row))
            if builder.row < until:
                raise no_result()
            if builder.collected >= _PIECE_ROWS:
                refused = builder.settle()
                if refused is not None:
                    return Failure(builder.row, refused)
            piece = _next_piece(piece, time.perf_counter() - begun)
    except failures() as error:
        failure = Failure(builder.row, error)
    refused = builder.settle()
    return failure if refused is None else Failure(builder.row, refused)


def _next_piece(rows: int, seconds: float) -> int:
    """Return the number of rows of the next piece, after one of `rows` rows took `seconds`."""
    if seconds > _PIECE_SECONDS:
        return max(1, rows // 2)
    return min(_PIECE_ROWS, (8 if seconds < _PIECE_SECONDS / 8 else 2) * rows)
