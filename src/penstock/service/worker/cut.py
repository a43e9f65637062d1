"""Divides a pipeline under DYNAMIC: the part that data workers run, and the part that the trainer runs.

`docs/design/service-workers.md` describes the kinds of passes. From the source up, the workers get everything that can
be read by index, then the operators that treat each of its rows by itself: these give the same elements for a row, in
whichever worker reads it. The operators from the first one that must see the whole stream on run in the trainer.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.data.node import DependsOn, Node, OneInput
from penstock.data.operators.collection import Source
from penstock.data.operators.element import Filter, Map
from penstock.data.operators.expand import Interleave
from penstock.data.operators.generator import Generator
from penstock.data.operators.grouping import GroupByReducer, WindowsByKey
from penstock.data.operators.ignore_errors import IgnoreErrors
from penstock.data.operators.indexed_files import FolderFiles, IndexedFiles
from penstock.data.operators.order import AssertCardinality, Repeat, Take
from penstock.data.operators.prefetch_and_cache import Cache, Prefetch
from penstock.data.operators.read_files import ReadFiles
from penstock.data.operators.rebatching import Unbatch
from penstock.data.operators.resample import RejectionResample
from penstock.data.operators.sequence import Scan, TakeWhile
from penstock.data.operators.shuffle import Shuffle
from penstock.data.plan import rebuilt, with_inputs
from penstock.data.shards import first_dataset
from penstock.errors import InvalidArgumentError
from penstock.options import UNKNOWN_CARDINALITY
from penstock.service.wire.subjects import PassKind

_logger = logging.getLogger(__name__)

_ONE_EACH: Final = (Map, FolderFiles)
"""Operators that make one element of each of their input, independently of the others."""
_ROWS_APART: Final = (*_ONE_EACH, Filter, Unbatch, ReadFiles)
"""Operators whose elements depend on one row of the input alone, and on its number if they draw by that."""
_PASSED_BY_MAPS: Final = (Shuffle, Repeat, Take, AssertCardinality)
"""Operators below which a map without randomness can be moved, without many more calls of its function."""
_WORTH_A_WORKER: Final = (
    *(Generator, Source, ReadFiles, IndexedFiles, Map, Filter, Scan, TakeWhile, Interleave),
    *(WindowsByKey, GroupByReducer, RejectionResample),
)
"""Operators that are worth another process: all others only move rows."""


@dataclass(frozen=True)
class Cut:
    """A pipeline in two parts.

    Attributes:
        worker: the nodes that the data workers run.
        kind: of the pass that they make.
        length: the number of its positions; -1 infinite, -2 unknown.
        above: the nodes that the trainer runs over it, the lowest first.
        reason: why it was cut there, in words.
    """

    worker: Node
    kind: PassKind
    length: int
    above: tuple[OneInput, ...]
    reason: str

    def over(self, node: Node) -> Node:
        """The trainer's part over `node`, which represents the elements of the workers."""
        for step in self.above:
            node = with_inputs(step, [node])
        return node

    def explain(self) -> str:
        """The cut as text: the nodes of both parts, and the reason."""
        trainer = [f"  {step.label}" for step in reversed(self.above)]
        workers = [f"  {label}" for label in _chain(self.worker)]
        return "\n".join(["in the trainer", *trainer, f"on the data workers ({self.reason})", *workers])


def _chain(node: Node) -> list[str]:
    lines = [node.label]
    for below in node.inputs:
        indent = "  " if len(node.inputs) > 1 else ""
        lines.extend(indent + line for line in _chain(below))
    return lines


def base_of(node: Node, below: Sequence[Node] = ()) -> tuple[Node | None, list[OneInput]]:
    """The highest node that is read by index, None if there is none; and the nodes above it, the lowest first.

    Args:
        below: nodes that must all be above it.
    """
    above: list[OneInput] = []
    left = len(below)
    while left or not node.indexable:
        if not isinstance(node, OneInput):
            return None, above[::-1]
        left -= node in below
        above.append(node)
        node = node.input
    return node, above[::-1]


def cut(node: Node, *, ordered: bool = False) -> Cut:
    """Divide a pipeline for "distributed_epoch": `over` the elements of the workers' part gives the same elements.

    With one exception: if a function above a shuffle of a stream fails, the failure takes no slot in the shuffle's
    buffer. Its exception then comes before the elements of that buffer, and these come in another order than in
    process; also if `ignore_errors` skips the failure.

    Args:
        node: the pipeline.
        ordered: whether the elements must come in the order that they have in process. Otherwise `interleave` reads one
            dataset after the other; the elements of each keep their order.
    """
    node, counted = without_last_guards(node)
    if counted:
        inner = cut(node, ordered=ordered)
        return replace(inner, above=(*inner.above, *counted))
    bare = without_prefetch(node)
    base, above = base_of(bare)
    if base is None:
        return _by_one_worker(node, "nothing in it is read by index: one of them produces it all, in order")
    shared = _shared_caches(bare)
    if shared:
        base, above = base_of(bare, below=shared)
        if base is None:
            return _by_one_worker(node, f"{shared[0].label} writes to one place: one of them produces it all, in order")
    groups, why = _groups(above, ordered=ordered, probing=True)
    moved, rest = _maps_below(above[len(groups) :])
    groups += moved
    why += "".join(f"; {step.label} moved below it" for step in moved)
    worker = base
    for step in groups:
        worker = with_inputs(step, [worker])
    if not _any_worth_a_worker(*worker.walk()) and _any_worth_a_worker(*rest):
        return _by_one_worker(node, f"{why}: one of them produces it all, in order")
    if rest and isinstance(node, Prefetch):
        rest.append(node)
    return Cut(worker, "groups" if groups else "rows", base.cardinality, tuple(rest), why)


def without_last_guards(node: Node) -> tuple[Node, list[OneInput]]:
    """The pipeline without the `ignore_errors` at its end, and those, the lowest first.

    Exceptions are sent to the trainer instead of elements, so that `ignore_errors` counts them where users look.
    """
    above: list[OneInput] = []
    below = node
    while isinstance(below, (IgnoreErrors, Prefetch)):
        above.append(below)
        below = below.input
    return (below, above[::-1]) if any(isinstance(step, IgnoreErrors) for step in above) else (node, [])


def kind_of(node: Node) -> tuple[PassKind, int]:
    """The kind of the pass that a worker makes of these nodes, and the number of its positions."""
    bare = without_prefetch(node)
    base, above = base_of(bare)
    if base is None or _shared_caches(bare):
        return "sequence", _length_of(node)
    if not above:
        return "rows", base.cardinality
    if len(_groups(above, ordered=True, probing=False)[0]) == len(above):
        return "groups", base.cardinality
    return "sequence", _length_of(node)


def check_shared(cut: Cut) -> None:
    """Refuse operators that a shared job cannot have: each consumer would count, or compare, only its own elements.

    Raises:
        InvalidArgumentError: an operator above the cut must see the whole stream; the message names it.
    """
    for step in cut.above:
        if step.depends_on is not DependsOn.ANY or _draws_by_number(step):
            raise InvalidArgumentError(
                f"{step.where()} must see all elements, and the consumers of a shared job see only their own: "
                f"{cut.reason}. Put it where any row is read by index (before a filter, say), put it after "
                "distribute to apply it to each consumer's own elements, or omit job_name"
            )


def without_prefetch(node: Node) -> Node:
    """The pipeline without prefetching: the same elements. A node that several others read stays one node."""
    return rebuilt(node, lambda _, new: new.input if isinstance(new, Prefetch) else new)


def _by_one_worker(node: Node, reason: str) -> Cut:
    return Cut(node, "sequence", _length_of(node), (), reason)


def _length_of(node: Node) -> int:
    """The number of positions of a sequence; unknown if rows may be skipped after its last element.

    Such rows take one more position. Operators that can skip rows have an unknown number of elements, unless the user
    asserts it above them.
    """
    open_ended = any(below.cardinality == UNKNOWN_CARDINALITY for below in node.walk())
    return UNKNOWN_CARDINALITY if open_ended else node.cardinality


def _any_worth_a_worker(*nodes: Node) -> bool:
    """Return whether any of these nodes is worth another process."""
    return any(isinstance(node, _WORTH_A_WORKER) for node in nodes)


def _draws_by_number(step: Node) -> bool:
    """Return whether the result of a node depends on the number of an element, by a generator with a seed."""
    return isinstance(step, Map) and step.seed is not None


def _shared_caches(node: Node) -> list[Node]:
    """The caches in directories, each of which only one process can write."""
    return [below for below in node.walk() if isinstance(below, Cache) and below.filename]


def _maps_below(above: list[OneInput]) -> tuple[list[OneInput], list[OneInput]]:
    """The maps that can be moved below all of these nodes, so that workers run them, and the other nodes."""
    moved: list[OneInput] = []
    rest: list[OneInput] = []
    for step in above:
        is_map = isinstance(step, _ONE_EACH) and not _draws_by_number(step)
        if is_map and all(isinstance(other, _PASSED_BY_MAPS) for other in rest):
            moved.append(step)
        else:
            rest.append(step)
    return moved, rest


def _groups(above: list[OneInput], *, ordered: bool, probing: bool) -> tuple[list[OneInput], str]:
    """The first of the nodes above the base, which treat each row by itself, and why there are no more.

    Without `probing`, no user function is called.
    """
    groups: list[OneInput] = []
    exact = True  # whether elements have the same numbers as the rows
    for step in above:
        why = _why_not(step, exact, ordered, probing)
        if why:
            return groups, f"{step.label} {why}"
        groups.append(by_row(step, numbered=exact))
        exact = exact and isinstance(step, _ONE_EACH)
    return groups, "each row is treated by itself" if groups else "any row is read by index"


def _why_not(step: OneInput, exact: bool, ordered: bool, probing: bool) -> str:
    """Why a node over a stream cannot treat each row by itself; "" if it can."""
    by_number = "draws by the number of an element in the whole stream"
    if isinstance(step, _ROWS_APART):
        return by_number if _draws_by_number(step) else ""
    if isinstance(step, IgnoreErrors):
        return "counts the rows that it skips in the trainer"
    if not isinstance(step, Interleave):
        return "must see the whole stream"
    if step.cycle_length > 1 and ordered:
        return "mixes the elements that it makes of several rows"
    if exact or not step.numbers_known:
        return ""
    return by_number if not probing or _may_draw(step) else ""


def by_row(step: OneInput, *, numbered: bool) -> OneInput:
    """A node that treats one element of its input after the other.

    Args:
        step: the node.
        numbered: whether the numbers of the input's elements in the whole stream are known.
    """
    return step.by_row(numbered=numbered) if isinstance(step, Interleave) else step


def _may_draw(step: Interleave) -> bool:
    """Return whether the dataset made of its first element draws random numbers by the position in the stream."""
    try:
        made = first_dataset(step)
    except Exception as error:
        _logger.debug("%s may draw random numbers: its first element fails: %r", step.label, error)
        return True
    return made is not None and made.unseeded
