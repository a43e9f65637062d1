"""What `output_signature` promises of a function's results, held block by block."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from penstock.data.block import Block, Column
from penstock.errors import ElementError
from penstock.spec import LeafSpec, covers, fitted, spec_of_leaf
from penstock.structure import Structure, flatten


@dataclass(frozen=True)
class Promise:
    """The structure of every result, and the specification of each leaf."""

    structure: Structure
    leaves: tuple[LeafSpec, ...]

    @staticmethod
    def of(signature: Any) -> "Promise | None":
        """The promise that a signature is; None for None."""
        if signature is None:
            return None
        leaves, structure = flatten(signature)
        return Promise(structure, tuple(leaves))

    def fit(self, leaves: Sequence[Any]) -> list[Any]:
        """The leaves of a result, of which Python numbers and lists take the promised dtypes."""
        return list(map(fitted, self.leaves, leaves))

    def fit_leaf(self, number: int, leaf: Any) -> Any:
        """As `fit`, for one leaf."""
        return fitted(self.leaves[number], leaf)

    def fit_value(self, value: Any) -> Any:
        """As `fit`, for a whole result; one of another structure as it is."""
        leaves, structure = flatten(value)
        return structure.unflatten(self.fit(leaves)) if structure == self.structure else value

    def kept(self, value: Any) -> Any:
        """As `fit_value`.

        Raises:
            ElementError: it is not as promised.
        """
        value = self.fit_value(value)
        leaves, structure = flatten(value)
        broken = self.broken_at(Block.of_leaves([leaves], structure))
        if broken is not None:
            raise broken[1]
        return value

    def broken_at(self, block: Block) -> tuple[int, ElementError] | None:
        """The first row that is not as promised, and what is wrong with it; None if all are."""
        if block.structure != self.structure:
            return 0, _broken(f"{self.structure}, got {block.structure}")
        found: tuple[int, ElementError] | None = None
        for number, (spec, column) in enumerate(zip(self.leaves, block.columns, strict=True)):
            row = _first_unfit(spec, column)
            if row is not None and (found is None or row < found[0]):
                found = row, self.broken_by(number, column[row])
        return found

    def broken_by(self, number: int, leaf: Any) -> ElementError:
        """The error of a leaf, by its number, that is not as promised."""
        path = self.structure.paths()[number]
        return _broken(f"{self.leaves[number]}{' at ' + path if path else ''}, got {spec_of_leaf(leaf)}")


class PromisedResults:
    """What a node says of its function's results, which `output_signature` may promise."""

    output_signature: Any

    @property
    def spec(self) -> Any:
        return self.output_signature

    @property
    def spec_from_call(self) -> bool:
        return self.output_signature is None

    @cached_property
    def promise(self) -> Promise | None:
        """What the results are checked against; None if nothing is promised."""
        return Promise.of(self.output_signature)


def _broken(what: str) -> ElementError:
    return ElementError(f"the function returned a result that does not fit output_signature: expected {what}")


def _first_unfit(spec: LeafSpec, column: Column) -> int | None:
    if column.dtype != object:
        return None if covers(spec, spec_of_leaf(column[0])) else 0  # rows of an array are alike
    if spec.dtype == object and spec.shape == () and column.ndim == 1:
        unfit = [isinstance(row, np.ndarray) for row in column]
    else:
        unfit = [not covers(spec, spec_of_leaf(row)) for row in column]
    return unfit.index(True) if True in unfit else None
