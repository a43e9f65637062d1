"""skip_rows: elements that are named, or made of a row that is named, are left out or marked."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Indices
from penstock.data.node import Node, OneInput, Origins, Run, SameElements, SomeElements
from penstock.data.operator_streams import OperatorStream
from penstock.data.origins import Row, sources_of
from penstock.data.streams.index_reading import Reading
from penstock.data.streams.stream import State
from penstock.errors import InvalidArgumentError
from penstock.positions import as_positions
from penstock.spec import TensorSpec

_TOGETHER: Final = 1 << 16
"""The number of elements that are examined together to find those that are left."""


def _followed(node: Node) -> tuple[Node, ...]:
    """Return the nodes below, also those of data workers, whose elements it is made of by number."""
    below = node.inputs if node.remote is None else (node.remote,)
    return below if node.indexable or node.keeps_numbers else ()


class NamedRows(OneInput, name="skip_rows"):
    """Elements among which some are named: by the rows that they are made of, or by their numbers."""

    keeps_numbers = True
    rows: frozenset[tuple[str, int]] = field(repr=False)
    """Rows by their file, or else their source, and their number there."""
    steps: npt.NDArray[np.int64] = field(repr=False)

    def __post_init__(self) -> None:
        reached = self.input.walk(_followed)
        known = {place for node in reached for place in (node.where(), *node.row_files)}
        for place, row in sorted(self.rows):
            if place not in known:
                stream = next((node for node in self.input.walk() if not node.indexable), None)
                beyond = f": which rows come through {stream.where()} is known by reading only" if stream else ""
                raise InvalidArgumentError(
                    f"skip_rows(rows=...) has row {row} of {place}, of which no row can be told here{beyond}; name "
                    "rows as rows(step) of this dataset gives them"
                )

    def arguments(self) -> list[str]:
        return [f"{len(self.rows):,} rows, {len(self.steps):,} steps"]

    @cached_property
    def _numbers(self) -> list[int]:
        return sorted({row for _, row in self.rows})

    def named(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return of each of the input's elements at these positions whether it is named, or made of a named row."""
        found: npt.NDArray[np.bool_] = np.isin(positions, self.steps)
        for source, keys, rows in sources_of(self.input, run, epoch, positions) if self.rows else ():
            files, numbers = source.rows_at(rows)
            for each in np.flatnonzero(np.isin(numbers, self._numbers)).tolist():
                found[keys[each, 0]] |= (files[each] or source.where(), int(numbers[each])) in self.rows
        return found

    @abstractmethod
    def without(self, block: Block, named: npt.NDArray[np.bool_]) -> Block:
        """Return what comes of elements of the input, of which some are named; perhaps none."""


class DropRows(NamedRows, SomeElements):
    """The other elements. A state counts those of the input, so the names may change when it is restored."""

    identity = {}  # noqa: RUF012  # as that of a class, which is never changed

    def without(self, block: Block, named: npt.NDArray[np.bool_]) -> Block:
        return block.take(np.flatnonzero(~named)) if named.any() else block

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        left, start, length = np.empty(0, np.int64), 0, self.input.cardinality
        while len(left) <= positions.max() and not 0 <= length <= start:
            found = np.arange(start, start + _TOGETHER if length < 0 else min(start + _TOGETHER, length))
            left, start = np.append(left, found[~self.named(run, epoch, found)]), start + _TOGETHER
        places = np.flatnonzero(positions < len(left))
        yield self.input, epoch, places, left[positions[places]]


class MaskRows(NamedRows, SameElements):
    """Pairs of an element and whether it counts: not if it is named."""

    identity = None  # it changes neither the number nor the order of elements

    def spec_over(self, *inputs: Any) -> Any:
        return inputs[0], TensorSpec((), np.bool_)

    def without(self, block: Block, named: npt.NDArray[np.bool_]) -> Block:
        return block.beside(~named)

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        block = yield from self.input.reading(run, epoch, indices)
        return self.without(block, self.named(run, epoch, as_positions(indices)))


class NamedRowsStream(OperatorStream[NamedRows], of=NamedRows):
    """The state is the input's, so it holds for other names too."""

    def __init__(self, node: NamedRows, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        self.same_rows = isinstance(node, MaskRows)
        self._first = run.first(node.input)

    def pull(self, need: int, allow: int) -> Block | None:
        while (block := self._input.pull(need, allow)) is not None:
            if len(kept := self._node.without(block, self._named(self._input.met - len(block), len(block)))):
                return kept
        return None

    def _named(self, start: int, rows: int) -> npt.NDArray[np.bool_]:
        """Return which elements of the input are named, from this one on."""
        return self._node.named(self._run, self._epoch, np.arange(start, start + rows) + self._first)

    def advanced(self, state: State, rows: int) -> State:
        passed = rows
        while missing := rows - int(np.count_nonzero(~self._named(state[2], passed))):
            passed += missing
        return self._input.later(state, passed)


def names_of_rows(rows: Any, root: Node) -> frozenset[tuple[str, int]]:
    """Return rows as a node above `root` names them, checked.

    Raises:
        InvalidArgumentError: something else than rows, as `rows` of datasets gives them, or rows of a source of which
            there are two by that name.
    """
    places = Counter(node.where() for node in root.walk())
    names = set()
    for row in rows:
        if not isinstance(row, (tuple, list)) or len(row) != len(Row._fields) or not isinstance(row[2], int):
            raise InvalidArgumentError(
                f"skip_rows(rows=...) takes rows as rows(step) gives them, (source, file, row), got {row!r:.200}; "
                "steps=... takes numbers of elements"
            )
        if row[1] is None and places[row[0]] > 1:
            raise InvalidArgumentError(
                f"skip_rows(rows=...) has row {row[2]} of {row[0]}, and {places[row[0]]} sources have this name: make "
                "each of them in a line of its own"
            )
        names.add((str(row[1] or row[0]), row[2]))
    return frozenset(names)
