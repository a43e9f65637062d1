"""The nodes of a dataset that make the batches which a strategy divides."""

from collections.abc import Sequence
from typing import Final

from penstock.data.node import Node
from penstock.data.operators.batching import Batching
from penstock.data.operators.cardinality import AssertCardinality
from penstock.data.operators.choose import Choose
from penstock.data.operators.combine import Concatenate, Zip
from penstock.data.operators.element import Filter, Map
from penstock.data.operators.ignore_errors import IgnoreErrors
from penstock.data.operators.order import Repeat, Shard, ShardHint, Skip, Take
from penstock.data.operators.prefetch_and_cache import Cache, Prefetch
from penstock.data.operators.sequence import Scan
from penstock.data.operators.shuffle import Shuffle
from penstock.data.plan import with_inputs
from penstock.sharding import SliceRule

_BY_POSITION: Final = (Shuffle, Repeat, Take, Skip, Shard, Prefetch, AssertCardinality)
"""What decides by the positions of its input's elements alone which of them it gives, and when."""
_CALLING: Final = (Map, Scan)
"""What gives batches as functions of the user's leave them: these are taken to keep their rows together."""
_KEEPING: Final = (*_BY_POSITION, IgnoreErrors, Filter, Choose, ShardHint, Cache, Zip, Concatenate)
"""What gives batches as they are, though perhaps not all, those of several inputs in turn or side by side."""


def sources_of_batches(node: Node, *, through_functions: bool) -> list[Node]:
    """The nodes that make the batches that a node gives as they are, or as functions of the user's leave them."""
    while isinstance(node, _KEEPING) or node.remote is not None or (through_functions and isinstance(node, _CALLING)):
        if len(node.spec_inputs) != 1:
            found = [sources_of_batches(below, through_functions=through_functions) for below in node.spec_inputs]
            return [one for several in found for one in several] or [node]
        (node,) = node.spec_inputs
    return [node]


def gives_batches(node: Node) -> bool:
    """Whether there are batches below a node, with nothing between that takes them apart or puts them together."""
    return all(source.rows_per_batch for source in sources_of_batches(node, through_functions=True))


def last_may_be_short(node: Node) -> bool:
    """Whether the last of these batches may have fewer rows than the others."""
    sources = sources_of_batches(node, through_functions=True)
    return any(one.rows_per_batch and not (isinstance(one, Batching) and one.rows) for one in sources)


def slices_of_batches(node: Node, rule: SliceRule, local: Sequence[int]) -> Node | None:
    """The dataset with only this worker's rows of each batch; None where it needs to see whole batches."""
    if isinstance(node, Batching):
        return node.local_slices(rule, local)
    if not isinstance(node, _BY_POSITION):
        return None
    below = slices_of_batches(node.input, rule, local)
    return None if below is None else with_inputs(node, [below])


def batch_lengths(node: Node) -> tuple[int, int] | None:
    """The rows of each batch of a dataset, and those of the last one, where they follow from its operators."""
    batch = node
    while isinstance(batch, _BY_POSITION):
        batch = batch.input
    if not isinstance(batch, Batching) or batch.lengths is None:
        return None
    while isinstance(node, (Prefetch, AssertCardinality)):
        node = node.input
    rows, last = batch.lengths
    return (rows, last) if last == rows or node is batch else None  # another may have moved the short batch
