"""`Options(on_error="skip")`: guards, which leave out the elements that fail, put into a dataset where they belong.

A guard is an `ignore_errors` that penstock has placed. Every node says by `fails` whether it can fail by itself. A
failure is left out where it happens, or further up where that gives the same elements: a guard on top of what is read
by index leaves a shuffle below it one of positions. Inside of a `zip` nothing is left out as long as failures keep
their places: the whole pair is, above it.
"""

from dataclasses import dataclass, replace
from typing import Final

from penstock.data.node import Node, SameElements
from penstock.data.operators.batching import Batching
from penstock.data.operators.collection import Source
from penstock.data.operators.combine import Concatenate, Zip
from penstock.data.operators.element import Filter, Map
from penstock.data.operators.expand import Interleave
from penstock.data.operators.generator import Generator
from penstock.data.operators.ignore_errors import IgnoreErrors
from penstock.data.operators.indexed_files import FolderFiles, IndexedFiles
from penstock.data.operators.order import ShardHint
from penstock.data.operators.prefetch_and_cache import Cache, Prefetch
from penstock.data.operators.read_files import ReadFiles
from penstock.data.operators.rebatching import Unbatch
from penstock.data.operators.resample import RejectionResample
from penstock.data.operators.select import Select
from penstock.data.operators.sequence import Scan, TakeWhile, Unique
from penstock.data.operators.shuffle import Shuffle
from penstock.data.operators.window import Window
from penstock.data.plan import rebuilt, rebuilt_nodes, with_inputs
from penstock.options import Options

_READERS: Final = (IndexedFiles, ReadFiles, FolderFiles, Source)
_DROP_ALIKE: Final = (
    *(*_READERS, Map, Filter, Scan, TakeWhile, Unique, RejectionResample, Interleave, Unbatch),
    *(Shuffle, Select, Prefetch, Zip, Concatenate),
)
_KEEP_PLACES: Final = (*_READERS, SameElements, Map, Scan, Batching, Generator, Zip, Concatenate)


def settled(node: Node, options: Options) -> Node:
    """The dataset with guards as its options ask for them; as it is where they do not say."""
    if options.on_error is None:
        return node
    bare = without_guards(node)
    return bare if options.on_error == "raise" else guarded(bare)


def guarded(node: Node) -> Node:
    """The dataset with guards, so that no element fails."""
    placed = _placed(node)
    return _guard(placed.node) if placed.failing else placed.node


def guarded_below(node: Node) -> Node:
    """As `guarded`, for what is read by a node that has a guard above it: this does for the dataset's end too."""
    return _placed(without_guards(node)).node


def without_guards(node: Node) -> Node:
    """The dataset without the guards that were placed in it."""
    return rebuilt(node, lambda _, new: new.input if isinstance(new, IgnoreErrors) and new.automatic else new)


@dataclass(frozen=True)
class _Placed:
    """A dataset with guards below its end.

    Attributes:
        node: the dataset.
        judged: what decides where guards belong: the dataset without each prefetch that the plan moves to the top of
            what is read by index, and with each map in order. So a guard has the same place, and a state the same
            nodes, with a prefetch and without it, and whatever order is asked for.
        failing: whether elements can still fail at its end.
    """

    node: Node
    judged: Node
    failing: bool

    def ended(self) -> "_Placed":
        """With a guard at its end, if it needs one."""
        return _Placed(_guard(self.node), _guard(self.judged), failing=False) if self.failing else self


def _placed(root: Node) -> _Placed:
    """The dataset with guards below its end."""
    bare = rebuilt_nodes(root, _without_moved)
    # Of each node by its `id`, in a `zip` or not.
    placed: dict[tuple[int, bool], _Placed] = {}
    left = [(root, False)]
    while left:
        node, pairing = left[-1]
        paired = pairing and (_keeps_places(node) or _keeps_places(bare[id(node)]))
        inside = paired or isinstance(node, Zip)
        missing = [below for below in node.inputs if (id(below), inside) not in placed]
        if missing:
            left += [(below, inside) for below in missing]
            continue
        found = _placed_over(node, [placed[id(below), inside] for below in node.inputs], inside)
        placed[id(node), pairing] = found.ended() if pairing and not paired else found
        left.pop()
    return placed[id(root), False]


def _placed_over(node: Node, parts: list[_Placed], inside: bool) -> _Placed:
    """A node over its inputs, with guards on these if it needs them.

    Args:
        node: the node.
        parts: its inputs.
        inside: whether it is a `zip`, or part of one.
    """
    placed = _over(node, parts)
    if node.leaves_out_failures:
        return replace(placed, failing=False)
    if placed.failing and not (_keeps_places if inside else _drops_alike)(placed.judged):
        placed = _over(node, [part.ended() for part in parts])
    return replace(placed, failing=placed.failing or placed.judged.fails)


def _drops_alike(node: Node) -> bool:
    """Return whether a node gives the same elements if those of its inputs that fail are left out above it, not below.

    Which of all orders they come in may differ.
    """
    if isinstance(node, Cache):  # a pass over a stream with missing rows is not kept
        return node.indexable
    return isinstance(node, _DROP_ALIKE)


def _keeps_places(node: Node) -> bool:
    """Whether a failure takes the place that the element would have had, so that `zip` knows what to leave out."""
    if isinstance(node, (Shuffle, Window)):
        return node.indexable
    return isinstance(node, _KEEP_PLACES) and not isinstance(node, (IgnoreErrors, ShardHint))


def _over(node: Node, parts: list[_Placed]) -> _Placed:
    """The node over these inputs, failing where one of them does."""
    whole = with_inputs(node, [part.node for part in parts])
    failing = any(part.failing for part in parts)
    if isinstance(node, Prefetch) and parts[0].judged.indexable:
        return _Placed(whole, parts[0].judged, failing)
    return _Placed(whole, with_inputs(node, [part.judged for part in parts]), failing)


def _without_moved(_: Node, node: Node) -> Node:
    """What is below a prefetch that the plan moves to the top of what is read by index, in its place."""
    return node.input if isinstance(node, Prefetch) and node.input.indexable else node


def _guard(node: Node) -> Node:
    return IgnoreErrors(node, log=True, automatic=True, site=node.site)
