"""Exact values: what every operator gives, by hand and from the documents."""

import dataclasses
import json
from collections import namedtuple
from itertools import islice

import ml_dtypes
import numpy as np
import pytest

import penstock as ps


def values(dataset):
    """The elements as plain Python."""
    return [plain(element) for element in dataset]


def plain(element):
    if isinstance(element, tuple):
        return tuple(plain(part) for part in element)
    if isinstance(element, dict):
        return {key: plain(part) for key, part in element.items()}
    if isinstance(element, np.ndarray) and element.dtype == object:
        return [plain(part) for part in element]
    return element.tolist() if isinstance(element, (np.ndarray, np.generic)) else element


def test_interleave_takes_blocks_in_turn_and_refills_empty_slots():
    dataset = ps.Dataset.range(1, 6).interleave(
        lambda x: ps.Dataset.from_tensors(x).repeat(6), cycle_length=2, block_length=4
    )
    text = "1111 2222 11 22 3333 4444 33 44 5555 55"
    assert values(dataset) == [int(digit) for digit in text.replace(" ", "")]


def test_buckets_give_full_ones_at_once_and_leftovers_in_bucket_order():
    lengths = [5, 1, 2, 6, 3, 1, 7]
    dataset = ps.Dataset.from_tensor_slices(lengths).map(lambda n: [n] * int(n))
    batches = dataset.bucket_by_sequence_length(len, bucket_boundaries=[3, 6], bucket_batch_sizes=[2, 2, 2])
    assert values(batches) == [
        [[1, 0], [2, 2]],
        [[5, 5, 5, 5, 5], [3, 3, 3, 0, 0]],
        [[6] * 6 + [0], [7] * 7],
        [[1]],
    ]


def test_buckets_padded_to_their_boundary():
    dataset = ps.Dataset.from_tensor_slices([1, 2, 4]).map(lambda n: [n] * int(n))
    padded = dataset.bucket_by_sequence_length(len, [3, 6], [2, 2, 2], pad_to_bucket_boundary=True)
    assert values(padded) == [[[1, 0], [2, 2]], [[4, 4, 4, 4, 0]]]
    with pytest.raises(ps.ElementError, match="longer than 2"):
        values(dataset.bucket_by_sequence_length(len, [3], [2, 2], pad_to_bucket_boundary=True))


def test_group_by_window_leftovers_come_in_the_order_of_the_keys():
    grouped = ps.Dataset.range(10).group_by_window(lambda x: 2 - x % 3, lambda key, w: w.batch(9), window_size=9)
    assert values(grouped) == [[2, 5, 8], [1, 4, 7], [0, 3, 6, 9]]


def test_a_state_of_group_by_window_stays_as_it_is_while_its_groups_grow():
    grouped = ps.Dataset.range(40).group_by_window(
        lambda x: x % 2 if x % 8 else 2 + x % 3, lambda key, window: window.batch(9), window_size=4
    )
    iterator = iter(grouped)
    states, texts, left = [], [], []
    for _ in range(5):
        states.append(iterator.state_dict())
        texts.append(json.dumps(states[-1]))
        left = [*left, next(iterator).tolist()]
    left += [batch.tolist() for batch in iterator]
    assert [json.dumps(state) for state in states] == texts
    for given, state in enumerate(states):
        resumed = iter(grouped)
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == left[given:]


def test_group_by_window_keeps_elements_without_leaves():
    grouped = ps.Dataset.range(3).map(lambda x: ()).group_by_window(lambda: 0, lambda key, window: window, 2)
    assert list(grouped) == [(), (), ()]


def test_window_size_zero_is_an_error():
    with pytest.raises(ps.InvalidArgumentError, match=r"window_size=\.\.\.\) must be at least 1, got 0"):
        ps.Dataset.range(3).group_by_window(lambda x: 0, lambda key, w: w, window_size=0)
    with pytest.raises(ps.ElementError, match="for key 0, must return at least 1, got 0"):
        values(ps.Dataset.range(3).group_by_window(lambda x: 0, lambda key, w: w, window_size_func=lambda key: 0))


def test_a_seeded_dataset_repeats_its_two_orders_when_built_again():
    first, again = (ps.Dataset.range(20).shuffle(20, seed=4) for _ in range(2))
    orders = [values(first), values(first)]
    assert orders[0] != orders[1]
    assert orders == [values(again), values(again)]
    assert all(sorted(order) == list(range(20)) for order in orders)


def test_shuffle_of_buffer_one_changes_nothing():
    assert values(ps.Dataset.range(9).shuffle(1)) == list(range(9))
    assert values(ps.Dataset.range(3).shuffle(1).repeat(2)) == [0, 1, 2, 0, 1, 2]
    assert values(ps.Dataset.range(1).shuffle(5).repeat(3)) == [0, 0, 0]
    assert values(ps.Dataset.counter().shuffle(1).skip(7).take(2)) == [7, 8]


def test_shuffle_then_repeat_keeps_epochs_and_the_reverse_mixes_them():
    apart = values(ps.Dataset.range(8).shuffle(8, seed=1).repeat(2))
    assert sorted(apart[:8]) == sorted(apart[8:]) == list(range(8))
    assert apart[:8] != apart[8:]
    mixed = values(ps.Dataset.range(30).repeat(2).shuffle(60, seed=1))
    assert sorted(mixed[:30]) != list(range(30))
    assert sorted(mixed) == sorted(2 * list(range(30)))


def test_an_unseeded_shuffle_draws_a_seed_that_the_state_carries():
    iterator = iter(ps.Dataset.range(50).shuffle(50))
    expected = [next(iterator) for _ in range(10)]
    state = iterator.state_dict()
    rest = list(iterator)
    other = ps.Dataset.range(50).shuffle(50)
    resumed = iter(other)
    resumed.load_state_dict(state)
    assert list(resumed) == rest
    assert sorted(map(int, expected + rest)) == list(range(50))


def test_rows_were_lost_and_doubled_by_a_state_right_after_a_restore():
    def make():
        return ps.Dataset.from_generator(lambda: iter(range(12))).shuffle(3, seed=1)

    expected = values(make())
    iterator = iter(make())
    assert [next(iterator) for _ in range(4)] == expected[:4]
    for _ in range(3):
        state = iterator.state_dict()
        iterator = iter(make())
        iterator.load_state_dict(state)
    assert values(iterator) == expected[4:]


def test_a_restored_dataset_goes_on_with_the_epoch_after_the_state():
    def make():
        return ps.Dataset.range(9).shuffle(9, seed=3)

    undisturbed = make()
    epochs = [values(undisturbed) for _ in range(4)]
    dataset = make()
    values(dataset)
    iterator = iter(dataset)
    next(iterator)
    state = iterator.state_dict()
    fresh = make()
    resumed = iter(fresh)
    resumed.load_state_dict(state)
    assert values(resumed) == epochs[1][1:]
    assert [values(fresh), values(fresh)] == epochs[2:]


def test_batch_last_one_is_short_unless_dropped():
    assert values(ps.Dataset.range(7).batch(3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert values(ps.Dataset.range(7).batch(3, drop_remainder=True)) == [[0, 1, 2], [3, 4, 5]]
    assert values(ps.Dataset.range(8).batch(2).batch(3)) == [[[0, 1], [2, 3], [4, 5]], [[6, 7]]]


def test_batch_of_unequal_shapes_names_both():
    dataset = ps.Dataset.range(1, 4).map(lambda x: np.zeros(int(x)))
    with pytest.raises(ps.ElementError, match=r"batch\(batch_size=2\).*\(1,\) and \(2,\).*padded_batch"):
        values(dataset.batch(2))


def test_padded_batch_pads_with_what_was_asked_for():
    dataset = ps.Dataset.from_tensor_slices({"n": [1, 2]}).map(lambda e: {"n": [e["n"]] * int(e["n"]), "s": ["x"]})
    batches = dataset.padded_batch(2, padded_shapes={"n": (3,), "s": None}, padding_values={"n": 9, "s": "-"})
    assert values(batches) == [{"n": [[1, 9, 9], [2, 2, 9]], "s": [["x"], ["x"]]}]
    with pytest.raises(ps.ElementError, match=r"shape \(2,\) does not fit into padded_shapes \(1,\)"):
        values(dataset.map(lambda e: e["n"]).padded_batch(2, padded_shapes=(1,)))


def test_strings_are_padded_with_empty_ones():
    dataset = ps.Dataset.from_tensor_slices([1, 2]).map(lambda n: ["w"] * int(n))
    assert values(dataset.padded_batch(2)) == [[["w", ""], ["w", "w"]]]


def test_rebatch_rechunks_across_the_borders_of_batches():
    assert values(ps.Dataset.range(10).batch(4).rebatch(3)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert values(ps.Dataset.range(10).batch(5).rebatch([1, 4], drop_remainder=True)) == [
        [0],
        [1, 2, 3, 4],
        [5],
        [6, 7, 8, 9],
    ]


def test_windows_may_overlap_be_apart_and_be_partial():
    def windows(**arguments):
        return [values(window) for window in ps.Dataset.range(7).window(**arguments)]

    assert windows(size=3) == [[0, 1, 2], [3, 4, 5], [6]]
    assert windows(size=3, drop_remainder=True) == [[0, 1, 2], [3, 4, 5]]
    assert windows(size=3, shift=2, stride=2, drop_remainder=True) == [[0, 2, 4], [2, 4, 6]]
    assert windows(size=2, shift=4) == [[0, 1], [4, 5]]


def test_a_window_of_tuples_is_a_tuple_of_datasets():
    pairs = ps.Dataset.zip(ps.Dataset.range(4), ps.Dataset.range(10, 14)).window(2)
    assert [(values(a), values(b)) for a, b in pairs] == [([0, 1], [10, 11]), ([2, 3], [12, 13])]


def test_cardinalities():
    numbers, unknown = ps.Dataset.range(10), ps.Dataset.range(10).filter(bool)
    expected = {
        numbers: 10,
        unknown: ps.UNKNOWN_CARDINALITY,
        numbers.repeat(): ps.INFINITE_CARDINALITY,
        numbers.repeat().take(7): 7,
        numbers.repeat(0): 0,
        ps.Dataset.range(0).repeat(): 0,
        unknown.repeat(): ps.INFINITE_CARDINALITY,
        numbers.batch(3): 4,
        numbers.batch(3, drop_remainder=True): 3,
        numbers.batch(3).unbatch(): ps.UNKNOWN_CARDINALITY,
        numbers.batch(5).unbatch(): 10,
        numbers.shard(3, 0): 4,
        numbers.shard(3, 1): 3,
        numbers.skip(12): 0,
        numbers.concatenate(unknown): ps.UNKNOWN_CARDINALITY,
        numbers.concatenate(numbers.repeat()): ps.INFINITE_CARDINALITY,
        ps.Dataset.zip(numbers, ps.Dataset.counter()): 10,
        numbers.flat_map(lambda x: numbers): ps.UNKNOWN_CARDINALITY,
        ps.Dataset.from_generator(list): ps.UNKNOWN_CARDINALITY,
        numbers.window(3): 4,
        numbers.prefetch(2).cache().enumerate().shuffle(3): 10,
    }
    assert {dataset.node.label: dataset.cardinality() for dataset in expected} == {
        dataset.node.label: number for dataset, number in expected.items()
    }
    assert len(numbers) == 10
    with pytest.raises(TypeError, match="has no length"):
        len(unknown)


def test_an_empty_dataset_repeated_without_end_ends():
    assert values(ps.Dataset.range(5).filter(lambda x: False).repeat()) == []


def test_choose_stops_at_the_first_empty_dataset_and_sample_goes_on():
    parts = [ps.Dataset.range(2), ps.Dataset.range(10, 16)]
    alternating = ps.Dataset.range(2).repeat()
    assert values(ps.Dataset.choose_from_datasets(parts, alternating)) == [0, 10, 1, 11]
    assert values(ps.Dataset.choose_from_datasets(parts, alternating, stop_on_empty_dataset=False)) == [
        *[0, 10, 1, 11],
        *[12, 13, 14, 15],
    ]
    assert sorted(values(ps.Dataset.sample_from_datasets(parts, seed=1))) == [0, 1, *range(10, 16)]


def test_a_dataset_of_weight_zero_is_never_drawn():
    parts = [ps.Dataset.range(5), ps.Dataset.range(10, 15)]
    assert values(ps.Dataset.sample_from_datasets(parts, [0.0, 1.0], seed=1)) == list(range(10, 15))


def test_zip_ends_with_the_shortest_and_keeps_any_structure():
    zipped = ps.Dataset.zip({"a": ps.Dataset.range(5), "b": (ps.Dataset.range(3),)})
    assert values(zipped) == [{"a": i, "b": (i,)} for i in range(3)]


def test_element_types():
    element = {"int": 1, "float": 0.5, "bool": True, "str": "a\0", "bytes": b"b\0", "list": [1.0], "none": None}
    (found,) = ps.Dataset.from_tensors(element)
    assert {name: type(value).__name__ for name, value in found.items()} == {
        "int": "int64",
        "float": "float32",
        "bool": "bool",
        "str": "str",
        "bytes": "bytes",
        "list": "ndarray",
        "none": "NoneType",
    }
    assert found["str"] == "a\0" and found["bytes"] == b"b\0"
    assert found["list"].dtype == np.float32


Point = namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Sample:
    image: object
    label: object


def test_named_tuples_and_dataclasses_stay_what_they_are():
    points = ps.Dataset.range(2).map(lambda x: Point(x, x + 1))
    assert values(points.map(lambda p: p.x + p.y)) == [1, 3]
    samples = ps.Dataset.range(4).map(lambda x: Sample(np.ones(2) * x, x)).batch(2)
    first = next(iter(samples))
    assert isinstance(first, Sample) and first.image.shape == (2, 2) and first.label.tolist() == [0, 1]


def test_tuples_are_unpacked_into_the_functions_arguments():
    pairs = ps.Dataset.from_tensor_slices(([1, 2], [10, 20]))
    assert values(pairs.map(lambda x, y: x + y)) == [11, 22]
    assert values(pairs.filter(lambda x, y: x > 1)) == [(2, 20)]


def test_element_specs():
    images = ps.Dataset.from_tensor_slices((np.zeros((10, 4, 4), np.float32), np.zeros(10, np.int64)))
    assert images.batch(4).element_spec == (ps.TensorSpec((None, 4, 4), np.float32), ps.TensorSpec((None,), np.int64))
    assert images.batch(5).element_spec[1] == ps.TensorSpec((5,), np.int64)
    assert images.batch(4, drop_remainder=True).element_spec[1] == ps.TensorSpec((4,), np.int64)
    assert images.map(lambda x, y: x[0]).element_spec == ps.TensorSpec((4,), np.float32)
    assert images.batch(4).map(lambda x, y: x + 1).element_spec == ps.TensorSpec((None, 4, 4), np.float32)
    assert images.filter(lambda x, y: True).batch(4).map(lambda x, y: y).element_spec == ps.TensorSpec(
        (None,), np.int64
    )
    with pytest.raises(ps.ElementError, match="no elements"):
        _ = ps.Dataset.range(0).filter(bool).map(abs).map(str).element_spec


def test_random_functions_get_the_same_numbers_wherever_they_run():
    def noisy(x, randomness):
        return x + randomness.random()

    one, many, streamed = (
        ps.Dataset.range(40).map(noisy, seed=3),
        ps.Dataset.range(40).map(noisy, num_parallel_calls=4, seed=3),
        ps.Dataset.range(40).filter(lambda x: True).map(noisy, num_parallel_calls=4, seed=3),
    )
    expected = values(one)
    assert values(many) == expected == values(streamed)
    assert len({x - int(x) for x in expected}) == 40
    shuffled = ps.Dataset.range(40).map(noisy, seed=3).shuffle(40, seed=1)
    assert sorted(values(shuffled)) == sorted(expected)


def test_epochs_have_other_random_numbers():
    dataset = ps.Dataset.range(5).map(lambda x, randomness: randomness.integers(1 << 40), seed=3)
    assert values(dataset) != values(dataset)


def test_options_are_merged_and_the_later_one_wins():
    dataset = ps.Dataset.range(3).with_options(ps.Options(seed=1, deterministic=True)).with_options(ps.Options(seed=2))
    assert dataset.map(abs).options() == ps.Options(seed=2, deterministic=True)
    with pytest.raises(TypeError, match="takes ps.Options"):
        dataset.with_options({"seed": 3})


def test_scan_carries_its_state_over_a_restore():
    dataset = ps.Dataset.range(1, 7).scan((0, 1), lambda s, x: ((s[0] + x, s[1] * x), (s[0], s[1])))
    assert values(dataset)[-1] == (15, 120)


@pytest.mark.parametrize(
    "state",
    [
        np.zeros((), [("n", "i4"), ("s", "f8")])[()],
        np.ones(2, ml_dtypes.bfloat16),
        np.array(["a", "long"], np.dtypes.StringDType()),
        np.ones(2, ">i4"),
    ],
    ids=["structured", "bfloat16", "strings", "big-endian"],
)
def test_the_state_of_a_scan_keeps_its_dtype_over_a_restore(state):
    dataset = ps.Dataset.range(4).scan(state, lambda state, x: (state, state))
    with iter(dataset) as iterator:
        next(iterator)
        saved = json.loads(json.dumps(iterator.state_dict()))
    with iter(dataset) as resumed:
        resumed.load_state_dict(saved)
        rest = list(resumed)
    assert [(row.dtype, row.tolist()) for row in rest] == [(state.dtype, state.tolist())] * 3


def test_unique_compares_arrays_of_strings_by_their_strings():
    words = [["a", "b" * length] for length in (1, 1, 3, 1, 1, 9, 1, 3)]
    for dtype in (np.str_, np.bytes_, np.dtypes.StringDType()):
        rows = ps.Dataset.from_generator(lambda dtype=dtype: (np.array(word, dtype) for word in words))
        for dataset in (rows, rows.batch(3).unbatch(), rows.map(lambda row: row, num_parallel_calls=2)):
            assert len(list(dataset.unique())) == 3
    assert len(list(ps.Dataset.range(20).map(lambda i: np.array(["a", "b" if i != 5 else "long"])).unique())) == 2


def test_unique_compares_rows_of_every_kind_and_rank():
    kinds = {
        "vectors": [[1, 2], [1, 3], [1, 2]],
        "matrices": [[[1, 2]], [[1, 3]], [[1, 2]]],
        "words": [["a", "b"], ["a", "c"], ["a", "b"]],
        "objects": np.array(["x", b"x", "x"], object),
        "days": np.array(["2020-01-01", "2020-01-02", "2020-01-01"], "M8[D]"),
    }
    ragged = np.empty(3, object)
    ragged[:] = [np.arange(2), np.arange(3), np.arange(2)]
    for rows in (*kinds.values(), ragged, {"a": [1, 1, 1], "b": kinds["vectors"]}, (ragged, [1, 1, 1])):
        dataset = ps.Dataset.from_tensor_slices(rows)
        for unique in (dataset.unique(), dataset.filter(lambda *x: True).unique(), dataset.repeat(2).unique()):
            assert len(list(unique)) == 2


def test_unique_takes_structured_rows():
    rows = np.array([(1, 0.5), (2, 0.5), (1, 0.5)], [("n", "i4"), ("s", "f8")])
    for dataset in (ps.Dataset.from_tensor_slices(rows), ps.Dataset.range(3).map(lambda i: rows[i])):
        assert values(dataset.unique()) == [(1, 0.5), (2, 0.5)]
    assert len(list(ps.Dataset.range(3).map(lambda i: (rows[i], rows[:2])).unique())) == 2


BIG_ENDIAN = {
    "a shuffle of a stream": lambda d: d.filter(lambda x: True).shuffle(4, seed=1),
    "windows of a key": lambda d: d.group_by_window(lambda x: x[0] % 2, lambda key, window: window, window_size=3),
    "batches of a stream": lambda d: d.filter(lambda x: True).batch(4).unbatch(),
    "batches made anew": lambda d: d.batch(2).rebatch(3).unbatch(),
    "a generator": lambda d: ps.Dataset.from_generator(lambda: iter(list(d))).batch(2).unbatch(),
    "a list": lambda d: ps.Dataset.from_list(list(d)),
}


@pytest.mark.parametrize("build", BIG_ENDIAN.values(), ids=BIG_ENDIAN)
def test_rows_keep_the_order_of_their_bytes_however_they_are_joined(build):
    dataset = build(ps.Dataset.range(9).map(lambda x: np.array([x, 2], ">i4")))
    assert {row.dtype.str for row in dataset} == {">i4"}
    assert sorted(int(row[0]) for row in dataset) == list(range(9))


def test_reduce():
    assert ps.Dataset.range(5).reduce((0, 1), lambda s, x: (s[0] + x, s[1] + 1)) == (10, 6)


def test_counter_and_infinite_pipelines_are_lazy():
    endless = ps.Dataset.counter(1, 3).map(lambda x: x * 2).shuffle(4, seed=1).batch(2)
    assert len(values(islice(endless, 3))) == 3


@pytest.mark.parametrize(
    "build", [lambda d: d, lambda d: d.batch(4).unbatch(), lambda d: d.shuffle(1), lambda d: d.cache()]
)
def test_a_generator_may_yield_one_buffer_again_and_again(build):
    def numbers():
        buffer = np.zeros(2)
        for number in range(4):
            buffer[:] = number
            yield buffer

    assert [row.tolist() for row in build(ps.Dataset.from_generator(numbers))] == [[n, n] for n in range(4)]


def test_scan_may_work_in_place():
    def add(total, x):
        total += x
        return total, total

    dataset = ps.Dataset.range(4).scan(np.zeros(1, np.int64), add)
    assert values(dataset) == values(dataset) == [[0], [1], [3], [6]]


@pytest.mark.parametrize(
    "build",
    [
        lambda d: d.cache(),
        lambda d: d.filter(lambda x: True).cache(),
        lambda d: d.ragged_batch(2).cache(),
        lambda d: d.padded_batch(2).cache(),
        lambda d: d.window(3, 1).flat_map(lambda window: window),
        lambda d: ps.Dataset.from_tensor_slices(np.array([*d, None], dtype=object)[:-1]).shuffle(9, seed=1),
        lambda d: ps.Dataset.from_source(np.array([row[:1] for row in d])),
        lambda d: ps.Dataset.from_source(np.array([*d, None], dtype=object)[:-1]).shuffle(9, seed=1),
    ],
)
def test_rows_that_others_see_too_cannot_be_written(build):
    dataset = build(ps.Dataset.range(4).map(lambda x: np.full(int(x) + 1, x)))
    expected = [plain(element) for element in dataset]
    for element in dataset:
        row = element[0] if element.dtype == object else element
        with pytest.raises(ValueError, match="read-only"):
            row += 1
    assert sorted(map(str, values(dataset))) == sorted(map(str, expected))


def test_rebatch_of_ragged_batches():
    ragged = ps.Dataset.range(4).map(lambda x: np.arange(x)).ragged_batch(2).rebatch(3)
    assert values(ragged) == [[[], [0], [0, 1]], [[0, 1, 2]]]


def test_elements_without_leaves_go_through_functions():
    assert values(ps.Dataset.from_tensors(()).repeat(2).filter(lambda *nothing: True).map(lambda *nothing: 1)) == [1, 1]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_the_order_over_failing_rows_does_not_depend_on_a_prefetch(ahead):
    def fails(x):
        if x % 5 == 2:
            raise ValueError(f"row {x}")
        return x

    dataset = ps.Dataset.from_generator(lambda: iter(range(11))).map(fails)
    for _ in range(ahead):
        dataset = dataset.prefetch(2)
    found = []
    with iter(dataset.shuffle(7, seed=3)) as iterator:
        while len(found) < 11:
            try:
                found.append(int(next(iterator)))
            except ValueError as error:
                found.append(str(error))
    assert found == [0, 1, 8, "row 7", 5, 3, 4, "row 2", 6, 9, 10]


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.array])
def test_a_state_may_have_numpy_integers_in_place_of_its_numbers(kind):
    def through(state):
        if isinstance(state, dict):
            return {name: through(value) for name, value in state.items()}
        if isinstance(state, list):
            return tuple(map(through, state))
        return kind(state) if type(state) is int else state

    dataset = ps.Dataset.range(20).shuffle(20, seed=3).ignore_errors().batch(4).with_options(ps.Options(seed=1))
    iterator = iter(dataset)
    next(iterator)
    state = json.loads(json.dumps(iterator.state_dict()))
    resumed = iter(dataset)
    resumed.load_state_dict(through(state))
    assert json.loads(json.dumps(resumed.state_dict())) == state
    assert [batch.tolist() for batch in resumed] == [batch.tolist() for batch in iterator]


def test_take_and_skip_of_what_is_shuffled_anew_log_a_warning(caplog):
    dataset = ps.Dataset.range(10).shuffle(10, seed=1).map(lambda x: x)
    dataset.take(3), dataset.skip(4), dataset.take(5)
    assert not caplog.records
    dataset.skip(3)
    (record,) = caplog.records
    assert record.getMessage().startswith("shuffle(buffer_size=10, seed=1) at ")
    assert "before take(3) and skip(3) divide the rows" in record.getMessage()
    assert "reshuffle_each_iteration=False" in record.getMessage()


@pytest.mark.parametrize(
    "fixed",
    [
        lambda d: d.shuffle(10, reshuffle_each_iteration=False),
        lambda d: d.shuffle(10, seed=1).cache(),
        lambda d: d,
    ],
)
def test_parts_of_one_order_are_divided_without_a_warning(fixed, caplog):
    dataset = fixed(ps.Dataset.range(10))
    first, rest = dataset[:3], dataset[3:]
    for _ in range(2):
        assert sorted([int(x) for x in first] + [int(x) for x in rest]) == list(range(10))
    assert not caplog.records
