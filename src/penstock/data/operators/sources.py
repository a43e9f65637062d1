"""Where elements come from: numbers, arrays, generators."""

import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np

from penstock.data.block import Block, Column, Indices, locked_entries, own
from penstock.data.node import Node, Run
from penstock.data.streams.stream import State, Stream
from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.printing import in_bytes
from penstock.rng import hash_positions, mix, uniform_positions
from penstock.runtime.threads import failures
from penstock.spec import TensorSpec, alike, as_leaf, describe_mismatch, fitted, spec_of
from penstock.structure import LEAF, Structure, flatten, map_structure

_logger = logging.getLogger(__name__)
_OBJECT: Final = np.dtype(object)


@dataclass(frozen=True, eq=False)
class Range(Node):
    """The integers of `range(start, stop, step)`."""

    name: ClassVar[str] = "range"
    start: int
    stop: int
    step: int

    @property
    def cardinality(self) -> int:
        return len(range(self.start, self.stop, self.step))

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec((), np.int64)

    @property
    def indexable(self) -> bool:
        return True

    @property
    def fails(self) -> bool:
        return False

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        return _numbers(indices, self.start, self.step)


@dataclass(frozen=True, eq=False)
class Counter(Node):
    """start, start + step, … without end."""

    name: ClassVar[str] = "counter"
    start: int
    step: int

    @property
    def cardinality(self) -> int:
        return INFINITE_CARDINALITY

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec((), np.int64)

    @property
    def indexable(self) -> bool:
        return True

    @property
    def fails(self) -> bool:
        return False

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        return _numbers(indices, self.start, self.step)


@dataclass(frozen=True, eq=False)
class Draws(Node):
    """Integers without end, drawn at random: a function of (seed, epoch, position)."""

    seed: int | None
    rerandomize_each_iteration: bool

    @property
    def cardinality(self) -> int:
        return INFINITE_CARDINALITY

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec((), np.int64)

    @property
    def indexable(self) -> bool:
        return True

    @property
    def varies(self) -> bool:
        return self.rerandomize_each_iteration

    @property
    def draws_unseeded(self) -> bool:
        return self.seed is None

    @property
    def fails(self) -> bool:
        return False

    def _key(self, run: Run, epoch: int) -> int:
        return mix(run.key(self, self.seed), epoch if self.rerandomize_each_iteration else 0)


@dataclass(frozen=True, eq=False)
class Random(Draws):
    """Numbers in [0, 2**32)."""

    name: ClassVar[str] = "random"

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        words = hash_positions(self._key(run, epoch), indices) >> np.uint64(32)
        return Block((words.astype(np.int64),), LEAF, len(indices))


@dataclass(frozen=True, eq=False)
class Choices(Draws):
    """Numbers of datasets, drawn by weight: the choice of `sample_from_datasets`."""

    name: ClassVar[str] = "choices"
    weights: tuple[float, ...]

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        edges = np.cumsum(self.weights)
        drawn = np.searchsorted(edges, uniform_positions(self._key(run, epoch), indices) * edges[-1], side="right")
        return Block((drawn.astype(np.int64),), LEAF, len(indices))


@dataclass(frozen=True, eq=False)
class Slices(Node):
    """The rows of arrays: `from_tensor_slices`, and with one row `from_tensors`."""

    method: str = field(repr=False)
    columns: tuple[Column, ...] = field(repr=False)
    structure: Structure = field(repr=False)
    length: int = field(repr=False)

    @property
    def memory(self) -> str:
        return f"holds {in_bytes(sum(column.nbytes for column in self.columns))}"

    @property
    def identity(self) -> dict[str, Any]:
        """Not what the rows hold, as where a `map` makes them."""
        return {"length": self.length}

    @property
    def name(self) -> str:  # type: ignore[override]  # one node serves two methods
        return self.method

    @property
    def cardinality(self) -> int:
        return self.length

    @cached_property
    def spec(self) -> Any:  # found once: it looks at every row of an object column
        return Block(self.columns, self.structure, self.length).spec()

    @property
    def indexable(self) -> bool:
        return True

    @property
    def fails(self) -> bool:
        return False

    def arguments(self) -> list[str]:
        return [f"{column.dtype}{list(column.shape)}" for column in self.columns]

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        block = Block(self.columns, self.structure, self.length)
        if self.length == 1:  # one row, however often: no copies of it
            return block.repeated(len(indices)).read_only()
        block = block.take(indices, run.copiers)
        if not isinstance(indices, range):
            return Block(tuple(map(locked_entries, block.columns)), block.structure, len(block))
        # Rows taken by a range share their memory with the user's arrays.
        return block.read_only()


@dataclass(frozen=True, eq=False)
class Generator(Node):
    """What a function's iterator yields."""

    name: ClassVar[str] = "from_generator"
    worth_a_worker = True
    function: Callable[[], Any]
    output_signature: Any = None

    @property
    def identity(self) -> dict[str, Any]:
        return {"function": self.function}

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY

    @property
    def spec(self) -> Any:
        return self.output_signature

    @property
    def spec_from_call(self) -> bool:
        return self.output_signature is None

    @property
    def keeps_places(self) -> bool:
        return True

    def stream(self, run: Run, epoch: int) -> "GeneratorStream":
        return GeneratorStream(self, run)


class GeneratorStream(Stream):
    """The state is the number of elements taken; restoring runs the generator again and drops that many."""

    def __init__(self, node: Generator, run: Run) -> None:
        self._node = node
        self._run = run
        self._iterator: Iterator[Any] | None = None
        self._taken = 0
        self._ended = False
        self._failure: BaseException | None = None

    def pull(self, need: int, allow: int) -> Block | None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._taken += 1  # only now: a state that was taken before it was raised must meet it again
            raise failure
        if self._iterator is None and not self._ended:
            self._iterator = self._begun()
        rows: list[list[Any]] = []
        while len(rows) < min(need, allow) and not self._ended:
            try:
                leaves = self._next()
            except failures() as error:
                error.add_note(f"penstock: in {self._node.where()}, element {self._taken}")
                if not rows:
                    self._taken += 1
                    raise
                self._failure = error
                break
            if leaves is not None:
                rows.append([own(leaf) for leaf in leaves])  # a generator may yield one buffer again and again
                self._taken += 1
        if not rows:
            return None
        structure = self._run.known(self._node)[0]
        return Block.of_leaves(rows, structure)

    def _begun(self) -> Iterator[Any]:
        try:
            made = self._node.function()
        except failures() as error:
            error.add_note(f"penstock: in {self._node.where()}, element {self._taken}")
            self._taken, self._ended = self._taken + 1, True  # there is nothing to take elements from
            raise
        return _iterator_of(made)

    def _next(self) -> list[Any] | None:
        assert self._iterator is not None
        try:
            value = next(self._iterator)
        except StopIteration:
            self._ended = True
            return None
        except failures():
            # A generator that raised is finished; an iterator of another kind may go on.
            self._ended = hasattr(self._iterator, "gi_frame")
            raise
        return self._checked(value)

    def _checked(self, value: Any) -> list[Any]:
        signature = self._node.output_signature
        if signature is not None:
            value = map_structure(fitted, signature, value)
            wrong = describe_mismatch(signature, spec_of(value))
            if wrong is not None:
                raise ElementError(f"the generator yielded an element that does not fit output_signature: {wrong}")
        leaves, structure = flatten(value)
        leaves = [as_leaf(leaf) for leaf in leaves]
        layout = (structure, [getattr(leaf, "dtype", _OBJECT) for leaf in leaves])
        agreed = self._run.agreed(self._node, layout)
        if layout != agreed and not (structure == agreed[0] and all(map(alike, layout[1], agreed[1]))):
            raise ElementError(
                f"the generator yielded {_shown(layout)} after {_shown(agreed)}; all its elements must be of one kind, "
                "which output_signature can declare"
            )
        return leaves

    def state(self) -> State:
        return self._taken

    def restore(self, state: State) -> None:
        while self._taken < state and not self._ended:
            try:
                self.pull(1, 1)
            except failures() as error:
                _logger.debug("passed over an element that had failed before the state was saved: %r", error)

    def close(self) -> None:
        iterator, self._iterator = self._iterator, None
        self._ended = True
        if hasattr(iterator, "close"):
            iterator.close()  # type: ignore[union-attr]  # generators have it, other iterators may


def _iterator_of(made: Any) -> Iterator[Any]:
    """What to take elements from, of what the user's function returned."""
    if not hasattr(made, "__iter__") and not hasattr(made, "__getitem__"):
        raise InvalidTypeError(f"the function must return an iterator, got {made!r:.200}: does it lack a `yield`?")
    if inspect.isgenerator(made) and inspect.getgeneratorstate(made) == inspect.GEN_CLOSED:
        raise InvalidArgumentError(
            "the function gave a generator that has ended already, perhaps in an epoch before: it must make a new one "
            "whenever it is called"
        )
    return iter(made)


def _shown(layout: tuple[Structure, list[Any]]) -> str:
    structure, dtypes = layout
    return structure.shown(map(str, dtypes))


def _numbers(indices: Indices, start: int, step: int) -> Block:
    if isinstance(indices, range):
        first = start + indices.start * step
        stride = indices.step * step
        return Block((np.arange(first, first + len(indices) * stride, stride, dtype=np.int64),), LEAF, len(indices))
    return Block((indices * step + start,), LEAF, len(indices))
