"""Readers and workers come, read, die and return in any order: every element goes to exactly one reader.

Each position stands for three elements, so that readers stop in the middle of one too. What a reader has handed on it
tells at once; a state is what it had handed on at some moment, and a restored reader has handed on no more than that.
A reader may be restored from any of its states, not from its newest one alone.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.service.config import DispatcherConfig
from penstock.service.dispatcher.machine.machine import Machine
from penstock.service.dispatcher.machine.volatile import VolatileState
from penstock.service.wire.dispatcher_messages import (
    ConsumerHeartbeat,
    DatasetRegistered,
    EpochOpened,
    Lease,
    Leased,
    OpenEpoch,
    RegisterDataset,
    ReleaseConsumer,
    WorkerHeartbeat,
    WorkerHello,
    WorkerNews,
    WorkerWelcome,
)
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.spans import count, insert, overlap, without
from penstock.service.wire.subjects import DatasetInfo, Endpoint, JobParameters, PassOffset, Refused, Span

ELEMENTS = 3
LENGTH = 10
LEASE_SECONDS = 10.0

NAMES = "abc"
LIVING = st.runner().flatmap(lambda service: st.sampled_from(service.living()))
KNOWN = st.runner().flatmap(lambda service: st.sampled_from(sorted(service.readers)))

Element = tuple[int, int]
"""Pass, and number: those of position p are 3 p, 3 p + 1 and 3 p + 2."""


def number_at(place: PassOffset) -> int:
    """Of the element at a place, whose `skip` may run on over the positions that follow."""
    position, skip = place
    return ELEMENTS * position + skip


@dataclass
class Past:
    """What a reader has handed on, as elements and as it says it to the dispatcher."""

    elements: list[Element] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def copy(self) -> "Past":
        return Past(list(self.elements), list(self.spans))


@dataclass
class Reader:
    """A reader, as it knows itself."""

    consumer_id: int
    past: Past
    held: list[Span] = field(default_factory=list)
    alive: bool = True

    def next(self, *, counts_on: bool) -> Span | None:
        """What it hands on next: the beginning of what it holds up to behind the first element, or all, if it has none.

        Args:
            counts_on: name what follows from the same position as before.
        """
        if not self.held:
            return None
        span = self.held[0]
        after = number_at(span.first) + 1
        if after > number_at(span.end):
            return span
        position = max(span.start, after // ELEMENTS)
        if counts_on and after < number_at((span.stop, 0)):
            position = span.start
        position = min(position, span.stop)
        return Span.between(span.pass_number, span.first, (position, after - ELEMENTS * position))


class Service(RuleBasedStateMachine):
    """One epoch of a job with up to three readers."""

    @initialize(policy=st.sampled_from([ShardingPolicy.DYNAMIC, ShardingPolicy.OFF]), known=st.booleans())
    def begin(self, policy: ShardingPolicy, known: bool) -> None:
        self.now = 0.0
        self.machine = Machine(DispatcherConfig(lease_seconds=LEASE_SECONDS), self.now)
        self.policy = policy
        length = LENGTH if known else -2
        info = DatasetInfo(kind="groups", length=length, cardinality=-2)
        registered = self.machine.answer(RegisterDataset(definition=b"x", info=info), self.now)
        assert isinstance(registered, DatasetRegistered)
        self.dataset_id = registered.dataset_id
        self.readers: dict[str, Reader] = {}
        self.states: dict[str, list[Past]] = {}
        self.workers: list[int] = []
        self.add_worker()

    # What happens

    @precondition(lambda self: len(self.readers) < len(NAMES))
    @rule()
    def open(self) -> None:
        name = NAMES[len(self.readers)]
        self.readers[name] = self.opened(name, None)
        self.states[name] = [Past()]

    @precondition(lambda self: self.living())
    @rule(name=LIVING, wanted=st.integers(1, 8))
    def lease(self, name: str, wanted: int) -> None:
        reader = self.readers[name]
        reply = self.tell(reader, self.message(reader, wanted))
        if isinstance(reply, Leased):
            whole = [span for span in reply.spans if span.skip]  # these are not cut
            assert sum(span.stop - span.start for span in reply.spans if span not in whole) <= wanted
            assert not (reply.spans and reply.ended)
            assert not (reply.ended and self.held_by_others(name)), "it could still have come to this reader"
            reader.held += reply.spans

    @precondition(lambda self: self.living())
    @rule(name=LIVING, count=st.integers(1, 12), counts_on=st.booleans())
    def hand_on(self, name: str, count: int, counts_on: bool) -> None:
        for _ in range(count):
            self.hand_one_on(self.readers[name], counts_on=counts_on)

    @precondition(lambda self: self.living())
    @rule(name=LIVING)
    def give_back(self, name: str) -> None:
        reader = self.readers[name]
        if not reader.held:
            return
        span = reader.held[-1]
        reply = self.tell(reader, self.message(reader, 0, returned=[span], unread=count(reader.held[:-1])))
        if isinstance(reply, Leased):
            reader.held.pop()

    @precondition(lambda self: self.living())
    @rule(name=LIVING)
    def release(self, name: str) -> None:
        self.machine.answer(ReleaseConsumer(consumer_id=self.readers[name].consumer_id), self.now)
        self.end(name)

    @precondition(lambda self: self.living())
    @rule(name=LIVING)
    def die(self, name: str) -> None:
        self.end(name)

    @precondition(lambda self: self.living())
    @rule(name=LIVING)
    def save(self, name: str) -> None:
        self.states[name].append(self.readers[name].past.copy())

    @precondition(lambda self: self.readers)
    @rule(name=KNOWN, older=st.integers(0, 3))
    def restore(self, name: str, older: int) -> None:
        """From the newest state, or from one before it: what came after that is forgotten."""
        states = self.states[name]
        del states[max(1, len(states) - older) :]
        self.readers[name] = self.opened(name, states[-1])

    @rule()
    def add_worker(self) -> None:
        if len(self.workers) < 3:
            address = f"host:{1 + self.machine.state.next_worker}"
            reply = self.machine.answer(WorkerHello(endpoint=Endpoint(address=address)), self.now)
            assert isinstance(reply, WorkerWelcome)
            self.workers.append(reply.worker_id)

    @precondition(lambda self: self.workers)
    @rule()
    def lose_worker(self) -> None:
        self.workers.pop()

    @rule(seconds=st.sampled_from([0.5, 3.0, 12.0]))
    def wait(self, seconds: float) -> None:
        """Time goes by, and those that are alive say so."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            for reader in self.readers.values():
                if reader.alive:
                    self.tell(reader, ConsumerHeartbeat(consumer_id=reader.consumer_id))
            for worker in self.workers:
                news = self.machine.answer(WorkerHeartbeat(worker_id=worker), self.now)
                assert isinstance(news, WorkerNews) and news.known
            self.machine.pass_time(self.now)

    # What must hold

    @invariant()
    def every_position_is_free_owned_or_consumed_once(self) -> None:
        for epoch in getattr(self, "machine", None).state.epochs.values() if hasattr(self, "machine") else ():
            where: Counter[tuple[int, int]] = Counter()
            owners = [self.machine.state.consumers[number] for number in epoch.consumers]
            spans = [span for owner in owners for span in (*owner.leased, *owner.owed, *owner.consumed)]
            spans += [span for ledger in epoch.ledgers for span in ledger.returned]
            for span in spans:
                where.update((span.pass_number, position) for position in range(span.start, span.stop))
            expected = {
                (ledger.info.number, position) for ledger in epoch.ledgers for position in range(ledger.frontier)
            }
            assert set(where) == expected
            assert all(count == 1 for count in where.values()), where

    @invariant()
    def leased_positions_are_counted_as_they_are(self) -> None:
        if hasattr(self, "machine"):
            state, volatile = self.machine.state, self.machine._known.volatile
            expected = dict.fromkeys(state.epochs, 0)
            for consumer in state.consumers.values():
                expected[consumer.epoch_id] += count(consumer.leased)
            assert volatile.leased == expected
            again = VolatileState.beginning(state, self.now, life=0)
            assert again.leased == expected, "a dispatcher that is started anew counts the same"
            assert {number for number, consumer in state.consumers.items() if consumer.alive} == {
                number for readers in volatile.readers.values() for number in readers
            }
            assert again.readers == volatile.readers

    @invariant()
    def no_two_readers_have_handed_on_the_same_element(self) -> None:
        handed_on = [element for reader in getattr(self, "readers", {}).values() for element in reader.past.elements]
        assert len(handed_on) == len(set(handed_on))

    def teardown(self) -> None:
        """Once the dead are known to be dead, whoever is left, and one more, read to the end: nothing is missing."""
        if not hasattr(self, "machine"):
            return
        self.wait(LEASE_SECONDS + 1)
        self.open_last()
        for _ in range(400):
            readers = [reader for reader in self.readers.values() if reader.alive]
            replies = [self.step(reader) for reader in readers]
            if all(isinstance(reply, Leased) and reply.ended for reply in replies):
                break
            self.wait(0.5)
        else:
            raise AssertionError("readers never come to their end")
        (epoch,) = self.machine.state.epochs.values()
        assert self.machine._known.finished(epoch)
        everything = {(ledger.info.number, number) for ledger in epoch.ledgers for number in range(ELEMENTS * LENGTH)}
        assert {element for reader in self.readers.values() for element in reader.past.elements} == everything

    # How

    def open_last(self) -> None:
        if not self.workers:
            self.add_worker()
        self.readers["last"] = self.opened("last", None)

    def step(self, reader: Reader) -> object:
        while reader.held:
            self.hand_one_on(reader, counts_on=False)
        reply = self.tell(reader, self.message(reader, 5))
        if isinstance(reply, Leased):
            reader.held += reply.spans
        return reply

    def message(self, reader: Reader, positions: int, **more: Any) -> Lease:
        """What a reader says, and with it how much it has not handed on."""
        said = {"unread": count(reader.held), "waiting": positions > 0 and not reader.held, **more}
        return Lease(consumer_id=reader.consumer_id, positions=positions, **said)

    def held_by_others(self, name: str) -> bool:
        """Whether another reader that is alive has something that it has not handed on; behind the end is nothing."""
        held = [
            span for other, reader in self.readers.items() if other != name and reader.alive for span in reader.held
        ]
        return any(count(overlap([span], msgspec.structs.replace(span, start=0, stop=LENGTH, skip=0))) for span in held)

    def hand_one_on(self, reader: Reader, *, counts_on: bool) -> None:
        done = reader.next(counts_on=counts_on)
        if done is None:
            return
        number = number_at(done.first)
        if number >= ELEMENTS * LENGTH:
            end = Span(pass_number=done.pass_number, start=0, stop=LENGTH)
            rest = reader.held.pop(0)
            self.tell(reader, self.message(reader, 0, consumed=[rest], ended=[end]))
            for span in overlap([rest], end):
                insert(reader.past.spans, span)
            return
        left = [*without(reader.held[:1], done), *reader.held[1:]]
        reply = self.tell(reader, self.message(reader, 0, consumed=[done], unread=count(left)))
        if isinstance(reply, Leased):
            reader.past.elements += [(done.pass_number, number)] if number < number_at(reader.held[0].end) else []
            insert(reader.past.spans, done)
            reader.held[0:1] = without(reader.held[:1], done)

    def living(self) -> list[str]:
        return sorted(name for name, reader in self.readers.items() if reader.alive)

    def end(self, name: str) -> None:
        self.readers[name].alive, self.readers[name].held = False, []

    def opened(self, name: str, state: Past | None) -> Reader:
        message = OpenEpoch(
            job_name="job",
            parameters=JobParameters(dataset_id=self.dataset_id, policy=self.policy),
            epoch=0,
            seed=0,
            consumer=name,
            resumed=None if state is None else state.spans,
        )
        reply = self.machine.answer(message, self.now)
        assert isinstance(reply, EpochOpened), reply
        return Reader(reply.consumer_id, Past() if state is None else state.copy())

    def tell(self, reader: Reader, message: Lease | ConsumerHeartbeat) -> object:
        reply = self.machine.answer(message, self.now)
        assert not isinstance(reply, Refused), "a reader that is heard of keeps its lease"
        return reply


@pytest.mark.extended
@pytest.mark.hypothesis  # as those with `given` are: `make properties` runs it
def test_every_element_goes_to_exactly_one_reader_whoever_dies_and_returns() -> None:
    run_state_machine_as_test(
        Service, settings=settings(max_examples=2 * settings.default.max_examples, stateful_step_count=50)
    )
