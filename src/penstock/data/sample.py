"""Specifications of elements that only a user's function determines: read from the first element, and marked."""

from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from penstock.data.batches.batching import Batching
from penstock.data.block import Block
from penstock.data.node import Node, Run, SameElements, SomeElements
from penstock.data.operators.element import Map
from penstock.data.operators.expand import Interleave
from penstock.data.operators.grouping import GroupByReducer, GroupByWindow
from penstock.data.operators.ignore_errors import IgnoreErrors
from penstock.data.operators.order import AssertCardinality, ShardHint, Take
from penstock.data.operators.prefetch_and_cache import Cache, Prefetch
from penstock.data.operators.sequence import Scan
from penstock.data.operators.shuffle import Shuffle
from penstock.data.plan import rebuilt, within_reach
from penstock.errors import ElementError
from penstock.runtime.threads import Threads
from penstock.spec import LeafSpec, all_assumed, with_open_axes
from penstock.structure import map_structure

_ANY_ELEMENT: Final = (Shuffle, ShardHint, Prefetch, Cache, AssertCardinality)
"""Nodes that give each element of their input once, in any order: their specification is that of the input."""

_found: "WeakKeyDictionary[Node, Any]" = WeakKeyDictionary()
"""The specifications of nodes of which elements were read, and of those above them."""


def element_spec(node: Node) -> Any:
    """The specification of a node's elements: known by construction, else assumed from one call of each function.

    Raises:
        ElementError: a function would have to be called, and there is no element to call it with.
    """
    try:
        return _spec_of(node)
    except _Nothing as nothing:
        raise ElementError(
            f"{nothing.node.where()} has no elements to find element_spec from: give output_signature=... to this "
            "step, or to a map that follows it"
        ) from None


def tells_by_index(node: Node) -> bool:
    """Return whether `element_spec` calls no function, or calls functions only with elements read by index."""
    return all(
        below.indexable or (isinstance(below, (Map, Scan)) and all(part.indexable for part in below.inputs))
        for below in node.walk(_telling)
        if below.spec_from_call and _known(below) is None
    )


def _known(node: Node) -> Any:
    """The specification of a node's elements if it is known without its inputs' and without reading; else None."""
    spec = node.spec if node.spec is not None else node.assumed_spec
    return _found.get(node) if spec is None else spec


def _telling(node: Node) -> tuple[Node, ...]:
    """The inputs from whose specifications that of a node follows."""
    return () if node.spec_from_call or _known(node) is not None else node.spec_inputs


class _Nothing(Exception):
    """There is no element to call the function of a node with."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.node = node


def _spec_of(root: Node) -> Any:
    """Variant of `element_spec`, from the nodes that are known on up."""
    specs: dict[int, Any] = {}
    for node in root.walk(_telling):
        spec = _known(node)
        if spec is None and not node.spec_from_call:
            spec = node.spec_over(*(specs[id(below)] for below in node.spec_inputs))
        if spec is None:  # if there can be none, reading an element raises the error
            rows = _uneven_rows(node)
            spec = map_structure(lambda leaf: _as_seen(leaf, rows), _seen(node, root))  # noqa: B023  # called at once
        specs[id(node)] = spec
        if node.spec is None:
            _found[node] = spec
    return specs[id(root)]


def _uneven_rows(node: Node) -> int:
    """Return the rows of the first batch, if batches reach a function and may differ in length; else 0."""
    while isinstance(node, (Map, SameElements, SomeElements)):
        node = node.input
    if not isinstance(node, Batching) or node.rows is not None:
        return 0
    length = node.input.cardinality
    return min(node.batch_size, length) if length >= 0 else node.batch_size


def _as_seen(leaf: LeafSpec, rows: int) -> LeafSpec:
    """Return the specification of a leaf of the first element; an axis of `rows` may be that of the batch."""
    assumed = all_assumed(leaf)
    return with_open_axes(assumed, (0,)) if rows and leaf.shape[:1] == (rows,) else assumed


def _seen(node: Node, root: Node) -> Any:
    """Return the specification of a node's first element; failing ones are passed over if `root` skips them.

    For datasets that a function makes, return the specification of the first dataset.
    """
    guarded = any(below.leaves_out_failures for below in root.walk())
    if isinstance(node, (Interleave, GroupByWindow)):
        made = node.dataset_of_element(_first(node.input, node, guarded), 0)
        try:
            return _spec_of(made)
        except _Nothing:  # it has too few elements to call a function; others may have more
            pass
    return _first(node, node, guarded).spec()


def _first(node: Node, asked: Node, guarded: bool) -> Block:
    """Return the first element of a node, as a block; errors name the node that needs it, `asked`."""
    block = _read(node, guarded, whole=False)
    if block is None and any(isinstance(below, GroupByReducer) for below in node.walk()):
        block = _read(node, guarded, whole=True)
    if block is None:
        raise _Nothing(asked)
    return block.slice(0, 1)


def _read(node: Node, guarded: bool, *, whole: bool) -> Block | None:
    """Return the first elements of a node; with `whole`, operators that need all of their input may read it."""
    simple = _simplified(node, whole)
    if guarded:
        simple = IgnoreErrors(simple)
    threads = Threads()
    run = Run(simple, 0, threads)
    try:
        if simple.indexable and simple.cardinality != 0:
            return simple.read(run, 0, np.zeros(1, np.int64))
        cursor = simple.cursor(run, 0)
        try:
            return cursor.pull(1, 1)
        finally:
            cursor.close()
    finally:
        threads.stop()
        threads.join()


def _simplified(node: Node, whole: bool) -> Node:
    """Return nodes whose first element is like that of these, with as few calls and as little reading as possible."""

    def change(_: Node, below: Node) -> Node:
        if below.remote is not None:
            return _simplified(below.remote, whole)
        if below.divided:  # elements of a service can be read only once
            raise _Nothing(below)
        if isinstance(below, _ANY_ELEMENT):
            return below.input
        if isinstance(below, Map):
            return replace(below, num_parallel_calls=None, processes=False)
        if isinstance(below, Interleave):
            return replace(below, num_parallel_calls=None)
        if isinstance(below, GroupByReducer) and not whole:  # the result of one element is like that of all
            return replace(below, input=Take(below.input, 1))
        return below

    return within_reach(rebuilt(node, change))
