"""Turns of the sources of a mixture whose weights are shares of tokens."""

import heapq
from collections.abc import Generator, Iterator
from dataclasses import field
from itertools import islice

import numpy as np

from penstock.data.block import Block
from penstock.data.mixtures.order import Weights
from penstock.data.node import Node, Run
from penstock.data.streams.stream import State, Stream
from penstock.options import UNKNOWN_CARDINALITY
from penstock.rng import uniform_position
from penstock.spec import TensorSpec
from penstock.structure import LEAF

_TOGETHER = 256
"""The number of elements of a source whose lengths are looked up together."""


class TokenTurns(Node, name="turns"):
    """The number of the source of each element: the one that has given the fewest tokens for its weight comes next."""

    fails = False
    cardinality = UNKNOWN_CARDINALITY
    spec = TensorSpec((), np.int64)
    members: tuple[Node, ...] = field(repr=False)
    stages: tuple[tuple[int, Weights], ...]
    seed: int
    stops: bool


class TokenTurnsStream(Stream, of=TokenTurns):
    """The state is how many elements each source has given, how many tokens in this stage, and before it in all."""

    def __init__(self, node: TokenTurns, run: Run, epoch: int) -> None:
        self._node = node
        self._run, self._epoch = run, epoch
        self._elements = [0] * len(node.members)
        self._tokens = [0] * len(node.members)
        self._before, self._stage = 0, 0
        self._lengths: list[Iterator[int]] = [iter(())] * len(node.members)
        self._turns = self._taken()

    def _taken(self) -> Iterator[int]:
        """The sources by turn, from the present state on."""
        while self._stage < len(self._node.stages):
            stopped = yield from self._of_stage()
            if stopped:
                return
            self._before += sum(self._tokens)
            self._tokens = [0] * len(self._tokens)
            self._stage += 1

    def _of_stage(self) -> Generator[int, None, bool]:
        """The sources by turn in this stage; returns whether one that has ended ends all."""
        stages, weights = self._node.stages, self._node.stages[self._stage][1]
        end = stages[self._stage + 1][0] if self._stage + 1 < len(stages) else None
        left = end and end - self._before - sum(self._tokens)
        # Ties are broken by the seed.
        turns = [
            (self._tokens[one] / weight, uniform_position(self._node.seed, one), one)
            for one, weight in enumerate(weights)
            if weight > 0
        ]
        heapq.heapify(turns)
        while turns and (left is None or left > 0):
            _, tie, source = heapq.heappop(turns)
            if 0 <= self._node.members[source].cardinality <= self._elements[source]:
                if self._node.stops:
                    return True
                continue
            length = self._length(source)
            self._elements[source] += 1
            self._tokens[source] += length
            left = None if left is None else left - length
            heapq.heappush(turns, (self._tokens[source] / weights[source], tie, source))
            yield source
        return False

    def _length(self, source: int) -> int:
        found = next(self._lengths[source], None)
        if found is not None:
            return found
        member, begin = self._node.members[source], self._elements[source]
        end = begin + _TOGETHER
        if member.cardinality >= 0:
            end = min(end, member.cardinality)
        lengths = member.lengths_at(self._run, self._epoch, range(begin, end))
        self._lengths[source] = iter(lengths.tolist())
        return next(self._lengths[source])

    def pull(self, need: int, allow: int) -> Block | None:
        numbers = np.fromiter(islice(self._turns, allow), np.int64)
        return Block((numbers,), LEAF, len(numbers)) if len(numbers) else None

    def state(self) -> State:
        return [list(self._elements), list(self._tokens), self._before, self._stage]

    def restore(self, state: State) -> None:
        elements, tokens, self._before, self._stage = state
        self._elements, self._tokens = list(elements), list(tokens)

    def close(self) -> None:
        """There is nothing to end."""
