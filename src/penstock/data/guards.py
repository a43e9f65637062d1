"""`Options(on_error="skip")`: guards, which leave out the elements that fail, put into a dataset where they belong.

A guard is an `ignore_errors` that penstock has placed. Every node says by `fails` whether it can fail by itself. A
failure is left out where it happens, or further up where that gives the same elements (`drops_alike`): a guard on top
of what is read by index leaves a shuffle below it one of positions. Inside of a `zip` nothing is left out as long as
failures keep their places (`keeps_places`): the whole pair is, above it.
"""

from dataclasses import dataclass, replace

from penstock.data.node import Node
from penstock.data.operators.ignore_errors import IgnoreErrors
from penstock.data.operators.keep import Prefetch
from penstock.data.plan import with_inputs
from penstock.options import Options


def settled(node: Node, options: Options) -> Node:
    """The dataset with guards as its options ask for them; as it is where they do not say."""
    if options.on_error is None:
        return node
    bare = without_guards(node)
    return bare if options.on_error == "raise" else guarded(bare)


def guarded(node: Node) -> Node:
    """The dataset with guards, so that no element fails."""
    placed = _placed(node, pairing=False)
    return _guard(placed.node) if placed.failing else placed.node


def guarded_below(node: Node) -> Node:
    """As `guarded`, for what is read by a node that has a guard above it: this does for the dataset's end too."""
    return _placed(without_guards(node), pairing=False).node


def without_guards(node: Node) -> Node:
    """The dataset without the guards that were placed in it."""
    node = with_inputs(node, [without_guards(below) for below in node.inputs])
    return node.input if isinstance(node, IgnoreErrors) and node.automatic else node


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


def _placed(node: Node, *, pairing: bool) -> _Placed:
    """The dataset with guards below its end.

    Args:
        pairing: whether it is part of a `zip`.
    """
    if pairing and not node.keeps_places and not _without_moved(node).keeps_places:
        return _placed(node, pairing=False).ended()
    inside = pairing or node.pairs
    parts = [_placed(below, pairing=inside) for below in node.inputs]
    placed = _over(node, parts)
    if node.leaves_out_failures:
        return replace(placed, failing=False)
    judged = placed.judged
    if placed.failing and not (judged.keeps_places if inside else judged.drops_alike):
        placed = _over(node, [part.ended() for part in parts])
    return replace(placed, failing=placed.failing or placed.judged.fails)


def _over(node: Node, parts: list[_Placed]) -> _Placed:
    """The node over these inputs, failing where one of them does."""
    whole = with_inputs(node, [part.node for part in parts])
    failing = any(part.failing for part in parts)
    if isinstance(node, Prefetch) and parts[0].judged.indexable:
        return _Placed(whole, parts[0].judged, failing)
    return _Placed(whole, with_inputs(node, [part.judged for part in parts]), failing)


def _without_moved(node: Node) -> Node:
    """The dataset without each prefetch that the plan moves to the top of what is read by index."""
    node = with_inputs(node, [_without_moved(below) for below in node.inputs])
    return node.input if isinstance(node, Prefetch) and node.input.indexable else node


def _guard(node: Node) -> Node:
    return IgnoreErrors(node, log=True, automatic=True, site=node.site)
