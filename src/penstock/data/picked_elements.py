"""Nodes whose elements are those of their inputs: by index they only say which element of which input comes where."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import field
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Indices
from penstock.data.element_kinds import merged_spec, of_one_kind
from penstock.data.node import Node, Origins, Run, derived
from penstock.data.streams.index_reading import Reading
from penstock.positions import as_positions

Picked = tuple[Node, int, npt.NDArray[np.intp], Indices]
"""An input and its epoch, which of the elements asked for are its, and their positions there."""


class PickedElements(Node):
    """A node of which each element is one of an input."""

    @abstractmethod
    def picked(self, run: Run, epoch: int, indices: Indices) -> Iterator[Picked]:
        """Yield the elements at these positions, input by input; nothing for none."""

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        for input, own_epoch, places, rows in self.picked(run, epoch, positions):
            yield input, own_epoch, places, as_positions(rows)

    def lengths_at(self, run: Run, epoch: int, indices: Indices) -> npt.NDArray[np.int64]:
        found = np.empty(len(indices), np.int64)
        for input, own_epoch, places, rows in self.picked(run, epoch, indices):
            found[places] = input.lengths_at(run, own_epoch, rows)
        return found

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        if len(indices) == 0:
            return (yield from self.inputs[0].reading(run, self.first_epoch(epoch), indices))
        parts = []
        for input, own_epoch, places, rows in self.picked(run, epoch, indices):
            block = yield from input.reading(run, own_epoch, rows)
            parts.append((places, self.accepted(run, block, int(indices[places[0]]), input)))
        return Block.in_places(parts)

    def accepted(self, run: Run, block: Block, position: int, input: Node) -> Block:
        """Return elements of an input as this node gives them; `position` is that of the first."""
        return block


class SeveralInputs(Node):
    """A node over several inputs, read by index if all of them are."""

    fails = False
    members: tuple[Node, ...] = field(repr=False)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.members

    @derived
    def indexable(self) -> bool:
        return all(node.indexable for node in self.members)


class OneOfSeveral(PickedElements, SeveralInputs):
    """A node of which each element is one of several inputs, which are of one kind."""

    def spec_over(self, *inputs: Any) -> Any:
        return reduce(merged_spec, inputs)

    @derived
    def has_lengths(self) -> bool:
        return self.indexable and all(node.has_lengths for node in self.members)

    def accepted(self, run: Run, block: Block, position: int, input: Node) -> Block:
        return of_one_kind(run, self, block, position, input)
