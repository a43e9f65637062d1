"""Mixtures that change during a run: weights from an element on, other sources at a restore, on other ranks."""

import json
import logging
import signal
from collections import Counter
from itertools import islice, product

import numpy as np
import pytest
from tests.support.forked import Forked

import penstock as ps

LENGTH = 60
NUMBERS = {"web": 0, "code": 1, "books": 2, "maths": 3}


def source(name, length=LENGTH):
    return ps.Dataset.range(1000 * NUMBERS[name], 1000 * NUMBERS[name] + length).shuffle()


def mixture(*weights, names=("web", "code", "books"), length=LENGTH, batch=6, **given):
    parts = {name: source(name, length) for name in names}
    mixed = ps.Dataset.mix(parts, list(weights) or None, stop="repeat", **given)
    return mixed.batch(batch).prefetch(2).with_options(ps.Options(seed=7))


def rows(batches):
    return [int(x) for batch in batches for x in batch]


def by_source(found):
    return {name: [x for x in found if x // 1000 == number] for name, number in NUMBERS.items()}


def assert_no_row_twice_before_its_epoch_ends(found, length=LENGTH):
    for name, own in by_source(found).items():
        for begin in range(0, len(own), length):
            epoch = own[begin : begin + length]
            assert len(set(epoch)) == len(epoch), name


KILLED = """
import json
from tests.data.test_remix import mixture, next_rows, steps_of
ranks = steps_of(mixture(3, 2, 1), 3)
while True:
    print(json.dumps([next_rows(ranks), ranks[0].state_dict()]), flush=True)
"""


def steps_of(dataset, ranks):
    """The steps of each rank, in one process."""
    strategies = [ps.HostStrategy(num_workers=ranks, worker_index=rank) for rank in range(ranks)]
    return [iter(strategy.distribute_dataset(dataset)) for strategy in strategies]


def next_rows(ranks):
    """The rows of the next step of all ranks."""
    parts = [getattr(step, "values", [step]) for step in map(next, ranks)]
    return [int(x) for own in parts for part in own for x in part]


def numbered(name, kind):
    """A source whose rows are in their order."""
    rows = range(1000 * NUMBERS[name], 1000 * NUMBERS[name] + 20)
    if kind == "generators" or (kind == "both" and name == "web"):
        return ps.Dataset.from_generator(lambda: iter(rows), output_signature=ps.TensorSpec((), np.int64))
    if kind == "tokens":
        return ps.Dataset.from_list([np.full(row % 3 + 1, row) for row in rows]).with_lengths()
    return ps.Dataset.range(rows.start, rows.stop)


ABOVE = {
    "batch": lambda mixed: mixed.batch(4),
    "prefetch": lambda mixed: mixed.prefetch(3).batch(4).prefetch(2),
    "map": lambda mixed: mixed.map(lambda x: x + 0, num_parallel_calls=2).batch(4).map(lambda x: x + 0),
    "enumerate": lambda mixed: mixed.enumerate().map(lambda _, x: x).batch(4),
    "skip and take": lambda mixed: mixed.skip(3).take(1000).batch(4),
    "balance": lambda mixed: mixed.batch(4).balance(lambda x: 1.0, slices=2, window=2),
    "mask": lambda mixed: mixed.skip_rows(steps=[5], how="mask").map(lambda x, _: x).batch(4),
}


def of_kind(kind, above, weights):
    parts = {name: numbered(name, kind) for name in weights}
    if kind == "batches":
        parts, above = {name: part.batch(4) for name, part in parts.items()}, lambda mixed: mixed.prefetch(2)
    unit = kind if kind in ("tokens", "batches") else "elements"
    mixed = ps.Dataset.mix(parts, weights, stop="repeat", unit=unit)
    return above(mixed.map(lambda x: x[0]) if kind == "tokens" else mixed)


@pytest.mark.parametrize(
    ("kind", "above", "ranks"),
    [
        *((*each, 0) for each in product(["index", "generators", "both", "tokens"], ABOVE)),
        *product(["index", "generators", "both", "tokens", "batches"], ["batch"], [1, 2, 3]),
    ],
)
def test_each_source_goes_on_where_it_was_whatever_is_mixed(kind, above, ranks):
    def opened(**weights):
        dataset = of_kind(kind, ABOVE[above], weights).with_options(
            ps.Options(auto_shard_policy=ps.AutoShardPolicy.DATA)
        )
        return steps_of(dataset, ranks) if ranks else [iter(dataset)]

    def taken(iterators, steps):
        return [x for _ in range(steps) for x in (next_rows(iterators) if ranks else next(iterators[0]).tolist())]

    first = opened(web=3, code=2, books=1)
    found = taken(first, 4)
    skipped = (
        []
        if above != "skip and take"
        else rows(islice(of_kind(kind, lambda mixed: mixed.batch(3), {"web": 3, "code": 2, "books": 1}), 1))
    )
    state = json.loads(json.dumps(first[0].state_dict(), sort_keys=True))
    second = opened(maths=2, books=2, web=4)
    for iterator in second:
        iterator.load_state_dict(state, remix=True)
    found += taken(second, 6)
    for iterator in second:
        iterator.remix({"maths": 0, "books": 1, "web": 0})
    state = json.loads(json.dumps(second[0].state_dict(), sort_keys=True))
    changed = taken(second, 2)
    third = opened(maths=2, books=2, web=4)
    for iterator in third:
        iterator.load_state_dict(state)
    assert taken(third, 2) == changed and {x // 1000 for x in changed} == {2}
    for name, own in by_source(skipped + found + changed).items():
        begin = 1000 * NUMBERS[name]
        assert sorted(own) == sorted(begin + place % 20 for place in range(len(own))) and len(own) > 3
    for iterator in (*first, *second, *third):
        iterator.close()


def test_a_killed_run_goes_on_with_another_mixture_on_other_ranks():
    process = Forked("-c", KILLED, pipes=("stdout",))
    lines = [json.loads(process.stdout.readline()) for _ in range(7)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    before = [x for step, _ in lines for x in step]
    state = lines[-1][1]
    assert {name: one["elements"] for name, one in state["mix"]["sources"].items()} == {
        name: len(own) for name, own in by_source(before).items() if name != "maths"
    }
    other = mixture(1, 1, 2, names=("books", "maths", "web"))
    ranks = steps_of(other, 2)
    for iterator in ranks:
        iterator.load_state_dict(state, remix=True)
    after = [x for _ in range(8) for x in next_rows(ranks)]
    assert Counter(x // 1000 for x in after) == {2: 12, 3: 12, 0: 24}
    assert_no_row_twice_before_its_epoch_ends(before + after)
    for iterator in ranks:
        iterator.remix({"web": 0, "maths": 1, "books": 0})
    state = ranks[0].state_dict()
    last = [x for _ in range(5) for x in next_rows(ranks)]
    assert Counter(x // 1000 for x in last) == {3: 30}
    assert_no_row_twice_before_its_epoch_ends(before + after + last)
    (alone,) = steps_of(other, 1)
    alone.load_state_dict(state)
    assert rows(islice(alone, 5)) == last
    for iterator in (*ranks, alone):
        iterator.close()


def test_ranks_take_slices_of_batches_of_one_source():
    parts = {
        name: ps.Dataset.range(1000 * NUMBERS[name], 1000 * NUMBERS[name] + 20).batch(4) for name in ("web", "code")
    }
    mixed = ps.Dataset.mix(parts, unit="batches", stop="all")
    ranks = steps_of(mixed, 2)
    assert [next_rows(ranks) for _ in range(10)] == [batch.tolist() for batch in mixed]
    assert [list(rank) for rank in ranks] == [[], []]


def test_a_change_begins_at_its_element_and_stands_in_the_state():
    whole = rows(islice(iter(mixture(1, 1, 1)), 6))
    iterator = iter(mixture(1, 1, 1))
    found = rows(islice(iterator, 2))
    iterator.remix({"web": 0, "code": 0, "books": 1}, at=4)
    found += rows(islice(iterator, 1))
    state = json.loads(json.dumps(iterator.state_dict(), sort_keys=True))
    found += rows(islice(iterator, 3))
    assert found[:24] == whole[:24] and all(x // 1000 == 2 for x in found[24:])
    resumed = iter(mixture(1, 1, 1))
    resumed.load_state_dict(state)
    assert rows(islice(resumed, 3)) == found[18:]
    resumed.remix([1, 0, 0])
    assert_no_row_twice_before_its_epoch_ends(found + rows(islice(resumed, 4)))


def test_the_state_counts_elements_and_epochs_by_source():
    iterator = iter(mixture(2, 1, 1, length=10))
    found = rows(islice(iterator, 10))
    sources = iterator.state_dict()["mix"]["sources"]
    assert {name: one["elements"] for name, one in sources.items()} == {
        name: len(own) for name, own in by_source(found).items() if own
    }
    assert (sources["web"]["epochs"], sources["code"]["epochs"]) == (3, 1)


def test_a_second_restore_with_another_mixture_keeps_the_positions():
    found, state, data = [], None, [mixture(1, 1, 1), mixture(1, 1, names=("web", "maths")), mixture(1, 5, 1)]
    for number, dataset in enumerate(data):
        with iter(dataset) as iterator:
            if number:
                iterator.load_state_dict(state, remix=True)
            found += rows(islice(iterator, 5))
            state = iterator.state_dict()
    own = by_source(found)
    assert_no_row_twice_before_its_epoch_ends(own["web"] + own["maths"])
    assert len(own["web"]) == sum(x // 1000 == 0 for x in found) >= 25


def test_weights_alone_may_change_over_a_map_and_fixed_orders():
    def make(weights):
        parts = {name: source(name).shuffle(reshuffle_each_iteration=False) for name in ("web", "code")}
        return ps.Dataset.mix(parts, weights, stop="all").map(lambda x: x + 0).skip(3).batch(4)

    iterator = iter(make([1, 3]))
    found = rows(islice(iterator, 5))
    resumed = iter(make([3, 1]))
    resumed.load_state_dict(json.loads(json.dumps(iterator.state_dict())), remix=True)
    whole = found + rows(resumed)
    assert len(whole) == len(set(whole)) == 2 * LENGTH - 3


@pytest.mark.parametrize("window", [1, 2])
def test_a_balanced_mixture_changes_and_no_row_is_lost_or_repeated(window):
    def make(weights):
        parts = {name: source(name).shuffle(seed=NUMBERS[name]) for name in ("web", "code")}
        mixed = ps.Dataset.mix(parts, weights, stop="repeat", seed=3)
        return mixed.batch(6).balance(lambda x: x % 1000, slices=2, window=window)

    iterator = iter(make([1, 1]))
    found = rows(islice(iterator, 3))
    iterator.remix([0, 1])
    found += rows(islice(iterator, 5))
    own = by_source(found)
    assert len(own["web"]) == (9 if window == 1 else 12)
    assert_no_row_twice_before_its_epoch_ends(found)
    state = json.loads(json.dumps(iterator.state_dict()))
    assert {name: one["elements"] for name, one in state["mix"]["sources"].items()} == {
        name: len(own[name]) for name in ("web", "code")
    }
    resumed = iter(make([1, 0]))
    resumed.load_state_dict(state, remix=True)
    after = rows(islice(resumed, 2))
    assert all(x // 1000 == 0 for x in after)
    assert_no_row_twice_before_its_epoch_ends(found + after)


def test_a_window_of_balance_is_not_divided_between_mixtures():
    def balanced(*weights):
        mixed = ps.Dataset.mix({name: source(name).shuffle(seed=1) for name in ("web", "code")}, weights, stop="repeat")
        return mixed.batch(6).balance(lambda x: x, window=4)

    iterator = iter(balanced(1, 1))
    rows(islice(iterator, 5))
    with pytest.raises(
        ps.StateMismatchError, match="has given a part of one after element 4: .* a window of 4 batches"
    ):
        iter(balanced(1, 2)).load_state_dict(iterator.state_dict(), remix=True)
    rows(islice(iterator, 3))
    resumed = iter(balanced(1, 0))
    resumed.load_state_dict(iterator.state_dict(), remix=True)
    assert all(x // 1000 == 0 for x in rows(islice(resumed, 4)))


def test_without_remix_another_mixture_is_refused_with_the_difference():
    iterator = iter(mixture(3, 2, 1))
    next(iterator)
    state = iterator.state_dict()
    for other, told in [
        (mixture(3, 5, 1), "the weight of 'code' was 2, here it is 5"),
        (mixture(3, 1, names=("web", "books")), "'code' is missing here"),
        (mixture(3, 2, 1, 1, names=("web", "code", "books", "maths")), "'maths' is new here"),
        (mixture(3, 2, 1, length=30), "'web' has other data here"),
        (mixture(3, 2, 1, seed=5), "its seed, its end or its epochs differ"),
    ]:
        with pytest.raises(ps.StateMismatchError, match=told) as raised:
            iter(other).load_state_dict(state)
        assert "load_state_dict(state, remix=True)" in str(raised.value)
        iter(other).load_state_dict(state, remix=True)


def test_other_steps_around_a_mixture_are_refused_with_remix_too():
    iterator = iter(mixture(3, 2, 1))
    next(iterator)
    with pytest.raises(ps.StateMismatchError, match=r"was batch\(batch_size=6\)"):
        iter(mixture(1, 1, 1, batch=5)).load_state_dict(iterator.state_dict(), remix=True)
    with pytest.raises(ps.StateMismatchError, match="state of an iterator over a mixture"):
        iter(mixture(1, 1, 1)).load_state_dict(iter(ps.Dataset.range(3)).state_dict(), remix=True)


def test_a_mixture_of_data_workers_is_not_remixed_and_one_of_their_datasets_is():
    with ps.service.DispatchServer() as dispatcher:
        distributed = ps.service.distribute("distributed_epoch", dispatcher.target)
        iterator = iter(mixture(3, 2, 1).apply(distributed).batch(2))
        told = r"here data workers mix, by distribute\(.*: apply ps.service.distribute to each source, and mix"
        with pytest.raises(ps.InvalidArgumentError, match=told):
            iterator.remix({"web": 1})
        with ps.service.WorkerServer(ps.service.WorkerConfig(dispatcher_address=dispatcher.target)):
            parts = {name: source(name).apply(distributed) for name in ("web", "code")}
            with iter(ps.Dataset.mix(parts, {"web": 1, "code": 0}).batch(2)) as advised:
                assert max(next(advised)) < 1000
                advised.remix({"web": 0, "code": 1})
                assert min(next(advised)) >= 1000


def test_other_data_under_a_name_goes_on_and_is_warned_about(caplog):
    iterator = iter(mixture(1, 1, 1))
    rows(islice(iterator, 3))
    resumed = iter(mixture(1, 1, 1, length=200))
    with caplog.at_level(logging.WARNING, "penstock"):
        resumed.load_state_dict(iterator.state_dict(), remix=True)
    assert "the source 'web' has other data than before, and goes on at element 6" in caplog.messages[0]


@pytest.mark.parametrize(
    ("make", "call", "told"),
    [
        (lambda: mixture(1, 1, 1), lambda one: one.remix({"web": 1}), "no weight for the source 'code'"),
        (lambda: mixture(1, 1, 1), lambda one: one.remix([0, 0, 0]), "are all 0"),
        (lambda: mixture(1, 1, 1), lambda one: one.remix([1, 1, 1], at=0), "1 elements were given already"),
        (lambda: mixture(1, 1, 1).shuffle(9), lambda one: one.remix([1, 1, 1]), "shuffle.* comes first"),
        (lambda: ps.Dataset.range(5), lambda one: one.remix([1]), "range.* comes first"),
    ],
)
def test_changes_that_cannot_be_made_are_refused(make, call, told):
    iterator = iter(make())
    next(iterator)
    with pytest.raises(ps.InvalidArgumentError, match=told):
        call(iterator)
    next(iterator)


@pytest.mark.parametrize(
    ("before", "after"), [("index", "generators"), ("generators", "index"), ("generators", "both")]
)
def test_a_source_may_become_a_stream_or_be_read_by_index(before, after):
    first = iter(of_kind(before, ABOVE["batch"], {"web": 2, "code": 1}))
    found = rows(islice(first, 4))
    second = iter(of_kind(after, ABOVE["batch"], {"code": 1, "maths": 1, "web": 2}))
    second.load_state_dict(first.state_dict(), remix=True)
    found += rows(islice(second, 5))
    for name, own in by_source(found).items():
        assert own == [1000 * NUMBERS[name] + place % 20 for place in range(len(own))]


def test_streams_that_have_ended_stay_ended_and_no_row_is_lost():
    def mixed(names, stop):
        return ps.Dataset.mix({name: numbered(name, "generators") for name in names}, stop=stop).batch(4)

    first = iter(mixed(["web", "code"], "all").map(lambda x: x))
    found = rows(islice(first, 9))
    first.remix([1, 5])
    state = first.state_dict()
    assert state["mix"]["turn"] >= 36
    second = iter(mixed(["web", "books", "code"], "all").map(lambda x: x))
    second.load_state_dict(state, remix=True)
    assert sorted(found + rows(second)) == [*range(20), *range(1000, 1020), *range(2000, 2020)]


def test_mixtures_of_elements_and_of_tokens_are_told_apart():
    tokens, elements = (
        iter(ps.Dataset.mix({"web": numbered("web", "tokens")}, unit=unit)) for unit in ("tokens", "elements")
    )
    next(tokens)
    with pytest.raises(ps.StateMismatchError, match=r"state's mixture count tokens, those of mix\(.* elements"):
        elements.load_state_dict(tokens.state_dict(), remix=True)
    with pytest.raises(ps.InvalidArgumentError, match="begins with the next element, which is 1: call remix when that"):
        tokens.remix([1], at=3)
    tokens.remix([1], at=1)
