"""Rows that somebody else gives are of one kind."""

from penstock.data.block import Block, dtype_of_rows
from penstock.data.node import Node, Run
from penstock.errors import ElementError
from penstock.spec import alike


def check_kind(run: Run, node: Node, block: Block) -> None:
    """Refuse rows of another structure or dtype than those that were read of this node before.

    Raises:
        ElementError: they differ.
    """
    found = (block.structure, tuple(map(dtype_of_rows, block.columns)))
    agreed = run.agreed(node, found)
    if found != agreed and not (found[0] == agreed[0] and all(map(alike, found[1], agreed[1]))):
        shown, expected = (structure.shown(map(str, dtypes)) for structure, dtypes in (found, agreed))
        raise ElementError(f"{node.name} gave {shown} after {expected}; all its rows must be of one kind")
