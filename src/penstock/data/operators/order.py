"""Operators that select and reorder positions; over indexable inputs they only compute positions."""

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
from penstock.errors import InvalidArgumentError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.positions import as_positions, by_part, shifted
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
    """The state is the input's, and the number of elements that remain to be returned."""

    counts = ("_left",)

    def __init__(self, node: Take, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        self._left = node.count

    def pull(self, need: int, allow: int) -> Block | None:
        if self._left == 0:
            return None
        try:
            block = self._input.pull(min(need, self._left), min(allow, self._left))
        except failures():
            self._left -= 1  # a failed element counts, so that later ones keep their positions
            raise
        self._left -= 0 if block is None else len(block)
        return block


class Skip(SameElements, name="skip"):
    """All elements but the first `count`."""

    count: int

    @derived
    def cardinality(self) -> int:
        return scaled(self.input.cardinality, lambda n: max(0, n - self.count))

    @derived
    def group_ends(self) -> npt.NDArray[np.int64] | None:
        ends = self.input.group_ends
        return None if ends is None else np.maximum(ends - self.count, 0)

    def sources(self, run: Run, epoch: int, indices: Indices) -> Indices:
        return shifted(indices, self.count)


class SkipStream(OperatorStream[Skip], of=Skip):
    """The state is the input's, and the number of elements that remain to be skipped.

    Failures of skipped elements are ignored, because their functions are not called where the input is read by index.
    A failure that ends the input among them is raised at the end.
    """

    counts = ("_left",)

    def __init__(self, node: Skip, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        self._left = node.count

    def pull(self, need: int, allow: int) -> Block | None:
        pace = Pace()
        passed_over: BaseException | None = None
        while self._left:
            rows = min(self._left, pace.start())
            try:
                block = self._input.pull(rows, rows)
            except failures() as error:
                self._left -= 1
                passed_over = _of_row(error)
                continue
            if block is None:
                return _end(passed_over)
            passed_over = None
            self._left -= len(block)
            pace.stop(block.nbytes, len(block))
        block = self._input.pull(need, allow)
        return _end(passed_over) if block is None else block


def _of_row(error: BaseException) -> BaseException:
    """Return the exception of a skipped element; raise any other exception again."""
    if not belongs_to_row(error):
        raise error
    return error


def _end(passed_over: BaseException | None) -> Block | None:
    """Return None, the end, or raise the input's last exception before it: a generator that raises has ended."""
    if passed_over is not None:
        raise passed_over
    return None


class Shard(SameElements, name="shard"):
    """Every `num_shards`-th element, beginning with element `index`."""

    num_shards: int
    index: int

    @derived
    def cardinality(self) -> int:
        return scaled(self.input.cardinality, lambda n: len(range(self.index, n, self.num_shards)))

    def sources(self, run: Run, epoch: int, indices: Indices) -> Indices:
        if isinstance(indices, range):
            start = indices.start * self.num_shards + self.index
            step = indices.step * self.num_shards
            return range(start, start + len(indices) * step, step)
        return indices * self.num_shards + self.index


class ShardStream(OperatorStream[Shard], of=Shard):
    """The state is the input's, and the position there modulo the number of shards.

    An element that fails belongs to one shard, and the others ignore it, as they do where the input is read by index. A
    failure that ends the input is raised at the end of each shard.
    """

    counts = ("_phase",)
    _phase = 0

    def __init__(self, node: Shard, run: Run, epoch: int) -> None:
        super().__init__(node, run, epoch)
        # Few large rows are read at a time: most are skipped, and a view of one keeps its block alive.
        self._pace = Pace()

    def pull(self, need: int, allow: int) -> Block | None:
        count, index = self._node.num_shards, self._node.index
        passed_over: BaseException | None = None
        while True:
            # Read up to the wanted element, and no further.
            ahead = (index - self._phase) % count + 1
            most = self._pace.start()
            if ahead > most:
                sure = asked = min(most, ahead - 1)
            else:
                asked = (min(allow, max(1, most // count)) - 1) * count + ahead
                sure = min((need - 1) * count + ahead, asked)
            try:
                block = self._input.pull(sure, asked)
            except failures() as error:
                self._phase = (self._phase + 1) % count
                if ahead == 1:
                    raise
                passed_over = _of_row(error)
                continue
            if block is None:
                return _end(passed_over)
            passed_over = None
            self._pace.stop(block.nbytes, len(block), asked)
            self._phase = (self._phase + len(block)) % count
            wanted = range(ahead - 1, len(block), count)
            if len(wanted):
                return block.take(wanted)


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
    """The state is the input's, and the position."""

    counts = ("_position",)
    _position = 0

    def pull(self, need: int, allow: int) -> Block | None:
        block = self._input.pull(need, allow)
        if block is None:
            return None
        start, self._position = self._position, self._position + len(block)
        return self._node.numbered(block, np.arange(start, self._position))
