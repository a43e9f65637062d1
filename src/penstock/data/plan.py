"""From the nodes a user wrote to the nodes that run, and their description.

A data service that may give its elements in any order does so unless something above it must be able to read the same
rows again.
Two rewrites, neither of which changes a single element:

* *prefetch rises*: a prefetch in the middle of what can be read by index moves to its top, so that everything above it
  stays index arithmetic.
* *shuffle sinks*: over a stream, a shuffle above a map moves below it, so that the buffer holds the rows before the
  function has made them larger.
  (Over an index nothing has to move: a shuffle only ever moves indices.)
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, TypeVar

from penstock.data.node import Node, too_deep
from penstock.data.operators.batching import Batching
from penstock.data.operators.cardinality import AssertCardinality
from penstock.data.operators.element import Filter, Map
from penstock.data.operators.ignore_errors import IgnoreErrors
from penstock.data.operators.keep import Cache, Prefetch
from penstock.data.operators.order import Enumerate, Skip, Take
from penstock.data.operators.sequence import Scan, TakeWhile
from penstock.data.operators.shuffle import Shuffle
from penstock.options import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY

_Result = TypeVar("_Result")

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
"""What only goes forward over a stream: no state makes it read an element below it a second time."""


@dataclass(frozen=True)
class Plan:
    """The nodes that run for a dataset.

    Attributes:
        root: the node whose elements the iterator gives.
        moves: what the rewrites did, in words.
    """

    root: Node
    moves: tuple[str, ...]


class _Memo:
    """What became of the nodes that one rewrite has met: a node that several others read stays one node."""

    def __init__(self) -> None:
        self._results: dict[int, tuple[Node, Any]] = {}

    def of(self, node: Node, rewrite: Callable[[], _Result]) -> _Result:
        """What `rewrite` gave for this node."""
        if id(node) not in self._results:
            self._results[id(node)] = node, rewrite()
        result: _Result = self._results[id(node)][1]
        return result


def make_plan(node: Node) -> Plan:
    """The plan of a dataset.

    Raises:
        InvalidArgumentError: it is too deep.
    """
    moves: list[str] = []
    try:
        settled = _settled(node, None, moves, _Memo())
        root, ahead = _raised(_sunk(settled, moves, _Memo()), moves, _Memo())
    except RecursionError as error:
        raise too_deep(node) from error
    return Plan(_with_prefetch(root, ahead), tuple(moves))


def _settled(node: Node, above: Node | None, moves: list[str], memo: _Memo) -> Node:
    """The nodes with every order decided; `above` is the nearest node above that may read rows a second time."""
    below = above if isinstance(node, _GO_FORWARD) else node
    node = with_inputs(node, [memo.of(part, partial(_settled, part, below, moves, memo)) for part in node.inputs])
    ordered = None if above is None else node.in_order()
    if above is None or ordered is None or ordered is node:
        return node
    moves.append(f"{node.label} keeps its order: {above.label} above it must be able to read the same rows again")
    return ordered


def _sunk(node: Node, moves: list[str], memo: _Memo) -> Node:
    """The nodes with every shuffle over a stream below the maps it stood above, and below what reads these ahead.

    A row that fails has its place in the order then; the order must not depend on whether rows are read ahead.
    """
    node = with_inputs(node, [memo.of(below, partial(_sunk, below, moves, memo)) for below in node.inputs])
    if not isinstance(node, Shuffle):
        return node
    below = inner = node.input
    while isinstance(below, Prefetch):
        below = below.input
    if not isinstance(below, Map) or below.seed is not None or below.indexable:
        return node
    assert isinstance(inner, (Map, Prefetch))
    moves.append(f"{node.label} moved below {inner.label}")
    return replace(inner, input=_sunk(replace(node, input=inner.input), moves, memo))


def _raised(node: Node, moves: list[str], memo: _Memo) -> tuple[Node, int | None]:
    """The nodes with every prefetch on top of what can be read by index, and the prefetch still to be put on it."""
    parts = [memo.of(below, partial(_raised, below, moves, memo)) for below in node.inputs]
    if isinstance(node, Prefetch):
        inner, ahead = parts[0]
        if node.buffer_size == 0:
            return inner, ahead
        if inner.indexable:
            return inner, node.buffer_size
        return replace(node, input=inner), None
    bare = with_inputs(node, [inner for inner, _ in parts])
    asked = [ahead for _, ahead in parts if ahead is not None]
    if bare.indexable and asked:
        if isinstance(bare, Cache):  # by index it reads the same rows in the same order: that is no move to tell of
            return bare, asked[0]
        moves.append(f"prefetch moved above {bare.label}: what is below it is read by index")
        return bare, AUTOTUNE if AUTOTUNE in asked else max(-(-rows // _rows_per_element(bare)) for rows in asked)
    return with_inputs(node, [_with_prefetch(inner, ahead) for inner, ahead in parts]), None


def _rows_per_element(node: Node) -> int:
    return max(1, node.rows_per_batch)


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


def rebuilt(root: Node, change: Callable[[Node], Node]) -> Node:
    """The nodes with what `change` makes of each in its place, which is given every node over its new inputs."""
    made: dict[int, Node] = {}
    for node in root.walk():
        made[id(node)] = change(with_inputs(node, [made[id(below)] for below in node.inputs]))
    return made[id(root)]


def described(plan: Plan, remark: Callable[[Node], str] = lambda node: "") -> str:
    """A plan as text: one line for each node, what it reads below it, with a remark on each, or ""."""
    lines = [
        (indent + below.label, _mode(below), ", ".join(filter(None, (*_remarks(below), remark(below)))))
        for indent, below in _tree(plan.root, "")
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(2)]
    text = [f"{label:<{widths[0]}}  {mode:<{widths[1]}}  {remarks}".rstrip() for label, mode, remarks in lines]
    return "\n".join([*text, *(f"* {move}" for move in plan.moves)])


def _tree(node: Node, indent: str) -> list[tuple[str, Node]]:
    rows = [(indent, node)]
    for below in node.inputs:
        rows.extend(_tree(below, indent + "  "))
    if node.remote is not None:
        rows.extend(_tree(node.remote, indent + "  @ "))
    return rows


def _mode(node: Node) -> str:
    count = {INFINITE_CARDINALITY: "infinite", UNKNOWN_CARDINALITY: "unknown"}.get(
        node.cardinality, f"{node.cardinality:,}"
    )
    return f"{node.mode}, {count}"


def _remarks(node: Node) -> tuple[str, str]:
    """What the node keeps in memory, and whether what its elements are must be assumed from one call."""
    return node.memory, "element_spec assumed" if node.spec_from_call else ""
