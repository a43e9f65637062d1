"""From the nodes a user wrote to the nodes that run, and their description.

A data service that may give its elements in any order does so unless a node above it must be able to read the same rows
again. Two rewrites change no element:

* *prefetch rises*: a prefetch between nodes that are read by index moves above them, so that these stay index
  arithmetic.
* *shuffle sinks*: over a stream, a shuffle above a map moves below it, so that the buffer holds the rows before the
  function has made them larger.
  (Over an index nothing has to move: a shuffle only ever moves indices.)
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

from penstock.data.batches.batching import Batching
from penstock.data.node import Node
from penstock.data.operators.element import Filter, Map
from penstock.data.operators.ignore_errors import IgnoreErrors
from penstock.data.operators.order import AssertCardinality, Enumerate, Skip, Take
from penstock.data.operators.own_stack import OwnStack
from penstock.data.operators.prefetch_and_cache import Cache, Prefetch
from penstock.data.operators.sequence import Scan, TakeWhile
from penstock.data.operators.shuffle import Shuffle
from penstock.options import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Options

_GO_FORWARD: Final = (
    IgnoreErrors,
    Map,
    Filter,
    Batching,
    Take,
    Skip,
    Enumerate,
    Prefetch,
    Scan,
    TakeWhile,
    AssertCardinality,
)
"""Nodes that only read forward over a stream: no state makes them read an element below a second time."""


_CALLS_DEEP: Final = 40
"""The most operators that read each other on one stack. A pull takes up to ten calls each, and Python allows 1,000."""


@dataclass(frozen=True)
class Plan:
    """The nodes that run for a dataset.

    Attributes:
        root: the node whose elements the iterator gives.
        moves: what the rewrites did, in words.
    """

    root: Node
    moves: tuple[str, ...]

    @cached_property
    def readings(self) -> int:
        """The number of sources of which a block has rows: that of the widest operator, or 1."""
        return max([1, *(len(node.inputs) for node in self.root.walk())])


class PlannedDataset:
    """A dataset's nodes and options, with their plan, which is made when it is first asked for.

    Threads that ask at the same time may make it twice, with equal results.
    """

    def __init__(self, node: Node, options: Options) -> None:
        self.node = node
        self.options = options

    @cached_property
    def plan(self) -> Plan:
        """The plan of all iterations."""
        return make_plan(self.node)


def make_plan(node: Node) -> Plan:
    """The plan of a dataset."""
    moves: list[str] = []
    return Plan(within_reach(_raised(_sunk(_in_order(node, moves), moves), moves)), tuple(moves))


def _in_order(root: Node, moves: list[str]) -> Node:
    """The nodes with every order decided, by the nearest node above each that may read rows a second time."""
    above: dict[int, Node | None] = {id(root): None}
    for node in reversed([*root.walk()]):
        reader = above[id(node)] if isinstance(node, _GO_FORWARD) else node
        for below in node.inputs:
            above[id(below)] = above.get(id(below)) or reader

    def ordered(node: Node, new: Node) -> Node:
        reader = above[id(node)]
        found = None if reader is None else new.in_order()
        if reader is None or found is None or found is new:
            return new
        moves.append(f"{node.label} keeps its order: {reader.label} above it must be able to read the same rows again")
        return found

    return rebuilt(root, ordered)


def _sunk(root: Node, moves: list[str]) -> Node:
    """Return the nodes with every shuffle over a stream below the maps under it, and below their prefetches.

    A row that fails then has its place in the order; the order must not depend on whether rows are read ahead.
    """

    def sunk(_: Node, node: Node) -> Node:
        passed: list[Map | Prefetch] = []
        while isinstance(node, Shuffle):
            below = inner = node.input
            while isinstance(below, Prefetch):
                below = below.input
            if not isinstance(below, Map) or below.seed is not None or below.indexable:
                break
            assert isinstance(inner, (Map, Prefetch))
            moves.append(f"{node.label} moved below {inner.label}")
            passed.append(inner)
            node = replace(node, input=inner.input)
        for inner in reversed(passed):
            node = replace(inner, input=node)
        return node

    return rebuilt(root, sunk)


def _raised(root: Node, moves: list[str]) -> Node:
    """The nodes with every prefetch on top of what can be read by index."""
    # The replacement of each node, and the prefetch that is still to be put on it.
    raised: dict[int, tuple[Node, int | None]] = {}
    for node in root.walk():
        parts = [raised[id(below)] for below in node.inputs]
        if isinstance(node, Prefetch):
            inner, ahead = parts[0]
            if node.buffer_size == 0:
                raised[id(node)] = inner, ahead
            elif inner.indexable:
                raised[id(node)] = inner, node.buffer_size
            else:
                raised[id(node)] = with_inputs(node, [inner]), None
            continue
        bare = with_inputs(node, [inner for inner, _ in parts])
        asked = [ahead for _, ahead in parts if ahead is not None]
        if not (bare.indexable and asked):
            raised[id(node)] = with_inputs(node, [_with_prefetch(*part) for part in parts]), None
        elif isinstance(bare, Cache):  # by index it reads the same rows in the same order: no move to report
            raised[id(node)] = bare, asked[0]
        else:
            moves.append(f"prefetch moved above {bare.label}: the steps below it are read by index")
            most = max(-(-rows // max(1, bare.rows_per_batch)) for rows in asked)
            raised[id(node)] = bare, AUTOTUNE if AUTOTUNE in asked else most
    return _with_prefetch(*raised[id(root)])


def within_reach(root: Node) -> Node:
    """Return the nodes in parts that run on separate stacks, because Python's recursion depth is limited."""
    if root.depth <= _CALLS_DEEP:
        return root
    depths: dict[int, int] = {}

    def cut(node: Node, new: Node) -> Node:
        depth = depths[id(node)] = 1 + max((depths[id(below)] for below in node.inputs), default=0)
        if depth < _CALLS_DEEP or node is root:
            return new
        depths[id(node)] = 0
        return OwnStack(new)

    return rebuilt(root, cut)


def _with_prefetch(node: Node, ahead: int | None) -> Node:
    return node if ahead is None else Prefetch(node, ahead)


def with_inputs(node: Node, inputs: list[Node]) -> Node:
    """The node over other inputs; the node itself where none differs."""
    if all(old is new for old, new in zip(node.inputs, inputs, strict=True)):
        return node
    new = {id(old): put for old, put in zip(node.inputs, inputs, strict=True)}
    changes: dict[str, Any] = {}
    for item in fields(node):
        value = getattr(node, item.name)
        if isinstance(value, Node):
            changes[item.name] = new[id(value)]
        elif isinstance(value, tuple) and value and all(isinstance(entry, Node) for entry in value):
            changes[item.name] = tuple(new[id(entry)] for entry in value)
    return replace(node, **changes)


def rebuilt(root: Node, change: Callable[[Node, Node], Node]) -> Node:
    """Return the nodes with each replaced by `change`, given a node, and that node over its new inputs."""
    return rebuilt_nodes(root, change)[id(root)]


def rebuilt_nodes(root: Node, change: Callable[[Node, Node], Node]) -> dict[int, Node]:
    """Variant of `rebuilt`: all new nodes by the `id` of those that they replace."""
    made: dict[int, Node] = {}
    for node in root.walk():
        made[id(node)] = change(node, with_inputs(node, [made[id(below)] for below in node.inputs]))
    return made


def described(plan: Plan, remark: Callable[[Node], str] = lambda node: "") -> str:
    """Return a plan as text: one line for each node above its inputs, with a remark on each, or ""."""
    lines = [
        (indent + below.label, _mode(below), ", ".join(filter(None, (*_remarks(below), remark(below)))))
        for indent, below in _tree(plan.root)
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(2)]
    text = [f"{label:<{widths[0]}}  {mode:<{widths[1]}}  {remarks}".rstrip() for label, mode, remarks in lines]
    return "\n".join([*text, *(f"* {move}" for move in plan.moves)])


def _tree(root: Node) -> list[tuple[str, Node]]:
    """Return each node with its indentation, below those that read it; inputs are shown once."""
    rows: list[tuple[str, Node]] = []
    shown: set[int] = set()
    left = [("", root)]
    while left:
        indent, node = left.pop()
        rows.append((indent, node))
        if id(node) not in shown:
            shown.add(id(node))
            left += [] if node.remote is None else [(indent + "  @ ", node.remote)]
            left += [(indent + "  ", below) for below in reversed(node.inputs)]
    return rows


def _mode(node: Node) -> str:
    count = {INFINITE_CARDINALITY: "infinite", UNKNOWN_CARDINALITY: "unknown"}.get(
        node.cardinality, f"{node.cardinality:,}"
    )
    return f"{node.mode}, {count}"


def _remarks(node: Node) -> tuple[str, str, str]:
    """Describe the node's memory, its waste, and whether its specification is assumed from one call."""
    return node.memory, node.waste, "element_spec assumed" if node.spec_from_call else ""
