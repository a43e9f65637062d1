"""States of readers to whom elements come in any order, with operators of the trainer's own above them: all exact."""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.service.reader.leases import Leases
from penstock.service.reader.reader import Reader
from penstock.service.transport import dispatcher_client
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import OpenEpoch, ReleaseConsumer
from penstock.service.wire.subjects import Span

pytestmark = pytest.mark.slow

ROWS = 150


def pass_on(x: Any) -> Any:
    return x


def made(kind: str) -> ps.Dataset:
    """`ROWS` rows, or groups of two for each."""
    rows = ps.Dataset.range(ROWS).map(pass_on)
    return rows if kind == "rows" else rows.flat_map(lambda x: ps.Dataset.from_tensor_slices([x, x + ROWS]))


def numbers(element: Any) -> list[int]:
    parts = element.values if isinstance(element, ps.PerReplica) else [element]
    return [int(x) for part in parts for x in np.ravel(part)]


ABOVE: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "nothing": lambda dataset: dataset,
    "batch": lambda dataset: dataset.batch(4),
    "shuffle": lambda dataset: dataset.shuffle(30, seed=1),
    "prefetch": lambda dataset: dataset.prefetch(7),
    "all of these": lambda dataset: dataset.shuffle(20, seed=1).batch(3).prefetch(2),
    "interleave": lambda dataset: dataset.interleave(ps.Dataset.from_tensors, cycle_length=4).batch(2),
    "windows": lambda dataset: dataset.group_by_window(
        key_func=lambda x: x % 3, reduce_func=lambda _, window: window.batch(5), window_size=5
    ),
    "unique": lambda dataset: dataset.unique(),
}


def read_with_restores(steps: Any, others: Any, draw: random.Random) -> list[int]:
    """What `steps` gives in all, gone back to a state four times, while `others` are read in between."""
    taken: list[list[int]] = []
    state, saved, restores = steps.state_dict(), 0, 0
    while True:
        new = [numbers(element) for element in islice(steps, draw.randint(1, 25))]
        taken += new
        next(others)
        if not new and restores >= 4:
            return [number for element in taken for number in element]
        if new and draw.random() < 0.5:
            state, saved = json.loads(json.dumps(steps.state_dict())), len(taken)
        if not new or draw.random() < 0.3:
            del taken[saved:]
            steps.load_state_dict(state)
            restores += 1


def rest_of(iterator: Any, given: list[int], draw: random.Random) -> Iterator[None]:
    """Reads some of `iterator` whenever it is asked to; all that is left when it is exhausted."""
    while draw.random() < 0.95:
        given += [int(x) for x in islice(iterator, draw.randint(0, 10))]
        yield
    while True:
        yield


def check(address: str, kind: str, read: Callable[[ps.Dataset], Any], **arguments: Any) -> None:
    draw = random.Random(repr((kind, arguments)))
    transformation = ps.service.distribute(service=address, **arguments)
    given: list[int] = []
    with iter(made(kind).apply(transformation)) as other, read(made(kind).apply(transformation)) as steps:
        taken = read_with_restores(
            steps, rest_of(other, given, draw) if "job_name" in arguments else iter(int, 1), draw
        )
        if "job_name" in arguments:
            given += [int(x) for x in other]
    times = 2 if arguments["processing_mode"] == "parallel_epochs" else 1
    expected = Counter(times * [int(x) for x in made(kind)])
    found = Counter(taken + given)
    assert (found - expected, expected - found) == (Counter(), Counter())


# Groups are the harder kind: a state may stand in the middle of a position.
KINDS = [(above, "groups") for above in ABOVE] + [
    (above, "rows") if above in ("nothing", "all of these") else pytest.param(above, "rows", marks=pytest.mark.long)
    for above in ABOVE
]


@pytest.mark.extended
@pytest.mark.parametrize(("above", "kind"), KINDS)
def test_operators_above_a_shared_job_are_restored_exactly(address: str, above: str, kind: str) -> None:
    name = f"{above} {kind}"
    check(
        address,
        kind,
        lambda shared: iter(ABOVE[above](shared)),
        processing_mode="distributed_epoch",
        job_name=name,
        max_outstanding_requests=20,
    )


@pytest.mark.parametrize("above", ["batch", "all of these"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"processing_mode": "distributed_epoch", "ordered": False},
        {"processing_mode": "parallel_epochs", "max_outstanding_requests": 20},
    ],
    ids=["unordered", "parallel epochs"],
)
def test_operators_above_one_reader_are_restored_exactly(address: str, above: str, arguments: dict[str, Any]) -> None:
    check(address, "groups", lambda alone: iter(ABOVE[above](alone)), **arguments)


def distributed(strategy: Any, shared: ps.Dataset) -> Any:
    return iter(strategy.distribute_dataset(shared.batch(4)))


def from_function(strategy: Any, shared: ps.Dataset) -> Any:
    return iter(strategy.distribute_datasets_from_function(lambda context: shared.batch(2)))


@pytest.mark.extended
@pytest.mark.parametrize("make", [ps.HostStrategy, ps.MirroredStrategy])
@pytest.mark.parametrize("way", [distributed, from_function])
def test_steps_of_a_strategy_over_a_shared_job_are_restored_exactly(
    address: str, make: Callable[[], Any], way: Callable[[Any, ps.Dataset], Any]
) -> None:
    name = f"{make.__name__} {way.__name__}"
    strategy = make()
    arguments = {"processing_mode": "distributed_epoch", "job_name": name, "max_outstanding_requests": 20}
    check(address, "rows", lambda shared: way(strategy, shared), **arguments)


def fives(job: Any) -> ps.Dataset:
    return made("rows").batch(5).apply(job)


def steps_of_five(job: Any) -> Any:
    return iter(ps.HostStrategy(replicas_per_worker=2).distribute_dataset(fives(job)))


def test_steps_that_were_read_ahead_and_not_handed_out_go_to_others(address: str) -> None:
    job = ps.service.distribute("distributed_epoch", address, job_name="ahead", max_outstanding_requests=4)
    with steps_of_five(job) as steps:
        given = [x for step in islice(steps, 6) for x in numbers(step)]
    given += [x for batch in fives(job) for x in numbers(batch)]
    assert sorted(given) == list(range(ROWS))


def test_a_state_taken_while_the_reader_came_to_its_end_met_a_closed_line(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ps.service.distribute("distributed_epoch", address, job_name="ending")
    claim, send_claim = Reader.claim, Leases.claim

    def claim_slowly(reader: Reader) -> None:
        def read_to_the_end_first(leases: Leases, begun: list[Span]) -> None:
            """As a prefetch above the reader does, whose thread has its turn between two lines of `claim`."""
            if threading.current_thread() is threading.main_thread():
                while reader.next() is not None:
                    pass
                assert leases._dispatcher._closed.wait(60)
            send_claim(leases, begun)

        patched.setattr(Leases, "claim", read_to_the_end_first)
        claim(reader)

    with iter(made("rows").apply(job)) as steps:
        given = [int(next(steps)) for _ in range(100)]
        with monkeypatch.context() as patched:
            patched.setattr(Reader, "claim", claim_slowly)
            state = steps.state_dict()
    # What was read and not handed out is this stream's, and nobody else's.
    assert list(made("rows").apply(job)) == []
    with iter(made("rows").apply(job)) as resumed:
        resumed.load_state_dict(state)
        given += [int(x) for x in resumed]
    assert sorted(given) == list(range(ROWS))


def test_a_readers_elements_came_again_after_the_dispatcher_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away: list[ReleaseConsumer] = []
    reached = DispatcherClient._send_once

    def not_at_once(client: DispatcherClient, message: Any, seconds: float) -> Any:
        if isinstance(message, ReleaseConsumer) and not away:
            away.append(message)
            raise dispatcher_client._NoAnswer("the dispatcher is away", ps.errors.ServiceError)
        return reached(client, message, seconds)

    monkeypatch.setattr(DispatcherClient, "_send_once", not_at_once)
    with ps.service.DispatchServer() as dispatcher:
        worker = ps.service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
        with ps.service.WorkerServer(worker):
            job = ps.service.distribute("distributed_epoch", dispatcher.target, job_name="j")
            assert sorted(int(x) for x in made("rows").apply(job)) == list(range(ROWS))
            assert away
            assert consumed_at(dispatcher) == set(range(ROWS))


@pytest.mark.extended
def test_a_restarted_dispatcher_did_not_know_a_dataset_before_its_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = [ps.service.DispatchServer()]
    port = int(servers[0].target.rpartition(":")[2])
    reached = DispatcherClient._send_once

    def after_a_restart(client: DispatcherClient, message: Any, seconds: float) -> Any:
        if isinstance(message, OpenEpoch) and len(servers) == 1:
            servers[0].stop()
            servers.append(ps.service.DispatchServer(ps.service.DispatcherConfig(port=port)))
        return reached(client, message, seconds)

    monkeypatch.setattr(DispatcherClient, "_send_once", after_a_restart)
    worker = ps.service.WorkerConfig(dispatcher_address=servers[0].target.split("://")[1], heartbeat_seconds=0.1)
    with ps.service.WorkerServer(worker):
        job = ps.service.distribute("distributed_epoch", servers[0].target)
        assert sorted(int(x) for x in made("rows").apply(job)) == list(range(ROWS))
    assert len(servers) == 2
    servers[1].stop()


def test_a_strategy_iterators_state_is_known_when_it_says_so() -> None:
    with ps.service.DispatchServer() as dispatcher:
        worker = ps.service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1])
        with ps.service.WorkerServer(worker):
            job = ps.service.distribute(
                "distributed_epoch", dispatcher.target, job_name="j", max_outstanding_requests=4
            )
            with steps_of_five(job) as steps:
                given = [x for step in islice(steps, 6) for x in numbers(step)]
                state = steps.state_dict()
                # It has told of what it had handed out, not of what it had read ahead.
                assert consumed_at(dispatcher) == {x // 5 for x in given}
                undone = [x for step in islice(steps, 3) for x in numbers(step)]
                steps.load_state_dict(state)
                rest = [x for step in steps for x in numbers(step)]
            assert sorted(given + rest) == list(range(ROWS))
            assert set(undone) <= set(rest)


def test_the_service_and_this_process_are_parts_of_one_order(address: str) -> None:
    def parts(service: str) -> tuple[ps.Dataset, ps.Dataset]:
        shuffled = ps.Dataset.range(ROWS).shuffle(ROWS, reshuffle_each_iteration=False)
        distribute = ps.service.distribute("distributed_epoch", service, ordered=True)
        return shuffled.take(20), shuffled.skip(20).map(pass_on).apply(distribute)

    validation, training = parts(address)
    whole = [int(x) for x in training]
    assert sorted([*map(int, validation), *whole]) == list(range(ROWS))
    with iter(training) as reader:
        assert [int(next(reader)) for _ in range(30)] == whole[:30]
        state = json.loads(json.dumps(reader.state_dict()))
    # The nodes of the next program draw other seeds, also where another service has taken the place of the one before.
    with ps.service.DispatchServer() as dispatcher:
        another = dispatcher.target.split("://")[1]
        with ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=another)):
            for service in (address, another):
                validation_there, resumed = parts(service)
                with iter(resumed) as reader:
                    reader.load_state_dict(state)
                    assert [int(x) for x in reader] == whole[30:]
                assert list(validation_there) == list(validation)


def test_a_seed_given_after_distribute_decides_what_was_drawn_before_it(address: str) -> None:
    def make(seed: int) -> ps.Dataset:
        shuffled = ps.Dataset.range(30).shuffle(30, reshuffle_each_iteration=False)
        dataset = shuffled.apply(ps.service.distribute("distributed_epoch", address, ordered=True))
        return dataset.with_options(ps.Options(seed=seed))

    here = ps.Dataset.range(30).shuffle(30, reshuffle_each_iteration=False).with_options(ps.Options(seed=9))
    with iter(make(9)) as reader:
        given = [int(next(reader)) for _ in range(10)]
        state = json.loads(json.dumps(reader.state_dict()))
    with iter(make(9)) as resumed:
        resumed.load_state_dict(state)
        assert given + [int(x) for x in resumed] == [int(x) for x in here]
    assert [int(x) for x in make(8)] != [int(x) for x in here]


def fails_at_fives(x: int) -> int:
    if x % 5 == 0:
        raise ValueError(f"no {x}")
    return x


def test_a_prefetch_below_skipped_rows_made_a_state_unusable(address: str) -> None:
    def make(tuned: int) -> ps.Dataset:
        dataset = ps.Dataset.range(20).map(fails_at_fives)
        dataset = (dataset.prefetch(2) if tuned == 1 else dataset).with_options(ps.Options(on_error="skip"))
        dataset = dataset.apply(ps.service.distribute("distributed_epoch", address))
        return dataset.prefetch(2) if tuned == 2 else dataset

    for saved, restored in ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2)):
        with iter(make(saved)) as reader:
            given = [int(next(reader)) for _ in range(5)]
            state = json.loads(json.dumps(reader.state_dict()))
        with iter(make(restored)) as resumed:
            resumed.load_state_dict(state)
            resumed.load_state_dict(json.loads(json.dumps(resumed.state_dict())))
            assert given + [int(x) for x in resumed] == [x for x in range(20) if x % 5]
            assert resumed.errors.count == 4


def jittered(x: int, rng: np.random.Generator) -> int:
    return x + int(rng.integers(0, 3))


def check_restored_twice(make: Callable[[], ps.Dataset], cuts: list[tuple[int, int]]) -> None:
    """Read some elements, some more from the state then, and the rest from the state of that iterator."""
    expected = [int(x) for x in make()]
    for first, second in cuts:
        with iter(make()) as reader:
            given = [int(x) for x in islice(reader, first)]
            state = json.loads(json.dumps(reader.state_dict()))
        with iter(make()) as resumed:
            resumed.load_state_dict(state)
            given += [int(x) for x in islice(resumed, second)]
            state = json.loads(json.dumps(resumed.state_dict()))
        with iter(make()) as resumed:
            resumed.load_state_dict(state)
            assert given + [int(x) for x in resumed] == expected, (first, second)


def test_random_numbers_between_two_ignore_errors_changed_on_restore(address: str) -> None:
    def make() -> ps.Dataset:
        workers = ps.Dataset.range(20).map(fails_at_fives).ignore_errors(log=False).map(jittered, seed=1)
        dataset = workers.apply(ps.service.distribute("distributed_epoch", address))
        return dataset.map(fails_at_fives).ignore_errors(log=False)

    check_restored_twice(make, [(0, 8), (1, 3), (4, 0), (4, 3)])


@pytest.mark.parametrize("follows", ["another epoch", "another dataset", "another, after one of this process"])
def test_a_window_across_datasets_lost_elements_when_restored(address: str, follows: str) -> None:
    def part(first: int) -> ps.Dataset:
        return ps.Dataset.range(first, first + 5).apply(ps.service.distribute("distributed_epoch", address))

    def make() -> ps.Dataset:
        if follows == "another epoch":
            dataset = part(0).repeat(2)
        elif follows == "another dataset":
            dataset = part(0).concatenate(part(10))
        else:
            dataset = ps.Dataset.range(5).concatenate(part(10))
        return dataset.window(3, 2).flat_map(lambda window: window)

    check_restored_twice(make, [(2, 6), (5, 3), (7, 0), (8, 0)])


def test_a_restored_iterator_opened_no_dataset_of_its_second_epoch(address: str) -> None:
    def make() -> ps.Dataset:
        dataset = ps.Dataset.range(8).apply(ps.service.distribute("distributed_epoch", address)).repeat(2)
        return dataset.flat_map(lambda x: ps.Dataset.range(x % 3))

    check_restored_twice(make, [(8, 3), (8, 6), (10, 3)])


def test_a_state_of_what_is_read_in_two_places_lost_elements(address: str) -> None:
    def distributed() -> ps.Dataset:
        return ps.Dataset.range(8).apply(ps.service.distribute("distributed_epoch", address))

    one = distributed()
    for twice in (
        one.concatenate(one),
        one.take(4).concatenate(one.skip(4)).batch(2),
        ps.Dataset.zip(one, one.skip(1)),
    ):
        with iter(twice) as reader:
            next(reader)
            with pytest.raises(ps.InvalidArgumentError, match=r"distribute\(.*test_states\.py:\d+ in several places"):
                reader.state_dict()
            assert len(list(reader)) > 1

    def each() -> ps.Dataset:
        return distributed().take(4).concatenate(distributed().skip(4))

    with iter(each()) as reader:
        given = [int(next(reader)) for _ in range(5)]
        state = json.loads(json.dumps(reader.state_dict()))
    with iter(each()) as resumed:
        resumed.load_state_dict(state)
        assert given + [int(x) for x in resumed] == list(range(8))


def test_the_state_at_the_end_of_a_repeat_that_is_read_ahead_was_refused(address: str) -> None:
    def make() -> ps.Dataset:
        one = ps.Dataset.range(5).apply(ps.service.distribute("distributed_epoch", address))
        return one.repeat(2).prefetch(2)

    with iter(make()) as reader:
        assert len(list(reader)) == 10
        state = json.loads(json.dumps(reader.state_dict()))
    with iter(make()) as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == []


def consumed_at(dispatcher: ps.service.DispatchServer) -> set[int]:
    """The positions that the dispatcher knows to be consumed."""
    assert dispatcher._started is not None
    consumers = dispatcher._started._machine.state.consumers.values()
    spans = [span for consumer in consumers for span in consumer.consumed]
    return {position for span in spans for position in range(span.start, span.stop)}


@pytest.mark.parametrize("mapped", [False, True])
def test_elements_of_a_shared_job_are_not_read_again_for_a_map_in_between(address: str, mapped: bool) -> None:
    job = ps.service.distribute("distributed_epoch", address, job_name=f"concatenated-{mapped}")

    def make(between: bool) -> ps.Dataset:
        first = made("rows").apply(job).concatenate(ps.Dataset.range(ROWS, ROWS + 3))
        return (first.map(lambda x: x) if between else first).concatenate(ps.Dataset.range(ROWS + 3, ROWS + 9))

    with iter(make(mapped)) as iterator:
        given = [int(x) for x in islice(iterator, 7)]
        state = json.loads(json.dumps(iterator.state_dict()))
        with (
            iter(make(not mapped)) as other,
            pytest.raises(ps.StateMismatchError, match="shared job cannot be read"),
        ):
            other.load_state_dict(state)
    with iter(make(mapped)) as resumed:
        resumed.load_state_dict(state)
        assert sorted(given + [int(x) for x in resumed]) == list(range(ROWS + 9))
