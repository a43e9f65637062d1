"""A user's function applied to the rows of a block, each result written straight into its slot of the output block."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.data.block import Block, owned
from penstock.data.functions.layout import Layout
from penstock.data.functions.output import Failure, OutputBlock, Results, first_result, no_result
from penstock.data.functions.output_signature import Promise
from penstock.data.functions.taking import fill
from penstock.data.node import Node, Run
from penstock.errors import ElementError, InvalidTypeError
from penstock.runtime.channel import Closed
from penstock.runtime.threads import failures
from penstock.spec import as_leaf


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
        first_result(iter(()))


def call_rows_with_randomness(
    function: Callable[..., Any], block: Block, generators: Iterable["np.random.Generator"]
) -> Iterator[Any]:
    """As `call_rows`, with the generator of each row as the last argument."""
    unpack = block.structure.kind == "tuple"
    for generator, row in zip(generators, block.rows(), strict=True):
        yield function(*row, generator) if unpack else function(row, generator)


def note(error: BaseException, node: Node, element: object = None) -> None:
    """Say in an exception where it was raised: one that is kept and raised again says where that was last."""
    where = f"penstock: in {node.where()}"
    notes = [where if element is None else f"{where}, element {element}"]
    if isinstance(error, ValueError) and "read-only" in str(error):
        notes.append("penstock: the source, or a cache, keeps this memory: write to a copy, as x = x.copy() makes one")
    before = getattr(error, "__notes__", [])
    error.__notes__ = [one for one in before if one.partition(", element ")[0] not in (where, *notes)] + notes


def dataset_node(node: Node, call: Callable[[], Any], element: object) -> Node:
    """The node of the dataset that the user's function of `node` returns; `call` calls it for an element or a window.

    Raises:
        InvalidTypeError: it returned something else.
        Exception: what it raised, with a note that names `element`.
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
    run: Run, node: Node, function: Callable[..., Any], block: Block, promise: Promise | None, position: int
) -> tuple[Block | None, Failure | None]:
    """The block of the function's result for the only row of a block, or its failure."""
    if run.threads.stopped:
        return None, Failure(0, Closed())
    try:
        element = block.row(0)
        value = function(*element) if block.structure.kind == "tuple" else function(element)
    except StopIteration:
        return None, Failure(0, no_result())
    except failures() as error:
        return None, Failure(0, error)
    layout = None if promise is not None else run.known(node)
    leaves = None if layout is None else _leaves_like(layout, value)
    if layout is not None and leaves is not None:
        leaves = owned(value, leaves, flat=layout.structure.is_flat)
        return Block.of_row(leaves, layout.structure), None

    def results(start: int, stop: int) -> Iterator[Any]:
        yield value

    return map_rows(run, node, results, 1, promise, position)


def _leaves_like(layout: Layout, value: Any) -> list[Any] | None:
    """The leaves of a result, if they are numbers of the dtypes that are known; None of any other."""
    try:
        leaves = list(map(as_leaf, layout.structure.flatten_like(value)))
    except ElementError:
        return None
    for leaf, dtype in zip(leaves, layout.dtypes, strict=True):
        if dtype.kind not in "biufc" or getattr(leaf, "dtype", None) is not dtype:
            return None
    return leaves


def map_rows(
    run: Run,
    node: Node,
    results: Results,
    rows: int,
    promise: Promise | None,
    position: int,
) -> tuple[Block | None, Failure | None]:
    """The block of `results(0, rows)`, up to the first row that fails.

    Args:
        results: gives those of rows start to stop, one by one.
        promise: what the results were promised to be; a row that is not as promised fails.
        position: that of the first row.
    """
    return as_promised(*_mapped(run, node, results, rows, promise, position), promise)


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
    run: Run, node: Node, results: Results, rows: int, promise: Promise | None, position: int
) -> tuple[Block | None, Failure | None]:
    if run.threads.stopped:
        return None, Failure(0, Closed())
    try:
        made = [first_result(results(0, 1))]
        if run.known(node) is None and promise is None:
            run.settle(node, position)
        found, layout = _layouts(run, node, made[0], promise)
        layout.check(found)
    except failures() as error:
        return None, Failure(0, error)
    if found.untold and rows > 1 and run.known(node) is None:
        with suppress(*failures()):  # `fill` meets it again, after the rows before it
            for value in results(1, rows):  # empty lists, up to a result that tells what all are like
                made.append(value)
                found, layout = _layouts(run, node, value, promise)
                if not found.untold:
                    break
    output = OutputBlock(run.threads, replace(found, structure=layout.structure), rows, promise)
    if rows > 1:
        return output.finished(fill(output, results, 0, rows, made), rows)
    output.put(0, made[0])
    return output.finished(None, rows)


def _layouts(run: Run, node: Node, value: Any, promise: Promise | None) -> tuple[Layout, Layout]:
    """The layout of a result, and the one that all must have, which one of empty lists alone does not tell."""
    known = run.known(node)
    found = Layout.of(value if promise is None else promise.kept(value), like=known)
    return found, found if known is None and found.untold else run.agreed(node, found)
