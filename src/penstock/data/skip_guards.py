"""`Options(on_error="skip")`: the placement of guards, which skip the elements that fail, in a dataset.

A guard is an `ignore_errors` that penstock has placed. Each node states by `fails` whether it can fail by itself. A
failing element is skipped where it fails, or further up if that gives the same elements: with a guard above the nodes
that are read by index, a shuffle below it still moves positions only. Inside a `zip` no element is skipped as long as
failures keep their places: the whole pair is skipped, above it.
"""

from dataclasses import dataclass, replace
from typing import Final

from penstock.data.batches.batching import Batching
from penstock.data.batches.by_size import BatchBy
from penstock.data.mixtures.node import Mix, SourceEpochs
from penstock.data.node import Node, SameElements
from penstock.data.operators.collection import Source
from penstock.data.operators.combine import Concatenate, Zip
from penstock.data.operators.element import Filter, Map
from penstock.data.operators.expand import Interleave
from penstock.data.operators.generator import Generator
from penstock.data.operators.ignore_errors import IgnoreErrors
from penstock.data.operators.indexed_files import FolderFiles, IndexedFiles
from penstock.data.operators.lengths import WithKnownSizes, WithLengths
from penstock.data.operators.order import ShardHint
from penstock.data.operators.prefetch_and_cache import Cache, Prefetch
from penstock.data.operators.read_files import ReadFiles
from penstock.data.operators.rebatching import Unbatch
from penstock.data.operators.resample import RejectionResample
from penstock.data.operators.sampler import FromSampler
from penstock.data.operators.select import Sample, Select
from penstock.data.operators.sequence import Scan, TakeWhile, Unique
from penstock.data.operators.shuffle import Shuffle
from penstock.data.operators.skip_rows import NamedRows
from penstock.data.operators.window import Window
from penstock.data.plan import rebuilt, rebuilt_nodes, with_inputs
from penstock.options import Options

_READERS: Final = (IndexedFiles, ReadFiles, FolderFiles, Source)
_DROP_ALIKE: Final = (
    *(*_READERS, Map, Filter, Scan, TakeWhile, Unique, RejectionResample, Interleave, Unbatch),
    *(
        Shuffle,
        Select,
        Sample,
        WithLengths,
        WithKnownSizes,
        FromSampler,
        NamedRows,
        Prefetch,
        Zip,
        Concatenate,
        Mix,
        SourceEpochs,
    ),
)
_KEEP_PLACES: Final = (*_READERS, SameElements, Map, Scan, Batching, Generator, Zip, Concatenate)


def settled(node: Node, options: Options) -> Node:
    """Return the dataset with or without guards, by its options; unchanged if they leave it open."""
    if options.on_error is None:
        return node
    bare = without_guards(node)
    return bare if options.on_error == "raise" else guarded(bare)


def guarded(node: Node) -> Node:
    """The dataset with guards, so that no element fails."""
    placed = _placed(node)
    return _guard(placed.node) if placed.failing else placed.node


def guarded_below(node: Node) -> Node:
    """Variant of `guarded` for the input of a node that has a guard above it, which serves for its end too."""
    return _placed(without_guards(node)).node


def without_guards(node: Node) -> Node:
    """The dataset without the guards that were placed in it."""
    return rebuilt(node, lambda _, new: new.input if isinstance(new, IgnoreErrors) and new.automatic else new)


@dataclass(frozen=True)
class _Placed:
    """A dataset with guards below its end.

    Attributes:
        node: the dataset.
        judged: the dataset that decides the places of guards: without the prefetches that the plan moves above nodes
            read by index, and with each map in order. So guards have the same places, and states the same nodes, with
            and without a prefetch, and for any order.
        failing: whether elements can still fail at its end.
    """

    node: Node
    judged: Node
    failing: bool

    def ended(self) -> "_Placed":
        """Add a guard at its end, if it needs one."""
        return _Placed(_guard(self.node), _guard(self.judged), failing=False) if self.failing else self


def _placed(root: Node) -> _Placed:
    """The dataset with guards below its end."""
    bare = rebuilt_nodes(root, _without_moved)
    # By the `id` of a node, and whether it is in a `zip`.
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
    """Return whether a node gives the same elements if failing elements of its inputs are skipped above it, not below.

    Their order may differ.
    """
    if isinstance(node, Cache):  # a pass over a stream with missing rows is not kept
        return node.indexable
    return isinstance(node, _DROP_ALIKE)


def _keeps_places(node: Node) -> bool:
    """Return whether a failure takes the place of its element, so that `zip` can skip the right pair."""
    if isinstance(node, (Shuffle, Window, Mix, BatchBy)):
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
    """Return a node without the prefetch that the plan moves above nodes read by index."""
    return node.input if isinstance(node, Prefetch) and node.input.indexable else node


def _guard(node: Node) -> Node:
    return IgnoreErrors(node, log=True, automatic=True, site=node.site)
