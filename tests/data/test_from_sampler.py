"""from_sampler: rows whose numbers the user's object draws, with what it has learned in the state."""

import json

import cloudpickle
import numpy as np
import pytest

import penstock as ps
from penstock.distribute.feed.dataset import agreed_part, state_of_loader
from penstock.testing import check_conformance

SQUARES = ps.Dataset.range(10).map(lambda x: x * x)


class Adding:
    """Each position follows from the one before and from what was observed."""

    def __init__(self, count=12):
        self.count, self.at, self.given = count, 0, 0

    def __iter__(self):
        while self.given < self.count:
            self.given += 1
            self.at = (self.at * 3 + self.given) % 10
            yield self.at
        self.given = 0

    def observe(self, positions, values):
        self.at += int(np.sum(positions)) + int(np.sum(values))

    def state_dict(self):
        return {"at": self.at, "given": self.given}

    def load_state_dict(self, state):
        self.at, self.given = state["at"], state["given"]


class Anew(Adding):
    """Draws alike in every epoch, whatever was drawn before, unless it was given a state to go on from."""

    def __iter__(self):
        if not self.goes_on:
            self.at = self.given = 0
        self.goes_on = False
        yield from super().__iter__()

    goes_on = False

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.goes_on = True


def values(dataset):
    return [int(x) for x in dataset]


def positions_of(count=12):
    return list(Adding(count))


def test_rows_come_as_the_sampler_draws_them_in_every_epoch():
    sampler, alone = Adding(), Adding()
    dataset = ps.Dataset.from_sampler(sampler, SQUARES)
    assert [values(dataset), values(dataset)] == [[x * x for x in alone], [x * x for x in alone]]
    assert values(ps.Dataset.from_sampler(Adding(), np.arange(10) * 2)) == [2 * x for x in positions_of()]
    alone = Adding()
    twice = ps.Dataset.from_sampler(Adding(), SQUARES).repeat(2)
    assert values(twice) == [x * x for x in [*alone, *alone]]


@pytest.mark.parametrize(
    "above",
    [
        lambda d: d,
        lambda d: d.batch(5),
        lambda d: d.prefetch(2).batch(4),
        lambda d: d.repeat(2).batch(5),
        lambda d: d.map(lambda x: x + 1, num_parallel_calls=2).filter(lambda x: x % 3).batch(2),
    ],
    ids=["alone", "batches", "prefetched", "repeated", "filtered"],
)
def test_it_conforms(above):
    assert check_conformance(lambda: above(ps.Dataset.from_sampler(Anew(), SQUARES)), limit=16)


@pytest.mark.parametrize("ahead", [0, 2])
def test_what_was_observed_is_in_the_state(ahead):
    def steps(sampler):
        batches = ps.Dataset.from_sampler(sampler, ps.Dataset.range(10)).batch(3)
        options = ps.InputOptions(per_replica_buffer_size=ahead)
        return iter(ps.HostStrategy().distribute_dataset(batches, options))

    sampler = Adding(30)
    iterator = steps(sampler)
    for _ in range(3):
        sampler.observe(next(iterator), [1, 2, 3])
    state = json.loads(json.dumps(iterator.state_dict()))
    if ahead == 0:
        rest = [next(iterator).tolist() for _ in range(4)]
    other = Adding(30)
    resumed = steps(other)
    resumed.load_state_dict(state)
    found = [next(resumed).tolist() for _ in range(4)]
    if ahead == 0:
        assert found == rest and other.state_dict() == sampler.state_dict()
    else:  # the rows that had been drawn, and then those that follow from what was observed
        assert state["live"] and len(list(resumed)) == 30 // 3 - 3 - 4


def test_states_of_ranks_agree_however_far_each_has_drawn():
    states = []
    for ahead in (0, 2):
        batches = ps.Dataset.from_sampler(Adding(), ps.Dataset.range(10)).batch(3)
        options = ps.InputOptions(per_replica_buffer_size=ahead)
        steps = ps.HostStrategy().distribute_dataset(batches.with_options(ps.Options(seed=1)), options)
        iterator = iter(steps)
        next(iterator)
        states.append(state_of_loader(iterator))
    assert agreed_part(states[0]) == agreed_part(states[1])


def test_observations_change_what_is_drawn_next():
    sampler = Adding()
    iterator = iter(ps.Dataset.from_sampler(sampler, ps.Dataset.range(10)))
    first = int(next(iterator))
    sampler.observe([first], [4])
    assert int(next(iterator)) == ((first + first + 4) * 3 + 2) % 10


def test_a_row_that_fails_costs_itself_alone():
    def inverse(x):
        return 60 // int(x - 3)

    positions = [0, 3, 1, 3, 2]

    class Listed(Adding):
        def __iter__(self):
            while self.given < len(positions):
                self.given += 1
                yield positions[self.given - 1]

    dataset = ps.Dataset.from_sampler(Listed(), ps.Dataset.range(5).map(inverse))
    skipping = iter(dataset.with_options(ps.Options(on_error="skip")).batch(2))
    assert [batch.tolist() for batch in skipping] == [[-20, -30], [-60]] and skipping.errors.count == 2


@pytest.mark.parametrize(
    ("drawn", "error", "message"),
    [
        (
            10,
            ps.InvalidArgumentError,
            r"from_sampler\(.*Given\).* gave position 10 as number 1, and map\(.* has 10 rows",
        ),
        (-1, ps.InvalidArgumentError, r"gave position -1 as number 1"),
        ([1, 2], ps.InvalidTypeError, r"gives positions of rows, got \[1, 2\]"),
        (1.5, ps.InvalidTypeError, r"gives positions of rows, got 1.5"),
    ],
)
def test_positions_that_are_none_are_refused(drawn, error, message):
    class Given(Adding):
        def __iter__(self):
            yield from (4, drawn)

    iterator = iter(ps.Dataset.from_sampler(Given(), SQUARES))
    assert int(next(iterator)) == 16
    with pytest.raises(error, match=message):
        next(iterator)


def test_what_is_no_sampler_or_no_data_is_refused():
    with pytest.raises(
        ps.InvalidTypeError, match=r"without state_dict: positions that are known before are for select"
    ):
        ps.Dataset.from_sampler([1, 2], SQUARES)
    with pytest.raises(ps.InvalidArgumentError, match=r"from_sampler reads by index, and filter\(.* is a stream"):
        ps.Dataset.from_sampler(Adding(), SQUARES.filter(bool))
    with pytest.raises(ps.InvalidTypeError, match=r"cannot be sent to another process, where nothing would reach its"):
        cloudpickle.dumps(ps.Dataset.from_sampler(Adding(), SQUARES))


def test_a_data_service_does_not_draw():
    dataset = ps.Dataset.from_sampler(Adding(), SQUARES)
    with ps.service.DispatchServer() as dispatcher:
        served = dataset.apply(ps.service.distribute("distributed_epoch", dispatcher.target))
        with pytest.raises(
            ps.InvalidArgumentError, match=r"distribute\(.* gives them in order: use it without the data"
        ):
            list(served)


def test_all_ranks_draw_the_same_rows():
    batches = [ps.Dataset.from_sampler(Adding(), ps.Dataset.range(10)).batch(4) for _ in range(2)]
    found = [
        [step.values[0].tolist() for step in ps.HostStrategy(num_workers=2, worker_index=n).distribute_dataset(own)]
        for n, own in enumerate(batches)
    ]
    expected = positions_of()
    assert [one + other for one, other in zip(*found, strict=True)] == [expected[n : n + 4] for n in (0, 4, 8)]


def test_ranks_that_observe_the_same_go_on_from_one_state():
    def read(steps, state=None):
        samplers, found = [Adding(40), Adding(40)], []
        options = ps.InputOptions(per_replica_buffer_size=0)
        iterators = []
        for worker, sampler in enumerate(samplers):
            batches = ps.Dataset.from_sampler(sampler, ps.Dataset.range(10)).batch(6).with_options(ps.Options(seed=1))
            strategy = ps.HostStrategy(num_workers=2, worker_index=worker)
            iterators.append(iter(strategy.distribute_dataset(batches, options)))
        for iterator in iterators if state is not None else ():
            iterator.load_state_dict(state)
        for _ in range(steps):
            rows = np.concatenate([next(iterator).values[0] for iterator in iterators])
            found.append(rows.tolist())
            for sampler in samplers:
                sampler.observe(rows, [len(found)])
        first, other = (iterator.state_dict() for iterator in iterators)
        assert first == other
        return found, json.loads(json.dumps(first))

    before, state = read(2)
    assert [len(rows) for rows in before] == [6, 6] and before[0] != before[1]
    (again, end), (after, same_end) = read(1, state), read(1, state)
    assert again == after and end == same_end and end != state
