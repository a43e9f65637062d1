"""Operators by the positions and the number of elements; over indexable inputs they only compute positions."""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.data.block import Block, Indices
from penstock.data.node import EVERYTHING, DependsOn, Run, SameElements, capped, derived, scaled, surely
from penstock.data.operator_streams import OperatorStream
from penstock.data.picked_elements import Picked, PickedElements
from penstock.data.skipped import belongs_to_row
from penstock.data.streams.index_reading import Reading
from penstock.data.streams.stream import Cursor, OneInputStream, State, Stream
from penstock.errors import CardinalityError, InvalidArgumentError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.positions import as_positions, by_part, shifted, strided
from penstock.runtime.pacing import Pace
from penstock.runtime.threads import failures
from penstock.spec import TensorSpec
from penstock.structure import LEAF, PAIR

_INFINITE_REPEATS = 1 << 32


class Repeat(PickedElements, SameElements, name="repeat"):
    """The epochs of the input one after the other: `count` of them, or infinitely many (None)."""

    depends_on = DependsOn.ANY
    count: int | None

    @derived
    def cardinality(self) -> int:
        if self.input.cardinality == 0 or self.count == 0:
            return 0
        if self.count is None:
            return INFINITE_CARDINALITY
        return scaled(self.input.cardinality, lambda n: n * (self.count or 0))

    @derived
    def may_end(self) -> bool:
        return self.input.may_end or (self.count is None and self.input.cardinality == UNKNOWN_CARDINALITY)

    def first_epoch(self, epoch: int) -> int:
        return epoch * (_INFINITE_REPEATS if self.count is None else self.count)

    def picked(self, run: Run, epoch: int, indices: Indices) -> Iterator[Picked]:
        length, first_epoch = self.input.cardinality, self.first_epoch(epoch)
        positions = as_positions(indices)
        epochs = np.zeros_like(positions) if length == INFINITE_CARDINALITY else positions // length
        if not self.input.varies and (epochs != epochs[:1]).any():  # they are alike, and read together
            yield self.input, first_epoch, np.arange(len(positions)), positions % length
            return
        for number, places, rows in by_part(indices, epochs):
            yield self.input, first_epoch + number, places, shifted(rows, -number * length)


class RepeatStream(OneInputStream, of=Repeat):
    """The state is the number of the repetition and the input's own state.

    When calls have begun for all remaining elements of an epoch, the next epoch is opened, so that its first calls run
    in parallel with the last ones.
    """

    def __init__(self, node: Repeat, run: Run, epoch: int) -> None:
        self._node = node
        self._run = run
        self._first_epoch = node.first_epoch(epoch)
        self._number = 0
        self._empty = True
        # The following epochs that were opened in advance.
        self._next: deque[Cursor] = deque()
        self._input = self._opened(0)

    @property
    def _ended(self) -> bool:
        return self._node.count is not None and self._number >= self._node.count

    def _opened(self, number: int) -> Cursor:
        input = self._node.input.cursor(self._run, self._first_epoch + number)
        input.when_drained(partial(self._run_ahead, number))
        return input

    def _run_ahead(self, number: int) -> None:
        """Start calls for the next epoch when all calls for this one have begun."""
        last = self._number + len(self._next)
        if number < last:
            self._next[-1].run_ahead()
        elif not self._run.live and (self._node.count is None or last + 1 < self._node.count):
            self._next.append(self._opened(last + 1))
            self._next[-1].run_ahead()

    def pull(self, need: int, allow: int) -> Block | None:
        while True:
            if self._ended:
                return None
            block = self._input.pull(need, allow)
            if block is not None:
                self._empty = False
                return block
            # An empty input would be repeated forever. In a shared job, other readers may have received its elements.
            if self._empty and not self._run.live.shared:
                return None
            self._input.close()
            self._number += 1
            self._empty = True
            if not self._ended:
                self._input = self._next.popleft() if self._next else self._opened(self._number)

    def close(self) -> None:
        super().close()
        for input in list(self._next):
            input.close()

    def state(self) -> State:
        return [self._number, self._empty, self._input.state()]

    def restore(self, state: State) -> None:
        number, self._empty, position = state
        opened, self._number = self._number, number
        if self._ended:
            return
        if number != opened:
            self._input.close()
            self._input = self._opened(number)
        self._input.restore(position)


class Take(SameElements, name="take"):
    """The first `count` elements."""

    count: int

    @derived
    def cardinality(self) -> int:
        return self.input.cardinality if self.count == EVERYTHING else capped(surely(self.input), self.count)

    @derived
    def group_ends(self) -> npt.NDArray[np.int64] | None:
        ends = self.input.group_ends
        return None if ends is None else np.minimum(ends, self.cardinality)


class TakeStream(OperatorStream[Take], of=Take):
    """The state is the input's. A failed element counts, so that later ones keep their positions."""

    same_rows = True

    def pull(self, need: int, allow: int) -> Block | None:
        left = self._node.count - self._input.met
        return self._input.pull(min(need, left), min(allow, left)) if left > 0 else None


class _EveryNth(SameElements):
    """Every so many-th element of the input, from one position on."""

    @property
    @abstractmethod
    def nth(self) -> tuple[int, int]:
        """The position of the first element in the input, and the distance to the next one."""

    @derived
    def cardinality(self) -> int:
        first, step = self.nth
        return scaled(self.input.cardinality, lambda n: len(range(first, n, step)))

    @derived
    def group_ends(self) -> npt.NDArray[np.int64] | None:
        first, step = self.nth
        ends = self.input.group_ends
        return None if ends is None else np.maximum(-((first - ends) // step), 0)

    def sources(self, run: Run, epoch: int, indices: Indices) -> Indices:
        return strided(indices, *self.nth)


class Skip(_EveryNth, name="skip"):
    """All elements but the first `count`."""

    count: int

    @property
    def nth(self) -> tuple[int, int]:
        return self.count, 1


class Shard(_EveryNth, name="shard"):
    """Every `num_shards`-th element, beginning with element `index`."""

    num_shards: int
    index: int

    @property
    def nth(self) -> tuple[int, int]:
        return self.index, self.num_shards


class EveryNthStream(OperatorStream[_EveryNth], of=_EveryNth):
    """The state is the input's, which counts its elements.

    Failures of elements between are ignored, because their functions are not called where the input is read by index: a
    failing element belongs to one shard. A failure that ends the input among them is raised at the end.
    """

    def __init__(self, node: _EveryNth, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        self._first, self._step = node.nth
        # Few large rows are read at a time: most are skipped, and a view of one keeps its block alive.
        self._pace = Pace()

    def pull(self, need: int, allow: int) -> Block | None:
        passed_over: BaseException | None = None
        while True:
            before = self._first - self._input.met
            before = before if before >= 0 else before % self._step
            sure, asked = self._ahead(before, need, allow)
            try:
                block = self._input.pull(sure, asked)
            except failures() as error:
                if not before or not belongs_to_row(error):
                    raise
                passed_over = error
                continue
            if block is None and passed_over is not None:
                raise passed_over  # a generator that raises has ended
            if block is None:
                return None
            passed_over = None
            self._pace.stop(block.nbytes, len(block), asked)
            wanted = range(before, len(block), self._step)
            if wanted:
                return block if len(wanted) == len(block) else block.take(wanted)

    def _ahead(self, before: int, need: int, allow: int) -> tuple[int, int]:
        """Return how many elements to read: up to the wanted ones, and no further."""
        if self._step == 1 and not before:
            return need, allow
        most = self._pace.start()
        if before >= most:
            return most, most
        asked = (min(allow, max(1, most // self._step)) - 1) * self._step + before + 1
        return min((need - 1) * self._step + before + 1, asked), asked


class ShardHint(SameElements, name="shard"):
    """A mark where `AutoShardPolicy.HINT` inserts each worker's `shard`; it cannot be read before that."""

    depends_on = DependsOn.ANY
    indexable = False
    cardinality = UNKNOWN_CARDINALITY

    def arguments(self) -> list[str]:
        return ["SHARD_HINT", "SHARD_HINT"]

    def stream(self, run: Run, epoch: int) -> Stream:
        raise InvalidArgumentError(
            f"{self.where()} can be read only when it was distributed under AutoShardPolicy.HINT: set it by "
            "dataset.with_options(ps.Options(auto_shard_policy=ps.AutoShardPolicy.HINT)) and use "
            "strategy.distribute_dataset"
        )


class Enumerate(SameElements, name="enumerate"):
    """(start + position, element) for every element."""

    start: int = 0

    def spec_over(self, *inputs: Any) -> Any:
        return TensorSpec((), np.int64), inputs[0]

    def numbered(self, block: Block, numbers: npt.NDArray[np.int64]) -> Block:
        """Return the block with its positions as a leading leaf."""
        return Block((numbers + self.start, *block.columns), PAIR.nested([LEAF, block.structure]), len(block))

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        return self.numbered((yield from self.input.reading(run, epoch, indices)), as_positions(indices))


class EnumerateStream(OperatorStream[Enumerate], of=Enumerate):
    """The state is the input's, which counts its elements."""

    same_rows = True

    def pull(self, need: int, allow: int) -> Block | None:
        block = self._input.pull(need, allow)
        end = self._input.met
        return None if block is None else self._node.numbered(block, np.arange(end - len(block), end))


class AssertCardinality(SameElements, name="assert_cardinality"):
    """The same elements, of which there must be `expected`."""

    expected: int

    @derived
    def cardinality(self) -> int:
        return self.expected

    @derived
    def indexable(self) -> bool:
        return self.input.indexable and self.input.cardinality == self.expected


class AssertCardinalityStream(OperatorStream[AssertCardinality], of=AssertCardinality):
    """The state is the input's, and whether the number of elements was wrong."""

    counts = ("_wrong",)
    _wrong = False

    def pull(self, need: int, allow: int) -> Block | None:
        if self._wrong:
            return None
        expected, met = self._node.expected, self._input.met
        endless = expected == INFINITE_CARDINALITY
        # At the end one more is pulled, which must not exist.
        left = allow if endless else max(expected - met, 1)
        block = self._input.pull(min(need, left), min(allow, left))
        if block is None and met == expected:
            return None
        too_many = not endless and met >= expected
        if block is None or too_many:
            self._wrong = True
            wanted = "elements without end" if endless else f"{expected} elements"
            found = "more" if too_many else f"only {met}"
            raise CardinalityError(f"{self._node.where()}: expected {wanted}, got {found}")
        return block
