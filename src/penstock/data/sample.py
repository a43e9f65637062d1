"""What the elements of a dataset are where only a call of a user's function tells: found by one call of each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from penstock.data.block import Block, Indices
from penstock.data.node import Node, OneInput, Run, SameElements, gives_batches
from penstock.data.operators.ignore_errors import IgnoreErrors
from penstock.data.operators.order import Take
from penstock.data.plan import with_inputs
from penstock.data.streams.reading import Reading
from penstock.data.streams.stream import OneInputStream, Stream
from penstock.errors import ElementError
from penstock.runtime.threads import Threads
from penstock.spec import LeafSpec, all_assumed, with_open_axes
from penstock.structure import flatten, map_structure


def element_spec(node: Node) -> Any:
    """The specification of a node's elements: known by construction, else assumed from one call of each function.

    Raises:
        ElementError: a function would have to be called, and there is no element to call it with.
    """
    try:
        return _seen_or_known(node)
    except _Nothing as nothing:
        raise ElementError(
            f"{nothing.node.where()} has no elements that show what they are: give output_signature=... to this "
            "step, or to a map that follows it"
        ) from None


def tells_by_index(node: Node) -> bool:
    """Whether `element_spec` calls no function, or calls functions with elements that are read by index alone."""
    return all(
        asked.indexable or (asked.one_each and all(below.indexable for below in asked.inputs))
        for asked in _to_be_read(node)
    )


def _seen_or_known(node: Node) -> Any:
    return node.spec if node.spec is not None else _Samples().spec(node)


class _Nothing(Exception):
    """There is no element to call the function of a node with."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.node = node


class _Samples:
    """What has been seen of the elements of nodes in this search.

    An axis stays open through a function whose result is as long there as its argument was, where that is open. Of what
    a function makes of batches of which the last may be shorter, the leading axis is open, however long it is.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], Any] = {}
        # The nodes of whose elements those that fail are left out.
        self._guarded: set[int] = set()
        # Whether what gives its elements at the end reads all of its input: what is above it may need several of them.
        self._whole = False

    def spec(self, node: Node) -> Any:
        guards = [below for below in node.walk() if below.leaves_out_failures]
        self._guarded.update(id(below) for guard in guards for below in guard.walk())
        for asked in _to_be_read(node):
            if (id(asked), "output") not in self._seen:
                self._read(asked)
        found = self._known(node)
        if found is None:  # its elements cannot be: reading one raises what is wrong with them
            self._read(node)
            found = map_structure(all_assumed, self._seen[id(node), "output"])
        return found

    def _known(self, node: Node) -> Any:
        """The specification as far as it was seen; None if something was not."""
        if node.spec is not None:
            return node.spec
        if node.assumed_spec is not None:
            return node.assumed_spec
        if node.spec_from_call:
            seen = self._seen.get((id(node), "output"))
            return None if seen is None else self._carried_over(node, seen)
        inputs = [self._known(below) for below in node.spec_inputs]
        return None if any(spec is None for spec in inputs) else node.spec_over(*inputs)

    def _carried_over(self, node: Node, result: Any) -> Any:
        """The result of a call as a specification: assumed, with the open axes of what it was called with."""
        inputs = [(self._known(below), self._seen.get((id(node), "input"))) for below in node.inputs]
        pairs = [
            pair
            for known, seen in inputs
            if known is not None and seen is not None
            for pair in zip(flatten(known)[0], flatten(seen)[0], strict=True)
        ]

        batches = gives_batches(node)

        def carried(leaf: LeafSpec) -> LeafSpec:
            open_axes = [
                axis
                for axis, length in enumerate(leaf.shape)
                for known, seen in pairs
                if known.shape[axis : axis + 1] == (None,)
                and (seen.shape[axis : axis + 1] == (length,) or (batches and axis == 0))
            ]
            return with_open_axes(all_assumed(leaf), open_axes)

        return map_structure(carried, result)

    def _read(self, node: Node) -> None:
        """See what the elements of a node are: of the datasets that a function makes by what they say of themselves."""
        if isinstance(node, OneInput) and node.makes_datasets:
            element = self._first(node.input, node)
            self._look(node, "input")(element)
            known = self._known(node.input)
            made = node.dataset_of_sample(
                element, lambda window: window if known is None else _Promised(window, promise=known)
            )
            try:
                self._seen[id(node), "output"] = _seen_or_known(made)
            except _Nothing:  # it has too few elements to call a function with: there may be others that have more
                self._first(node, node)
        else:
            self._first(node, node)

    def _first(self, node: Node, asked: Node) -> Block:
        """The first element of a node, as a block; errors name the node for whose sake it is read."""
        block = self._pulled(node)
        if block is None and not self._whole and any(below.gives_at_end for below in node.walk()):
            self._whole = True
            block = self._pulled(node)
        if block is None:
            raise _Nothing(asked)
        return block.slice(0, 1)

    def _pulled(self, node: Node) -> Block | None:
        threads = Threads()
        watched = self._watched(node, {})
        if id(node) in self._guarded:
            watched = IgnoreErrors(watched)
        run = Run(watched, 0, threads)
        try:
            if watched.indexable and watched.cardinality != 0:
                return watched.read(run, 0, np.zeros(1, np.int64))
            cursor = watched.cursor(run, 0)
            try:
                return cursor.pull(1, 1)
            finally:
                cursor.close()
        finally:
            threads.stop()
            threads.join()

    def _watched(self, node: Node, made: dict[int, Node]) -> Node:
        """The nodes with a look at what goes into and comes out of those whose functions tell what elements are."""
        if id(node) not in made:
            made[id(node)] = self._newly_watched(node, made)
        return made[id(node)]

    def _newly_watched(self, node: Node, made: dict[int, Node]) -> Node:
        if node.remote is not None:
            return self._watched(node.remote, made)
        if node.divided:  # what is read of a service is read for good
            raise _Nothing(node)
        inputs = [self._watched(below, made) for below in node.inputs]
        if node.gives_all:  # any element does
            return inputs[0]
        if not node.spec_from_call:
            return with_inputs(node, inputs)
        if node.gives_at_end and not self._whole:
            inputs = [Take(inner, 1) for inner in inputs]  # the result of one element is as that of all
        below = [_Watched(inner, look=self._look(node, "input")) for inner in inputs]
        return _Watched(with_inputs(node.serial(), list(below)), look=self._look(node, "output"))

    def _look(self, node: Node, side: str) -> Callable[[Block], None]:
        def look(block: Block) -> None:
            if (id(node), side) not in self._seen:
                self._seen[id(node), side] = block.slice(0, 1).spec()

        return look


def _to_be_read(node: Node) -> list[Node]:
    """The nodes nearest to this one whose functions must be called."""
    if node.spec is not None or node.assumed_spec is not None:
        return []
    if node.spec_from_call:
        return [node]
    return [found for below in node.spec_inputs for found in _to_be_read(below)]


@dataclass(frozen=True, eq=False)
class _Watched(SameElements):
    """The elements of the input, of which the first is looked at as it passes."""

    name: ClassVar[str] = "watched"
    look: Callable[[Block], None] = field(repr=False)

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        block = yield from self.input.reading(run, epoch, indices)
        if len(block):
            self.look(block)
        return block

    def stream(self, run: Run, epoch: int) -> Stream:
        return _WatchedStream(self, run, epoch)


@dataclass(frozen=True, eq=False)
class _Promised(SameElements):
    """The elements of the input, of which more is known than they show."""

    name: ClassVar[str] = "promised"
    promise: Any = field(repr=False)

    @property
    def spec(self) -> Any:
        return self.promise

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        return self.input.reading(run, epoch, indices)

    def stream(self, run: Run, epoch: int) -> Stream:
        return self.input.stream(run, epoch)


class _WatchedStream(OneInputStream):
    def __init__(self, node: _Watched, run: Run, epoch: int) -> None:
        self._node = node
        self._input = node.input.cursor(run, epoch)

    def pull(self, need: int, allow: int) -> Block | None:
        block = self._input.pull(need, allow)
        if block is not None:
            self._node.look(block)
        return block
