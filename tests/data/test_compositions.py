"""Every composition of operators keeps the promises, not only those that somebody thought of."""

import atexit
import functools
import itertools
import json
import shutil
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.testing import check_conformance


def jittered(x, rng):
    return x + rng.integers(0, 3)


SUMS = ps.Reducer(lambda key: 0, lambda total, x: total + x, lambda total: total)


def fails_sometimes(x):
    if x % 4 == 2:
        raise ZeroDivisionError(f"no {x}")
    return x


def gives_and_fails(dataset):
    numbers = map(int, dataset.with_options(ps.Options(seed=9)))  # in every epoch the same

    class Numbers:
        """An iterator that goes on after it has raised, as a generator does not."""

        def __iter__(self):
            return self

        def __next__(self):
            return fails_sometimes(next(numbers))

    return Numbers()


def by_number(dataset):
    return (
        dataset.node.indexable and dataset.cardinality() > 0 and not dataset.node.varies and not dataset.node.unseeded
    )


# Each takes a dataset of integers and gives one.
STEPS = {
    "map and skip": lambda d: d.map(fails_sometimes).ignore_errors(),
    "filter and skip": lambda d: d.filter(lambda x: fails_sometimes(x) >= 0).prefetch(2).ignore_errors(),
    "map": lambda d: d.map(lambda x: x + 1),
    "map in threads": lambda d: d.map(lambda x: x * 2, num_parallel_calls=2),
    "map with randomness": lambda d: d.map(jittered, seed=1),
    "filter": lambda d: d.filter(lambda x: x % 3 != 0),
    "filter nothing": lambda d: d.filter(lambda x: True),
    "flat_map": lambda d: d.flat_map(lambda x: ps.Dataset.range(int(x) % 3)),
    "flat_map shuffled": lambda d: d.flat_map(lambda x: ps.Dataset.range(int(x), int(x) + 4).shuffle(4).take(2)),
    "interleave": lambda d: d.interleave(lambda x: ps.Dataset.range(int(x) % 4), 2, 1),
    "batch and unbatch": lambda d: d.batch(3, num_parallel_calls=2).unbatch(),
    "batch and sum": lambda d: d.batch(2).map(lambda batch: batch.sum()),
    "parts": lambda d: d.map(lambda x: [x, x + 1], output_signature=ps.TensorSpec((2,), int)).unbatch(),
    "padded": lambda d: d.map(lambda x: [x] * (int(x) % 3 + 1)).padded_batch(2).unbatch().map(lambda row: row.sum()),
    "by size": lambda d: d.batch_by(9, lambda x: abs(int(x)) % 5, max_rows=4).unbatch(),
    "by known size": lambda d: (
        d.with_lengths(lambda x: abs(int(x)) % 5).batch_by(9, max_rows=4).unbatch() if by_number(d) else d
    ),
    "balanced": lambda d: d.batch(4).balance(lambda x: abs(int(x)), slices=2, window=2).unbatch(),
    "rebatch": lambda d: d.batch(4).rebatch([1, 2], drop_remainder=True).unbatch(),
    "packed": lambda d: (
        d.map(lambda x: [x] * (int(x) % 4 + 1))
        .pack(4, window=3)
        .map(lambda row: (row["tokens"] * row["positions"]).sum())
    ),
    "packed by cuts": lambda d: (
        d.map(lambda x: [x] * (int(x) % 4 + 1)).pack(3, "concat_split").map(lambda row: row["tokens"].sum())
    ),
    "window": lambda d: d.window(3, 2).flat_map(lambda w: w),
    "window in batches": lambda d: d.window(2, 1, drop_remainder=True).flat_map(lambda w: w.batch(2)).unbatch(),
    "group": lambda d: d.group_by_window(lambda x: x % 2, lambda key, w: w.take(2), window_size=3),
    "group and sum": lambda d: d.group_by_reducer(lambda x: x % 3, SUMS),
    "counted": lambda d: d.concatenate(ps.Dataset.range(5)).take(5).assert_cardinality(5),
    "bucket": lambda d: (
        d.map(lambda x: [x] * (int(x) % 4 + 1)).bucket_by_sequence_length(len, [2, 4], [2, 2, 1]).unbatch().map(max)
    ),
    "shuffle": lambda d: d.shuffle(4),
    "shuffle whole": lambda d: d.shuffle(1000, seed=5),
    "repeat": lambda d: d.repeat(2),
    "take": lambda d: d.take(9),
    "skip": lambda d: d.skip(2),
    "skip_rows": lambda d: d.skip_rows(steps=[1, 4]),
    "skip_rows masked": lambda d: d.skip_rows(steps=[1, 4], how="mask").map(lambda x, keep: x if keep else -1),
    "shard": lambda d: d.shard(2, 1),
    "concatenate": lambda d: d.concatenate(ps.Dataset.range(3)),
    "enumerate": lambda d: d.enumerate().map(lambda i, x: i + x),
    "zip": lambda d: ps.Dataset.zip(d, ps.Dataset.counter()).map(lambda a, b: a + b),
    "zip with itself": lambda d: ps.Dataset.zip(d, d.skip(1)).map(lambda a, b: a * 100 + b),
    "prefetch": lambda d: d.prefetch(2),
    "prefetch tuned": lambda d: d.prefetch(),
    "cache": lambda d: d.cache(),
    "scan": lambda d: d.scan(0, lambda s, x: (s + x, s)),
    "take_while": lambda d: d.take_while(lambda x: x < 60),
    "unique": lambda d: d.unique(),
    "draw": lambda d: d.sample([1 + n % 3 for n in range(len(d))], num=7) if by_number(d) else d,
    "draw once": lambda d: d.sample([1 + n % 2 for n in range(len(d))], replacement=False) if by_number(d) else d,
    "split": lambda d: d.split([0.4, 0.6], key=lambda x: x)[1],
    "sample": lambda d: ps.Dataset.sample_from_datasets([d, ps.Dataset.range(5)]),
    "choose": lambda d: ps.Dataset.choose_from_datasets([d, ps.Dataset.range(9)], ps.Dataset.range(2).repeat(7)),
    "mix": lambda d: ps.Dataset.mix({"own": d.concatenate(ps.Dataset.range(3)), "other": ps.Dataset.range(5)}, [3, 1]),
    "mix to the end": lambda d: ps.Dataset.mix(
        {"other": ps.Dataset.range(5), "own": ps.Dataset.range(1).concatenate(d.take(9))}, stop="all"
    ),
    "resample": lambda d: d.rejection_resample(lambda x: x % 2, [0.7, 0.3]).map(lambda kind, x: x),
}


@functools.cache
def files():
    """A directory with the numbers 0 to 10 as lines of three files."""
    made = Path(tempfile.mkdtemp(prefix="pytest-files-"))
    atexit.register(shutil.rmtree, made)
    for name, numbers in {"a": range(4), "b": (), "c": range(4, 11)}.items():
        (made / name).write_text("".join(f"{number}\n" for number in numbers))
    return made


def batches_of_arrow():
    return pa.table({"x": range(11)}).to_reader(max_chunksize=4)


SOURCES = {
    "files": lambda: ps.TextLineDataset(ps.Dataset.list_files(files() / "*", shuffle=True)).map(int),
    "range": lambda: ps.Dataset.range(11),
    "slices": lambda: ps.Dataset.from_tensor_slices(list(range(20, 31))),
    "generator": lambda: ps.Dataset.from_generator(lambda: iter(range(11))),
    "batches of Arrow": lambda: ps.Dataset.from_arrow_stream(batches_of_arrow).map(lambda row: row["x"]),
    "random": lambda: ps.Dataset.random(seed=1).map(lambda x: x % 50).take(11),
}


@pytest.mark.slow
@given(source=st.sampled_from(sorted(SOURCES)), steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5))
def test_any_composition_conforms(source, steps):
    def make():
        return _composed(SOURCES[source](), steps).with_options(ps.Options(seed=9))

    check_conformance(make, limit=16)


FAILING = {
    "generator": lambda d: ps.Dataset.from_generator(lambda: gives_and_fails(d)),
    "map": lambda d: d.map(fails_sometimes),
    "map in threads": lambda d: d.map(fails_sometimes, num_parallel_calls=2),
    "filter": lambda d: d.filter(lambda x: fails_sometimes(x) >= 0),
    "batch": lambda d: d.map(lambda x: [x] * (1 + (x % 4 == 2))).batch(2).unbatch().map(lambda row: row[0]),
}


def drain(iterator, limit):
    """Up to `limit` elements and failures: the elements, and how many failures."""
    elements, failures = [], 0
    while len(elements) + failures < limit:
        try:
            elements.append(str(next(iterator)))
        except StopIteration:
            return elements, failures, True
        except (ZeroDivisionError, ps.ElementError):
            failures += 1
    return elements, failures, False


@pytest.mark.slow
@given(
    source=st.sampled_from(sorted(SOURCES)),
    before=st.lists(st.sampled_from(sorted(STEPS)), max_size=2),
    failing=st.sampled_from(sorted(FAILING)),
    after=st.lists(st.sampled_from(sorted(STEPS)), max_size=2),
)
def test_a_failure_is_met_once_wherever_the_state_is_taken(source, before, failing, after):
    def make():
        dataset = FAILING[failing](_composed(SOURCES[source](), before))
        return _composed(dataset, after).with_options(ps.Options(seed=9))

    limit = 16
    with iter(make()) as iterator:
        elements, failures, ended = drain(iterator, limit)
    with iter(make()) as iterator:
        met = [(0, 0, iterator.state_dict())]
        for _ in range(len(elements) + failures):
            given_elements, given_failures, _ = drain(iterator, 1)
            met.append((met[-1][0] + len(given_elements), met[-1][1] + given_failures, iterator.state_dict()))

    def check(given_elements, given_failures, state, *, again):
        with iter(make()) as resumed:
            resumed.load_state_dict(json.loads(json.dumps(state)))
            second = resumed.state_dict()
            rest, more_failures, _ = drain(resumed, limit - given_elements - given_failures)
        expected = elements[given_elements:]
        assert rest[: len(expected)] == expected[: len(rest)]
        if ended:
            assert (rest, given_failures + more_failures) == (expected, failures)
        if again and second["position"] != state["position"]:
            check(given_elements, given_failures, second, again=False)

    for given_elements, given_failures, state in met:
        check(given_elements, given_failures, state, again=True)


@pytest.mark.slow
@given(
    source=st.sampled_from(sorted(SOURCES)),
    before=st.lists(st.sampled_from(sorted(STEPS)), max_size=2),
    failing=st.sampled_from(sorted(FAILING)),
    after=st.lists(st.sampled_from(sorted(STEPS)), max_size=2),
)
def test_no_row_fails_and_each_is_counted_once_wherever_the_state_is_taken(source, before, failing, after):
    def make():
        dataset = FAILING[failing](_composed(SOURCES[source](), before))
        return _composed(dataset, after).with_options(ps.Options(seed=9, on_error="skip"))

    limit = 16
    with iter(make()) as iterator:
        elements, states, errors = [], [iterator.state_dict()], [iterator.errors]
        for element in itertools.islice(iterator, limit):
            elements.append(str(element))
            states.append(iterator.state_dict())
            errors.append(iterator.errors)
        ended = next(iterator, None) is None
        whole = iterator.errors
    for given_elements, state in enumerate(states):
        with iter(make()) as resumed:
            resumed.load_state_dict(json.loads(json.dumps(state)))
            assert resumed.errors == errors[given_elements]
            found = [str(element) for element in itertools.islice(resumed, limit - given_elements)]
            assert found == elements[given_elements:]
            if ended:
                assert next(resumed, None) is None
                assert resumed.errors.count == whole.count


def waits(x):
    time.sleep(0.0003 * (x % 3))
    return x


# Each takes a dataset of integers and a number of calls.
STEPS_WITH_CALLS = {
    "map": lambda d, calls: d.map(lambda x: x + 1, num_parallel_calls=calls),
    "waiting map": lambda d, calls: d.map(waits, num_parallel_calls=calls),
    "failing map": lambda d, calls: d.map(fails_sometimes, num_parallel_calls=calls),
    "failing filter": lambda d, calls: d.filter(lambda x: fails_sometimes(x) % 3 != 0),
    "ignore_errors": lambda d, calls: d.ignore_errors(log=False),
    "prefetch": lambda d, calls: d.prefetch(calls or 0),
    "flat_map": lambda d, calls: d.flat_map(lambda x: ps.Dataset.range(x, x + 2)),
    "interleave": lambda d, calls: d.interleave(lambda x: ps.Dataset.range(x, x + 3), 2, num_parallel_calls=calls),
    "zip": lambda d, calls: ps.Dataset.zip(d, ps.Dataset.counter()).map(lambda a, b: a),
}


@pytest.mark.slow
@given(
    source=st.sampled_from(sorted(SOURCES)),
    steps=st.lists(st.sampled_from(sorted(STEPS_WITH_CALLS)), min_size=1, max_size=6),
    on_error=st.sampled_from(["raise", "skip"]),
    runs=st.lists(
        st.tuples(
            st.lists(st.sampled_from([None, 1, 2, 4, ps.AUTOTUNE]), min_size=6, max_size=6),
            st.integers(0, 9),
        ),
        min_size=2,
        max_size=4,
    ),
)
def test_nothing_is_lost_by_restores_with_other_numbers_of_calls(source, steps, on_error, runs):
    def make(calls):
        dataset = SOURCES[source]()
        for step, number in zip(steps, calls, strict=False):
            dataset = STEPS_WITH_CALLS[step](dataset, number)
        return dataset.with_options(ps.Options(seed=9, on_error=on_error))

    def read(iterator, count):
        found = []
        while len(found) < count:
            try:
                found.append(str(next(iterator)))
            except ZeroDivisionError as error:
                found.append(str(error))
            except StopIteration:
                break
        return found

    with iter(make([None] * 6)) as iterator:
        expected = read(iterator, 1000)
        failed = iterator.errors.count
    state, found = None, []
    for calls, count in [*runs, ([2] * 6, 1000)]:
        with iter(make(calls)) as iterator:
            if state is not None:
                iterator.load_state_dict(state)
            found += read(iterator, count)
            state = json.loads(json.dumps(iterator.state_dict()))
    assert found == expected
    assert iterator.errors.count == failed


# These are of other elements over a stream or after a shuffle: a cache before them is no tuning.
BY_NUMBER = {"draw", "draw once", "split"}
# What the guide allows to be added and removed, and what changes it allows, anywhere.
TUNINGS = {
    "nothing": lambda d: d,
    "prefetch": lambda d: d.prefetch(2),
    "prefetch nothing": lambda d: d.prefetch(0),
    "prefetch tuned": lambda d: d.prefetch(),
    "map": lambda d: d.map(lambda x: x),
    "map in threads": lambda d: d.map(lambda x: x, num_parallel_calls=2),
    "map tuned": lambda d: d.map(lambda x: x, num_parallel_calls=ps.AUTOTUNE),
    "cache": lambda d: d if d.node.varies else d.cache(),
}
CHAINS = {
    "take more": lambda d: d.take(15),
    "take again": lambda d: d.take(9),
    "concatenate a range": lambda d: d.concatenate(ps.Dataset.range(3)),
    "concatenate a generator": lambda d: d.concatenate(ps.Dataset.from_generator(lambda: iter(range(5)))),
}


@pytest.mark.slow
@given(
    source=st.sampled_from(sorted(SOURCES)),
    steps=st.lists(
        st.sampled_from(sorted(set(STEPS) - {"flat_map shuffled", *BY_NUMBER})) | st.sampled_from(sorted(CHAINS)),
        min_size=1,
        max_size=4,
    ),
    tunings=st.lists(
        st.lists(st.sampled_from(sorted(TUNINGS)), min_size=5, max_size=5),
        min_size=2,
        max_size=4,
    ),
    counts=st.lists(st.integers(0, 7), min_size=4, max_size=4),
)
def test_a_state_goes_on_wherever_a_tuning_was_added_or_removed(source, steps, tunings, counts):
    def make(tuned):
        dataset = SOURCES[source]()
        for step, tuning in itertools.zip_longest([None, *steps], tuned[: len(steps) + 1]):
            dataset = TUNINGS[tuning](dataset if step is None else {**STEPS, **CHAINS}[step](dataset))
        return dataset.with_options(ps.Options(seed=9))

    limit = 40
    with iter(make(["nothing"] * 5)) as iterator:
        expected = [str(element) for element in itertools.islice(iterator, limit)]
    state, given_before = None, 0
    for tuned, count in zip(tunings, counts, strict=False):
        with iter(make(tuned)) as iterator:
            if state is not None:
                iterator.load_state_dict(state)
            found = [str(element) for element in itertools.islice(iterator, min(count, limit - given_before))]
            assert found == expected[given_before : given_before + count]
            given_before += len(found)
            state = json.loads(json.dumps(iterator.state_dict()))
            rest = [str(element) for element in itertools.islice(iterator, limit - given_before)]
            assert rest == expected[given_before:]


def _composed(dataset, steps):
    for step in steps:
        dataset = STEPS[step](dataset)
    return dataset
