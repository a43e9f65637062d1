"""Datasets give through dispatcher and workers what they give in process; here all of them are one process."""

import asyncio
import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest
from past_errors import read_past_errors
from until import until

import penstock as ps
from penstock.rpc.line import Line

Workers = list["ps.service.WorkerServer"]


@pytest.fixture
def dispatcher() -> Iterator["ps.service.DispatchServer"]:
    with ps.service.DispatchServer() as server:
        yield server


@pytest.fixture
def workers(dispatcher: "ps.service.DispatchServer") -> Iterator[Workers]:
    address = dispatcher.target.split("://")[1]
    servers = [ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=address)) for _ in range(2)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def target(dispatcher: "ps.service.DispatchServer", workers: Workers) -> str:
    return dispatcher.target


def through(dataset: ps.Dataset, target: str, mode: str = "distributed_epoch", **arguments: object) -> ps.Dataset:
    return dataset.apply(ps.service.distribute(mode, target, **arguments))


def elements(dataset: ps.Dataset) -> list[object]:
    return [np.asarray(element).tolist() for element in dataset]


# The four results of the documentation that the service's arguments come from


def test_parallel_epochs_give_every_element_as_often_as_there_are_workers(target: str) -> None:
    dataset = through(ps.Dataset.range(10), target, "parallel_epochs")
    assert sorted(elements(dataset)) == sorted([*range(10), *range(10)])


def test_a_distributed_epoch_gives_every_element_once(target: str) -> None:
    dataset = through(ps.Dataset.range(10), target)
    assert sorted(elements(dataset)) == list(range(10))


def test_what_follows_distribute_runs_here(target: str) -> None:
    dataset = through(ps.Dataset.range(5).map(lambda x: x * x), target, "parallel_epochs").map(lambda x: x + 1)
    assert sorted(elements(dataset)) == [1, 1, 2, 2, 5, 5, 10, 10, 17, 17]


def test_the_report_tells_how_long_data_workers_took_to_start(target: str) -> None:
    with iter(through(ps.Dataset.range(5).map(lambda x: time.sleep(0.02) or x), target)) as iterator:
        given = [next(iterator)]
        first = iterator.report().ranks[0].start["first rows of data workers"]
        assert first >= 0.02 and sorted([*given, *iterator]) == [0, 1, 2, 3, 4]
        assert iterator.report().ranks[0].start["first rows of data workers"] == first


@pytest.mark.slow
def test_two_readers_of_one_job_share_its_elements_in_every_iteration(target: str) -> None:
    def read(epochs: list[list[object]]) -> None:
        dataset = through(ps.Dataset.range(5), target, job_name="shared")
        epochs.extend(elements(dataset) for _ in range(3))

    results: list[list[list[object]]] = [[], []]
    threads = [threading.Thread(target=read, args=(epochs,)) for epochs in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for first, second in zip(*results, strict=True):
        assert sorted(first + second) == list(range(5))


# Meaning kept

PIPELINES = {
    "take": lambda: ps.Dataset.range(100).take(4),
    "skip": lambda: ps.Dataset.range(12).skip(3),
    "batch": lambda: ps.Dataset.range(30).batch(4, drop_remainder=True),
    "ragged batch": lambda: ps.Dataset.range(10).batch(4),
    "enumerate": lambda: ps.Dataset.range(5, 10).enumerate().map(lambda i, x: i * 100 + x),
    "shuffle": lambda: ps.Dataset.range(50).shuffle(50, seed=3),
    "shuffle in a window": lambda: ps.Dataset.range(50).shuffle(7, seed=3).batch(3),
    "repeat": lambda: ps.Dataset.range(4).shuffle(4, seed=1).repeat(3),
    "random map": lambda: ps.Dataset.range(20).map(lambda x, rng: x + rng.random(), seed=5),
    "filter": lambda: ps.Dataset.range(40).filter(lambda x: x % 3 == 0),
    "filter, take": lambda: ps.Dataset.range(40).filter(lambda x: x % 3 == 0).take(5),
    "filter, batch": lambda: ps.Dataset.range(40).filter(lambda x: x % 3 == 0).batch(4),
    "filter, shuffle": lambda: ps.Dataset.range(40).filter(lambda x: x % 3 == 0).shuffle(5, seed=2),
    "flat_map": lambda: ps.Dataset.range(6).flat_map(lambda x: ps.Dataset.range(x)),
    "interleave": lambda: ps.Dataset.range(6).interleave(lambda x: ps.Dataset.range(x), cycle_length=2, block_length=1),
    "generator": lambda: ps.Dataset.from_generator(lambda: iter(range(20))).batch(3),
    "batches of Arrow": lambda: ps.Dataset.from_arrow_stream(
        lambda: pa.table({"x": range(20)}).to_reader(max_chunksize=6)
    ).map(lambda row: row["x"]),
    "zip": lambda: ps.Dataset.zip((ps.Dataset.range(9), ps.Dataset.range(9).filter(lambda x: x > 4))).map(
        lambda a, b: a * 10 + b
    ),
    "empty": lambda: ps.Dataset.range(0),
    "prefetch": lambda: ps.Dataset.range(30).map(lambda x: x + 1).prefetch(4).batch(4).prefetch(1),
    "scan": lambda: ps.Dataset.range(9).scan(0, lambda total, x: (total + x, total + x)),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_distributed_epoch_is_what_it_is_in_process(name: str, target: str) -> None:
    assert elements(through(PIPELINES[name](), target)) == elements(PIPELINES[name]())


@pytest.mark.parametrize("name", PIPELINES)
def test_without_an_order_the_elements_are_the_same(name: str, target: str) -> None:
    if name in ("filter, take", "filter, batch", "filter, shuffle", "scan", "zip"):
        pytest.skip("what runs above what comes in any order depends on that order")
    without = elements(through(PIPELINES[name](), target, ordered=False))
    assert sorted(map(str, without)) == sorted(map(str, elements(PIPELINES[name]())))


def test_parallel_epochs_have_the_elements_of_each_worker_in_its_order(target: str) -> None:
    seen: Counter[int] = Counter()
    for number in map(int, through(ps.Dataset.range(300), target, "parallel_epochs")):
        assert number == 0 or seen[number] < seen[number - 1]
        seen[number] += 1
    assert seen == Counter(dict.fromkeys(range(300), 2))


def test_epochs_differ_as_they_do_in_process(target: str) -> None:
    def shuffled() -> ps.Dataset:
        return ps.Dataset.range(20).shuffle(20, seed=1)

    here, there = shuffled(), through(shuffled(), target)
    assert [elements(there) for _ in range(2)] == [elements(here) for _ in range(2)]


@pytest.mark.slow
def test_a_repeat_after_distribute_begins_a_new_epoch_each_time(target: str) -> None:
    def shuffled() -> ps.Dataset:
        return ps.Dataset.range(6).shuffle(6, seed=1)

    assert elements(through(shuffled(), target).repeat(3)) == elements(shuffled().repeat(3))


@pytest.mark.slow
def test_a_seed_that_the_dataset_was_not_given_is_drawn_once(target: str) -> None:
    dataset = ps.Dataset.range(50).shuffle(50).with_options(ps.Options(seed=4))
    assert elements(through(dataset, target)) == elements(dataset)


# Elements of all kinds

STRUCTURES = {
    "strings": lambda: ps.Dataset.from_tensor_slices(np.array(["a", "", "é"], object)),
    "bytes": lambda: ps.Dataset.from_tensor_slices(np.array([b"a\0", b""], object)),
    "nested": lambda: ps.Dataset.range(4).map(lambda x: {"a": (x, np.float32(x)), "b": np.ones((2, 3), np.uint8) * x}),
    "ragged": lambda: ps.Dataset.range(4).map(lambda x: np.arange(x)),
    "empty rows": lambda: ps.Dataset.range(3).map(lambda x: np.zeros((0, 2))),
    "bool": lambda: ps.Dataset.range(3).map(lambda x: x == 1),
    "half": lambda: ps.Dataset.range(3).map(lambda x: np.float16(x)),
}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["grpc", "in_process"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_elements_of_every_kind_cross(name: str, protocol: str, target: str) -> None:
    here, there = list(STRUCTURES[name]()), list(through(STRUCTURES[name](), target, data_transfer_protocol=protocol))
    assert repr(there) == repr(here)


# State


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shuffle in a window", "filter, batch", "filter", "flat_map", "generator", "repeat"])
def test_a_state_continues_with_the_next_element(name: str, target: str) -> None:
    expected = elements(PIPELINES[name]())
    for steps in (0, 1, 3, len(expected)):
        with iter(through(PIPELINES[name](), target)) as iterator:
            for _ in range(steps):
                next(iterator)
            state = iterator.state_dict()
        with iter(through(PIPELINES[name](), target)) as resumed:
            resumed.load_state_dict(state)
            assert elements(resumed) == expected[steps:]


@pytest.mark.slow
def test_a_state_without_an_order_leaves_the_elements_that_were_not_given(target: str) -> None:
    def dataset() -> ps.Dataset:
        return through(ps.Dataset.range(1000), target, ordered=False)

    with iter(dataset()) as iterator:
        given = [int(next(iterator)) for _ in range(137)]
        state = iterator.state_dict()
    with iter(dataset()) as resumed:
        resumed.load_state_dict(state)
        assert sorted(given + [int(x) for x in resumed]) == list(range(1000))


# Failures


def failing(x: int) -> int:
    if x == 5:
        raise ZeroDivisionError("five")
    return x


def raising_at(number: int, kind: type[BaseException]) -> Callable[[int], int]:
    def function(x: int) -> int:
        if x == number:
            raise kind("enough")
        return x

    return function


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("place", ["map", "filter", "flat_map", "generator", "parallel map"])
def test_a_function_that_would_end_its_process_is_an_error_there(
    target: str, place: str, kind: type[BaseException]
) -> None:
    function = raising_at(7, kind)
    dataset = {
        "map": ps.Dataset.range(20).map(function),
        "parallel map": ps.Dataset.range(20).map(function, num_parallel_calls=2),
        "filter": ps.Dataset.range(20).filter(lambda x: function(x) >= 0),
        "flat_map": ps.Dataset.range(20).flat_map(lambda x: ps.Dataset.from_tensors(function(x))),
        "generator": ps.Dataset.from_generator(lambda: map(function, range(20))),
    }[place]
    given: list[object] = []
    with iter(dataset.apply(ps.service.distribute("distributed_epoch", target))) as iterator:
        while len(given) < 30:
            try:
                given.append(int(next(iterator)))
            except StopIteration:
                break
            except ps.errors.ServiceError as error:
                given.append(str(error).partition("(")[0])
    assert given == [*range(7), f"a function of this dataset raised {kind.__name__}", *range(8, 20)]


def test_an_exception_in_a_worker_comes_after_the_elements_before_it(target: str) -> None:
    dataset = through(ps.Dataset.range(8).map(failing), target)
    given = []
    with iter(dataset) as iterator:
        with pytest.raises(ZeroDivisionError, match="five") as caught:
            given.extend(map(int, iterator))
        rest = [int(element) for element in iterator]
    assert (given, rest) == ([0, 1, 2, 3, 4], [6, 7])
    notes = "\n".join(caught.value.__notes__)
    assert "element 5" in notes
    assert "Traceback" in notes


def test_a_reader_that_is_closed_early_leaves_nothing_running(target: str) -> None:
    iterator = iter(through(ps.Dataset.range(1 << 40), target))
    assert int(next(iterator)) == 0
    iterator.close()
    assert not [thread.name for thread in threading.enumerate() if "service-lane" in thread.name]
    with pytest.raises(ps.errors.ClosedError, match="closed"):
        next(iterator)


def test_explain_shows_what_runs_where(target: str) -> None:
    dataset = through(ps.Dataset.range(9).filter(lambda x: x > 1).batch(2), target)
    lines = [
        line.split("  ")[0] if not line.startswith(" ") else line.strip().split("  ")[0]
        for line in dataset.explain().splitlines()
    ]
    assert lines[0] == "batch(batch_size=2)"
    assert lines[1].startswith("distribute(DYNAMIC")
    assert lines[2].startswith("@ filter(")


def test_the_cardinality_is_known_where_one_reader_reads_alone(target: str) -> None:
    assert through(ps.Dataset.range(10).batch(3), target).cardinality() == 4
    assert through(ps.Dataset.range(10), target, job_name="many").cardinality() == ps.UNKNOWN_CARDINALITY
    assert through(ps.Dataset.range(10), target, "parallel_epochs").cardinality() == ps.UNKNOWN_CARDINALITY
    assert through(ps.Dataset.range(10).repeat(), target, "parallel_epochs").cardinality() == ps.INFINITE_CARDINALITY


def test_the_specification_is_known_without_a_service() -> None:
    dataset = through(ps.Dataset.range(10).map(lambda x: np.float32(x)).batch(3), "localhost:1")
    assert dataset.element_spec == ps.TensorSpec((None,), np.float32)


def fails_at_fives(x):
    if x % 5 == 0:
        raise ValueError(f"no {x}")
    return x


LEFT_OUT = {
    "by index": lambda: ps.Dataset.range(30).map(fails_at_fives).shuffle(7).batch(4),
    "groups": lambda: ps.Dataset.range(30).map(fails_at_fives).filter(lambda x: x % 2 == 0).batch(4),
    "a stream": lambda: ps.Dataset.from_generator(lambda: iter(range(30))).map(fails_at_fives),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT_OUT)
def test_rows_that_fail_on_workers_are_left_out_and_counted_at_the_reader(target: str, name: str) -> None:
    def make() -> ps.Dataset:
        return LEFT_OUT[name]().with_options(ps.Options(on_error="skip", seed=3))

    with iter(make()) as here:
        expected = [element.tolist() for element in here]
        errors = here.errors
    assert errors.count == 6
    for cut in (0, 2, len(expected)):
        with iter(through(make(), target)) as iterator:
            found = [next(iterator).tolist() for _ in range(cut)]
            state = iterator.state_dict()
        with iter(through(make(), target)) as resumed:
            resumed.load_state_dict(state)
            assert found + [element.tolist() for element in resumed] == expected
            assert sorted(row.position for row in resumed.errors.rows) == sorted(row.position for row in errors.rows)
            assert resumed.errors.count == 6


def test_failures_among_elements_that_are_skipped_took_the_last_ones_away(target: str) -> None:
    rows = ps.Dataset.range(30).scan(0, lambda state, x: (state, x)).map(fails_at_fives)
    found, raised = read_past_errors(through(rows.skip(8), target), ValueError)
    assert (found, len(raised)) == ([x for x in range(8, 30) if x % 5], 4)
    found, raised = read_past_errors(through(rows.shard(2, 1), target), ValueError)
    assert (found, len(raised)) == ([x for x in range(1, 30, 2) if x % 5], 3)


def test_readers_in_step_leave_out_on_the_workers_what_fails(target: str) -> None:
    dataset = ps.Dataset.from_generator(lambda: iter(range(12))).map(fails_at_fives)
    dataset = dataset.with_options(ps.Options(on_error="skip"))
    readers = [
        iter(through(dataset, target, "parallel_epochs", job_name="j", consumer_index=index, num_consumers=2))
        for index in range(2)
    ]
    rounds = [[int(next(reader)) for reader in readers] for _ in range(4)]
    assert sorted(rounds) == [[1, 2], [1, 2], [3, 4], [3, 4]]
    for reader in readers:
        reader.close()


@pytest.mark.slow
def test_rows_are_told_and_skipped_through_workers_in_every_epoch(target: str) -> None:
    def source() -> ps.Dataset:
        parts = {name: ps.Dataset.from_list([start + n for n in range(20)]) for name, start in (("a", 0), ("b", 100))}
        return ps.Dataset.mix({name: part.shuffle(seed=1) for name, part in parts.items()}, stop="all").map(abs)

    rows, documents = source(), ps.Dataset.from_list([np.full(2 + n % 4, n) for n in range(30)]).with_lengths()
    distributed = through(rows, target).batch(4)
    for epoch in range(2):
        with iter(distributed) as iterator:
            for step, batch in enumerate(iterator):
                assert [row.row for row in iterator.rows()] == [x % 100 for x in batch.tolist()]
                assert iterator.rows() == rows.batch(4).rows(step, epoch=epoch)
    unseeded = through(ps.Dataset.range(20).shuffle(), target).batch(4)
    for given in (unseeded, unseeded.with_options(ps.Options(seed=3))):
        for epoch in range(2):
            with iter(given) as iterator:
                for step, batch in enumerate(iterator):
                    assert [row.row for row in iterator.rows()] == batch.tolist()
                    assert given.rows(step, epoch=epoch) == iterator.rows()
    packed = documents.shuffle(seed=2, reshuffle_each_iteration=False).pack(16).shuffle(seed=3)
    told = packed.rows(2)
    for left in (through(packed, target).skip_rows(told), through(packed.skip_rows(told), target)):
        for _ in range(2):
            found = [set(row["tokens"][row["loss_mask"]].tolist()) for row in left]
            assert len(found) == len(packed) - 1 and {row.row for row in told} not in found
    sequence = through(ps.Dataset.range(9).filter(lambda x: x % 2 == 0), target)
    assert sequence.rows(1)[0].row == 1


@pytest.mark.parametrize("mode", ["distributed_epoch", "parallel_epochs"])
def test_every_data_worker_warned_of_the_fifth_epoch_of_a_source(
    mode: str, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    mixed = ps.Dataset.mix({"web": ps.Dataset.range(2000), "books": ps.Dataset.range(50)}, stop="repeat")
    with caplog.at_level(logging.WARNING, "penstock"):
        elements(through(mixed.map(abs).take(3000), target, mode))
    assert [message.partition(" begins")[0] for message in caplog.messages] == ["mix: epoch 5 of source 'books'"]


@pytest.mark.parametrize("protocol", ["shared_memory", "network"])
def test_an_error_of_a_dataset_that_cannot_be_sent_kept_sockets_open(protocol: str, target: str) -> None:
    def lines_to_workers() -> list[object]:
        gc.collect()  # a line ends with the last exception that has met it
        lines = [found for found in gc.get_objects() if isinstance(found, Line)]
        return [line for line in lines if line._lends and line.fileno() >= 0]

    earlier = lines_to_workers()
    iterator = iter(through(ps.Dataset.range(50).window(10), target, data_transfer_protocol=protocol))
    with pytest.raises(ps.errors.InvalidTypeError, match="cannot be sent") as caught:
        next(iterator)
    iterator.close()
    until(lambda: all(line in earlier for line in lines_to_workers()))
    assert caught.value is not None
