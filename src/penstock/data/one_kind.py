"""Whether elements have one structure and the same dtypes: those of several datasets, or rows that others give."""

from collections.abc import Sequence
from typing import Any

from penstock.data.block import Block, dtype_of_rows
from penstock.data.node import Node, Run
from penstock.errors import ElementError, InvalidTypeError
from penstock.spec import TensorSpec, alike, merged
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
        kinds: the nodes, each with what is known or assumed of its elements, or None.
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
    """The structure and the dtypes alone: one element that was seen does not tell the axes of others."""
    return map_structure(lambda leaf: TensorSpec((), leaf.dtype), spec)


def of_one_kind(run: Run, node: Node, member: Node, block: Block) -> Block:
    """A block that `member` gave; an ElementError if the elements of another member of `node` differ in kind."""
    dtypes = [dtype_of_rows(column) for column in block.columns]
    first, structure, known = run.agreed(node, (member, block.structure, dtypes))
    if structure != block.structure or not all(map(alike, known, dtypes)):
        kinds = structure.shown(map(str, known)), block.structure.shown(map(str, dtypes))
        raise ElementError(
            f"{node.where()}: elements of one kind are needed, got {kinds[0]} of {first.where()} and {kinds[1]} of "
            f"{member.where()}: convert them with map"
        )
    return block


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
