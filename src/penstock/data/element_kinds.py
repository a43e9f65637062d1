"""Checks that elements have one structure and the same dtypes: those of several datasets, or rows of one."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.data.block import Block, Column, dtype_of_rows
from penstock.data.node import Node, Run
from penstock.data.streams.stream import Cursor, OneInputStream, State, Stream
from penstock.errors import ElementError, InvalidTypeError
from penstock.runtime.threads import failures
from penstock.spec import TensorSpec, alike, is_untold, merged
from penstock.structure import flatten, map_structure


def merged_spec(first: Any, second: Any) -> Any:
    """The specification that covers the elements of both datasets.

    Raises:
        ElementError: their structures or dtypes differ.
    """
    return map_structure(merged, first, second)


def check_one_kind(call: str, kinds: Sequence[tuple[Node, Any]]) -> None:
    """Raise an InvalidTypeError if the elements of nodes differ in structure or dtype, or surely in the number of axes.

    Args:
        kinds: the nodes, each with the known or assumed specification of its elements, or None.
    """
    known = [(node, spec) for node, spec in kinds if spec is not None]
    for node, spec in known[1:]:
        first, merged = known[0]
        try:
            if _assumed(merged) or _assumed(spec):
                merged_spec(_without_axes(merged), _without_axes(spec))
            else:
                merged_spec(merged, spec)
        except ElementError as error:
            raise InvalidTypeError(
                f"{call} needs elements of one kind, got {merged} of {first.where()} and {spec} of {node.where()}: "
                "convert them with map"
            ) from error


def _assumed(spec: Any) -> bool:
    return any(leaf.assumed for leaf in flatten(spec)[0])


def _without_axes(spec: Any) -> Any:
    """Return the structure and the dtypes alone: the axes of one element may differ from those of others."""
    return map_structure(lambda leaf: TensorSpec((), leaf.dtype), spec)


def of_one_kind(run: Run, node: Node, block: Block, position: int, member: Node | None = None) -> Block:
    """Return rows of `node`, given by `member` or by itself, with dictionaries' keys in the order of the first row.

    Args:
        position: that of the first row; above 0 wherever it is not the first of all.

    Raises:
        ElementError: they differ in structure or dtype from those that were read of the node before.
    """
    dtypes = tuple(map(dtype_of_rows, block.columns))
    agreed = run.known(node)
    if agreed is None:
        run.settle(node, position)
        where = "" if member is None else member.where()  # not the member, which may hold the rows of a window
        agreed = run.agreed(node, (block.structure, dtypes, where))
    structure, known, first = agreed
    if dtypes != known and structure == block.structure:
        columns = [_told(*both) for both in zip(block.columns, known, strict=True)]
        block = Block(tuple(columns), block.structure, len(block))
        dtypes = tuple(map(dtype_of_rows, columns))
    if structure is block.structure and dtypes == known:
        return block
    if structure != block.structure or not all(map(alike, known, dtypes)):
        shown, expected = block.structure.shown(map(str, dtypes)), structure.shown(map(str, known))
        if member is None or not first:
            raise ElementError(f"{node.name} gave {shown} after {expected}; all its rows must be of one kind")
        raise ElementError(
            f"{node.where()}: elements of one kind are needed, got {expected} of {first} and {shown} of "
            f"{member.where()}: convert them with map"
        )
    return Block(block.columns, structure, len(block))


def _told(column: Column, dtype: np.dtype[Any]) -> Column:
    """Return a column of rows of a dtype: a column of empty lists takes it, as its own is unknown."""
    return column.astype(dtype) if len(column) and is_untold(column[0]) and column.dtype == np.float64 else column


class OneKindStream(OneInputStream):
    """The rows of one of several datasets that `node` reads; a row of another kind fails alone.

    Args:
        position: above 0 where other elements of `node` come before.
    """

    same_rows = True

    def __init__(self, run: Run, node: Node, member: Node, stream: Stream, position: int = 0) -> None:
        self._run = run
        self._position = position
        self._node = node
        self._member = member
        self._input = Cursor(stream)

    @property
    def at_end(self) -> bool:
        return self._input.at_end

    def pull(self, need: int, allow: int) -> Block | None:
        block = self._input.pull(need, allow)
        if block is None:
            return None
        try:
            return of_one_kind(self._run, self._node, block, self._position, self._member)
        except failures():
            self._input.give_back(len(block) - 1)
            raise

    def restore(self, state: State) -> None:
        self._position += 1
        super().restore(state)

    def skip(self, rows: int) -> int:
        self._position += rows
        return self._input.skip(rows)

    def unread(self, rows: int) -> None:
        self._input.give_back(rows)
