"""The operator contract: nodes describe a dataset, streams carry one pass over it.

A `Node` is a frozen dataclass: its inputs and its arguments. Two kinds exist.

* An *indexable* node knows its length and reads any rows: `read(run, epoch, indices)` is a pure function of its
  arguments.
* Every other node is a *stream*: `stream(run, epoch)` opens one pass, `pull` gives its rows block by block.

Rules that all operators keep, and the conformance suite checks:

1. The sequence of rows is a function of (node, seed, epoch) alone: never of block sizes, threads or timing.
2. `Stream.state()` is JSON-able and describes the position after the last block that `pull` gave; `restore` on a fresh
   stream of an equal node continues with the next row. Rows read but not given are read again, never stored.
3. `pull(need, allow)` gives at least one row, or None at the end, and again None after it. `need` is how many rows the
   caller is sure to use: a source whose elements arrive at their own pace (a generator) is not run further than that.
   `allow` is how many pay; a stream whose rows come in larger pieces gives the whole piece, and the `Cursor` through
   which all streams are read cuts it.
4. An exception costs the row it happened at, in a batch the whole batch; pulling again continues after that. What
   makes many rows of a block at a time does so by `Cursor.made`, or stops at the first that fails.
5. `close()` may be called at any time, more than once.
"""

import weakref
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Indices
from penstock.data.skipped import Skips, SkipsAhead
from penstock.data.streams.by_index import IndexStream
from penstock.data.streams.index_reading import Load, Making, Reading, finished
from penstock.data.streams.live_streams import LiveStreams
from penstock.data.streams.stream import Cursor, Stream
from penstock.options import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.positions import as_positions
from penstock.rng import DrawnSeed, mix
from penstock.runtime.callers import TASK_SECONDS, Bell, Callers, ReadingThread
from penstock.runtime.copying import Copiers
from penstock.runtime.pacing import Demand
from penstock.runtime.threads import Threads, failures
from penstock.runtime.tuning import TunedCallers
from penstock.spec import leading_rows_of
from penstock.statistics.collected import NO_METER, Meter, Statistics
from penstock.statistics.schema import Operator

_TRIED = 100
"""If this many elements fail at the beginning, the layout is taken from the first later one that can be made."""

EVERYTHING = 1 << 62
"""A number of rows that is larger than any dataset: the count of `take(-1)`."""
_MEANT = {
    ("buffer_size", AUTOTUNE): "AUTOTUNE",
    ("num_parallel_calls", AUTOTUNE): "AUTOTUNE",
    ("expected", INFINITE_CARDINALITY): "INFINITE_CARDINALITY",
    ("count", EVERYTHING): "all",
    ("buffer_size", EVERYTHING): "all",
}
"""Words for numbers with a special meaning as this argument."""

BY_CHANCE = frozenset({"site", "drawn", "part"})
"""Fields of every node whose values differ between processes that describe the same dataset."""


class DependsOn(Enum):
    """On which elements of its input an element of a node depends."""

    ANY = "any elements"
    """On one or several elements, whichever they are: an operator treats a part of the data like all data."""
    NEIGHBOURS = "neighbours"
    """On consecutive elements: a selection of scattered elements would give wrong results."""
    ALL = "all elements"
    """On the number or the values of all elements before: the result is defined for all data together only."""


class Run:
    """One iteration of a dataset: its seed, its threads, and what its nodes have agreed on.

    Args:
        seeded: whether the seed applies to every node without a seed. Otherwise nodes keep the seed that was drawn when
            they were made.
        epoch: the epoch of `root` that is read.

    Attributes:
        guarded: whether the reader of the root may skip elements that fail.
        reads_again: whether this is for streams that read elements a second time in this iteration.
        quiet: whether others read the same dataset, and warn of it.
        statistics: counts what runs; None where nothing is counted.
    """

    _seed_of_inner: Callable[[], int]

    def __init__(self, root: "Node", seed: int, threads: Threads, *, seeded: bool = True, epoch: int = 0) -> None:
        self._begin(root, epoch)
        self.seed = seed
        self.seeded = seeded
        self.threads = threads
        self.copiers = Copiers(threads)
        self.live = LiveStreams()
        self.reads_again = self.guarded = self.quiet = False
        self.skips = Skips()
        # Applied to each dataset that a function made, before it is opened.
        self.prepare: Callable[[Node], Node] = _as_it_is
        self.bell = Bell()
        self.demand = Demand()
        self.statistics: Statistics | None = None
        # As they are now: a state that another iteration is restored from must not change this one.
        self._drawn: dict[int, int] = {} if seeded else {id(drawn): drawn.seed for drawn in root.drawn_seeds}

    def _begin(self, root: "Node", epoch: int) -> None:
        """Forget everything about the nodes of a dataset."""
        self._root = root
        self._epoch = epoch
        self._drawn = {}
        self._layouts: dict[int, Any] = {}
        self._settled: set[int] = set()
        self._callers: dict[int, Callers] = {}
        self._called: dict[int, Any] = {}
        self.loads: dict[int, list[Load]] = {}
        self._meters: dict[int, Meter] = {}
        self._maker = -1

    @cached_property
    def seed(self) -> int:
        """The seed of nodes without a seed."""
        return self._seed_of_inner()

    def key(self, node: "Node", seed: int | None) -> int:
        """The random key of a node: from its own seed, else from the run's seed and its place in the plan."""
        own = self._drawn.get(id(node.drawn)) if seed is None else seed
        key = mix(own) if own is not None else mix(self.seed, *self._root.places[id(node)])
        part = self._root.parts.get(id(node), 0)
        return mix(key, part) if part else key  # positions count within a part, and parts shall not draw alike

    def inner(self, node: "Node", root: "Node", epoch: int, position: int) -> "Run":
        """The run of a dataset that `node` made from its element at `position`."""
        run = object.__new__(Run)
        run._begin(root, epoch)
        run.seeded = True
        run.threads, run.copiers, run.bell = self.threads, Copiers(self.threads), self.bell
        run.demand = self.demand
        run.live, run.skips, run.prepare = self.live, self.skips, self.prepare
        run.statistics, run._maker = self.statistics, self.meter(node).number
        run.reads_again, run.quiet = self.reads_again, self.quiet
        run.guarded = self.leaves_out
        # Most such datasets draw nothing, so their seed is computed on first use.
        run._seed_of_inner = lambda: mix(self.key(node, None), epoch, position)
        return run

    def callers(self, node: "Node", count: int, function: Any, task_seconds: float = TASK_SECONDS) -> Callers:
        """The threads that call a node's function, up to `count` at a time: the same for all that read it."""
        found = self._callers.get(id(node))
        if found is None:
            found = self._callers.setdefault(id(node), self._new_callers(count, function, task_seconds))
            found.meter = self.meter(node)
            if self.statistics is not None:
                self.statistics.calls[found.meter.number] = found
        return found

    def _new_callers(self, count: int, function: Any, task_seconds: float) -> Callers:
        if self.reads_again:  # a few elements, and no others ahead of them
            return ReadingThread(self.threads, self.bell, 1)
        if count == AUTOTUNE:
            return TunedCallers(self.threads, self.bell, function)
        return Callers(self.threads, self.bell, count, task_seconds)

    def called(self, node: "Node", make: Callable[[], Any]) -> Any:
        """The processes that call a node's function, made by `make`: the same for all that read it."""
        found = self._called.get(id(node))
        return self._called.setdefault(id(node), make()) if found is None else found

    def meter(self, node: "Node") -> Meter:
        """Return what measures a node's work."""
        if self.statistics is None:
            return NO_METER
        found = self._meters.get(id(node))
        if found is None:
            self._add_meters(self.statistics, self._root)
            self._add_meters(self.statistics, node)
            found = self._meters[id(node)]
        return found

    def _add_meters(self, statistics: Statistics, root: "Node") -> None:
        if id(root) in self._meters:
            return
        for node in root.walk():
            if id(node) not in self._meters:
                key = self._maker, len(self._meters), node.name, node.site
                known = statistics.meters.get(key)  # of a dataset that the same function made before
                self._meters[id(node)] = self._new_meter(statistics, key, node, root) if known is None else known

    def _new_meter(self, statistics: Statistics, key: tuple[object, ...], node: "Node", root: "Node") -> Meter:
        inputs = [self._meters[id(below)].number for below in node.inputs]
        source = root.named_sources.get(id(node), "")
        described = Operator(node.name, node.name, node.site, inputs, self._maker, source=source)
        meter = statistics.meter(key, partial(_operator, weakref.ref(node), described))
        if self._maker >= 0:  # a node that a function made ends before anybody asks
            statistics.operator(meter.number)
        return meter

    def calls_of(self, node: "Node") -> str:
        """Return how many calls of a node's function run in threads, for `explain()`; "" where none was asked for."""
        callers = self._callers.get(id(node))
        if callers is None:
            return ""
        if callers.serial:
            return f"calls are made by the thread that reads{callers.because}"
        most = f"{callers.most} at most so far"
        return f"{callers.count} calls may run, {callers.running} run now, {most}{callers.because}"

    def drawn_below(self, node: "Node") -> list[int]:
        """The seeds in use here that were drawn when a node and those below it were made."""
        return [self._drawn[id(drawn)] for drawn in node.drawn_seeds if id(drawn) in self._drawn]

    def ahead(self) -> tuple["Run", SkipsAhead]:
        """Return this run for a reader that reads ahead, and the rows it skips, which the consumer counts later."""
        skips = SkipsAhead(self.skips)
        return self.leaving_to(skips), skips

    def leaving_to(self, skips: Skips) -> "Run":
        """Return this run with another place to note skipped rows."""
        return self._copy(skips=skips)

    def reading_again(self) -> "Run":
        """This run for streams beside those of the iteration, which read elements again that a state names."""
        return self._copy(reads_again=True, _callers={})

    def for_one_stream(self) -> "Run":
        """This run for readings of one stream, which may wait for each other."""
        return self._copy(loads={})

    def copying(self, parallelism: int) -> "Run":
        """Return this run for the inputs of a node that copies rows in `parallelism` threads."""
        same = parallelism == self.copiers.count
        return self if same else self._copy(copiers=Copiers(self.threads, parallelism))

    def _copy(self, **changes: Any) -> Self:
        run = object.__new__(type(self))  # `copy.copy` takes three times as long, for each stream that is opened
        run.__dict__.update(self.__dict__, **changes)
        return run

    def name_of(self, node: "Node", epoch: int) -> str:
        """Return the name of one pass over a node, the same in iterations restored from a state of this one."""
        name, number = self._root.places[id(node)]
        return f"{node.name} {name:x} {number} of {self.seed:x}, epoch {epoch}"

    def reads_twice(self, node: "Node") -> bool:
        """Return whether a node is read in several places of the dataset, as one that is zipped with itself."""
        ways: dict[int, int] = {}
        for above in self._root.walk():
            ways[id(above)] = 1 if above is node else sum(ways[id(below)] for below in above.inputs)
        return ways[id(self._root)] > 1

    def first(self, node: "Node") -> int:
        """The number of the first element that is read of a node; above 0 where the run is about a part of an epoch."""
        return 0

    @property
    def leaves_out(self) -> bool:
        """Return whether elements that fail are skipped here, or further up."""
        return self.guarded or self._root.leaves_out

    def from_beginning(self) -> "Run":
        """This run for streams that read the same epoch from its first element on."""
        return self.reading_again()

    def settle(self, node: "Node", position: int) -> None:
        """Take the layout of a node's elements from the first element of its epoch that can be made.

        Call it before taking the layout from the element at `position`, which may be of another kind. Where such
        elements are skipped, the result must not depend on the element with which a resumed iteration, an order or
        another process begins.
        """
        decided = id(node) in self._layouts or id(node) in self._settled
        if position == 0 or decided or not self.leaves_out or any(below.divided for below in node.walk()):
            return  # elements of a service can be read only once
        run, _ = self.from_beginning().ahead()
        run._settled = self._settled | {id(node)}
        cursor = node.cursor(run, self._epoch_of(node))
        try:
            for _ in range(_TRIED):
                with suppress(*failures()):
                    if cursor.pull(1, 1) is None or id(node) in self._layouts:
                        break
                if self.threads.stopped:
                    break
        finally:
            cursor.close()
        self._settled.add(id(node))

    def _epoch_of(self, node: "Node") -> int:
        """The epoch with which reading a node begins."""
        epochs = {id(self._root): self._epoch}
        for above in reversed(list(self._root.walk())):
            for below in above.inputs:
                epochs.setdefault(id(below), above.first_epoch(epochs[id(above)]))
        return epochs.get(id(node), self._epoch)

    def known(self, node: "Node") -> Any:
        """The layout that was agreed on for a node, or None before its first element."""
        return self._layouts.get(id(node))

    def agreed(self, node: "Node", layout: Any) -> Any:
        """Return the first layout that any thread of this run reported for a node: all its elements must have it."""
        return self._layouts.setdefault(id(node), layout)


def _operator(node: "weakref.ref[Node]", described: Operator) -> Operator:
    """Return the description with label, memory and waste: that of a node which has ended has none."""
    found = node()
    if found is not None:
        described.label, described.memory, described.waste = found.label, found.memory, found.waste
    return described


def _inputs(node: "Node") -> tuple["Node", ...]:
    return node.inputs


if TYPE_CHECKING:
    derived = property
else:

    class _Derived:
        """A property that follows from those of the inputs: found once for each node, from the lowest up.

        So it takes one walk over the nodes, whatever their number and however often each is read, and no recursion.
        """

        def __init__(self, function: Callable[["Node"], Any]) -> None:
            self.__doc__ = function.__doc__
            self._function = function
            self._name = function.__name__

        def __get__(self, node: "Node | None", owner: type) -> Any:
            if node is None:
                return self
            name, left = self._name, [node]
            while left:
                unknown = [below for below in left[-1].inputs if name not in below.__dict__]
                if unknown:
                    left += unknown
                    continue
                one = left.pop()
                if name not in one.__dict__:
                    own = getattr(type(one), name)
                    one.__dict__[name] = own._function(one) if isinstance(own, _Derived) else getattr(one, name)
            return node.__dict__[name]

    derived = _Derived


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(field,))
class _FrozenFields:
    """A class of which each subclass is a frozen dataclass."""

    name: ClassVar[str]
    """The public method that makes this node."""

    def __init_subclass__(cls, name: str = "", **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        dataclass(frozen=True, eq=False)(cls)
        if name:
            cls.name = name


class Node(_FrozenFields, ABC):
    """A step of a dataset. Subclasses add their inputs and arguments as fields, and say `name=` where they are made.

    `class Take(SameElements, name="take")` is what the method `take` makes.
    """

    site: str = field(default="", kw_only=True, repr=False)
    """The line of the user's code that added this node."""
    drawn: DrawnSeed | None = field(default=None, kw_only=True, repr=False)
    """The seed drawn when this node was made, if it draws alike in all epochs and was given no seed."""
    part: int = field(default=0, kw_only=True, repr=False)
    """The number of the part that this node and those above it read, if it selects one of several parts of the data."""

    leaves_out_failures: ClassVar[bool] = False
    """Whether it skips the elements of its input that fail."""
    reads_files: ClassVar[bool] = False
    """Whether it reads the files that its input names, one after the other."""
    draws_random: ClassVar[bool] = False
    """Whether it draws random numbers, by its argument `seed` where that is given."""
    not_in_states: ClassVar[tuple[str, ...]] = ()
    """The arguments that decide neither the number nor the order of elements, so that no state depends on them."""
    stream_class: ClassVar[type[Any]]
    """The class of its streams, which names the node: `class TakeStream(OperatorStream[Take], of=Take)`."""
    keeps_numbers: ClassVar[bool] = False
    """Whether `origins` holds also over a stream, if none of its elements fails."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone, without cached properties: equal nodes are equal bytes."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @property
    def inputs(self) -> tuple["Node", ...]:
        """The nodes that this one reads."""
        return ()

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs, if the user has given them."""
        return ()

    @property
    @abstractmethod
    def cardinality(self) -> int:
        """The number of elements of one epoch, or INFINITE_CARDINALITY, or UNKNOWN_CARDINALITY."""

    @derived
    def spec(self) -> Any:
        """The specification of the elements, as far as it is known without a call of a user's function; else None.

        Nothing in it is assumed.
        """
        inputs = [node.spec for node in self.spec_inputs]
        return None if self.spec_from_call or any(spec is None for spec in inputs) else self.spec_over(*inputs)

    @property
    def spec_inputs(self) -> tuple["Node", ...]:
        """The nodes from whose specifications this node's follows."""
        return self.inputs

    @property
    def spec_from_call(self) -> bool:
        """Return whether the specification follows only from an element, and so from a call of the node's function."""
        return type(self).spec_over is Node.spec_over and type(self).spec is Node.spec

    @property
    def assumed_spec(self) -> Any:
        """Return the specification that another process has found, if it cannot be found here; else None."""
        return None

    def spec_over(self, *inputs: Any) -> Any:
        """Return the specification of the elements, given those of the inputs, which may be assumed.

        None if it does not follow from these, or if there is none: then an element is read.
        """
        return None

    @property
    def indexable(self) -> bool:
        """Return whether `read` works: the length is known (or infinite) and any row can be read."""
        return False

    @property
    def depends_on(self) -> DependsOn:
        """Return the elements of its input on which each of its elements depends."""
        return DependsOn.ALL

    @property
    def mode(self) -> str:
        """Describe how it runs, for `explain()`: by index or as a stream, and in which threads."""
        return "index" if self.indexable else "stream"

    @property
    def memory(self) -> str:
        """Describe its memory, for `explain()`."""
        return ""

    @property
    def waste(self) -> str:
        """Describe which part of the training's work its elements leave unused, for `explain()` and reports."""
        return ""

    @derived
    def varies(self) -> bool:
        """Return whether epochs differ: a node here or below draws other random numbers in each."""
        return any(node.varies for node in self.inputs)

    def first_epoch(self, epoch: int) -> int:
        """Return the epoch of its inputs with which its `epoch` begins."""
        return epoch

    @derived
    def may_end(self) -> bool:
        """Return whether an infinite cardinality here holds only if the repeated dataset below has elements."""
        return any(node.may_end for node in self.inputs)

    @derived
    def paced(self) -> bool:
        """Return whether reading ahead is visible at a source here or below: it runs code, or waits for data."""
        return any(node.paced for node in self.inputs)

    @derived
    def leaves_out(self) -> bool:
        """Return whether elements that fail are skipped here or below."""
        return self.leaves_out_failures or any(node.leaves_out for node in self.inputs)

    @property
    def shows_reading(self) -> bool:
        """Return whether reading ahead is visible: at a source, or by the skipped rows."""
        return self.paced or self.leaves_out

    @derived
    def depth(self) -> int:
        """Return how many nodes read each other from here down to a source."""
        return 1 + max((node.depth for node in self.inputs), default=0)

    @property
    def fails(self) -> bool:
        """Return whether it can fail by itself at an element: it calls a function, or reads what may be damaged."""
        return True

    @derived
    def any_fails(self) -> bool:
        """Return whether it, or a node below, can fail by itself at an element."""
        return self.fails or any(node.any_fails for node in self.inputs)

    @derived
    def has_lengths(self) -> bool:
        """Return whether the length of every element is known without reading it. Only for indexable nodes."""
        return False

    def lengths_at(self, run: Run, epoch: int, indices: Indices) -> npt.NDArray[np.int64]:
        """The lengths of the elements at these positions, such as their numbers of tokens. Only where `has_lengths`.

        `mix`, `pack` and others read them by window, so that few are in memory.
        """
        raise NotImplementedError(self.name)

    @derived
    def group_ends(self) -> npt.NDArray[np.int64] | None:
        """The positions after each group of rows that cost little to read together; None where no one can say.

        Only for indexable nodes that end.
        """
        return None if self.inputs else np.array([self.cardinality])

    @derived
    def leading_rows(self) -> tuple[int, int] | None:
        """The number of rows of each element along its leading axis, and of the last one; None where it is unknown.

        Only for nodes whose elements can be read by index.
        """
        rows = leading_rows_of(self.spec) if self.indexable else None
        return None if rows is None else (rows, rows)

    @property
    def draws_unseeded(self) -> bool:
        """Return whether this node draws random numbers without a given seed."""
        return self.draws_random and getattr(self, "seed", None) is None

    @derived
    def unseeded(self) -> bool:
        """Return whether the run's seed matters: a node here or below draws random numbers without a given seed."""
        return self.draws_unseeded or any(node.unseeded for node in self.inputs)

    @property
    def rows_per_batch(self) -> int:
        """The number of rows of each batch but the last; 0 if it makes no batches."""
        return 0

    def records_in(self, file: str) -> int | None:
        """The number of records of a file that its input names; None where it reads no files by name.

        Raises:
            StorageError: the file cannot be read.
        """
        return None

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        """The rows at these positions of an epoch. Only for indexable nodes.

        A source defines this, an operator `reading`: each is the other by default.
        """
        return finished(self.reading(run, epoch, indices), run.bell)

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        """Variant of `read`, as a coroutine that stops where it would wait for calls in other threads."""
        yield from ()
        return run.meter(self).measured(self.read, run, epoch, indices)

    def making(self, run: Run, epoch: int, indices: Indices) -> Making:
        """Variant of `reading` that returns the rows before the first that fails, and its failure."""
        return (yield from self.reading(run, epoch, indices)), None

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator["Origins"]:
        """Yield the rows of which elements are made, for each input of which there are some; nothing for a source."""
        yield from ()

    def rows_at(self, positions: npt.NDArray[np.int64]) -> tuple[list[str | None], npt.NDArray[np.int64]]:
        """Return the file of each row of a source, None if it is of no file, and its number there."""
        return [None] * len(positions), positions

    @property
    def row_files(self) -> list[str]:
        """Return the files of its rows, if it is a source of rows of files."""
        return []

    def changed_since(self, label: str) -> str:
        """Return in words how many rows a source with this label, of the same data, has had more and fewer; or ""."""
        return ""

    def row_name(self, position: int) -> str:
        """The row at a position of a source, for errors."""
        (file,), (row,) = self.rows_at(np.array([position]))
        return f"row {row} of {file or self.where()}"

    def stream(self, run: Run, epoch: int) -> Stream:
        """One pass over an epoch. Only for nodes that are not indexable."""
        made: Stream = self.stream_class(self, run, epoch)
        return made

    def open(self, run: Run, epoch: int) -> Stream:
        """One pass over an epoch, by index where that is possible."""
        if self.indexable:
            run = run.for_one_stream()
            make = partial(self.making, run, epoch)
            stream: Stream = IndexStream(make, self.cardinality, run.bell, run.demand)
        else:
            stream = self.stream(run, epoch)
        stream.meter = run.meter(self)
        return stream

    def cursor(self, run: Run, epoch: int) -> Cursor:
        """One pass over an epoch that can be stopped between any two rows."""
        return Cursor(self.open(run, epoch))

    def walk(self, inputs: Callable[["Node"], tuple["Node", ...]] = _inputs) -> Iterator["Node"]:
        """This node and all below it, inputs first, each once.

        Args:
            inputs: what counts as the inputs of a node, if not all that it reads.
        """
        seen = {id(self)}
        path = [(self, iter(inputs(self)))]  # not a recursion: a chain of nodes can be long
        while path:
            node, left = path[-1]
            for below in left:
                if id(below) not in seen:
                    seen.add(id(below))
                    path.append((below, iter(inputs(below))))
                    break
            else:
                path.pop()
                yield node

    @property
    def remote(self) -> "Node | None":
        """Return the node that other processes run to make this one's elements, if any."""
        return None

    @property
    def divided(self) -> bool:
        """Return whether the elements are divided already among all processes that read this node or one like it."""
        return False

    def in_order(self) -> "Node | None":
        """Return this node with a repeatable order of elements, for reading rows again; None if it has none."""
        return self

    def walk_all(self) -> Iterator["Node"]:
        """Variant of `walk` that includes the nodes run by other processes, before the node that reads them here.

        Nodes are pickled as a list in this order: pickling one within another would exceed Python's recursion limit.
        """
        for node in self.walk():
            if node.remote is not None:
                yield from node.remote.walk_all()
            yield node

    @derived
    def drawn_seeds(self) -> tuple[DrawnSeed, ...]:
        """The seeds that were drawn when these nodes were made, inputs first."""
        below = (*self.inputs, *([] if self.remote is None else [self.remote]))
        seeds = [*(drawn for node in below for drawn in node.drawn_seeds), *([self.drawn] if self.drawn else [])]
        return tuple({id(drawn): drawn for drawn in seeds}.values())

    @cached_property
    def named_sources(self) -> dict[int, str]:
        """Map the `id` of each node below an input that has a name to that name."""
        named = [both for node in self.walk() for both in zip(node.input_names, node.inputs, strict=False)]
        return {id(below): name for name, member in named for below in member.walk()}

    @cached_property
    def places(self) -> dict[int, tuple[int, int]]:
        """Map the `id` of each node here and below to the key of its random numbers: its name, hashed, and its number.

        Nodes of one name are numbered by themselves, so that adding a prefetch, for instance, changes no order. So are
        those below an input that has a name: adding a source to a mixture changes no order in the others.
        """
        within: dict[int, str] = {}
        for node in self.walk_all():
            for name, member in zip(node.input_names, node.inputs, strict=False):
                for below in member.walk_all():
                    within[id(below)] = f"{name}/{within.get(id(below), '')}"
        counts: Counter[str] = Counter()
        places = {}
        for node in self.walk_all():
            name = within.get(id(node), "") + node.name
            places[id(node)] = zlib.crc32(name.encode()), counts[name]
            counts[name] += 1
        return places

    @cached_property
    def parts(self) -> dict[int, int]:
        """Map the `id` of each node here and below that reads one of several parts of the data to the part's number."""
        parts: dict[int, int] = {}
        for node in self.walk_all():
            part = node.part or max((parts.get(id(below), 0) for below in node.inputs), default=0)
            if part:
                parts[id(node)] = part
        return parts

    @property
    def label(self) -> str:
        """The node and its arguments as they were written, for states, plans and errors."""
        return f"{self.name}({', '.join(self.arguments())})"

    def arguments(self) -> list[str]:
        """The arguments in the label; by default every field that is neither a node nor a place in the code."""
        shown = []
        for item in fields(self):
            value = getattr(self, item.name)
            if not item.repr or isinstance(value, Node) or value == item.default:
                continue
            meant = _MEANT.get((item.name, value)) if isinstance(value, int) else None
            shown.append(f"{item.name}={meant or describe(value)}")
        return shown

    @property
    def arguments_by_name(self) -> dict[str, Any]:
        """Every argument by its name, but for the inputs."""
        found = {
            item.name: getattr(self, item.name) for item in fields(self) if item.name not in BY_CHANCE | {"method"}
        }
        return {name: value for name, value in found.items() if not _holds_nodes(value)}

    @property
    def identity(self) -> dict[str, Any] | None:
        """Return the arguments by name that decide the number and order of elements; None if no argument does.

        A state can be restored by a dataset whose nodes agree in these; functions agree if their code does. By default
        these are all arguments.
        """
        return {name: value for name, value in self.arguments_by_name.items() if name not in self.not_in_states}

    def where(self) -> str:
        """The node and the line that added it."""
        return f"{self.label} at {self.site}" if self.site else self.label

    def waits_for(self) -> str:
        """Say in words what a call that reads it waits for."""
        return self.where()


Origins = tuple[Node, int, npt.NDArray[np.intp], npt.NDArray[np.int64]]
"""Rows of which elements are made: an input, its epoch, the places of the elements, ascending, and a row for each."""


def spans(input: Node, epoch: int, begins: npt.NDArray[np.int64], offsets: range) -> Origins:
    """Return the rows of an input at these offsets from where each element begins, up to the input's end."""
    length = input.cardinality
    if length >= 0:
        offsets = offsets[: max(0, length)]
    rows = begins[:, None] + as_positions(offsets)
    places = np.nonzero(rows < length if length >= 0 else rows >= 0)
    return input, epoch, places[0], rows[places]


class KnownLength:
    """A source of `length` rows. Its identity does not include their content, which may change as a `map` may."""

    length: int

    @property
    def identity(self) -> dict[str, Any]:
        return {"length": self.length}

    @derived
    def cardinality(self) -> int:
        return self.length


class ByMethod(Node):
    """A node that several methods make: `method` names the one that did."""

    method: str = field(repr=False)

    @property
    def name(self) -> str:  # type: ignore[override]  # elsewhere it is that of a class
        return self.method


class OneInput(Node):
    """A node over one input."""

    input: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    @derived
    def cardinality(self) -> int:
        return self.input.cardinality

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        yield self.input, epoch, np.arange(len(positions)), positions


class ByIndex(OneInput):
    """A node that is read by index where its input is."""

    @derived
    def indexable(self) -> bool:
        return self.input.indexable


class AnyNumber(OneInput):
    """A node that makes any number of elements of its input."""

    @derived
    def cardinality(self) -> int:
        return any_number(self.input)


class SameElements(ByIndex):
    """A node that yields elements of its input, perhaps not all of them, or in another order."""

    def spec_over(self, *inputs: Any) -> Any:
        return inputs[0]

    @derived
    def has_lengths(self) -> bool:
        return self.indexable and self.input.has_lengths

    def lengths_at(self, run: Run, epoch: int, indices: Indices) -> npt.NDArray[np.int64]:
        return self.input.lengths_at(run, epoch, self.sources(run, epoch, indices))

    @property
    def fails(self) -> bool:
        return False

    def sources(self, run: Run, epoch: int, indices: Indices) -> Indices:
        """The input's positions of the elements at these positions."""
        return indices

    def origins(self, run: Run, epoch: int, positions: npt.NDArray[np.int64]) -> Iterator[Origins]:
        yield self.input, epoch, np.arange(len(positions)), as_positions(self.sources(run, epoch, positions))

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        sources = run.meter(self).measured(self.sources, run, epoch, indices)
        return self.input.reading(run, epoch, sources)


class SomeElements(AnyNumber):
    """A node that yields some of its input's elements in their order; which ones is known only by reading."""

    def spec_over(self, *inputs: Any) -> Any:
        return inputs[0]


def _as_it_is(node: Node) -> Node:
    return node


def _holds_nodes(value: Any) -> bool:
    return isinstance(value, Node) or (isinstance(value, tuple) and any(isinstance(entry, Node) for entry in value))


def describe(value: Any) -> str:
    """A short, stable text for an argument: functions by name, arrays by shape and dtype."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if callable(value) and not isinstance(value, type):
        name = getattr(value, "__qualname__", None) or type(value).__qualname__
        if isinstance(value, np.ufunc):  # which has no other name before NumPy 2.2
            name = value.__name__
        return str(name).replace("<locals>.", "")
    if isinstance(value, (list, tuple)) and len(value) > 8:
        return f"{type(value).__name__}[{len(value)}]"
    return repr(value)


def any_number(node: Node) -> int:
    """Return the cardinality of a node that makes any number of elements of its input: known if that is empty."""
    return 0 if node.cardinality == 0 else UNKNOWN_CARDINALITY


def surely(node: Node) -> int:
    """Return the cardinality of a node; unknown if it is infinite only when a repeated dataset has elements."""
    cardinality = node.cardinality
    return UNKNOWN_CARDINALITY if cardinality == INFINITE_CARDINALITY and node.may_end else cardinality


def added(cardinality: int, *others: int) -> int:
    """The cardinality of a sequence of datasets."""
    parts = (cardinality, *others)
    if INFINITE_CARDINALITY in parts:
        return INFINITE_CARDINALITY
    return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in parts else sum(parts)


def capped(cardinality: int, count: int) -> int:
    """The cardinality of a dataset cut off after `count` elements."""
    if cardinality == INFINITE_CARDINALITY:
        return count
    return cardinality if cardinality == UNKNOWN_CARDINALITY else min(cardinality, count)


def scaled(cardinality: int, function: Callable[[int], int]) -> int:
    """Apply `function` to a known cardinality; return an infinite or unknown one unchanged."""
    return cardinality if cardinality < 0 else function(cardinality)
