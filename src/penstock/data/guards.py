"""`Options(on_error="skip")`: guards, which leave out the elements that fail, put into a dataset where they belong.

A guard is an `ignore_errors` that penstock has placed. Every node says by `fails` whether it can fail by itself. A
failure is left out where it happens, or further up where that gives the same elements (`drops_alike`): a guard on top
of what is read by index leaves a shuffle below it one of positions. Inside of a `zip` nothing is left out as long as
failures keep their places (`keeps_places`): the whole pair is, above it.
"""

from penstock.data.node import Node
from penstock.data.operators.ignore_errors import IgnoreErrors
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
    below, failing = _placed(node, pairing=False)
    return _guard(below) if failing else below


def guarded_below(node: Node) -> Node:
    """As `guarded`, for what is read by a node that has a guard above it: this does for the dataset's end too."""
    return _placed(without_guards(node), pairing=False)[0]


def without_guards(node: Node) -> Node:
    """The dataset without the guards that were placed in it."""
    node = with_inputs(node, [without_guards(below) for below in node.inputs])
    return node.input if isinstance(node, IgnoreErrors) and node.automatic else node


def _placed(node: Node, *, pairing: bool) -> tuple[Node, bool]:
    """The dataset with guards below its end, and whether elements can still fail there.

    Args:
        pairing: whether it is part of a `zip`.
    """
    if pairing and not node.keeps_places:
        return guarded(node), False
    inside = pairing or node.pairs
    parts = [_placed(below, pairing=inside) for below in node.inputs]
    risen = with_inputs(node, [below for below, _ in parts])
    failing = any(fails for _, fails in parts)
    if node.leaves_out_failures:
        return risen, False
    if failing and not (risen.keeps_places if inside else risen.drops_alike):
        risen = with_inputs(node, [_guard(below) if fails else below for below, fails in parts])
        failing = False
    return risen, failing or risen.fails


def _guard(node: Node) -> Node:
    return IgnoreErrors(node, log=True, automatic=True, site=node.site)
