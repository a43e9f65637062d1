"""from_sampler: the rows whose numbers an object of the user's draws, which may learn from what it is told of them."""

from collections.abc import Iterator
from dataclasses import field
from operator import index
from typing import Any, NoReturn

import numpy as np

from penstock.data.block import Block
from penstock.data.node import OneInput, Run
from penstock.data.streams.live_streams import LiveStream
from penstock.data.streams.stream import State
from penstock.errors import InvalidArgumentError, InvalidTypeError, StateMismatchError
from penstock.options import UNKNOWN_CARDINALITY
from penstock.runtime.threads import failures


class FromSampler(OneInput, name="from_sampler"):
    """The rows of the input at the positions that `iter(sampler)` gives."""

    varies = paced = True
    indexable = False
    cardinality = UNKNOWN_CARDINALITY
    sampler: Any = field(repr=False)

    def arguments(self) -> list[str]:
        return [type(self.sampler).__qualname__]

    @property
    def identity(self) -> dict[str, Any]:
        return {"sampler": type(self.sampler).__qualname__}

    def __getstate__(self) -> NoReturn:
        raise InvalidTypeError(
            f"{self.where()} cannot be sent to another process, where nothing would reach its sampler: read it here"
        )

    def spec_over(self, *inputs: Any) -> Any:
        return inputs[0]

    def stream(self, run: Run, epoch: int) -> "SamplerStream":
        if not self.input.indexable:
            raise InvalidArgumentError(
                f"{self.where()} reads rows by number, as its sampler draws them, and {self.input.where()} gives them "
                "in order: use it without the data service"
            )
        return SamplerStream(self, run, epoch)


class SamplerStream(LiveStream):
    """Its replay holds the sampler's state as it is now, and the positions that were drawn and not consumed.

    So a state is exact, whatever was read ahead and whatever the sampler has learned since.
    """

    shared = False

    def __init__(self, node: FromSampler, run: Run, epoch: int) -> None:
        self.key = run.name_of(node, epoch)
        self._node, self._run, self._epoch = node, run, epoch
        self._positions: Iterator[Any] | None = None
        # The positions drawn from number `_first` on, and whether there are no more.
        self._drawn: list[int] = []
        self._first = self._number = 0
        self._ended = False
        self._alone = 0  # the rows to read one by one, since one of them fails
        self._replay: Any = run.live.restored.get(self.key)
        if self._replay is not None:
            position = self._replay["position"]
            self._first = self._number = position["first"]
            self._drawn, self._ended = list(position["drawn"]), position["ended"]
            node.sampler.load_state_dict(position["sampler"])
        if not run.reads_again:
            run.live.add(self)

    @property
    def number(self) -> int:
        return self._number

    def pull(self, need: int, allow: int) -> Block | None:
        rows = 1 if self._alone else min(need, allow)
        start = self._number - self._first
        while len(self._drawn) < start + rows and not self._ended:
            self._draw()
        positions = np.array(self._drawn[start : start + rows], np.int64)
        if not len(positions):
            return None
        self._alone = max(0, self._alone - 1)
        try:
            block = self._node.input.read(self._run, self._epoch, positions)
        except failures():
            if len(positions) > 1:
                self._alone = len(positions)
                return self.pull(1, 1)
            self._number += 1
            raise
        self._number += len(block)
        return block

    def _draw(self) -> None:
        node = self._node
        if self._positions is None:
            self._positions = iter(node.sampler)
        drawn = next(self._positions, None)
        if drawn is None:
            self._ended = True
            return
        try:
            position = index(drawn)
        except TypeError:
            raise InvalidTypeError(f"{node.where()} gives positions of rows, got {drawn!r:.200}") from None
        if not 0 <= position < node.input.cardinality:
            raise InvalidArgumentError(
                f"{node.where()} gave position {position} as number {self._first + len(self._drawn):,}, and "
                f"{node.input.where()} has {node.input.cardinality:,} rows: give positions from 0 on"
            )
        self._drawn.append(position)

    def consumed(self, number: int) -> None:
        passed = max(0, number - self._first)
        self._drawn, self._first = self._drawn[passed:], self._first + passed

    def replay_from(self, number: int, *, bare: bool) -> State:
        drawn = self._drawn[max(0, number - self._first) :]
        sampler = self._node.sampler.state_dict()
        # Ranks may have drawn further than others: states of one step need not agree in a position.
        return {"position": {"first": number, "drawn": drawn, "ended": self._ended, "sampler": sampler}}

    def claim(self) -> None:
        """Do nothing: no other reader gets these elements."""

    def leave_to(self, replay: State) -> None:
        """Do nothing: the sampler gets its state from the replay."""

    def restore(self, state: State) -> None:
        if self._replay is None and state != self.state():
            raise StateMismatchError(f"no state of a dataset with a sampler: {state!r:.200}")
        self._number = state["number"]

    def close(self) -> None:
        if self._positions is None and not self._drawn:
            self._run.live.remove(self)
