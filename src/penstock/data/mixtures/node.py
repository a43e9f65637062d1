"""mix: named datasets by weight, in an order that can be entered anywhere."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from penstock.data.block import Block, Indices
from penstock.data.mixtures.order import MixOrder, Start, Weights
from penstock.data.mixtures.token_turns import TokenTurns
from penstock.data.node import DependsOn, Run, derived
from penstock.data.operators.choose import Choose, ChooseStream
from penstock.data.operators.order import Repeat, RepeatStream
from penstock.data.operators.sources import Integers
from penstock.data.picked_elements import OneOfSeveral, Picked
from penstock.data.streams.index_reading import Reading
from penstock.data.streams.stream import Cursor, State, Stream
from penstock.errors import InvalidArgumentError
from penstock.options import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.structure import LEAF

_logger = logging.getLogger(__name__)

_MANY_EPOCHS = 4
_SHOWN = 8
"""How many sources a label lists."""


class SourceEpochs(Repeat):
    """The epochs of one source of a mixture: it warns when there are many of them."""

    source: str = field(kw_only=True)

    @cached_property
    def _warned(self) -> list[int]:
        return []

    def warn(self, run: Run) -> None:
        """Warn, once, that a source has been read more often than is known to help."""
        if not self._warned and not run.quiet:
            self._warned.append(1)
            _logger.warning(
                "mix: epoch %d of source %r begins: rows that are trained on more often add little; give it a smaller "
                "weight, or limit it by max_epochs={%r: %d}",
                _MANY_EPOCHS + 1,
                self.source,
                self.source,
                _MANY_EPOCHS,
            )

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        if _MANY_EPOCHS * self.input.cardinality in indices:  # one data worker of several reads it
            self.warn(run)
        return (yield from super().reading(run, epoch, indices))


class _SourceEpochsStream(RepeatStream, of=SourceEpochs):
    _node: SourceEpochs

    def _opened(self, number: int) -> Cursor:
        if number == _MANY_EPOCHS:
            self._node.warn(self._run)
        return super()._opened(number)


class Mix(OneOfSeveral, name="mix"):
    """Elements of named sources by their weights, each in its own order."""

    depends_on = DependsOn.ANY
    not_in_states = ("start",)
    names: tuple[str, ...]
    stages: tuple[tuple[int, Weights], ...]
    """The weights from each position on."""
    seed: int
    stops: bool
    """Whether it ends when a source has no element for its turn; otherwise the others continue."""
    by_tokens: bool = False
    """Whether weights count tokens, by the known lengths of elements; positions of stages too."""
    start: Start | None = field(default=None, kw_only=True)
    """The position at which it became this mixture, and what was read of each source before."""

    def arguments(self) -> list[str]:
        weights = [f"{name}={weight:g}" for name, weight in zip(self.names, self.stages[0][1], strict=True)]
        shown = weights if len(weights) <= _SHOWN else [f"{len(weights)} sources"]
        stages = [f"{len(self.stages)} stages"] if len(self.stages) > 1 else []
        return [
            *shown,
            *stages,
            f"seed={self.seed}",
            *(["unit='tokens'"] if self.by_tokens else []),
            *(["stop='first'"] if self.stops else []),
        ]

    @derived
    def indexable(self) -> bool:
        return not self.by_tokens and all(node.indexable for node in self.members)

    @property
    def input_names(self) -> tuple[str, ...]:
        return self.names

    @cached_property
    def order(self) -> MixOrder:
        """The turns of all sources; without their ends where one is a stream, whose length is unknown."""
        lengths = [node.cardinality if self.indexable else INFINITE_CARDINALITY for node in self.members]
        start = self.start or Start(0, (0,) * len(lengths))
        return MixOrder(tuple(lengths), self.stages, self.seed, self.stops, start)

    @derived
    def cardinality(self) -> int:
        if self.indexable:
            return self.order.length
        infinite = all(node.cardinality == INFINITE_CARDINALITY and not node.may_end for node in self.members)
        return INFINITE_CARDINALITY if infinite else UNKNOWN_CARDINALITY

    @property
    def memory(self) -> str:
        if not (self.indexable and self.stops and self.cardinality >= 0):
            return ""
        return f"ends because {self.names[self._ending]!r} has ended"

    @property
    def _ending(self) -> int:
        """The source that ends it, over sources that are read by index."""
        return self.order.at(self.cardinality)[0]

    @cached_property
    def _told(self) -> list[int]:
        return []

    def tell_end(self, run: Run, number: int) -> None:
        """Log, once, which source ends the mixture, because rows of the others may be left."""
        if not self._told and not run.quiet:
            self._told.append(number)
            _logger.warning(
                "%s ends, because %r has ended; rows of other sources may be left: stop='all' goes on with them, "
                "stop='repeat' begins the next epoch of a source that has ended",
                self.where(),
                self.names[number],
            )

    def picked(self, run: Run, epoch: int, indices: Indices) -> Iterator[Picked]:
        for number, places, own in self.order.parts(indices):
            yield self.members[number], epoch, places, own

    def reading(self, run: Run, epoch: int, indices: Indices) -> Reading:
        block = yield from super().reading(run, epoch, indices)
        if self.stops and len(indices) and indices[-1] == self.cardinality - 1:
            self.tell_end(run, self._ending)
        return block

    def stream(self, run: Run, epoch: int) -> Stream:
        return MixStream(self, run, epoch)

    def lost_in(self, run: Run) -> dict[int, int]:
        """The first turn that each source has lost in an iteration, because it has ended."""
        found: dict[int, int] = run.called(self, dict)
        return found

    def passed(self, run: Run, epoch: int, state: "MixState", elements: int) -> tuple[list[int], int]:
        """Return how many of the next elements after a state are of each source, and the turn after them.

        It is counted as positions of stages are: in elements, with the turns that were lost, or in tokens.
        """
        turns = self.chosen.choice.cursor(run, epoch)
        turns.restore(state.choice)
        lost = np.full(len(self.names), 1 << 62)
        for source, turn in list(self.lost_in(run).items()):
            lost[source] = turn
        lost[np.flatnonzero(state.ended)] = 0
        counts = np.zeros(len(lost), np.int64)
        while elements > 0 and (lost > turns.met).any() and (block := turns.pull(elements, elements)) is not None:
            numbers = block.columns[0]
            kept = numbers[np.arange(turns.met - len(numbers), turns.met) < lost[numbers]]
            counts += np.bincount(kept, minlength=len(counts))
            elements -= len(kept)
        found = turns.state()[0]
        turns.close()
        return counts.tolist(), found[2] + sum(found[1]) if self.by_tokens else turns.met

    @cached_property
    def chosen(self) -> Choose:
        """The same elements as those of a choice of sources, for the stream."""
        tokens = TokenTurns(self.members, self.stages, self.seed, self.stops) if self.by_tokens else None
        return Choose("mix", self.members, tokens or TurnNumbers(self.order), self.stops, site=self.site)


@dataclass(frozen=True)
class MixState:
    """State of the stream of a mixture: those of its sources and of their turns."""

    sources: dict[str, State]
    choice: State
    ended: list[bool]
    stopped: bool

    def plain(self) -> State:
        """Return it as plain data."""
        return vars(self)

    @staticmethod
    def within(state: State) -> "tuple[MixState, int]":
        """Return the one in the state of a stream above, and the number of elements of the mixture before it."""
        left = [state]
        for one in left:  # which grow
            if len(one) == 3 and isinstance(one[0], dict) and "sources" in one[0]:
                return MixState(**one[0]), one[2] - one[1]
            left += [entry for entry in one if isinstance(entry, list)]
        return MixState({}, [None, 0, 0], [], False), 0


class TurnNumbers(Integers, name="turns"):
    """The number of the source of each element of a mixture."""

    cardinality = INFINITE_CARDINALITY
    order: MixOrder

    def read(self, run: Run, epoch: int, indices: Indices) -> Block:
        numbers = np.empty(len(indices), np.int64)
        for number, places, _ in self.order.parts(indices):
            numbers[places] = number
        return Block((numbers,), LEAF, len(indices))


class MixStream(ChooseStream):
    """Sources by turns, where some are streams: a source that has ended loses its turns.

    The state has the sources by name, so that another mixture finds them.
    """

    def __init__(self, node: Mix, run: Run, epoch: int) -> None:
        super().__init__(node.chosen, run, epoch)
        self._mix = node
        self._lost = node.lost_in(run)

    def state(self) -> State:
        (*members, choice), ended, stopped = super().state()
        return MixState(dict(zip(self._mix.names, members, strict=True)), choice, ended, stopped).plain()

    def restore(self, state: State) -> None:
        found = MixState(**state)
        members = [found.sources[name] for name in self._mix.names]
        super().restore([[*members, found.choice], found.ended, found.stopped])

    def _over(self) -> bool:
        begin, weights = self._mix.stages[-1]
        if self._mix.by_tokens or self._choice.met < begin:
            return super()._over()
        # Sources without weight have no more turns.
        return self._stopped or all(ended or not weight for ended, weight in zip(self._ended, weights, strict=True))

    def _serve(self, numbers: Any, usable: int, ending: dict[int, int]) -> None:
        ended, turn = list(self._ended), self._choice.met - len(numbers)
        super()._serve(numbers, usable, ending)
        self._lost |= {one: turn + first for one, first in ending.items() if self._ended[one] > ended[one]}
        if self._stopped:
            self._mix.tell_end(self._run, int(numbers[usable]))

    def _pulled(self, number: int, rows: int) -> tuple[Block | None, BaseException | None]:
        block, failure = super()._pulled(number, rows)
        if block is None and failure is None and self._members[number].met == 0:
            failure = InvalidArgumentError(
                f"{self._mix.where()}: the source {self._mix.names[number]!r} is empty: leave it out"
            )
        return block, failure
