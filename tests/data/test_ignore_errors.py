"""Rows that fail are left out where they should be, counted once, named, bounded, and a part of the state."""

import gzip
import itertools
import json
import logging
import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.data.node import Run
from penstock.data.skip_guards import guarded_below
from penstock.data.skipped import SkipLog
from penstock.runtime.threads import Threads

SKIP = ps.Options(on_error="skip")


def failing(*bad):
    def function(x):
        if int(x) in bad:
            raise ValueError(f"no {x}")
        return x

    return function


def over(kind, count=10):
    if kind == "generator":
        return ps.Dataset.from_generator(lambda: iter(range(count)))
    dataset = ps.Dataset.range(count)
    return dataset.filter(lambda x: True) if kind == "stream" else dataset


def read(dataset):
    """The elements as lists, and what was left out."""
    with iter(dataset) as iterator:
        elements = [np.asarray(element).tolist() for element in iterator]
        return elements, iterator.errors


KINDS = ["index", "stream", "generator"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_was_called_again_for_the_rows_around_one_that_fails(kind):
    calls, passes = [], failing(*range(10, 200, 20))

    def function(x):
        calls.append(int(x))
        return passes(x)

    elements, errors = read(over(kind, 200).map(function).with_options(SKIP))
    assert (len(elements), errors.count) == (190, 10)
    assert [one for one in set(calls) if calls.count(one) > 1] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [None, 3])
def test_an_element_that_fails_is_left_out_and_named(kind, threads):
    dataset = over(kind).map(failing(0, 3, 4, 9), num_parallel_calls=threads).ignore_errors()
    elements, errors = read(dataset)
    assert elements == [1, 2, 5, 6, 7, 8]
    assert errors.count == 4
    assert [row.position for row in errors.rows] == [0, 3, 4, 9]
    assert {row.node.split("(")[0] for row in errors.rows} == {"map"}
    assert all(row.site.startswith(f"{__file__}:") for row in errors.rows)
    assert str(errors.rows[1]).endswith(": ValueError: no 3") and str(errors.rows[1]).startswith("element 3 of map(")
    first, *rows = str(errors).splitlines()
    assert first == "4 rows skipped" and rows == [f"  {row}" for row in errors.rows]
    assert str(read(over(kind))[1]) == "no rows skipped"


@pytest.mark.parametrize("kind", KINDS)
def test_above_batch_a_whole_batch_is_left_out_and_below_it_one_row(kind):
    mapped = over(kind, 8).map(failing(4))
    assert read(mapped.ignore_errors().batch(2))[0] == [[0, 1], [2, 3], [5, 6], [7]]
    batches, errors = read(over(kind, 8).batch(2).map(lambda batch: [failing(5)(x) for x in batch]).ignore_errors())
    assert (batches, errors.count) == ([[0, 1], [2, 3], [6, 7]], 1)


REFUSING = {
    "batch": lambda d: d.batch(10),
    "batch without remainder": lambda d: d.batch(10, drop_remainder=True),
    "batch in threads": lambda d: d.batch(10, num_parallel_calls=2),
    "padded_batch": lambda d: d.padded_batch(10, padded_shapes=[2]),
    "batch of a shuffle": lambda d: d.take(1000).shuffle(1, seed=1).batch(10),
    "batch of a cache": lambda d: d.cache().batch(10),
    "cache of a batch": lambda d: d.batch(10).cache(),
    "batch of windows": lambda d: d.window(10, 10).flat_map(lambda rows: rows.batch(10)),
    "batch of groups": lambda d: d.group_by_window(lambda x: x[0] * 0, lambda key, w: w.batch(10), window_size=10),
    "flat_map": lambda d: ps.Dataset.range(1).flat_map(lambda _: d.batch(10)),
    "choose": lambda d: ps.Dataset.choose_from_datasets([d.batch(10)], ps.Dataset.range(1).repeat()),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REFUSING)
def test_a_row_of_another_shape_costs_its_batch_alone(name, kind):
    mapped = over(kind, 1000).map(lambda x: np.full(3 if x == 508 else 2, x))
    elements, errors = read(REFUSING[name](mapped).with_options(SKIP))
    assert [row for batch in elements for row, _ in batch] == [x for x in range(1000) if x // 10 != 50]
    assert errors.count == 1 and "padded" in str(errors)


@pytest.mark.parametrize("name", ["batch", "padded_batch", "batch of a cache"])
def test_lists_of_unequal_length_cost_their_batch_alone(name):
    rows = ps.Dataset.from_list([[x] * (3 if x == 17 else 2) for x in range(40)])
    elements, errors = read(REFUSING[name](rows).with_options(SKIP))
    assert [row for batch in elements for row, _ in batch] == [*range(10), *range(20, 40)]
    assert [(row.node.split("(")[0], row.position) for row in errors.rows] == [(name.split()[0], 1)]


WAYS = {
    "map": lambda d: d.map(failing(2, 5)),
    "map in threads": lambda d: d.map(failing(2, 5), num_parallel_calls=3),
    "map twice": lambda d: d.map(failing(2)).map(failing(5)),
    "filter": lambda d: d.filter(lambda x: failing(2, 5)(x) >= 0),
    "flat_map": lambda d: d.flat_map(lambda x: ps.Dataset.from_tensors(failing(2, 5)(x))),
    "members of flat_map": lambda d: d.flat_map(lambda x: ps.Dataset.from_tensors(x).map(failing(2, 5))),
    "members of interleave": lambda d: d.interleave(lambda x: ps.Dataset.from_tensors(x).map(failing(2, 5)), 1, 1),
    "interleave in threads": lambda d: d.interleave(
        lambda x: ps.Dataset.range(int(x), int(x) + 1).map(failing(2, 5)), 1, 1, num_parallel_calls=2
    ),
    "batches of members": lambda d: d.batch(10).flat_map(
        lambda batch: ps.Dataset.from_tensor_slices(batch).map(failing(2, 5)).batch(4).unbatch()
    ),
    "group_by_window": lambda d: d.group_by_window(lambda x: failing(2, 5)(x) * 0, lambda key, w: w, window_size=2),
    "scan": lambda d: d.scan(0, lambda s, x: (s, failing(2, 5)(x))),
    "take_while": lambda d: d.take_while(lambda x: failing(2, 5)(x) >= 0),
    "window": lambda d: d.map(failing(2, 5)).window(3, 3).flat_map(lambda w: w),
    "rebatch": lambda d: d.map(failing(2, 5)).batch(3).rebatch(2).unbatch(),
    "cache": lambda d: d.map(failing(2, 5)).cache(),
    "prefetch": lambda d: d.prefetch(2).map(failing(2, 5)).prefetch(3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_on_error_skip_leaves_out_the_row_wherever_it_fails(way, kind):
    dataset = WAYS[way](over(kind)).with_options(SKIP)
    elements, errors = read(dataset)
    assert (elements, errors.count) == ([0, 1, 3, 4, 6, 7, 8, 9], 2)
    assert [row.error for row in errors.rows] == ["ValueError: no 2", "ValueError: no 5"]


@pytest.mark.parametrize("kind", KINDS)
def test_take_and_batch_count_the_rows_that_are_there(kind):
    rows = over(kind).map(failing(1, 2))
    assert read(rows.take(4).batch(3).with_options(SKIP))[0] == [[0, 3, 4], [5]]
    numbered = rows.enumerate().map(lambda number, x: number).with_options(SKIP)
    assert read(numbered)[0] == list(range(8))


@pytest.mark.parametrize("kinds", [("index", "index"), ("stream", "index"), ("generator", "stream")])
@pytest.mark.parametrize(
    "member", [lambda d: d, lambda d: d.take(7), lambda d: d.skip(1).repeat(2), lambda d: d.batch(2)]
)
def test_zip_loses_the_whole_pair(kinds, member):
    images, labels = over(kinds[0]).map(failing(2, 5)), over(kinds[1]).map(failing(5, 6))
    pairs = ps.Dataset.zip(member(images), member(labels)).with_options(SKIP)
    with iter(pairs) as iterator:
        found = [(np.asarray(a).tolist(), np.asarray(b).tolist()) for a, b in iterator]
        assert all(a == b for a, b in found)
        assert iterator.errors.count >= 2 and len(found) >= 2


def test_a_shuffle_over_an_index_still_moves_positions_only():
    dataset = ps.Dataset.range(1000).map(failing(7)).shuffle(1000, seed=1).batch(4).with_options(SKIP)
    assert dataset.explain().splitlines()[0].startswith('ignore_errors(on_error="skip")  ')
    assert "moves indices only" in dataset.explain()
    assert sorted(np.concatenate(list(dataset)).tolist()) == [x for x in range(1000) if x != 7]


def mixed(dataset):
    return dataset.shuffle(5, seed=1, reshuffle_each_iteration=False)


AHEAD = {
    "a shuffle": lambda d: mixed(d).batch(3),
    "a cache": lambda d: mixed(d.cache()),
    "a shuffle in a zip": lambda d: ps.Dataset.zip(mixed(d), ps.Dataset.range(20)),
    "batches": lambda d: mixed(d.batch(2)),
}


@pytest.mark.parametrize("name", AHEAD)
def test_a_prefetch_below_an_index_changes_no_elements_or_states(name):
    rows = ps.Dataset.range(20).map(failing(3, 11))
    plain, ahead = (AHEAD[name](d).with_options(SKIP) for d in (rows, rows.prefetch(2)))
    elements = [str(element) for element in plain]
    assert [str(element) for element in ahead] == elements
    for saving, restoring in itertools.permutations((plain, ahead)):
        with iter(saving) as iterator:
            assert [str(element) for element in itertools.islice(iterator, 3)] == elements[:3]
            state = json.loads(json.dumps(iterator.state_dict()))
        with iter(restoring) as iterator:
            iterator.load_state_dict(state)
            assert [str(element) for element in iterator] == elements[3:]


def test_a_prefetch_puts_no_guard_where_nothing_can_fail():
    rows = ps.Dataset.range(5).prefetch(1).ragged_batch(2).with_options(SKIP)
    assert rows.cardinality() == 3 and "ignore_errors" not in rows.explain()


def test_options_say_last_whether_rows_are_left_out():
    dataset = ps.Dataset.range(4).map(failing(1))
    skipping = dataset.with_options(SKIP)
    assert (len(dataset), skipping.cardinality()) == (4, ps.UNKNOWN_CARDINALITY)
    assert skipping.element_spec == ps.TensorSpec((), np.int64)
    again = skipping.with_options(ps.Options(on_error="raise"))
    assert len(again) == 4
    with pytest.raises(ValueError, match="no 1"):
        list(again)
    assert read(skipping.with_options(ps.Options(seed=3)).batch(4))[0] == [[0, 2, 3]]


def test_a_first_row_that_fails_does_not_hide_what_the_elements_are():
    dataset = ps.Dataset.range(4).map(failing(0, 3)).with_options(SKIP)
    assert dataset.element_spec == ps.TensorSpec((), np.int64)


def test_a_generator_that_raised_has_ended():
    def numbers():
        yield 1
        yield 2
        raise OSError("the line is dead")

    elements, errors = read(ps.Dataset.from_generator(numbers).with_options(SKIP))
    assert (elements, errors.count, errors.rows[0].position) == ([1, 2], 1, 2)


def test_a_generator_function_that_raises_ends_the_data_at_once():
    def opens():
        raise OSError("no such host")

    elements, errors = read(ps.Dataset.from_generator(opens).ignore_errors())
    assert (elements, errors.count, errors.rows[0].error) == ([], 1, "OSError: no such host")


def test_damaged_records_and_missing_files_are_left_out(tmp_path):
    for name in "abc":
        with ps.TFRecordWriter(tmp_path / name) as writer:
            for number in range(3):
                writer.write(f"{name}{number}".encode())
    damaged = bytearray((tmp_path / "b").read_bytes())
    damaged[12 + 2 + 4 + 12] ^= 1  # in the data of the second record
    (tmp_path / "b").write_bytes(damaged)
    names = ps.Dataset.from_tensor_slices([str(tmp_path / name) for name in ("a", "b", "gone", "c")])
    elements, errors = read(ps.TFRecordDataset(names).with_options(SKIP))
    assert elements == [b"a0", b"a1", b"a2", b"b0", b"b2", b"c0", b"c1", b"c2"]
    assert [row.node.split("(")[0] for row in errors.rows] == ["TFRecordDataset", "TFRecordDataset"]
    assert "record 1" in errors.rows[0].error and "gone" in errors.rows[1].error
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"one\ntwo\n")[:-6])
    lines = ps.TextLineDataset([tmp_path / "cut.gz"], "GZIP").ignore_errors()
    assert read(lines)[1].count == 1


def test_more_rows_than_max_errors_are_an_error_that_names_the_first():
    dataset = ps.Dataset.range(20).map(failing(1, 4, 6, 8)).with_options(ps.Options(on_error="skip", max_errors=2))
    for rows in (dataset, dataset.prefetch(3), dataset.batch(20)):
        with (
            iter(rows) as iterator,
            pytest.raises(ps.errors.TooManySkippedError, match=r"max_errors=2.*\n.*no 1") as caught,
        ):
            list(iterator)
        assert "no 6" in str(caught.value) and "no 8" not in str(caught.value)
    with iter(dataset) as iterator:
        assert [int(next(iterator)) for _ in range(4)] == [0, 2, 3, 5]
        with pytest.raises(ps.errors.TooManySkippedError):
            next(iterator)
        assert (iterator.errors.count, int(next(iterator))) == (3, 7)
    explicit = ps.Dataset.range(3).map(failing(1)).ignore_errors().with_options(ps.Options(max_errors=0))
    with pytest.raises(ps.errors.TooManySkippedError, match="max_errors=0"):
        list(explicit)
    assert read(ps.Dataset.range(3).map(failing(1)).ignore_errors().with_options(ps.Options(max_errors=1)))[0] == [0, 2]


@pytest.mark.parametrize("arguments", [{"on_error": "drop"}, {"max_errors": -1}, {"max_errors": 1.5}])
def test_options_refuse_what_cannot_be(arguments):
    with pytest.raises((ps.InvalidArgumentError, ps.InvalidTypeError), match=next(iter(arguments))):
        ps.Options(**arguments)
    with pytest.raises(ps.InvalidTypeError, match="log"):
        ps.Dataset.range(1).ignore_errors(log=1)


def test_mistakes_of_the_program_are_not_rows():
    with pytest.raises(ps.InvalidTypeError, match=r"must return a ps\.Dataset"):
        list(ps.Dataset.range(3).flat_map(lambda x: x).with_options(SKIP))
    with pytest.raises(ps.InvalidTypeError, match="must return an iterator"):
        list(ps.Dataset.from_generator(lambda: 3).ignore_errors())

    with pytest.raises(ps.errors.CardinalityError, match="only 3"):
        list(over("stream", 3).assert_cardinality(4).map(lambda x: x).with_options(SKIP))

    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(ps.Dataset.range(3).map(interrupted).ignore_errors())


def test_a_cache_that_cannot_be_written_is_not_tried_for_ever(tmp_path):
    (tmp_path / "file").write_text("")
    cached = ps.Dataset.range(3).filter(lambda x: True).cache(str(tmp_path / "file" / "inside")).ignore_errors()
    with pytest.raises(OSError, match="file"):
        list(cached)


def test_closing_ends_a_thread_whose_rows_all_fail():
    before = set(threading.enumerate())
    started = threading.Event()

    def never(x):
        if x:
            started.set()
            raise ValueError
        return x

    with iter(ps.Dataset.counter().map(never).ignore_errors().prefetch(2)) as iterator:
        assert next(iterator) == 0
        assert started.wait(30)
    assert set(threading.enumerate()) <= before


def test_the_log_has_a_line_for_each_of_the_first_rows_and_a_sum(caplog):
    with caplog.at_level(logging.WARNING, "penstock"):
        read(ps.Dataset.range(40).map(failing(*range(30))).ignore_errors())
        assert not caplog.records
        read(ps.Dataset.range(40).map(failing(*range(30))).ignore_errors(log=True))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 22 and "element 0 of map" in messages[0] and "no 19" in messages[19]
    assert messages[-1] == "skipped 30 rows in this iteration, 10 of them without a line here"


@pytest.mark.extended
def test_of_very_many_rows_the_first_are_named_and_all_counted():
    dataset = ps.Dataset.range(3000).map(lambda x: failing(int(x))(x) if x % 2 else x).with_options(SKIP)
    with iter(dataset.batch(10)) as iterator:
        assert len(list(iterator)) == 150
        assert (iterator.errors.count, len(iterator.errors.rows)) == (1500, 100)
        assert len(json.dumps(iterator.state_dict())) < 40_000


@pytest.mark.extended
def test_of_many_members_that_fail_the_state_stays_bounded():
    dataset = ps.Dataset.range(1100).flat_map(lambda x: ps.Dataset.range(2).map(failing(1)).ignore_errors())
    with iter(dataset) as iterator:
        assert (len(list(iterator)), iterator.errors.count) == (1100, 1100)
        assert len(iterator.state_dict()["skipped"]["passes"]) == 1000


def test_one_dataset_read_twice_counts_a_row_once():
    rows = ps.Dataset.range(8).map(failing(3)).ignore_errors()
    pairs = ps.Dataset.zip(rows, rows.skip(1))
    with iter(pairs) as iterator:
        assert [(int(a), int(b)) for a, b in iterator][2:4] == [(2, 4), (4, 5)]
        assert iterator.errors.count == 1


def test_a_state_of_a_dataset_that_raises_is_refused():
    dataset = ps.Dataset.range(8).map(failing(3))
    with iter(dataset) as iterator:
        state = iterator.state_dict()
    with pytest.raises(ps.StateMismatchError, match="ignore_errors"):
        iter(dataset.with_options(SKIP)).load_state_dict(state)


def raising(kind, bad, threads=None):
    """The numbers up to 14, at some of which the user's function raises."""
    return over(kind, 14).map(failing(*bad), num_parallel_calls=threads)


def refusing(kind, bad, threads=None):
    """The numbers up to 14 out of batches, some of which cannot be made of their rows."""
    rows = over(kind, 42).map(lambda x: np.full(3 if x % 3 == 1 and x // 3 in bad else 2, x))
    return rows.batch(3).map(lambda rows: rows[0, 0] // 3, num_parallel_calls=threads)


# Each takes a dataset of integers; what it gives is a function of the rows that are left.
ABOVE = {
    "nothing": lambda d: d,
    "batch": lambda d: d.batch(3),
    "filter": lambda d: d.filter(lambda x: x % 3 != 0),
    "take": lambda d: d.skip(1).take(6),
    "enumerate": lambda d: d.enumerate(),
    "shuffle of a stream": lambda d: d.filter(lambda x: True).shuffle(4, seed=1),
    "prefetch": lambda d: d.prefetch(2).batch(2),
    "window": lambda d: d.window(3, 2).flat_map(lambda w: w.batch(3)),
    "repeat": lambda d: d.repeat(2).batch(4),
    "cache": lambda d: d.cache().repeat(2),
    "flat_map": lambda d: d.flat_map(lambda x: ps.Dataset.range(int(x) % 3)),
    "unique": lambda d: d.map(lambda x: x % 7).unique(),
    "scan": lambda d: d.scan(0, lambda s, x: (s + x, s)).shard(2, 1),
}
EXACT = ("nothing", "batch", "take", "enumerate")


@pytest.mark.slow
@pytest.mark.parametrize("name", ABOVE)
@given(
    bad=st.sets(st.integers(0, 13)),
    kind=st.sampled_from(KINDS),
    explicit=st.booleans(),
    threads=st.sampled_from([None, 2]),
    refused=st.booleans(),
)
@settings(max_examples=settings.default.max_examples // 5)
def test_what_is_left_is_what_the_good_rows_give_at_every_state(name, bad, kind, explicit, threads, refused):
    def make():
        mapped = (refusing if refused else raising)(kind, bad, threads)
        options = ps.Options(seed=4) if explicit else ps.Options(seed=4, on_error="skip")
        return ABOVE[name](mapped.ignore_errors() if explicit else mapped).with_options(options)

    good = ps.Dataset.from_tensor_slices(np.array([x for x in range(14) if x not in bad], np.int64))
    expected = [str(x) for x in ABOVE[name](good).with_options(ps.Options(seed=4))]
    counts, states, found = [], [], []
    with iter(make()) as iterator:
        states.append(iterator.state_dict())
        counts.append(iterator.errors)
        for element in iterator:
            found.append(str(element))
            states.append(iterator.state_dict())
            counts.append(iterator.errors)
        whole = iterator.errors
    assert found == expected
    assert whole.count == len(bad) * (2 if name == "repeat" and len(bad) < 14 else 1) or name in ("take", "cache")
    if name == "nothing":
        kept = [x for x in range(14) if x not in bad]
        assert [one.count for one in counts[1:]] == [sum(y < x for y in bad) for x in kept]
    for given_elements, state in enumerate(states):
        with iter(make()) as resumed:
            resumed.load_state_dict(json.loads(json.dumps(state)))
            assert resumed.errors == counts[given_elements]
            assert [str(x) for x in resumed] == expected[given_elements:]
            assert resumed.errors == whole


COLLECTING = {
    **ABOVE,
    "shuffle twice": lambda d: d.shuffle(5, seed=2).shuffle(3, seed=1),
    "sample": lambda d: ps.Dataset.sample_from_datasets([d, over("generator", 9).map(failing(0, 4))], seed=5),
    "choose": lambda d: ps.Dataset.choose_from_datasets([d, d.skip(3)], ps.Dataset.range(40).map(lambda x: x % 2)),
    "zip": lambda d: ps.Dataset.zip(d, d.filter(lambda x: x % 3 > 0).enumerate()),
    "group_by_window": lambda d: d.group_by_window(lambda x: x % 2, lambda key, w: w.batch(2), window_size=3),
    "interleave": lambda d: d.interleave(lambda x: ps.Dataset.range(int(x) % 4).map(failing(1)), 3, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COLLECTING)
@given(
    bad=st.sets(st.integers(0, 13)),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    kind=st.sampled_from(["stream", "generator"]),
    cut=st.integers(0, 9),
    make=st.sampled_from([raising, refusing]),
)
@settings(max_examples=settings.default.max_examples // 5)
# What is left out at the end of a member.
@example(bad={*range(10), 11}, sizes=[2], kind="stream", cut=1, make=raising)
def test_where_a_row_counts_depends_neither_on_blocks_nor_on_restoring(name, bad, sizes, kind, cut, make):
    def counts(sizes, stop=1000, state=None):
        """What was counted when each block began, by its place; and a state after about `stop` elements."""
        node = COLLECTING[name](make(kind, bad).ignore_errors()).with_options(SKIP).node
        run = Run(node, 1, Threads())
        run.skips, run.prepare = SkipLog(), guarded_below
        cursor = node.cursor(run, 0)
        place, found = 0, {}
        if state is not None:
            place, position, skipped = state
            if skipped:
                run.skips.restore(skipped)
            cursor.restore(position)
        for size in itertools.cycle(sizes):
            if place >= stop:
                break
            block = cursor.pull(size, size)
            found[place if block is not None else "the end"] = run.skips.rows.count
            if block is None:
                break
            place += len(block)
        state = place, cursor.state(), run.skips.snapshot()
        cursor.close()
        return found, state

    single, _ = counts([1])
    blocks, state = counts(sizes, cut)
    rest, _ = counts(sizes, state=json.loads(json.dumps(state)))
    assert {place: single[place] for place in (blocks | rest)} == blocks | rest


ODD = {"dtype": np.float64, "structure": lambda x: {"x": x}}
# Each makes the numbers 0 to 9 of a source of them and of a function that makes another kind of element at one place.
UNLIKE = {
    "map": lambda d, f: d.map(f),
    "map in threads": lambda d, f: d.map(f, num_parallel_calls=2),
    "map shuffled": lambda d, f: d.map(f).shuffle(10, seed=2),
    "map skipped": lambda d, f: d.map(f).skip(1),
    "map of a map": lambda d, f: d.map(lambda x: x * 2).map(lambda x: f(x // 2)),
    "map repeated": lambda d, f: d.shuffle(4, seed=1).map(f).repeat(2),
    "scan": lambda d, f: d.scan(0, lambda s, x: (s, f(x))),
    "from_generator": lambda d, f: ps.Dataset.from_generator(lambda: (f(np.int64(x)) for x in range(10))),
    "from_source": lambda d, f: ps.Dataset.from_source([f(np.int64(x)) for x in range(10)]),
    "flat_map": lambda d, f: d.flat_map(lambda x: ps.Dataset.from_tensors(f(x))),
    "interleave": lambda d, f: d.interleave(lambda x: ps.Dataset.range(x, x + 1).map(f), 3),
    "concatenate": lambda d, f: d.take(4).map(f).concatenate(d.skip(4).take(2).map(f)).concatenate(d.skip(6).map(f)),
    "choose": lambda d, f: ps.Dataset.choose_from_datasets([d.map(f), d], ps.Dataset.range(12).map(lambda x: 0)),
    "windows": lambda d, f: d.group_by_window(lambda x: x, lambda key, w: w.map(f), window_size=1),
}


def unlike():
    """Each with one kind of row over one kind of source, in turn; with the others in the extended tests."""
    for number, name in enumerate(UNLIKE):
        for place, (odd, kind) in enumerate(itertools.product(ODD, ("index", "stream"))):
            here = (place in (0, 3)) == (number % 2 == 0)
            yield pytest.param(name, odd, kind, marks=pytest.mark.slow if here else pytest.mark.extended)


@pytest.mark.parametrize(("name", "odd", "kind"), list(unlike()))
def test_a_row_of_another_kind_costs_itself_alone_wherever_reading_goes_on(name, odd, kind):
    def make(place):
        return UNLIKE[name](over(kind), lambda x: ODD[odd](x) if x == place else x).with_options(SKIP)

    with iter(make(None)) as iterator:
        alike = list(iterator)
    for place in (1, 2, 5, 9):
        if alike[0] == place:
            continue  # it tells what all must be like
        with iter(make(place)) as iterator:
            found, states = [], [iterator.state_dict()]
            for element in iterator:
                found.append(element)
                states.append(iterator.state_dict())
            count = iterator.errors.count
        assert found == [x for x in alike if x != place]
        assert count == alike.count(place)
        for given_before, state in enumerate(states):
            with iter(make(place)) as resumed:
                resumed.load_state_dict(state)
                assert (list(resumed), resumed.errors.count) == (found[given_before:], count)


def rows_of_files(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{number}\n" for number in range(5)))
    return ps.FilesDataset(str(tmp_path / "*.txt"), "text")


def refuse(bad):
    def read(row):
        if row == bad:
            raise ValueError("damaged")
        return row

    return read


@pytest.mark.parametrize("threads", [None, 2])
@pytest.mark.parametrize("operator", ["map", "filter"])
def test_a_skipped_row_behind_a_shuffle_is_named_by_its_file(tmp_path, operator, threads):
    files = rows_of_files(tmp_path)
    rows = files.concatenate(files).shuffle(seed=3)
    call = refuse("b3")
    failing = (
        rows.map(call, num_parallel_calls=threads) if operator == "map" else rows.filter(lambda row: bool(call(row)))
    )
    elements, errors = read(failing.with_options(SKIP))
    assert errors.count == len([row for row in rows if row == "b3"]) and "b3" not in elements
    assert {row.source for row in errors.rows} == {f"row 3 of {tmp_path / 'b.txt'}"}
    assert f", made of row 3 of {tmp_path / 'b.txt'}: ValueError: damaged" in str(errors)
    state = json.loads(json.dumps(iter_to_end(failing.with_options(SKIP)).state_dict()))
    resumed = iter(failing.with_options(SKIP))
    resumed.load_state_dict(state)
    assert resumed.errors == errors


def iter_to_end(dataset):
    iterator = iter(dataset)
    list(iterator)
    return iterator


def test_a_failing_row_behind_a_shuffle_of_arrays_is_named_by_its_number():
    rows = ps.Dataset.zip(ps.Dataset.range(10), ps.Dataset.range(10)).cache().shuffle(seed=1).filter(lambda *row: True)
    skipped = ps.Dataset.range(100, 120).skip(3).shard(2, 1).repeat(2).skip(8)  # 104, 106, ... twice
    mapped = skipped.batch(2).shuffle(5, seed=2).map(lambda x: refuse(108)(int(x[0])))
    with pytest.raises(ValueError, match="damaged") as error:
        list(mapped)
    assert error.value.__notes__[-1].startswith("penstock: made of row 8 of range(start=100")
    assert read(rows.map(lambda x, y: refuse(4)(int(x))).with_options(SKIP))[1].rows[0].source == ""  # not by index


@pytest.mark.parametrize("kind", ["index", "stream", "generator"])
def test_elements_keep_their_numbers_after_one_that_fails(kind):
    numbered = over(kind, 5).map(failing(2)).enumerate().ignore_errors()
    assert [(int(number), int(x)) for number, x in numbered] == [(0, 0), (1, 1), (3, 3), (4, 4)]
