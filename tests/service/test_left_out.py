"""Rows that data workers leave out are counted by who reads: once, at their element, named, bounded, in the state."""

import itertools
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock as ps

SKIP = ps.Options(on_error="skip", seed=3)
Workers = list["ps.service.WorkerServer"]


@pytest.fixture
def dispatcher() -> Iterator["ps.service.DispatchServer"]:
    with ps.service.DispatchServer() as server:
        yield server


def worker_of(dispatcher: "ps.service.DispatchServer") -> "ps.service.WorkerServer":
    address = dispatcher.target.split("://")[1]
    return ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=address))


@pytest.fixture
def workers(dispatcher: "ps.service.DispatchServer") -> Iterator[Workers]:
    servers = [worker_of(dispatcher) for _ in range(2)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def target(dispatcher: "ps.service.DispatchServer", workers: Workers) -> str:
    return dispatcher.target


def through(dataset: ps.Dataset, target: str, mode: str = "distributed_epoch", **arguments: object) -> ps.Dataset:
    return dataset.with_options(SKIP).apply(ps.service.distribute(mode, target, **arguments))


def fails_at_fives(x: int) -> int:
    if x % 5 == 0:
        raise ValueError(f"no {x}")
    return x


def numbers(count: int = 31) -> ps.Dataset:
    return ps.Dataset.from_generator(lambda: iter(range(count)))


def members(x: int) -> ps.Dataset:
    return ps.Dataset.range(x * 4, x * 4 + 4).map(fails_at_fives).batch(2)


# Those of `bad` fail: in each of them some rows fail behind the last element, or all of some span.
DATASETS: dict[str, Callable[[], ps.Dataset]] = {
    "a batch of a stream": lambda: numbers().map(fails_at_fives).batch(4),
    "a short batch at the end": lambda: numbers(33).map(fails_at_fives).batch(4, drop_remainder=True),
    "a shuffled stream": lambda: numbers().map(fails_at_fives).take(22).shuffle(6).batch(3),
    "a shuffled stream of single rows": lambda: numbers().map(fails_at_fives).enumerate().shuffle(6).map(max),
    "members": lambda: ps.Dataset.range(9).flat_map(members),
    "members that all fail": lambda: ps.Dataset.range(9).flat_map(
        lambda x: (
            ps.Dataset.range(3 if x in (2, 8) else 1).map(lambda y: fails_at_fives(5 * y + (x not in (2, 8)))).batch(1)
        )
    ),
    "filtered members": lambda: ps.Dataset.range(9).filter(lambda x: x % 3 > 0).flat_map(members),
    "what a map fails at, above": lambda: (
        numbers().map(fails_at_fives).batch(3).map(lambda x: fails_at_fives(x[0] - 1))
    ),
    "a promised length": lambda: numbers().map(fails_at_fives).assert_cardinality(24).batch(2),
    "nothing but failures": lambda: numbers().map(lambda x: fails_at_fives(5 * x)).batch(4),
}


def read(dataset: ps.Dataset, most: int = 1000) -> tuple[list[object], list[int], ps.types.DatasetIterator]:
    """The elements, how many rows were left out when each was there and at the end, and the iterator."""
    iterator = iter(dataset)
    elements, counts = [], []
    for element in itertools.islice(iterator, most):
        elements.append(np.asarray(element).tolist())
        counts.append(iterator.errors.count)
    return elements, [*counts, iterator.errors.count], iterator


@pytest.mark.slow
@pytest.mark.parametrize("name", DATASETS)
def test_rows_skipped_by_workers_count_at_their_elements_and_in_states(target: str, name: str) -> None:
    def make() -> ps.Dataset:
        return through(DATASETS[name](), target)

    elements, counts, here = read(DATASETS[name]().with_options(SKIP))
    assert counts[-1] >= 3
    found, there, iterator = read(make())
    assert (found, there, iterator.errors) == (elements, counts, here.errors)
    for cut in {0, 1, len(elements) // 2, len(elements)} & set(range(len(elements) + 1)):
        _, before, iterator = read(make(), cut)
        state = json.loads(json.dumps(iterator.state_dict()))
        iterator.close()
        with iter(make()) as resumed:
            resumed.load_state_dict(state)
            assert resumed.errors.count == before[-1]
            assert [np.asarray(element).tolist() for element in resumed] == elements[cut:]
            assert resumed.errors == here.errors
            again = resumed.state_dict()
        with iter(make()) as ended:
            ended.load_state_dict(again)
            assert (list(ended), ended.errors) == ([], here.errors)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["a batch of a stream", "members", "members that all fail"])
@pytest.mark.parametrize("limit", [None, 3])
def test_what_operators_of_the_trainer_hold_is_not_counted_again(target: str, name: str, limit: int | None) -> None:
    def make() -> ps.Dataset:
        dataset = through(DATASETS[name](), target, max_outstanding_requests=limit)
        return dataset.shuffle(4, seed=1).prefetch(2)

    elements, _, whole = read(make())
    assert whole.errors.count == read(DATASETS[name]().with_options(SKIP))[1][-1]
    for cut in range(0, len(elements) + 1, 2):
        _, before, iterator = read(make(), cut)
        state = json.loads(json.dumps(iterator.state_dict()))
        iterator.close()
        with iter(make()) as resumed:
            resumed.load_state_dict(state)
            assert resumed.errors.count == before[-1] <= whole.errors.count
            assert [np.asarray(element).tolist() for element in resumed] == elements[cut:]
            assert resumed.errors.count == whole.errors.count


def kinds(errors: "ps.types.SkippedRows") -> list[tuple[str, int | None, str]]:
    return sorted((row.error, row.position, Path(row.site).name.split(":")[0]) for row in errors.rows)


FIVES = sorted((f"ValueError: no {x}", x, "test_left_out.py") for x in range(0, 31, 5))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["parallel_epochs", ps.service.ShardingPolicy.DATA, ps.service.ShardingPolicy.DYNAMIC])
@pytest.mark.parametrize("name", ["a generator", "an index"])
def test_every_pass_counts_its_own_rows(mode: "str | ps.service.ShardingPolicy", name: str) -> None:
    config = ps.service.DispatcherConfig(worker_addresses=("localhost", "localhost"))
    with ps.service.DispatchServer(config) as dispatcher:
        workers = [worker_of(dispatcher) for _ in range(2)]
        rows = numbers() if name == "a generator" else ps.Dataset.range(31)
        dataset = through(rows.map(fails_at_fives).batch(2).unbatch(), dispatcher.target, mode)
        elements, counts, iterator = read(dataset)
        times = 2 if mode == "parallel_epochs" else 1
        assert sorted(elements) == sorted([x for x in range(31) if x % 5] * times)
        assert (counts[-1], kinds(iterator.errors)) == (7 * times, sorted(FIVES * times))
        _, _, iterator = read(dataset, 9)
        state = iterator.state_dict()
        iterator.close()
        with iter(dataset) as resumed:
            resumed.load_state_dict(state)
            assert sum(1 for _ in resumed) == len(elements) - 9
            assert kinds(resumed.errors) == sorted(FIVES * times)
        for worker in workers:
            worker.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a batch of a stream", "members", "members that all fail"])
def test_of_a_shared_job_one_reader_counts_each_row(target: str, name: str) -> None:
    expected, _, whole = read(DATASETS[name]().with_options(SKIP))

    def reader() -> "ps.types.DatasetIterator":
        return iter(through(DATASETS[name](), target, job_name="shared", max_outstanding_requests=2))

    with reader() as first, reader() as second:
        given = [np.asarray(next(first)).tolist() for _ in range(2)]
        state = first.state_dict()
        with reader() as restored:
            undone = next(first)
            restored.load_state_dict(state)
            first.close()
            given += [np.asarray(next(second)).tolist(), np.asarray(next(restored)).tolist()]
            given += rest_of(second, restored)
            assert undone is not None and sorted(given) == sorted(expected)
            assert sorted(kinds(second.errors) + kinds(restored.errors)) == kinds(whole.errors)


def rest_of(*iterators: "ps.types.DatasetIterator") -> list[object]:
    found: list[object] = []

    def take(iterator: "ps.types.DatasetIterator") -> None:
        found.extend(np.asarray(element).tolist() for element in iterator)

    threads = [threading.Thread(target=take, args=(iterator,)) for iterator in iterators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("count", [12, 31, 33, 36])
def test_readers_in_step_count_what_was_left_out_of_each_round_alike(target: str, count: int) -> None:
    dataset = numbers(count).map(fails_at_fives)
    arguments = {"job_name": f"step {count}", "num_consumers": 2}
    readers = [iter(through(dataset, target, "parallel_epochs", consumer_index=i, **arguments)) for i in range(2)]
    counts: list[list[int]] = [[], []]
    elements: list[list[int]] = [[], []]
    states = []
    while True:
        given = [next(reader, None) for reader in readers]
        for index, element in enumerate(given):
            elements[index].append(element)
            counts[index].append(readers[index].errors.count)
        states.append(readers[1].state_dict())
        if None in given:
            break
    assert given == [None, None] and counts[0] == counts[1]
    assert counts[0][-1] == 2 * len(range(0, count, 5))
    assert readers[0].errors == readers[1].errors
    good = [x for x in range(count) if x % 5]
    assert sorted(x for x in elements[0] + elements[1] if x is not None) == sorted(2 * good[: len(good) // 2 * 2])
    for reader in readers:
        reader.close()
    with iter(through(dataset, target, "parallel_epochs", consumer_index=1, **arguments)) as resumed:
        resumed.load_state_dict(states[3])
        assert resumed.errors.count == counts[1][3]
        assert list(resumed) == elements[1][4:-1]
        assert resumed.errors.count == counts[1][-1]


def test_trainers_that_share_a_window_count_rows_before_their_elements(
    dispatcher: "ps.service.DispatchServer",
) -> None:
    dataset = numbers().map(fails_at_fives).repeat()
    elements, counts, _ = read(dataset.with_options(SKIP), 60)
    worker = worker_of(dispatcher)
    for trainer in ("a", "b"):
        cache = ps.service.CrossTrainerCache(trainer)
        shared = through(dataset, dispatcher.target, job_name="window", cross_trainer_cache=cache)
        found, there, iterator = read(shared, 60)
        iterator.close()
        assert (found, there) == (elements, counts)
    worker.stop()


@pytest.mark.slow
def test_the_limit_is_for_all_that_the_reader_has(target: str) -> None:
    options = ps.Options(on_error="skip", max_errors=9)
    dataset = numbers().map(fails_at_fives).batch(3).with_options(options)
    dataset = dataset.apply(ps.service.distribute("parallel_epochs", target))
    with iter(dataset) as iterator:
        found, raised = [], []
        while True:
            try:
                found.append(next(iterator).tolist())
            except StopIteration:
                break
            except ps.errors.TooManySkippedError as error:
                raised.append((iterator.errors.count, str(error).splitlines()))
    # Whoever goes on after it loses nothing.
    expected = read(numbers().map(fails_at_fives).batch(3).with_options(SKIP))[0]
    assert sorted(found) == sorted(2 * expected)
    # Each element with too many rows before it is preceded by one error, whatever blocks the rows came with.
    counts = [count for count, _ in raised]
    assert counts == sorted(set(counts)) and counts[0] in (10, 11) and counts[-1] == 14
    assert "max_errors=9" in raised[0][1][0] and "element 0 of map" in raised[0][1][1] and "no 0" in raised[0][1][1]


def test_a_search_for_rows_that_never_come_ends_at_the_limit(target: str) -> None:
    dataset = ps.Dataset.counter().map(lambda x: fails_at_fives(5 * x)).batch(2)
    dataset = dataset.with_options(ps.Options(on_error="skip", max_errors=20))
    with iter(dataset.apply(ps.service.distribute("parallel_epochs", target))) as iterator:
        with pytest.raises(ps.errors.TooManySkippedError, match="max_errors=20"):
            next(iterator)
        assert iterator.errors.count >= 21


@pytest.mark.slow
def test_of_very_many_rows_the_first_are_named_and_all_counted(target: str, caplog: pytest.LogCaptureFixture) -> None:
    dataset = numbers(2000).map(lambda x: fails_at_fives(x if x > 1990 else 5)).batch(4)
    with caplog.at_level(logging.WARNING, "penstock"):
        elements, counts, iterator = read(through(dataset, target))
    assert (len(elements), counts, len(iterator.errors.rows)) == (2, [1991, 1992, 1992], 100)
    said = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert len(said) == 22 and said[-1] == "skipped 1992 rows in this iteration, 1972 of them without a line here"


def test_rows_that_ignore_errors_skips_are_counted_and_not_logged(
    target: str, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = numbers().map(fails_at_fives).ignore_errors().batch(4)
    dataset = dataset.apply(ps.service.distribute("distributed_epoch", target))
    with caplog.at_level(logging.WARNING, "penstock"):
        assert read(dataset)[1][-1] == 7
    assert not [record for record in caplog.records if "skipped" in record.getMessage()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a batch of a stream", "a shuffled stream of single rows", "members"])
def test_another_worker_that_takes_over_counts_nothing_twice(
    dispatcher: "ps.service.DispatchServer", name: str
) -> None:
    elements, counts, here = read(DATASETS[name]().with_options(SKIP))
    serving = [worker_of(dispatcher)]
    found, there = [], []
    with iter(through(DATASETS[name](), dispatcher.target, max_outstanding_requests=1)) as iterator:
        for number, element in enumerate(iterator):
            found.append(np.asarray(element).tolist())
            there.append(iterator.errors.count)
            if number % 3 == 0 and number < 10:
                serving.append(worker_of(dispatcher))
                serving[-2].stop()
        assert (found, [*there, iterator.errors.count], iterator.errors) == (elements, counts, here.errors)
    serving[-1].stop()


@pytest.mark.slow
def test_a_killed_worker_loses_and_doubles_nothing(tmp_path: Path) -> None:
    killed = tmp_path / "killed"

    def deadly(x: int) -> int:
        if x == 17 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return fails_at_fives(x)

    dataset = numbers().map(deadly).batch(2)
    with ps.service.local(num_workers=2) as service:
        elements, counts, iterator = read(through(dataset, service.target))
    assert killed.exists()
    assert (elements, counts) == read(numbers().map(fails_at_fives).batch(2).with_options(SKIP))[:2]
    assert kinds(iterator.errors) == FIVES


@pytest.mark.slow
def test_steps_of_a_strategy_count_what_workers_left_out(target: str) -> None:
    dataset = through(numbers().map(fails_at_fives).batch(8), target)
    steps = iter(ps.HostStrategy(2).distribute_dataset(dataset))
    counts, states = [0], [steps.state_dict()]
    for _ in steps:
        counts.append(steps.errors.count)
        states.append(steps.state_dict())
    assert counts == [0, 2, 4, 6]
    for count, state in zip(counts, states, strict=True):
        resumed = iter(ps.HostStrategy(2).distribute_dataset(dataset))
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert resumed.errors.count == count
        list(resumed)
        assert resumed.errors.count == 7
