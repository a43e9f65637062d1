"""Rows in numbered slots: the slot of a row that was taken is given to another row."""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Column, column_of, dtype_of_rows, is_ragged, placed, take_rows
from penstock.errors import ElementError
from penstock.runtime.copying import Copiers
from penstock.spec import alike
from penstock.structure import Structure

SlotNumbers = npt.NDArray[np.int64]

_SLACK = 32


class Slots:
    """Memory for the rows that are held at a time, and little more."""

    def __init__(self, copiers: Copiers) -> None:
        self._copiers = copiers
        self._columns: list[Column] = []
        self._dtypes: list[np.dtype[Any]] = []
        self._structure: Structure | None = None
        self._size = 0
        self._free: SlotNumbers = np.empty(0, np.int64)

    def put(self, block: Block) -> SlotNumbers:
        """Copy rows to free slots; gives their numbers.

        Raises:
            ElementError: the rows differ in structure or dtype from those before.
        """
        if self._structure is None:
            self._structure = block.structure
            self._dtypes = [dtype_of_rows(column) for column in block.columns]
            self._columns = [np.empty((0, *column.shape[1:]), column.dtype) for column in block.columns]
        self._check(block, self._structure)
        slots = self._free_slots(len(block))
        self._columns = [
            placed(kept, slots, column, range(len(kept)))
            for kept, column in zip(self._columns, block.columns, strict=True)
        ]
        return slots

    def _check(self, block: Block, structure: Structure) -> None:
        if block.structure != structure:
            raise ElementError(
                f"elements of one dataset must have one structure, got {structure} and {block.structure}"
            )
        for dtype, column in zip(self._dtypes, block.columns, strict=True):
            if not alike(dtype, dtype_of_rows(column)):
                raise ElementError(f"rows of one leaf must have one dtype, got {dtype} and {dtype_of_rows(column)}")

    def _free_slots(self, rows: int) -> SlotNumbers:
        missing = rows - len(self._free)
        if missing > 0:
            size = self._size + max(missing, self._size // _SLACK)
            self._columns = [_resized(column, size) for column in self._columns]
            self._free = np.concatenate([np.arange(self._size, size), self._free])
            self._size = size
        slots, self._free = self._free[len(self._free) - rows :], self._free[: len(self._free) - rows]
        return slots

    def take(self, slots: SlotNumbers) -> Block:
        """The rows in these slots, which are then free."""
        assert self._structure is not None
        columns = tuple(self._taken(column, slots) for column in self._columns)
        self.free(slots)
        return Block(columns, self._structure, len(slots))

    def free(self, slots: SlotNumbers) -> None:
        """Let other rows have these slots."""
        self._free = np.concatenate([self._free, slots])

    def _taken(self, column: Column, slots: SlotNumbers) -> Column:
        if column.dtype != object:
            return take_rows(column, slots, self._copiers)
        rows = column[slots]
        column[slots] = None  # their memory goes with them
        return column_of(list(rows)) if is_ragged(rows) else rows


def _resized(column: Column, size: int) -> Column:
    if column.dtype == object:
        larger = np.empty((size, *column.shape[1:]), object)
        larger[: len(column)] = column
        return larger
    # No one else holds this array: the system moves its pages, and no copy is made.
    column.resize((size, *column.shape[1:]), refcheck=False)
    return column
