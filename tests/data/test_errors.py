"""What goes wrong says where, loses nothing else, and is refused when the call is made."""

import asyncio
import contextlib
import copy
import dataclasses
import itertools
import pickle
from typing import Any

import numpy as np
import pytest

import penstock as ps


def fails_at(*bad):
    def function(x):
        if int(x) in bad:
            raise ZeroDivisionError(f"no {x}")
        return x * 10

    return function


def drain(iterator, errors=ZeroDivisionError):
    """All elements, with the name of the error in place of those that failed."""
    found = []
    while True:
        try:
            found.append(int(next(iterator)))
        except StopIteration:
            return found
        except errors as error:
            found.append(str(error))


def over(kind, count=8):
    dataset = ps.Dataset.range(count)
    if kind == "generator":
        return ps.Dataset.from_generator(lambda: iter(range(count)))
    return dataset.filter(lambda x: True) if kind == "stream" else dataset


KINDS = ["index", "stream", "generator"]


@pytest.mark.parametrize("threads", [None, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_elements_before_an_error_come_first_and_iteration_continues(kind, threads):
    dataset = over(kind).map(fails_at(5, 7), num_parallel_calls=threads)
    assert drain(iter(dataset)) == [0, 10, 20, 30, 40, "no 5", 60, "no 7"]
    assert drain(iter(dataset.prefetch(3))) == [0, 10, 20, 30, 40, "no 5", 60, "no 7"]


@pytest.mark.parametrize("kind", KINDS)
def test_filter_passes_over_the_element_at_which_its_predicate_raises(kind):
    dataset = over(kind).filter(lambda x: fails_at(3)(x) % 20 == 0)
    assert drain(iter(dataset)) == [0, 2, "no 3", 4, 6]


CALLED_ROW_BY_ROW = {
    "map": lambda d, function: d.map(function),
    "map in threads": lambda d, function: d.map(function, num_parallel_calls=3),
    "filter": lambda d, function: d.filter(lambda x: function(x) >= 0).map(lambda x: x * 10),
    "scan": lambda d, function: d.scan(0, lambda state, x: (state, function(x))),
    "take_while": lambda d, function: d.take_while(lambda x: function(x) >= 0).map(lambda x: x * 10),
    "rejection_resample": lambda d, function: d.rejection_resample(
        lambda x: int(function(x) < 0), (1.0, 0.0), (1.0, 0.0)
    ).map(lambda number, x: x * 10),
    "group_by_reducer": lambda d, function: d.group_by_reducer(
        lambda x: x, ps.Reducer(lambda key: 0, lambda state, x: x, function)
    ),
}


@pytest.mark.parametrize("build", CALLED_ROW_BY_ROW.values(), ids=CALLED_ROW_BY_ROW)
def test_a_failing_function_is_called_once_after_the_elements_before(build):
    calls = []

    def function(x):
        calls.append(int(x))
        return fails_at(2, 5, 6)(x)

    dataset = build(over("stream"), function).prefetch(2)
    expected = [0, 10, "no 2", 30, 40, "no 5", "no 6", 70]
    assert drain(iter(dataset)) == expected
    calls.clear()
    iterator = iter(dataset)
    states = [iterator.state_dict()]
    for _ in expected:
        drain_one(iterator)
        states.append(iterator.state_dict())
    assert sorted(set(calls)) == list(range(8)) and len(calls) == 8
    for given, state in enumerate(states):
        with iter(dataset) as resumed:
            resumed.load_state_dict(state)
            assert drain(resumed) == expected[given:], given


@pytest.mark.parametrize("kind", KINDS)
def test_zip_keeps_pairs_together_after_an_error_in_one_member(kind):
    pairs = ps.Dataset.zip(over(kind).map(fails_at(2)), ps.Dataset.range(8)).map(lambda a, b: a - 10 * b)
    assert drain(iter(pairs)) == [0, 0, "no 2", 0, 0, 0, 0, 0]


def test_zip_keeps_pairs_together_where_calls_run_ahead_in_the_other_member():
    ahead = ps.Dataset.range(8).map(lambda x: x, num_parallel_calls=3)
    pairs = ps.Dataset.zip(over("stream").map(fails_at(2, 5)), ahead).map(lambda a, b: a - 10 * b)
    assert drain(iter(pairs)) == [0, 0, "no 2", 0, 0, "no 5", 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_skip_passes_over_an_element_that_fails_as_over_others(kind):
    skipped = over(kind).map(fails_at(1, 2, 6)).skip(3)
    assert drain(iter(skipped)) == [30, 40, 50, "no 6", 70]
    pairs = ps.Dataset.zip(skipped, ps.Dataset.range(3, 8)).map(lambda a, b: a - 10 * b)
    assert drain(iter(pairs)) == [0, 0, 0, "no 6", 0]


@pytest.mark.parametrize("kind", KINDS)
def test_an_element_that_fails_belongs_to_one_shard(kind):
    dataset = over(kind).map(fails_at(1, 2, 6))
    assert drain(iter(dataset.shard(2, 0))) == [0, "no 2", 40, "no 6"]
    assert drain(iter(dataset.shard(2, 1))) == ["no 1", 30, 50, 70]


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_a_generator_that_breaks_off_among_what_is_passed_over_says_so(rows):
    def numbers():
        yield from range(rows)
        raise ZeroDivisionError("broken")

    dataset = ps.Dataset.from_generator(numbers, output_signature=ps.TensorSpec((), np.int64))
    assert drain(iter(dataset.skip(5))) == ["broken"]
    assert [drain(iter(dataset.shard(3, index)))[-1] for index in range(3)] == ["broken"] * 3


@pytest.mark.parametrize(
    "build",
    [
        lambda d: d.map(fails_at(3)).scan(0, lambda s, x: (s + x, x)),
        lambda d: d.scan(0, lambda s, x: (s, fails_at(3)(x))),
        lambda d: d.map(fails_at(3)).take_while(lambda x: True),
        lambda d: d.take_while(lambda x: fails_at(3)(x) >= 0).map(lambda x: x * 10),
        lambda d: d.map(fails_at(3)).unique(),
        lambda d: d.map(fails_at(3)).concatenate(ps.Dataset.range(0)),
        lambda d: d.map(fails_at(3)).enumerate().map(lambda i, x: x),
        lambda d: d.map(fails_at(3)).cache(),
        lambda d: d.flat_map(lambda x: ps.Dataset.from_tensors(fails_at(3)(x))),
        lambda d: d.map(fails_at(3)).interleave(lambda x: ps.Dataset.from_tensors(x), 1, 1),
        lambda d: ps.Dataset.choose_from_datasets([d.map(fails_at(3))], ps.Dataset.range(1).repeat()),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_operator_passes_an_error_on_and_continues(kind, build):
    assert drain(iter(build(over(kind)))) == [0, 10, 20, "no 3", 40, 50, 60, 70]


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_taken_next_to_an_error_meets_it_once(kind):
    def make():
        return over(kind).map(fails_at(2, 5)).prefetch(2)

    expected = [0, 10, "no 2", 30, 40, "no 5", 60, 70]
    for given in range(len(expected) + 1):
        iterator = iter(make())
        for _ in range(given):
            drain_one(iterator)
        state = iterator.state_dict()
        iterator.close()
        with iter(make()) as resumed:
            resumed.load_state_dict(state)
            assert drain(resumed) == expected[given:], given


def drain_one(iterator):
    with contextlib.suppress(ZeroDivisionError):
        next(iterator)


def test_an_error_surfaces_as_itself_with_node_element_and_line():
    dataset = ps.Dataset.range(9).map(fails_at(4)).batch(2)
    with pytest.raises(ZeroDivisionError, match="no 4") as caught:
        list(dataset)
    (note,) = caught.value.__notes__
    assert note.startswith("penstock: in map(function=fails_at.function) at ") and note.endswith(", element 4")
    assert f"{__file__}:" in note


@pytest.mark.parametrize("source", ["map", "generator", "flat_map"])
def test_an_exception_that_is_raised_for_many_rows_grew_by_a_note_a_row(source):
    kept = ValueError("a read-only label")
    kept.add_note("the user's own")

    def fails(x):
        raise kept

    def generator():
        yield 0
        raise kept

    dataset = {
        "map": lambda: ps.Dataset.range(3).map(fails),
        "generator": lambda: ps.Dataset.range(3).flat_map(lambda _: ps.Dataset.from_generator(generator)),
        "flat_map": lambda: ps.Dataset.range(3).flat_map(fails),
    }[source]()
    notes = []
    iterator = iter(dataset)
    for _ in range(6):
        try:
            next(iterator, None)
        except ValueError as error:
            notes.append(list(error.__notes__))
    assert [len(told) for told in notes] == [len(notes[0])] * 3
    assert all(told[0] == "the user's own" for told in notes)
    last = [[one.rpartition(", element ")[2] for one in told if ", element " in one] for told in notes]
    assert last == ([["1"], ["1"], ["1"]] if source == "generator" else [["0"], ["1"], ["2"]])
    assert kept.__notes__[-1].endswith("x = x.copy() makes one")


def test_a_batch_with_a_failing_row_is_lost_and_the_next_one_is_whole():
    iterator = iter(ps.Dataset.range(8).map(fails_at(3)).batch(2))
    assert next(iterator).tolist() == [0, 10]
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert [batch.tolist() for batch in iterator] == [[40, 50], [60, 70]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_cannot_be_made_comes_in_its_place_among_the_others(kind):
    rows = over(kind, 30).map(lambda x: np.full(3 if x == 13 else 2, x))
    found = drain(iter(rows.batch(3).map(lambda batch: batch[:, 0].sum())), ps.ElementError)
    assert [value for value in found if not isinstance(value, str)] == [9 * n + 3 for n in range(10) if n != 4]
    assert "one shape" in found[4]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", range(5))
def test_rows_before_a_batch_that_cannot_be_split_are_in_the_next_ones(kind, given):
    def make():  # the third batch has leaves of unequal length
        return over(kind, 5).map(lambda x: (np.full(2, x), np.full(2 + (x == 2), x))).rebatch(3).map(lambda a, b: a)

    expected = [[0, 0, 1], "rows", [1, 3, 3], [4, 4]]
    iterator = iter(make())
    told = [_told(iterator) for _ in range(given)]
    state = iterator.state_dict()
    resumed = iter(make())
    resumed.load_state_dict(state)
    assert [*told, *(_told(resumed) for _ in range(given, 4))] == expected


def _told(iterator):
    try:
        element = next(iterator, None)
    except ps.ElementError as error:
        return "rows" if "rows" in str(error) else str(error)
    return element if element is None else element.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_choice_costs_itself_alone(kind):
    choice = over(kind).map(lambda x: 7 if x == 3 else x % 2)
    chosen = ps.Dataset.choose_from_datasets([over(kind), over(kind).map(lambda x: x + 10)], choice)
    found = drain(iter(chosen), ps.ElementError)
    assert found[:3] + found[4:] == [0, 10, 1, 2, 11, 3, 12] and "from 0 to 1, got 7" in found[3]


@pytest.mark.parametrize("kind", ["stream", "generator"])
@pytest.mark.parametrize("build", [lambda d: d.skip(3), lambda d: d.shard(4, 3)], ids=["skip", "shard"])
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, StopAsyncIteration, asyncio.CancelledError])
def test_only_an_exception_of_a_row_is_passed_over_with_it(kind, build, error):
    def function(x):
        if x == 1:
            raise error
        return x

    dataset = build(over(kind).map(function))
    if error in (StopAsyncIteration, asyncio.CancelledError):
        assert drain(iter(dataset))[0] == 3
    else:
        with pytest.raises(error):
            next(iter(dataset))


class PanicException(BaseException):
    __module__ = "pyo3_runtime"


@pytest.mark.parametrize("calls", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [asyncio.CancelledError, PanicException])
def test_a_cancelled_row_was_no_failure_that_skip_passes_over(kind, error, calls):
    def function(x):
        if x in (1, 2, 5):
            raise error("no")
        return x

    skipping = over(kind).map(function, num_parallel_calls=calls).with_options(ps.Options(on_error="skip"))
    iterator = iter(skipping)
    assert [int(x) for x in iterator] == [0, 3, 4, *range(6, len(list(over(kind))))]
    assert (iterator.errors.count, iterator.errors.rows[0].position) == (3, 1)


class Checked:
    """A field that refuses some numbers."""

    def __get__(self, element, kind=None):
        if element is None:
            raise AttributeError  # it has no default
        return element.__dict__["x"]

    def __set__(self, element, value):
        if np.ndim(value) == 0 and value in (2, 3, 9):
            raise ZeroDivisionError(f"no {value}")
        element.__dict__["x"] = value


@dataclasses.dataclass
class Choosy:
    x: Any = Checked()


@pytest.mark.parametrize("batch", [1, 4, 11])
def test_an_element_that_its_class_refuses_is_lost_alone(batch):
    dataset = ps.Dataset.from_tensor_slices(Choosy(np.arange(11))).batch(batch).unbatch()
    found, iterator = [], iter(dataset)
    while len(found) < 11:
        try:
            found.append(int(next(iterator).x))
        except ZeroDivisionError as error:
            found.append(str(error))
    assert found == [0, 1, "no 2", "no 3", 4, 5, 6, 7, 8, "no 9", 10]
    assert next(iterator, None) is None


class Unhashable:
    __hash__ = None


@pytest.mark.parametrize("given", range(6))
def test_what_unique_cannot_compare_costs_itself_alone(given):
    values = np.array(["a", "b", "a", Unhashable(), "c", "b", "d"], object)
    dataset = ps.Dataset.from_tensor_slices(values).unique().with_options(ps.Options(on_error="skip"))
    with iter(dataset) as iterator:
        found = list(itertools.islice(iterator, given))
        state = iterator.state_dict()
    with iter(dataset) as iterator:
        iterator.load_state_dict(state)
        assert [*found, *iterator] == ["a", "b", "c", "d"]
        assert iterator.errors.count == 1


def test_a_generators_exception_arrives_after_its_elements():
    def numbers():
        yield 1
        yield 2
        raise ZeroDivisionError("no more")

    assert drain(iter(ps.Dataset.from_generator(numbers))) == [1, 2, "no more"]
    assert drain(iter(ps.Dataset.from_generator(numbers).batch(1).unbatch())) == [1, 2, "no more"]


def test_stop_iteration_in_a_function_does_not_end_the_data_in_silence():
    def stops(x):
        if x == 2:
            raise StopIteration
        return x

    for dataset in (ps.Dataset.range(4).map(stops), ps.Dataset.range(4).map(lambda x: np.ones(2) * stops(x))):
        iterator = iter(dataset)
        next(iterator), next(iterator)
        with pytest.raises(TypeError, match="raised StopIteration"):
            next(iterator)
        next(iterator)


def stops_at_two(x):
    if x == 2:
        raise StopIteration
    return x


@pytest.mark.parametrize(
    "build",
    [
        lambda d: d.filter(lambda x: stops_at_two(x) >= 0),
        lambda d: d.take_while(lambda x: stops_at_two(x) >= 0),
        lambda d: d.scan(0, lambda s, x: (s, stops_at_two(x))),
        lambda d: d.flat_map(lambda x: ps.Dataset.from_tensors(stops_at_two(x))),
        lambda d: d.group_by_window(stops_at_two, lambda key, window: window, window_size=1),
        lambda d: d.group_by_window(lambda x: x, lambda key, window: stops_at_two(key) and window, window_size=1),
        lambda d: d.rejection_resample(lambda x: stops_at_two(x) * 0, [1.0]).map(lambda kind, x: x),
    ],
)
@pytest.mark.parametrize("ahead", [False, True])
def test_stop_iteration_in_any_function_is_an_error(build, ahead):
    dataset = build(ps.Dataset.range(5))
    with pytest.raises(TypeError, match="raised StopIteration|must return a ps.Dataset"):
        list(dataset.prefetch(2) if ahead else dataset)


@pytest.mark.parametrize("threads", [None, 2])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: 1 if x < 3 else 0.5, r"float32.*int64"),
        (lambda x: np.ones(2) if x < 3 else np.ones(2, np.float32), r"float32.*float64"),
        (lambda x: (x, x) if x < 3 else (x,), r"\(int64,\).*\(int64, int64\)|\(\*, \*\), got \(\*,\)"),
        (lambda x: {"a": 1} if x < 3 else {"b": 1}, r"'a'.*'b'|'b'.*'a'"),
        (lambda x: "text" if x < 3 else 1, "int64.*object"),
    ],
)
def test_a_function_must_return_one_kind_of_element(function, message, threads):
    iterator = iter(ps.Dataset.range(8).map(function, num_parallel_calls=threads))
    assert len([next(iterator) for _ in range(3)]) == 3
    with pytest.raises(ps.ElementError, match=message):
        next(iterator)


def test_a_function_cannot_change_the_users_arrays():
    array = np.zeros((4, 2))

    def careless(row):
        row += 1
        return row

    for source in (ps.Dataset.from_tensor_slices, ps.Dataset.from_source):
        with pytest.raises(ValueError, match="read-only") as caught:
            list(source(array).map(careless))
        where, remedy = caught.value.__notes__
        assert where.startswith("penstock: in map(") and remedy.endswith("write to a copy, as x = x.copy() makes one")
    assert array.sum() == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda d: d.map(3), TypeError, r"map\(fn=\.\.\.\) takes a function, got 3"),
        (
            lambda d: d.map(abs, num_parallel_calls=0),
            ValueError,
            r"num_parallel_calls=\.\.\.\) must be at least 1, got 0",
        ),
        (lambda d: d.map(abs, deterministic="no"), TypeError, "takes True or False, got 'no'"),
        (lambda d: d.map(abs, seed=-1), ValueError, r"seed=\.\.\.\) must be at least 0"),
        (lambda d: d.filter(None), TypeError, "predicate"),
        (lambda d: d.batch(0), ValueError, r"batch\(batch_size=\.\.\.\) must be at least 1, got 0"),
        (lambda d: d.batch(2.5), TypeError, r"takes an integer, got 2\.5"),
        (lambda d: d.batch(True), TypeError, "takes an integer, got True"),
        (lambda d: d.shuffle(0), ValueError, r"shuffle\(buffer_size=\.\.\.\) must be at least 1, got 0"),
        (lambda d: d.shuffle(-3), ValueError, "must be at least 1, got -3"),
        (lambda d: d.repeat(-2), ValueError, "must be at least -1"),
        (lambda d: d.take(-2), ValueError, "must be at least -1"),
        (lambda d: d.shard(3, 3), ValueError, "must be below num_shards = 3, got 3"),
        (lambda d: d.shard(0, 0), ValueError, "num_shards"),
        (lambda d: d.shard(2, -1), ValueError, "index"),
        (lambda d: d.rebatch(0), ValueError, "must be at least 1, got 0"),
        (lambda d: d.rebatch([]), ValueError, "at least one size"),
        (lambda d: d.rebatch(-1), ValueError, "must be at least 1, got -1"),
        (lambda d: d.rebatch(2.5), TypeError, r"rebatch\(batch_size=\.\.\.\) takes an integer, got 2\.5"),
        (lambda d: d.rebatch(None), TypeError, r"rebatch\(batch_size=\.\.\.\) takes an integer, got None"),
        (lambda d: d.shard(ps.SHARD_HINT, 1), ValueError, "SHARD_HINT instead of both numbers"),
        (lambda d: d.apply(lambda dataset: None), TypeError, "<lambda> returned None: does it lack a `return`"),
        (lambda d: len(d.filter(bool)), TypeError, r"filter\(.*test_errors.py.* has no length: it is unknown before"),
        (lambda d: len(d.repeat()), TypeError, "has no length: it never ends"),
        (lambda d: d.window(0), ValueError, "size"),
        (lambda d: d.prefetch(-2), ValueError, "must be at least -1"),
        (lambda d: d.cache(3), TypeError, "takes a path"),
        (lambda d: d.concatenate([1]), TypeError, r"concatenate takes a ps\.Dataset, got \[1\]"),
        (lambda d: d.concatenate(ps.Dataset.zip(d, d)), TypeError, "elements of one kind"),
        (lambda d: d.interleave(abs, 0), ValueError, "cycle_length"),
        (lambda d: d.group_by_window(abs, abs), ValueError, "either window_size or window_size_func"),
        (lambda d: d.bucket_by_sequence_length(len, [3, 2], [1, 1, 1]), ValueError, "must rise"),
        (lambda d: d.bucket_by_sequence_length(len, [3], [1]), ValueError, "expected 2, got 1"),
        (lambda d: d.rejection_resample(abs, [0.5, 0.6]), ValueError, "sum to 1"),
        (lambda d: ps.Dataset.zip(d, 3), TypeError, r"zip takes a ps\.Dataset, got 3"),
        (lambda d: ps.Dataset.zip([d, d]), TypeError, r"got a list: write zip\(\*datasets\)"),
        (lambda d: ps.Dataset.zip(d, [1]), TypeError, r"zip takes a ps\.Dataset, got \[1\]"),
        (
            lambda d: ps.Dataset([1, 2]),
            TypeError,
            r"does not take data, got \[1, 2\]: use ps.Dataset.from_tensor_slices",
        ),
        (lambda d: ps.Dataset.counter(0, 0), ValueError, "must not be 0"),
        (lambda d: ps.Dataset.sample_from_datasets([d], [0.1, 0.2]), ValueError, "takes 1 weights"),
        (lambda d: ps.Dataset.sample_from_datasets([d], [float("nan")]), ValueError, "takes 1 weights"),
        (lambda d: ps.Dataset.sample_from_datasets([d], ["a"]), TypeError, "takes numbers, got"),
        (lambda d: ps.Dataset.sample_from_datasets([d], seed=-1), ValueError, "seed"),
        (lambda d: ps.Dataset.sample_from_datasets([]), ValueError, "at least one dataset"),
        (lambda d: ps.Dataset.choose_from_datasets([d], 3), TypeError, "choice_dataset"),
        (lambda d: ps.Dataset.range(), TypeError, "1 to 3 integers"),
        (lambda d: ps.Dataset.range(0, 3, 0), ValueError, "must not be 0"),
        (lambda d: ps.Dataset.range(3.5), TypeError, r"range\(stop=\.\.\.\) takes an integer, got 3\.5"),
        (lambda d: ps.Dataset.range(1 << 70), ValueError, r"range\(stop=\.\.\.\) takes a number of int64, got 1180"),
        (lambda d: ps.Dataset.range(-1 << 64, 0), ValueError, r"range\(start=\.\.\.\) must be at least -9223"),
        (lambda d: d.batch(2, 4), TypeError, r"batch\(drop_remainder=\.\.\.\) takes True or False, got 4"),
        (lambda d: d.padded_batch(2, drop_remainder="no"), TypeError, "drop_remainder"),
        (lambda d: d.ragged_batch(2, "no"), TypeError, "drop_remainder"),
        (lambda d: d.rebatch(2, "no"), TypeError, "drop_remainder"),
        (lambda d: d.window(2, drop_remainder="no"), TypeError, "drop_remainder"),
        (lambda d: d.shuffle(2, reshuffle_each_iteration="no"), TypeError, "reshuffle_each_iteration"),
        (lambda d: ps.Dataset.random(rerandomize_each_iteration=3), TypeError, "rerandomize_each_iteration"),
        (lambda d: ps.Dataset.choose_from_datasets([d], d, 3), TypeError, "stop_on_empty_dataset"),
        (lambda d: ps.Dataset.sample_from_datasets([d], stop_on_empty_dataset=3), TypeError, "stop_on_empty_dataset"),
        (lambda d: d.repeat().reduce(0, max), ValueError, r"repeat\(count=None\).* never ends.*put \.take\(count\)"),
        (lambda d: d.repeat().save("never"), ValueError, r"save: repeat\(count=None\).* never ends"),
        (lambda d: ps.Dataset.range("a", 3), TypeError, r"range\(start=\.\.\.\) takes an integer, got 'a'"),
        (lambda d: ps.Dataset.from_tensor_slices(3), ValueError, "leading axis"),
        (lambda d: ps.Dataset.from_tensor_slices(([1], [1, 2])), ValueError, r"\[0\]: 1, \[1\]: 2"),
        (lambda d: ps.Dataset.from_tensor_slices(d), ValueError, "leading axis, got <penstock.Dataset range"),
        (
            lambda d: ps.Dataset.from_tensor_slices([[1], [1, 2]]),
            ValueError,
            r"from_tensor_slices: .* of equal shape, got \[\[1\], \[1, 2\]\].*: from_generator takes rows that differ",
        ),
        (lambda d: ps.Dataset.from_generator(3), TypeError, "takes a function"),
        (lambda d: ps.Dataset.from_generator(iter([1])), TypeError, "give the generator function itself"),
        (
            lambda d: ps.Dataset.from_generator(list, output_signature=3),
            TypeError,
            r"takes ps\.TensorSpec leaves, got 3",
        ),
        (
            lambda d: ps.Dataset.from_generator(list, output_signature=np.int64),
            TypeError,
            r"such as ps\.TensorSpec\(\(\), 'int64'\) for a number",
        ),
        (lambda d: ps.Options(seed=-1), ValueError, "seed"),
        (lambda d: ps.Options(auto_shard_policy=2), TypeError, r"ps\.AutoShardPolicy"),
        (lambda d: ps.TensorSpec((-3,)), ValueError, "at least 0"),
        (
            lambda d: ps.TensorSpec(3),
            TypeError,
            r"TensorSpec\(shape=\.\.\.\) takes a tuple of integers and None, got 3",
        ),
        (lambda d: ps.TensorSpec((), "floaty"), TypeError, "numpy.dtype takes, got 'floaty'"),
    ],
)
def test_bad_arguments_are_refused_at_the_call(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call(ps.Dataset.range(4))
    assert isinstance(caught.value, ps.PenstockError)


def test_flat_map_must_return_a_dataset():
    with pytest.raises(TypeError, match=r"flat_map.*must return a ps\.Dataset, got 0"):
        list(ps.Dataset.range(3).flat_map(lambda x: int(x)))


def test_filter_must_return_a_truth_value():
    with pytest.raises(TypeError, match="one truth value for each element"):
        list(ps.Dataset.range(3).filter(lambda x: [1, 2]))


BUCKETS = {"bucket_boundaries": [4], "bucket_batch_sizes": [2, 2]}
TOTAL = ps.Reducer(lambda key: 0, lambda total, x: total + x, lambda total: total)
ANSWERED = {
    "filter": (lambda d, answer: d.filter(lambda x: answer), "predicate"),
    "take_while": (lambda d, answer: d.take_while(lambda x: answer), "predicate"),
    "group_by_window": (lambda d, answer: d.group_by_window(lambda x: answer, lambda k, w: w, 2), "key_func"),
    "group_by_window sizes": (
        lambda d, answer: d.group_by_window(lambda x: 0, lambda k, w: w, window_size_func=lambda key: answer),
        "window_size_func",
    ),
    "group_by_reducer": (lambda d, answer: d.group_by_reducer(lambda x: answer, TOTAL), "key_func"),
    "bucket_by_sequence_length": (
        lambda d, answer: d.map(lambda x: [x]).bucket_by_sequence_length(lambda x: answer, **BUCKETS),
        "element_length_func",
    ),
    "rejection_resample": (
        lambda d, answer: d.rejection_resample(lambda x: answer, target_dist=[0.5, 0.5]),
        "class_func",
    ),
}
WRONG_TRUTHS = [None, "no", [True], 2, np.str_("no"), np.array([True])]
WRONG_INTEGERS = [None, "1", [1], 0.5, 2.5, np.float32(1.5), np.array([1])]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (method, answer)
        for method in ANSWERED
        for answer in (WRONG_TRUTHS if method in ("filter", "take_while") else WRONG_INTEGERS)
    ],
    ids=str,
)
def test_answers_of_functions_that_cannot_be_meant_are_refused(method, answer):
    read, name = ANSWERED[method]
    with pytest.raises(
        ps.InvalidTypeError, match=rf"{name}.* must return (an integer|one truth value).*, got "
    ) as caught:
        list(read(ps.Dataset.range(3), answer))
    assert f"test_errors.py:{read.__code__.co_firstlineno}" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("answer", [True, np.bool_(True), np.array(True), np.int64(1)], ids=repr)
@pytest.mark.parametrize("method", ANSWERED)
def test_answers_that_are_truth_values_or_integers_are_taken(method, answer):
    read, _ = ANSWERED[method]
    assert len(list(read(ps.Dataset.range(3), answer))) >= 1


@pytest.mark.parametrize("answer", [3, None, [1, 2]], ids=str)
def test_apply_must_return_a_dataset(answer):
    with pytest.raises(
        ps.InvalidTypeError, match=r"apply.*lambda.* returned .*(lack a `return`|it must return a ps\.Dataset)"
    ):
        ps.Dataset.range(3).apply(lambda dataset: answer)


@pytest.mark.parametrize("answer", [None, "no", (1, 2), {"a": 1}], ids=str)
def test_reduce_must_return_a_state_like_the_first(answer):
    with pytest.raises(ps.InvalidTypeError, match=r"reduce\(reduce_func\) must return a state like numbers, got"):
        ps.Dataset.range(3).reduce(0, lambda total, x: answer)


def test_unbatch_of_scalars_is_an_error():
    with pytest.raises(ps.ElementError, match="unbatch.*leading axis"):
        list(ps.Dataset.range(3).unbatch())


def test_the_choice_must_be_a_number_of_a_dataset():
    with pytest.raises(ps.ElementError, match="from 0 to 0, got 1"):
        list(ps.Dataset.choose_from_datasets([ps.Dataset.range(5)], ps.Dataset.range(2)))


@pytest.mark.parametrize(
    ("value", "spec", "message"),
    [
        (1.5, ps.TensorSpec((), np.int64), r"expected TensorSpec\(shape=\(\), dtype=int64\).*float32"),
        ([1, 2], ps.TensorSpec((3,), np.int64), r"shape=\(3,\).*shape=\(2,\)"),
        (np.float64(1), ps.TensorSpec((), np.float32), "float32.*float64"),
        ({"a": 1}, (ps.TensorSpec((), np.int64),), "structure"),
    ],
)
def test_generators_are_held_to_their_signature(value, spec, message):
    with pytest.raises(ps.ElementError, match=message):
        list(ps.Dataset.from_generator(lambda: iter([value]), output_signature=spec))


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ([{"a": 1}, {"b": 1}], r"yielded {'b': int64} after {'a': int64}; all its elements must be of one kind"),
        ([1, 1.5], "yielded float32 after int64; .* which output_signature can declare"),
    ],
)
def test_a_generator_must_yield_one_kind_of_element(elements, message):
    with pytest.raises(ps.ElementError, match=message):
        list(ps.Dataset.from_generator(lambda: iter(elements)))


def test_a_generator_function_that_returns_no_iterator_is_told_so():
    with pytest.raises(
        ps.InvalidTypeError, match="the function must return an iterator, got 3: does it lack a `yield`"
    ):
        list(ps.Dataset.from_generator(lambda: 3))


def test_a_generators_python_numbers_take_the_declared_dtype():
    signature = (ps.TensorSpec((), np.float64), ps.TensorSpec((), np.uint8), ps.TensorSpec((2,), np.float32))
    (element,) = ps.Dataset.from_generator(lambda: iter([(1, 2, [1, 2])]), output_signature=signature)
    assert [leaf.dtype for leaf in element] == [np.float64, np.uint8, np.float32]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: ps.Dataset.range(10).batch(3), r"node 1 was batch\(batch_size=2\), here it is batch\(batch_size=3\)"),
        (
            lambda: ps.Dataset.range(11).batch(2),
            r"node 0 was range\(start=0, stop=10.*here it is range\(start=0, stop=11",
        ),
        (lambda: ps.Dataset.range(10), r"node 1 was batch\(batch_size=2\), here it is nothing"),
        (lambda: ps.Dataset.range(10).batch(2).take(1), r"node 2 was missing, here it is take\(count=1\)"),
    ],
)
def test_a_state_of_another_dataset_names_the_first_node_that_differs(other, message):
    state = iter(ps.Dataset.range(10).batch(2)).state_dict()
    with pytest.raises(ps.StateMismatchError, match=message):
        iter(other()).load_state_dict(state)


def test_a_state_that_is_none_is_refused():
    iterator = iter(ps.Dataset.range(3))
    with pytest.raises(ps.StateMismatchError, match="expected the result of state_dict"):
        iterator.load_state_dict({"position": 3})
    with pytest.raises(ps.StateMismatchError, match="version 99"):
        iterator.load_state_dict({"version": 99})
    with pytest.raises(ps.StateMismatchError, match="epoch, nodes, position, seed missing"):
        iterator.load_state_dict({"version": 2})
    assert next(iterator) == 0


def ragged(d: ps.Dataset) -> ps.Dataset:
    return d.take(3).map(lambda x: {"row": [x] * (int(x) + 1)})


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        (lambda d: d.map(lambda x: None), TypeError, "the function returned None: does it lack a `return`"),
        (lambda d: d.map(lambda x: (i for i in [x])), TypeError, "returned a generator, .* use flat_map"),
        (lambda d: d.flat_map(lambda x: [1, 2]), TypeError, "must return a ps.Dataset, got .*from_tensor_slices"),
        (lambda d: ragged(d).batch(3), ValueError, r"got \(1,\) and \(2,\) at \['row'\]; use padded_batch"),
        (
            lambda d: ragged(d).padded_batch(3, padding_values="x"),
            ValueError,
            r"rows of int64 at \['row'\] .* with 'x'",
        ),
        (lambda d: ragged(d).padded_batch(3, padding_values=0.5), ValueError, "cannot be padded with np.float32"),
        (lambda d: ragged(d).padded_batch(3, (2,)), ValueError, r"\(3,\) at \['row'\] does not fit into padded_shapes"),
        (
            lambda d: d.map(lambda x: [x]).padded_batch(3, {"a": (2,)}),
            ValueError,
            "takes a shape for elements of one leaf",
        ),
        (
            lambda d: ps.Dataset.choose_from_datasets([d], ps.Dataset.from_tensor_slices([0.0])),
            ValueError,
            "choices must be integers, got .*float32",
        ),
    ],
)
def test_mistakes_that_only_elements_show_are_told_with_what_to_do(dataset, error, message):
    with pytest.raises(error, match=message) as caught:
        list(dataset(ps.Dataset.range(4)))
    assert isinstance(caught.value, ps.PenstockError)
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "test_errors.py" in text or "one leaf" in text


def test_padding_that_fits_is_taken():
    rows = ps.Dataset.range(2).map(lambda x: np.ones(int(x) + 1, np.float16))
    assert [batch.tolist() for batch in rows.padded_batch(2, padding_values=0.5)] == [[[1, 0.5], [1, 1]]]
    assert next(iter(rows.padded_batch(2, padding_values=np.nan)))[1].tolist() == [1, 1]
    numbers = ps.Dataset.range(2).map(lambda x: [x] * (int(x) + 1))
    assert [batch.tolist() for batch in numbers.padded_batch(2, padding_values=-1.0)] == [[[0, -1], [1, 1]]]


def test_a_generator_used_up_in_the_first_epoch_is_an_error_in_the_second():
    generator = (i for i in range(3))
    dataset = ps.Dataset.from_generator(lambda: generator)
    assert [int(x) for x in dataset] == [0, 1, 2]
    with pytest.raises(ps.InvalidArgumentError, match="a generator that has ended already"):
        list(dataset)


@pytest.mark.parametrize("position", [-1, 26, 10**6, 1.5, "3"])
def test_a_state_whose_position_is_beyond_the_end_ended_the_epoch(position):
    dataset = ps.Dataset.range(100).shuffle(seed=3).batch(4)
    iterator = iter(dataset)
    next(iterator)
    state = iterator.state_dict()
    with pytest.raises(ps.StateMismatchError, match="its position .* is not in the data, which has 25 elements"):
        iter(dataset).load_state_dict({**state, "position": [position, *state["position"][1:]]})
    ended = iter(dataset)
    assert len(list(ended)) == 25
    resumed = iter(dataset)
    resumed.load_state_dict(ended.state_dict())
    assert list(resumed) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": {"x": 1}}, "its position does not fit the dataset, got {'x': 1}"),
        ({"position": 99}, "its position does not fit the dataset, got 99"),
        ({"epoch": "a"}, "its epoch should be an integer, got 'a'"),
        ({"epoch": np.float32(1)}, "its epoch should be an integer, got 1.0"),
        ({"nodes": 3}, "its nodes should be a list, got 3"),
    ],
)
def test_a_damaged_state_is_refused_by_name(change, message):
    dataset = ps.Dataset.range(5).shuffle(5, seed=1)
    state = iter(dataset).state_dict() | change
    with pytest.raises(ps.StateMismatchError, match=message):
        iter(dataset).load_state_dict(state)


@pytest.mark.parametrize("use", [pickle.dumps, copy.copy])
def test_an_iterator_cannot_be_sent_or_copied(use):
    steps = ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(4).batch(2))
    for iterator in (iter(ps.Dataset.range(3)), iter(steps)):
        with pytest.raises(ps.InvalidTypeError, match=r"send .*iterator\.state_dict\(\)"):
            use(iterator)


def test_names_that_are_loaded_when_they_are_asked_for_are_listed():
    assert {"service", "keras", "preprocessing", "MirroredStrategy", "Checkpoint", "Dataset"} <= set(dir(ps))
    assert not {"Any", "TYPE_CHECKING", "importlib"} & set(dir(ps))
    assert issubclass(ps.errors.LostLeaseError, ps.errors.ServiceError)


@pytest.mark.parametrize("wrapped", ["plain", "prefetch", "parallel"])
def test_a_function_that_exits_does_so_at_its_element(wrapped):
    def function(x):
        if x == 5:
            raise SystemExit(3)
        return x

    dataset = ps.Dataset.range(9).map(function, num_parallel_calls=2 if wrapped == "parallel" else None)
    given = []
    with iter(dataset.prefetch(2) if wrapped == "prefetch" else dataset) as iterator:
        with pytest.raises(SystemExit, match="3"):
            given.extend(map(int, iterator))
        given.extend(map(int, iterator))
    assert given == [0, 1, 2, 3, 4, 6, 7, 8]
