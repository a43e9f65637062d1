"""Any pipeline, cut, produced by two workers in spans of any size in any order, and put together again: itself."""

import importlib.util
from collections.abc import Callable
from dataclasses import field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import penstock as ps
from penstock.data.block import Block
from penstock.data.dataset import Dataset
from penstock.data.node import OneInput
from penstock.data.streams.stream import Stream
from penstock.service.wire.definitions import to_bytes
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.subjects import PassInfo, Span
from penstock.service.wire.worker_messages import End, Failed, Fetch
from penstock.service.worker.cut import cut
from penstock.service.worker.pass_nodes import nodes_of_pass
from penstock.service.worker.production import Production

_location = Path(__file__).parent.parent / "data" / "test_compositions.py"
_spec = importlib.util.spec_from_file_location("compositions", _location)
compositions = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(compositions)

SEED = 9
FAR = 1 << 40


def ask(production, start, stop, *, skip=0, policy=ShardingPolicy.DYNAMIC, seed=SEED, epoch=0, pass_info=None, **more):
    """The answer to one request, as a list."""
    info = pass_info or PassInfo(number=0)
    span = Span(pass_number=info.number, start=start, stop=stop, skip=skip)
    request = Fetch(dataset_id="d", epoch=epoch, seed=seed, policy=policy, pass_info=info, span=span, **more)
    return list(production.fetch(request))


def elements(production, start, stop, *, skip=0, **more):
    """What comes of a span, failures included, and the length that was told in the end."""
    found = []
    while True:
        answers = ask(production, start, stop, skip=skip, **more)
        for chunk, block in answers[:-1]:
            assert chunk.rows == len(block)
            found.extend(block.rows())
        last = answers[-1]
        if isinstance(last, End):
            return found, last.length
        assert isinstance(last, Failed)
        found.append(last.name)
        start, stop, skip = last.next.start, last.next.stop, last.next.skip
        if len(found) > 1000:
            raise AssertionError("no end")


class Delivered(OneInput, name="delivered"):
    """Elements that were produced elsewhere, in place of the nodes that produced them."""

    values: Callable[[int], list] = field(repr=False)

    @property
    def cardinality(self):
        return ps.UNKNOWN_CARDINALITY

    def stream(self, run, epoch):
        return DeliveredStream(self.values(epoch))


class DeliveredStream(Stream):
    def __init__(self, values):
        self.values, self.given = values, 0

    def pull(self, need, allow):
        if self.given == len(self.values):
            return None
        value = self.values[self.given]
        self.given += 1
        if isinstance(value, str):
            raise {"ZeroDivisionError": ZeroDivisionError, "ElementError": ps.ElementError}[value](value)
        return Block.of_rows([value])

    def state(self):
        return self.given

    def restore(self, state):
        self.given = state

    def close(self):
        """Nothing runs."""


def in_process(dataset, limit=200):
    """The first elements of a dataset, with the names of the exceptions between them."""
    found = []
    with iter(dataset) as iterator:
        while len(found) < limit:
            try:
                found.append(str(next(iterator)))
            except StopIteration:
                break
            except Exception as error:
                found.append(type(error).__name__)
    return found


def fails(dataset, limit=200):
    """Whether a function fails among the first elements, also where what fails is left out."""
    with iter(dataset) as iterator:
        for _ in range(limit):
            try:
                next(iterator)
            except StopIteration:
                break
            except (ZeroDivisionError, ps.ElementError):
                return True
        return iterator.errors.count > 0


def workers(node, options, count=2):
    definition = to_bytes(node, options)
    return [Production(lambda _: definition) for _ in range(count)]


def delivered_in_spans(divided, produced, edges, picks, **more):
    """What two workers make of the spans between these edges, asked for in an order that is drawn."""
    last = FAR if divided.length != ps.INFINITE_CARDINALITY else edges[-1] + 400
    spans = list(zip([0, *edges], [*edges, last], strict=True))
    found = {}
    for number in range(len(spans)):
        pick = picks[number % len(picks)]
        start, stop = spans.pop(pick % len(spans))
        found[start] = elements(produced[pick % len(produced)], start, stop, **more)[0]
    return [value for start in sorted(found) for value in found[start]]


def close(produced):
    for production in produced:
        production.close()


# What an element becomes in these depends on its number, or on what it stands beside.
BY_PLACE = {
    "map with randomness",
    "flat_map shuffled",
    "shuffle",
    "shuffle whole",
    "zip",
    "zip with itself",
    "resample",
}
BY_PLACE |= {"map and skip", "filter and skip"}
steps = st.lists(st.sampled_from(sorted(compositions.STEPS) + sorted(compositions.FAILING)), max_size=4)
edges = st.lists(st.integers(1, 14), min_size=1, max_size=4).map(
    lambda sizes: [sum(sizes[: n + 1]) for n in range(len(sizes))]
)
picks = st.lists(st.integers(0, 7), min_size=6, max_size=6)


def composed(source, names):
    dataset = compositions.SOURCES[source]()
    for name in names:
        dataset = (compositions.STEPS.get(name) or compositions.FAILING[name])(dataset)
    return dataset.with_options(ps.Options(seed=SEED))


@pytest.mark.slow
@given(source=st.sampled_from(sorted(compositions.SOURCES)), names=steps, edges=edges, picks=picks)
@example(source="range", names=["flat_map shuffled"], edges=[4], picks=[1, 0])
@example(source="range", names=["shuffle", "filter", "shuffle", "flat_map shuffled"], edges=[3, 7], picks=[1, 0])
@example(source="slices", names=["map with randomness", "filter", "map with randomness"], edges=[5], picks=[1, 0])
@example(source="files", names=["filter", "shuffle", "map", "repeat", "batch and sum"], edges=[1, 2], picks=[0, 1])
def test_spans_in_any_order_from_any_worker_are_the_pipeline(source, names, edges, picks):
    dataset = composed(source, names)
    divided = cut(dataset.node, ordered=True)
    expected = in_process(dataset)
    # A failure keeps its place among the elements, unless its map has moved below a shuffle: then it takes no place in
    # the shuffle's buffer, whether it is raised or left out.
    assume("moved below it" not in divided.reason or not fails(dataset))
    produced = workers(divided.worker, dataset.options())

    def values(epoch):
        return delivered_in_spans(divided, produced, edges, picks, epoch=epoch)

    rebuilt = Dataset(divided.over(Delivered(divided.worker, values)), dataset.options())
    try:
        assert in_process(rebuilt) == expected
    finally:
        close(produced)


@pytest.mark.extended
@given(
    names=st.lists(st.sampled_from(sorted(set(compositions.STEPS) - BY_PLACE)), max_size=2),
    stream=st.booleans(),
    place=st.integers(0, 11),
    count=st.integers(1, 3),
    edges=edges,
    picks=picks,
)
@example(names=["prefetch"], stream=True, place=5, count=3, edges=[2], picks=[0])
@example(names=[], stream=False, place=0, count=3, edges=[1, 2, 5], picks=[1, 0])
def test_a_batch_that_cannot_be_made_costs_itself_alone_on_any_worker(names, stream, place, count, edges, picks):
    def make(numbers):
        for name in names:
            numbers = compositions.STEPS[name](numbers)
        return numbers.with_options(ps.Options(seed=SEED, on_error="skip"))

    rows = ps.Dataset.range(36).filter(lambda x: True) if stream else ps.Dataset.range(36)
    odd = rows.map(lambda x: np.full(3 if x == 3 * place + 1 else 2, x)).batch(3)
    dataset = make(odd.map(lambda batch: batch[0, 0] // 3))
    expected = in_process(make(ps.Dataset.range(12).filter(lambda x: x != place)))
    assert in_process(dataset) == expected
    divided = cut(dataset.node, ordered=True)
    assume("moved below it" not in divided.reason)
    produced = workers(divided.worker, dataset.options(), count)

    def values(epoch):
        return delivered_in_spans(divided, produced, edges, picks, epoch=epoch)

    rebuilt = Dataset(divided.over(Delivered(divided.worker, values)), dataset.options())
    try:
        assert in_process(rebuilt) == expected
    finally:
        close(produced)


ODD = {"dtype": np.float64, "structure": lambda x: {"x": x}}
# Each makes the numbers 0 to 11 with a function that makes another kind of element of one of them.
UNLIKE = {
    "map": lambda d, f: d.map(f),
    "map in threads": lambda d, f: d.map(f, num_parallel_calls=2),
    "map shuffled": lambda d, f: d.map(f).shuffle(12),
    "map repeated": lambda d, f: d.shuffle(12).map(f).repeat(2),
    "from_generator": lambda d, f: ps.Dataset.from_generator(lambda: (f(np.int64(x)) for x in range(12))),
    "from_source": lambda d, f: ps.Dataset.from_source([f(np.int64(x)) for x in range(12)]),
    "flat_map": lambda d, f: d.flat_map(lambda x: ps.Dataset.from_tensors(f(x))).map(lambda x: x),
    "interleave": lambda d, f: d.interleave(lambda x: ps.Dataset.range(x, x + 1).map(f), 1).filter(lambda x: True),
    "concatenate": lambda d, f: d.take(4).map(f).concatenate(d.skip(4).map(f)),
    "scan": lambda d, f: d.scan(0, lambda s, x: (s, f(x))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("stream", [False, True], ids=["index", "stream"])
def test_a_row_of_another_kind_costs_itself_alone_on_any_worker(name, kind, stream):
    def make(function):
        rows = ps.Dataset.range(12).filter(lambda x: True) if stream else ps.Dataset.range(12)
        return UNLIKE[name](rows, function).with_options(ps.Options(seed=SEED, on_error="skip"))

    alike = in_process(make(lambda x: x))
    for place, count in [(3, 3), (5, 2), (9, 1)]:
        dataset = make(lambda x, place=place: ODD[kind](x) if x == place else x)
        expected = [x for x in alike if x != str(place)]
        assert in_process(dataset) == expected
        divided = cut(dataset.node)
        produced = workers(divided.worker, dataset.options(), count)
        values = partial(delivered_in_spans, divided, produced, [3, 5], [1, 0, 2])
        rebuilt = Dataset(
            divided.over(Delivered(divided.worker, lambda epoch, of=values: of(epoch=epoch))), dataset.options()
        )
        try:
            assert sorted(in_process(rebuilt)) == sorted(expected)
        finally:
            close(produced)


@pytest.mark.slow
@given(source=st.sampled_from(sorted(compositions.SOURCES)), names=steps, edges=edges, picks=picks)
def test_without_an_order_the_same_elements_come(source, names, edges, picks):
    dataset = composed(source, names)
    divided = cut(dataset.node)
    assume(not divided.above and divided.length != ps.INFINITE_CARDINALITY)
    produced = workers(divided.worker, dataset.options())
    try:
        values = delivered_in_spans(divided, produced, edges, picks)
        assert sorted(map(str, values)) == sorted(in_process(dataset))
    finally:
        close(produced)


def places(production, start, stop, **more):
    """(position, skip) of each element and failure of a span, by which it can be resumed there, and what comes."""
    found, skip = [], more.pop("skip", 0)
    while True:
        *blocks, last = ask(production, start, stop, skip=skip, **more)
        for chunk, block in blocks:
            found += [(chunk.position, chunk.skip + row, str(value)) for row, value in enumerate(block.rows())]
        if isinstance(last, End):
            return found
        found.append((None, None, last.name))  # not a place: what follows a failure begins at `next`
        start, stop, skip = last.next.start, last.next.stop, last.next.skip


@pytest.mark.extended
@given(source=st.sampled_from(sorted(compositions.SOURCES)), names=steps, start=st.integers(0, 4))
@example(source="range", names=["flat_map shuffled", "filter", "map in threads"], start=2)
@example(source="files", names=["filter", "flat_map"], start=0)
@example(source="range", names=["filter", "map in threads", "flat_map", "map in threads"], start=1)
def test_a_span_is_resumed_exactly_at_any_element(source, names, start):
    dataset = composed(source, names)
    divided = cut(dataset.node)
    first, second = produced = workers(divided.worker, dataset.options())
    try:
        stop = start + 25
        found = places(first, start, stop)
        for number, (position, skip, _) in enumerate(found):
            if position is None:
                continue
            if divided.kind != "groups":  # there every element has a position
                position, skip = position + skip, 0
            rest = places(second, position, stop, skip=skip)
            assert [value for _, _, value in rest] == [value for _, _, value in found[number:]]
    finally:
        close(produced)


@pytest.mark.extended
@given(
    source=st.sampled_from(sorted(compositions.SOURCES)), names=steps, count=st.integers(1, 3), stride=st.integers(1, 3)
)
def test_consumers_in_turns_get_the_elements_of_each_part(source, names, count, stride):
    """Coordinated reads: each worker has its share of what is read by index, and each consumer every n-th element."""
    dataset = composed(source, names)
    produced = workers(dataset.node, dataset.options())
    try:
        for index in range(count):
            info = PassInfo(number=index, shard_index=index, num_shards=count)
            alone = elements(produced[0], 0, 60, pass_info=info, by_element=True)[0]
            nodes = Dataset(nodes_of_pass(dataset.node, ShardingPolicy.DYNAMIC, info), dataset.options())
            assert [str(value) for value in alone] == in_process(nodes, 60)
            turns = [
                elements(produced[1], offset, 60, pass_info=info, by_element=True, stride=stride)[0]
                for offset in range(stride)
            ]
            assert [list(map(str, turn)) for turn in turns] == [
                list(map(str, alone[offset : len(alone) // stride * stride : stride])) for offset in range(stride)
            ]
    finally:
        close(produced)
