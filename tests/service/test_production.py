"""What a worker answers: which elements, in what pieces, with what failures, and what it keeps for the next time."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import ModuleType

import msgspec
import numpy as np
import pytest

import penstock as ps
from penstock.errors import LostDataWorkerError
from penstock.service.wire.definitions import to_bytes
from penstock.service.wire.failures import failed_of, to_exception
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.subjects import PassInfo, Span
from penstock.service.wire.worker_messages import Chunk, End, Failed, Fetch, Making
from penstock.service.worker import production as production_module
from penstock.service.worker import shared_window
from penstock.service.worker.cut import cut
from penstock.service.worker.production import Production

FAR = 1 << 40


@pytest.fixture
def serve():
    """Makes productions of a dataset, and closes them."""
    made = []

    def make(dataset, **settings):
        definition = to_bytes(dataset.node, dataset.options())
        made.append(Production(lambda _: definition, **settings))
        return made[-1]

    yield make
    for production in made:
        production.close()


def request(start, stop, *, skip=0, **more):
    info = more.pop("pass_info", PassInfo(number=0))
    policy = more.pop("policy", ShardingPolicy.DYNAMIC)
    span = Span(pass_number=info.number, start=start, stop=stop, skip=skip)
    seed, epoch, dataset_id = more.pop("seed", 9), more.pop("epoch", 0), more.pop("dataset_id", "d")
    return Fetch(dataset_id=dataset_id, epoch=epoch, seed=seed, policy=policy, pass_info=info, span=span, **more)


def fetched(production, start, stop, **more):
    """(elements, the last answer, without the time that it took)."""
    *blocks, last = production.fetch(request(start, stop, **more))
    if isinstance(last, End):
        last = msgspec.structs.replace(last, seconds=0.0)
    return [np.asarray(row).tolist() for _, block in blocks for row in block.rows()], last


def everything(production, **more):
    return fetched(production, 0, FAR, **more)[0]


def fails_at(*numbers):
    def function(x):
        if int(x) in numbers:
            raise ValueError("no", int(x))
        return x

    return function


STREAM = ps.Dataset.from_generator(lambda: iter(range(10)))


def test_rows_are_the_elements_of_the_positions(serve):
    production = serve(ps.Dataset.range(10).map(lambda x: x * x))
    assert fetched(production, 2, 5) == ([4, 9, 16], End())
    assert fetched(production, 8, 12) == ([64, 81], End(length=10))
    assert fetched(production, 2, 10, skip=1, stride=3) == ([25, 64], End(length=9))  # 9 fills no group of 3
    assert fetched(production, 12, 20) == ([], End(length=10))


def test_an_epoch_and_a_seed_have_their_own_order(serve):
    dataset = ps.Dataset.range(10).shuffle(10).with_options(ps.Options(seed=9))
    production = serve(dataset)
    for epoch in range(2):
        assert everything(production, epoch=epoch) == [int(x) for x in dataset]
    assert everything(production, seed=10) != everything(production)
    assert everything(production, policy=0, pass_info=PassInfo(number=0)) == everything(production)
    assert everything(production, policy=0, pass_info=PassInfo(number=1)) != everything(production)


def test_rows_of_arrays_are_views_of_the_definition(serve):
    dataset = ps.Dataset.from_tensor_slices(np.arange(8.0))
    production = serve(dataset)
    (_, block), *_ = production.fetch(request(0, 8))
    assert block.columns[0].base is not None
    assert not block.columns[0].flags.writeable


@pytest.mark.parametrize("dataset", [ps.Dataset.range(1000), ps.Dataset.range(1000).filter(lambda x: True)])
def test_the_first_element_comes_at_once_and_blocks_grow(serve, dataset):
    production = serve(dataset)
    chunks = [answer[0] for answer in production.fetch(request(0, 1000)) if isinstance(answer, tuple)]
    assert chunks[0].rows == 1
    assert sum(chunk.rows for chunk in chunks) == 1000
    assert len(chunks) < 15
    # The next request knows what rows cost.
    chunk, _ = next(iter(production.fetch(request(0, 1000))))
    assert chunk.rows > 100


def test_blocks_are_no_larger_than_asked_for(serve):
    production = serve(ps.Dataset.from_tensor_slices(np.zeros((4000, 100))))
    *blocks, last = production.fetch(request(0, 4000, block_bytes=80_000))
    assert last.length == 4000
    sizes = [block.nbytes for _, block in blocks]
    assert max(sizes[:-1]) <= 80_000
    assert max(sizes[:-1]) > 20_000


KINDS = {
    "rows": ps.Dataset.range(10).map(fails_at(3, 4, 9)),
    "groups": ps.Dataset.range(10).filter(lambda x: x != 1).map(fails_at(3, 4, 9)),
    "sequence": STREAM.map(fails_at(3, 4, 9)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_elements_before_a_failure_come_first_and_those_after_it_follow(serve, kind):
    production = serve(KINDS[kind])
    elements, last = fetched(production, 0, FAR)
    assert elements == ([0, 2] if kind == "groups" else [0, 1, 2])
    assert (last.module, last.name, last.arguments) == ("builtins", "ValueError", ["no", 3])
    assert "penstock: in map(" in last.notes[0]
    assert 'raise ValueError("no", int(x))' in last.notes[-1]
    assert last.notes[-1].startswith("penstock: raised on the data worker with process id ")
    assert last.notes[-1].endswith("ValueError: ('no', 3)")
    elements, last = fetched(production, last.next.start, last.next.stop, skip=last.next.skip)
    assert (elements, last.arguments) == ([], ["no", 4])
    elements, last = fetched(production, last.next.start, last.next.stop, skip=last.next.skip)
    assert (elements, last.arguments) == ([5, 6, 7, 8], ["no", 9])
    elements, last = fetched(production, last.next.start, last.next.stop, skip=last.next.skip)
    assert (elements, last) == ([], End(length=10))


def read_past_failures(production, start, stop, **more):
    """(elements, how many failures came) of a span; what follows a failure is asked for as a reader does."""
    elements, failures = [], 0
    while True:
        found, last = fetched(production, start, stop, **more)
        elements += found
        if isinstance(last, End):
            return elements, failures
        failures += 1
        start, stop, more["skip"] = last.next.start, last.next.stop, last.next.skip


# Of one position that stands for all elements, and of one for each.
FAILING = {
    "groups": ps.Dataset.range(1).flat_map(lambda _: ps.Dataset.range(1000)),
    "rows": ps.Dataset.range(1000),
}


def test_after_each_failure_the_elements_of_its_group_were_made_again(serve):
    Counting.calls = 0
    production = serve(FAILING["groups"].map(Counting()).map(fails_at(*range(0, 1000, 10))))
    assert read_past_failures(production, 0, FAR) == ([x for x in range(1000) if x % 10], 100)
    assert Counting.calls < 3000


@pytest.mark.parametrize("kind", FAILING)
def test_what_follows_a_failure_comes_to_all_who_ask_for_it(serve, kind):
    production = serve(FAILING[kind].map(fails_at(*range(0, 1000, 50))))
    wanted = [x for x in range(1000) if x % 50]
    _, last = fetched(production, 0, FAR)
    rest = {"start": last.next.start, "stop": last.next.stop, "skip": last.next.skip}
    for _ in range(3):
        assert read_past_failures(production, **rest) == (wanted, 19)
    found, _ = fetched(production, rest["start"], 1 if kind == "groups" else 5, skip=rest["skip"])
    assert found == (wanted[:49] if kind == "groups" else [1, 2, 3, 4])
    results = {}
    others = [
        threading.Thread(target=lambda n=n: results.update({n: read_past_failures(production, **rest)})) for n in (0, 1)
    ]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert results == {0: (wanted, 19), 1: (wanted, 19)}


def test_of_readers_that_were_left_at_a_failure_the_latest_stay_open(serve):
    Counting.calls = 0
    numbers = ps.Dataset.range(20).flat_map(lambda x: ps.Dataset.range(100 * x, 100 * x + 100))
    production = serve(numbers.map(Counting()).map(fails_at(*range(99, 2000, 100))).filter(lambda x: True))
    left = [fetched(production, start, start + 1)[1].next for start in range(20)]
    for calls, number in ((2000, 19), (2100, 0)):
        rest = left[number]
        assert fetched(production, rest.start, rest.stop, skip=rest.skip)[0] == []
        assert Counting.calls == calls
    production.close()
    with pytest.raises(LostDataWorkerError):
        fetched(production, 18, 19)


def test_other_consumers_of_a_strided_sequence_do_not_meet_a_failure(serve):
    production = serve(KINDS["sequence"])
    assert fetched(production, 0, FAR, stride=5) == ([0, 5], End(length=10))
    assert fetched(production, 3, FAR, stride=5)[1].next == Span(pass_number=0, start=8, stop=FAR)


class OwnError(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


def sent(error):
    return to_exception(failed_of(error, Span(pass_number=0, start=0, stop=1)))


def test_exceptions_arrive_as_themselves():
    error = KeyError("a")
    error.add_note("at breakfast")
    arrived = sent(error)
    assert (type(arrived), arrived.args, arrived.__notes__[0]) == (KeyError, ("a",), "at breakfast")
    arrived = sent(ps.ElementError("odd"))
    assert (type(arrived), str(arrived)) == (ps.ElementError, "odd")
    arrived = sent(FileNotFoundError(2, "gone"))
    assert (type(arrived), arrived.errno) == (FileNotFoundError, 2)
    arrived = sent(OwnError(7))
    assert (type(arrived), arrived.args) == (OwnError, ("code 7",))
    assert sent(ValueError(1 << 70, np.int64(3))).args == (repr(1 << 70), "np.int64(3)")


def test_an_exception_that_could_not_be_shown_arrives_as_pythons_own():
    """Out of memory in NumPy says it from its arguments, a shape and a dtype, which are no plain values."""
    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 50, np.uint8)
    arrived = sent(caught.value)
    assert (type(arrived), str(arrived)) == (MemoryError, str(caught.value))


def test_an_exception_whose_argument_cannot_be_shown_arrives():
    class Unshown:
        def __repr__(self):
            raise RuntimeError("no text")

    assert sent(ValueError(Unshown(), 3)).args == ("a Unshown", 3)


def test_an_exception_that_is_not_known_here_is_a_service_error():
    class Local(Exception):
        pass

    arrived = sent(Local("why"))
    assert type(arrived) is ps.errors.ServiceError
    assert "Local: why" in str(arrived)
    failed = Failed(next=Span(pass_number=0, start=0, stop=1), module="os", name="system", arguments=["x"], notes=[])
    assert type(to_exception(failed)) is ps.errors.ServiceError
    failed = Failed(next=failed.next, module="not.imported", name="Error", arguments=[], notes=["n"])
    assert to_exception(failed).__notes__ == ["n"]


class CountingError(Exception):
    made = 0

    def __init__(self, what):
        type(self).made += 1
        super().__init__(what)


def test_no_constructor_of_an_exception_runs_a_second_time():
    arrived = sent(CountingError("why"))
    assert (type(arrived), str(arrived), CountingError.made) == (CountingError, "why", 1)


def test_looking_for_an_exceptions_class_computes_no_attribute(monkeypatch):
    lazy = ModuleType("lazy")
    lazy.__getattr__ = lambda name: pytest.fail(f"{name} was computed")
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    following = Span(pass_number=0, start=0, stop=1)
    for name in ("Error", "inner.Error", "__class__", ""):
        failed = Failed(next=following, module="lazy", name=name, arguments=[], notes=[])
        assert type(to_exception(failed)) is ps.errors.ServiceError


def test_stop_iteration_of_a_function_is_an_error_and_no_end(serve):
    production = serve(STREAM.map(lambda x: next(iter(()))))
    assert fetched(production, 0, 1)[1].name == "InvalidTypeError"


class Counting:
    """Counts calls, in this process."""

    calls = 0

    def __call__(self, x):
        type(self).calls += 1
        return x


def test_consumers_of_a_sequence_share_what_is_produced(serve):
    Counting.calls = 0
    production = serve(ps.Dataset.from_generator(lambda: iter(range(100))).map(Counting()))
    expected = list(range(100))
    results = {}

    def read(offset):
        results[offset] = fetched(production, offset, FAR, stride=4)[0]

    readers = [threading.Thread(target=read, args=(offset,)) for offset in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [results[offset] for offset in range(4)] == [expected[offset::4] for offset in range(4)]
    assert Counting.calls == 100
    assert fetched(production, 40, 60)[0] == expected[40:60]
    assert Counting.calls == 100


def test_what_several_consumers_see_cannot_be_written(serve):
    production = serve(STREAM)
    for more in ({}, {"trainer": "t"}):
        (_, block), *_ = production.fetch(request(0, 5, **more))
        assert not block.columns[0].flags.writeable


def test_what_has_left_the_window_is_made_again_from_the_nearest_state(serve):
    Counting.calls = 0
    dataset = ps.Dataset.range(2000).scan(0, lambda s, x: (s + x, s + x)).map(Counting())
    production = serve(dataset, recent_bytes=2000)
    expected = np.arange(2000).cumsum().tolist()
    for start in range(0, 2000, 100):
        assert fetched(production, start, start + 100)[0] == expected[start : start + 100]
    assert Counting.calls == 2000
    assert fetched(production, 1500, 1510)[0] == expected[1500:1510]
    assert 2010 <= Counting.calls <= 2110
    assert fetched(production, 0, 10)[0] == expected[:10]
    assert fetched(production, 1990, 2001) == (expected[1990:], End(length=2000))


@pytest.mark.parametrize("recent_bytes", [1, 3000, 1 << 20])
def test_a_sequence_can_be_entered_anywhere_in_any_order(serve, recent_bytes):
    dataset = STREAM.shuffle(4, seed=1).batch(2).unbatch().map(fails_at(5)).prefetch(2)
    production, straight = serve(dataset, recent_bytes=recent_bytes), serve(dataset)

    def at(production, position):
        elements, last = fetched(production, position, position + 1)
        return elements or getattr(last, "arguments", last)

    expected = [at(straight, position) for position in range(12)]
    assert expected.count(["no", 5]) == 1
    for position in [11, 0, 5, 3, 3, 9, 1, 10, 4, 8, 2, 7, 6]:
        assert at(production, position) == expected[position]


def test_many_streams_of_one_sequence_leave_no_threads(serve):
    earlier = {*threading.enumerate()}
    production = serve(STREAM.map(lambda x: x, num_parallel_calls=2).prefetch(1), recent_bytes=1)
    for start in (9, 0, 8, 1, 7, 2, 6, 3):
        assert fetched(production, start, start + 1)[0] == [start]
    production.close()
    assert [thread.name for thread in threading.enumerate() if thread not in earlier] == []


@pytest.mark.parametrize("policy", [ShardingPolicy.FILE, ShardingPolicy.DYNAMIC])
def test_a_pass_whose_files_are_listed_slowly_holds_up_heartbeats(serve, here, tmp_path, policy):
    """A worker was given up by its dispatcher, and no other reader got anything from it."""
    here.entered, here.leave = SimpleQueue(), SimpleQueue()
    (tmp_path / "a.txt").write_text("a\n")
    names = ps.Dataset.range(1).map(lambda _: (waiting(0), f"{tmp_path}/a.txt")[1])
    production = serve(names.interleave(ps.TextLineDataset, cycle_length=2))
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(fetched, production, 0, FAR, policy=policy)
        here.entered.get()
        assert production.statistics().rows == 0
        production.keep(["d"])
        for _ in range(9):
            here.leave.put(0)
        assert slow.result()[0] == ["a"]


def test_positions_by_element_count_elements_of_groups(serve):
    production = serve(ps.Dataset.range(10).flat_map(lambda x: ps.Dataset.range(int(x) % 3)))
    elements = everything(production)
    assert fetched(production, 4, 7, by_element=True)[0] == elements[4:7]
    assert fetched(production, 1, FAR, stride=2)[0] == elements[1::2]
    assert fetched(production, 1, FAR, by_element=True)[1] == End(length=len(elements))


@pytest.fixture
def here(monkeypatch):
    """A module, by which functions of datasets reach what a test has."""
    module = ModuleType("here")
    monkeypatch.setitem(sys.modules, "here", module)
    return module


def noted(x):
    sys.modules["here"].made.append(int(x))
    return x


@pytest.mark.parametrize("kind", ["rows", "groups", "stream", "trainer", "in step"])
def test_one_element_is_made_alone_and_none_ahead_of_it(serve, kind, here):
    """Up to 64 rows were made together, and another one of them was blamed."""
    here.made = []
    dataset = STREAM if kind == "stream" else ps.Dataset.range(100)
    dataset = dataset.filter(lambda x: x >= 0) if kind == "groups" else dataset
    production = serve(dataset.map(noted, num_parallel_calls=4).prefetch(8))
    more = {"trainer": {"trainer": "t", "by_element": True}, "in step": {"stride": 2}}.get(kind, {})
    answers = [*production.fetch(request(5, 6, alone=True, **more))]
    assert [type(answer) for answer in answers] == [Making, tuple, End]
    assert here.made == ([5] if kind in ("rows", "groups", "in step") else [0, 1, 2, 3, 4, 5])


def waiting(x):
    sys.modules["here"].entered.put(int(x))
    return sys.modules["here"].leave.get()


@pytest.mark.extended
def test_nothing_else_is_made_beside_an_element_that_is_made_alone(serve, here):
    production = serve(ps.Dataset.range(10).map(waiting))
    entered, leave = here.entered, here.leave = SimpleQueue(), SimpleQueue()
    with ThreadPoolExecutor(3) as threads:
        before = threads.submit(fetched, production, 0, 1)
        assert entered.get() == 0
        alone = production.fetch(request(5, 6, alone=True))
        making = threads.submit(next, alone)
        leave.put(10)
        assert before.result()[0] == [10]
        assert making.result() == Making()
        beside = threads.submit(fetched, production, 7, 8)
        leave.put(15)
        assert isinstance(next(alone), tuple)
        assert isinstance(next(alone), End)
        assert next(alone, None) is None
        leave.put(17)
        assert beside.result()[0] == [17]
    assert [entered.get() for _ in range(2)] == [5, 7]


def test_an_interleave_of_one_names_the_place_of_each_element(serve):
    """It reads the next dataset in the same turn, so the end of one was said to be at the row after it."""
    tens = ps.Dataset.range(4).interleave(
        lambda x: ps.Dataset.range(10).map(lambda y: 10 * x + y), cycle_length=1, block_length=3
    )
    production = serve(tens)
    assert fetched(production, 1, 3, skip=7) == (list(range(17, 30)), End())
    for chunk, block in [answer for answer in production.fetch(request(0, 4)) if isinstance(answer, tuple)]:
        elements = [int(x) for x in block.rows()]
        assert fetched(production, chunk.position, 4, skip=chunk.skip)[0] == list(range(elements[0], 40))


def test_statistics_count_since_they_were_taken_last(serve):
    production = serve(ps.Dataset.range(10))
    begun = time.monotonic()
    everything(production)
    statistics = production.statistics()
    assert (statistics.rows, statistics.bytes) == (10, 80)
    assert 0 < statistics.busy_seconds < time.monotonic() - begun
    assert production.statistics().rows == 0


def test_datasets_that_nobody_needs_are_forgotten():
    asked = []

    def definition(dataset_id):
        asked.append(dataset_id)
        return to_bytes(STREAM.prefetch(1).node, ps.Options())

    production = Production(definition)
    reading = production.fetch(request(0, FAR, dataset_id="a"))
    chunk, _ = next(reading)
    assert chunk == Chunk(position=0, skip=0, rows=1, seconds=chunk.seconds)
    everything(production, dataset_id="b")
    production.keep({"b"})
    assert sum(1 for _ in reading) > 0  # who is reading goes on
    everything(production, dataset_id="b")
    assert asked == ["a", "b"]
    everything(production, dataset_id="a")
    assert asked == ["a", "b", "a"]
    production.close()
    with pytest.raises(LostDataWorkerError, match="this data worker has stopped"):
        everything(production, dataset_id="b")


def closing_slowly():
    try:
        yield from range(9)
    finally:
        sys.modules["here"].entered.put(0)
        sys.modules["here"].leave.get()


def test_heartbeats_waited_for_a_generator_that_was_closed(serve, here):
    """The dispatcher gave its data worker up, and the worker could not be stopped."""
    here.entered, here.leave = SimpleQueue(), SimpleQueue()
    production = serve(ps.Dataset.from_generator(closing_slowly))
    reading = production.fetch(request(0, FAR))
    next(reading)
    reading.close()
    production.keep([])
    here.entered.get()
    production.close()
    here.leave.put(0)


def test_a_generator_that_fails_when_it_is_closed_ended_the_data_worker(serve, caplog):
    def rows():
        try:
            yield from range(9)
        finally:
            raise SystemExit("no such file")

    production = serve(ps.Dataset.from_generator(rows))
    reading = production.fetch(request(0, FAR))
    next(reading)
    reading.close()
    earlier = {*threading.enumerate()}
    production.keep([])
    for thread in {*threading.enumerate()} - earlier:
        thread.join(60)
    assert "a function of the dataset d failed when a pass over it was closed: it raised SystemExit('no " in caplog.text


def test_of_many_passes_the_ones_read_last_stay_open(serve, monkeypatch):
    monkeypatch.setattr(production_module, "_OPEN_PASSES", 2)
    Counting.calls = 0
    production = serve(ps.Dataset.from_generator(lambda: iter(range(10))).map(Counting()).prefetch(1))
    held = production.fetch(request(0, FAR, epoch=0))
    next(held)
    for epoch in (1, 2, 3):
        assert everything(production, epoch=epoch) == list(range(10))
    assert sum(len(answer[1]) for answer in held if isinstance(answer, tuple)) == 9  # who reads keeps it open
    calls = Counting.calls
    everything(production, epoch=3)
    assert Counting.calls == calls
    everything(production, epoch=1)
    assert Counting.calls == calls + 10


def test_datasets_that_draw_by_a_number_that_is_not_known_are_refused(serve):
    def sometimes(x):
        return ps.Dataset.range(3).shuffle(3) if x else ps.Dataset.range(3)

    divided = cut(ps.Dataset.range(4).filter(lambda x: True).flat_map(sometimes).node)
    assert divided.kind == "groups"  # as its first element tells
    elements, last = fetched(serve(ps.Dataset(divided.worker)), 0, FAR)
    assert (elements, last.name, last.next.start) == ([0, 1, 2], "InvalidArgumentError", 1)
    assert "draw random numbers without a seed" in last.arguments[0]


def test_an_answer_that_is_being_read_ends_when_the_production_is_closed(serve):
    for dataset in (ps.Dataset.range(9), STREAM.prefetch(1), ps.Dataset.range(9).filter(bool)):
        production = serve(dataset)
        reading = production.fetch(request(0, FAR))
        next(reading)
        production.close()
        with pytest.raises(LostDataWorkerError, match="this data worker has stopped"):
            list(reading)


def test_several_threads_fetch_from_one_slow_map(serve):
    def slow(x):
        time.sleep(0.002)
        return x

    production = serve(ps.Dataset.range(60).map(slow, num_parallel_calls=2))
    results = {}

    def read(start):
        results[start] = fetched(production, start, start + 20)[0]

    readers = [threading.Thread(target=read, args=(start,)) for start in (0, 20, 40)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [x for start in sorted(results) for x in results[start]] == list(range(60))


# The window that trainers share

COUNTER = ps.Dataset.counter().map(lambda x: x)


def take(reading, count):
    """(position, elements) of at least `count` elements."""
    positions, elements = [], []
    while len(elements) < count:
        chunk, block = next(reading)
        positions.append(chunk.position)
        elements.extend(block.columns[0].tolist())
    return positions[0], elements


def test_trainers_share_what_is_produced(serve):
    production = serve(COUNTER)
    fast = production.fetch(request(0, FAR, trainer="fast"))
    slow = production.fetch(request(0, FAR, trainer="slow"))
    _, first = take(fast, 100)
    assert first == list(range(len(first)))
    made = production.statistics()
    assert (made.window_hits, made.window_misses) == (0, len(first))
    assert take(slow, 1) == (0, [0])
    _, more = take(slow, 50)
    assert more[0] == 1
    hits = production.statistics()
    assert (hits.window_hits, hits.window_misses) == (1 + len(more), 0)
    late = production.fetch(request(70, FAR, trainer="late"))
    assert take(late, 1)[1][0] == 70


def test_a_slow_trainer_skips_what_has_left_the_window(serve):
    production = serve(COUNTER, window_bytes=8000)
    fast = production.fetch(request(0, FAR, trainer="fast"))
    slow = production.fetch(request(0, FAR, trainer="slow"))
    assert take(slow, 1) == (0, [0])
    newest = take(fast, 20_000)[1][-1]
    position, elements = take(slow, 1)
    assert newest - 8000 // 8 - 300 < position <= newest
    assert elements[0] == position


def test_trainers_that_hold_back_skip_nothing(serve):
    production = serve(COUNTER, window_bytes=8000)
    readings = {name: production.fetch(request(0, FAR, trainer=name, holds_back=True)) for name in "ab"}
    seen = {name: take(reading, 1)[1] for name, reading in readings.items()}
    apart = []

    def read(name, other):
        while len(seen[name]) < 5000:
            seen[name].extend(take(readings[name], 1)[1])
            apart.append(len(seen[name]) - len(seen[other]))

    threads = [threading.Thread(target=read, args=names) for names in ("ab", "ba")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "ab":
        assert seen[name] == list(range(len(seen[name])))
    assert max(apart) < 3000  # what the window holds, and the blocks that are under way


def test_a_trainer_that_reads_no_more_holds_nobody_back_for_long(serve, monkeypatch):
    production = serve(COUNTER, window_bytes=8000)
    gone = production.fetch(request(0, FAR, trainer="gone", holds_back=True))
    take(gone, 1)
    gone.close()
    monkeypatch.setattr(shared_window, "_ABSENCE_SECONDS", 0.0)
    assert take(production.fetch(request(0, FAR, trainer="there")), 5000)[0] == 0


def test_a_trainer_whose_process_is_stopped_held_the_others_back_for_ever(serve, caplog):
    production = serve(COUNTER, window_bytes=8000)
    stopped = production.fetch(request(0, FAR, trainer="stopped", consumer="s", holds_back=True))
    there = production.fetch(request(0, FAR, trainer="there", consumer="t", holds_back=True))
    take(stopped, 1)
    with ThreadPoolExecutor(1) as threads:
        taken = threads.submit(take, there, 5000)
        while not taken.done():  # a worker is told again with each of its reports
            production.keep(["d"], ["s"])
            time.sleep(0.01)
        assert taken.result()[0] == 0
        assert "the trainer 'stopped' is silent: others wait no longer for it" in caplog.text
        position, elements = take(stopped, 1)  # it goes on where the window begins, and holds back again
        assert position == elements[0] > 1
        taken = threads.submit(take, there, 20_000)
        held = take(stopped, 5000)[1]
        assert held == list(range(elements[-1] + 1, held[-1] + 1)) and not taken.done()
        production.close()
        assert isinstance(taken.exception(), LostDataWorkerError)


LARGE_ROWS = ps.Dataset.range(200).map(lambda number: np.full(1000, number)).take_while(lambda row: True)
"""A sequence of 1.6 MB."""


def kept_bytes(production):
    return sum(opened.nbytes for opened in production._passes.values())


def test_passes_in_order_keep_no_more_together_than_the_bound(serve):
    production = serve(LARGE_ROWS, recent_bytes=1 << 20, window_bytes=1 << 21)
    kept = []
    for epoch in range(8):
        rows = everything(production, epoch=epoch, block_bytes=1 << 15)
        assert [row[0] for row in rows] == list(range(200))
        kept.append(kept_bytes(production))
    assert kept[0] > 1 << 19
    assert max(kept[2:]) - min(kept[2:]) < 1 << 17
    assert max(kept) <= (1 << 21) + (1 << 17)
    assert production._passes[next(reversed(production._passes))].nbytes > 1 << 19, "the newest keeps what it may"
    assert [row[0] for row in everything(production, epoch=0)] == list(range(200))


def test_windows_of_many_jobs_keep_no_more_together_than_the_bound(serve):
    """Trainers that hold others back need what is kept. Each window gets a share in any case."""
    bound = 1 << 20
    production = serve(LARGE_ROWS.repeat(), window_bytes=bound)
    slow = [
        production.fetch(request(0, FAR, trainer="slow", epoch=epoch, holds_back=True, block_bytes=1 << 13))
        for epoch in range(8)
    ]
    for reading in slow:
        take(reading, 1)
    for epoch, opened in enumerate(list(production._passes.values())):
        fast = production.fetch(request(0, FAR, trainer="fast", epoch=epoch, block_bytes=1 << 13))
        while not opened._shared._held_back():
            take(fast, 1)
        assert bound // 32 <= opened.nbytes <= bound + (1 << 15)
    assert kept_bytes(production) <= bound + 8 * (bound // 32 + (1 << 15))
    for reading in slow:
        rows = [row for _, block in (next(reading), next(reading)) for row in block.rows()]
        assert [row[0] for row in rows] == list(range(1, 1 + len(rows)))


def test_a_closed_window_keeps_nothing(serve):
    production = serve(COUNTER)
    take(production.fetch(request(0, FAR, trainer="t")), 100)
    (opened,) = production._passes.values()
    production.keep([])
    assert opened.nbytes == 0


def test_an_element_larger_than_the_window_is_an_error_that_says_so(serve):
    production = serve(ps.Dataset.from_tensor_slices(np.zeros((2, 1000))).repeat(), window_bytes=1000)
    last = list(production.fetch(request(0, FAR, trainer="t")))[-1]
    assert (last.name, last.next.start) == ("ServiceError", 1)
    assert "an element of 8,000 bytes does not fit into the cross-trainer window of 1,000 bytes" in last.arguments[0]


def test_the_end_and_failures_reach_every_trainer(serve):
    production = serve(STREAM.map(fails_at(4)))
    for trainer in ("a", "b"):
        elements, last = fetched(production, 0, FAR, trainer=trainer)
        assert (elements, last.next.start) == ([0, 1, 2, 3], 5)
        assert fetched(production, 5, FAR, trainer=trainer) == ([5, 6, 7, 8, 9], End(length=10))


def test_what_cannot_be_opened_is_a_failure_with_nothing_behind_it(serve):
    class Broken:
        def __iter__(self):
            raise OSError(5, "broken")

    # A generator is opened with its first element, a dataset of a function with its row; both go on.
    production = serve(ps.Dataset.from_generator(Broken))
    last = fetched(production, 0, FAR)[1]
    assert (last.name, last.arguments, last.next.start) == ("OSError", [5, "broken"], 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": 9},
        {"stride": 0},
        {"epoch": -1},
        {"block_bytes": 0},
        {"pass_info": PassInfo(number=0, num_shards=0)},
        {"pass_info": PassInfo(number=0, shard_index=3, num_shards=2)},
        {"span": Span(pass_number=0, start=4, stop=3)},
        {"span": Span(pass_number=0, start=0, stop=3, skip=-1)},
    ],
)
def test_what_cannot_be_asked_is_refused(serve, wrong):
    production = serve(ps.Dataset.range(5))
    whole = Span(pass_number=0, start=0, stop=5)
    request = Fetch(dataset_id="x", epoch=0, seed=0, policy=1, pass_info=PassInfo(number=0), span=whole)
    with pytest.raises(ps.InvalidArgumentError, match="got an impossible request: Fetch"):
        next(production.fetch(msgspec.structs.replace(request, **wrong)))
