"""`element_spec`: exact where construction tells, None where it varies, assumed where one call was seen."""

import contextlib
import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.spec import covers, leaf_spec, spec_of_leaf, with_open_axes
from penstock.structure import flatten


def ragged_rows():
    return [np.arange(n, dtype=np.int32) for n in (2, 3, 0, 1, 4, 2, 2)]


def unequal():
    column = np.empty(7, object)
    column[:] = ragged_rows()
    return column


SOURCES = {
    "numbers": lambda: ps.Dataset.range(11),
    "arrays": lambda: ps.Dataset.from_tensor_slices({"x": np.zeros((10, 2, 3), np.float32), "y": np.arange(10)}),
    "words": lambda: ps.Dataset.from_tensor_slices((["a", "bc", "d", ""], np.array(["ef", "gh", "ij", "kl"]))),
    "rows": lambda: ps.Dataset.from_tensor_slices(unequal()),
    "declared": lambda: ps.Dataset.from_generator(lambda: iter(ragged_rows()), ps.TensorSpec((None,), np.int32)),
    "undeclared": lambda: ps.Dataset.from_generator(lambda: iter(ragged_rows())),
    "endless": lambda: ps.Dataset.counter(),
}


def longer(*element):
    leaves, structure = flatten(element[0] if len(element) == 1 else element)
    return structure.unflatten(
        [
            np.repeat(leaf, 1 + leaf.size % 3, axis=0) if isinstance(leaf, np.ndarray) and leaf.ndim else leaf
            for leaf in leaves
        ]
    )


def same(*element):
    return element[0] if len(element) == 1 else element


def size_of(*element):
    leaf = flatten(same(*element))[0][0]
    return min(len(leaf) if isinstance(leaf, (str, np.ndarray)) and np.ndim(leaf) else 1, 8)


# Each takes a dataset of elements of any kind.
STEPS = {
    "map": lambda d: d.map(same),
    "map in threads": lambda d: d.map(same, num_parallel_calls=2),
    "map to other lengths": lambda d: d.map(longer),
    "filter": lambda d: d.filter(lambda *e: True),
    "flat_map": lambda d: d.flat_map(lambda *e: ps.Dataset.from_tensors(same(*e)).repeat(2)),
    "interleave": lambda d: d.interleave(lambda *e: ps.Dataset.from_tensors(longer(*e)), 2),
    "scan": lambda d: d.scan(0, lambda s, e: (s + 1, e)),
    "batch": lambda d: d.batch(2),
    "batches of one": lambda d: d.batch(1),
    "whole batches": lambda d: d.batch(3, drop_remainder=True),
    "bucket": lambda d: d.bucket_by_sequence_length(size_of, [2, 4], [2, 3, 2]),
    "bounded bucket": lambda d: d.bucket_by_sequence_length(size_of, [2, 9], [2] * 3, pad_to_bucket_boundary=True),
    "bucket without padding": lambda d: d.bucket_by_sequence_length(size_of, [2], [1, 1], no_padding=True),
    "reduced": lambda d: d.take(9).group_by_reducer(
        lambda *e: size_of(*e) % 3,
        ps.Reducer(lambda key: 0, lambda s, e: s + 1, lambda s: np.zeros((2, int(s) * 0 + 1))),
    ),
    "padded_batch": lambda d: d.padded_batch(3),
    "ragged_batch": lambda d: d.ragged_batch(3),
    "unbatch": lambda d: d.unbatch(),
    "rebatch": lambda d: d.rebatch(2),
    "rebatch in turn": lambda d: d.rebatch([2, 1], drop_remainder=True),
    "group": lambda d: d.group_by_window(lambda *e: 0, lambda key, w: w.batch(2), window_size=3),
    "pad groups": lambda d: d.group_by_window(lambda *e: 0, lambda key, w: w.padded_batch(3), window_size=3),
    "shuffle": lambda d: d.shuffle(4, seed=1),
    "take": lambda d: d.take(5),
    "skip": lambda d: d.skip(1),
    "shard": lambda d: d.shard(2, 1),
    "repeat": lambda d: d.repeat(2),
    "concatenate": lambda d: d.concatenate(d.skip(1)),
    "concatenate batches": lambda d: d.batch(1).concatenate(d.batch(2)),
    "choose": lambda d: ps.Dataset.choose_from_datasets([d, d.take(1)], ps.Dataset.range(2).repeat(3)),
    "enumerate": lambda d: d.enumerate(),
    "zip": lambda d: ps.Dataset.zip(d.batch(2), d),
    "prefetch": lambda d: d.prefetch(2),
    "cache": lambda d: d.cache(),
    "window": lambda d: d.map(lambda *e: flatten(e)[0][0]).window(3).flat_map(lambda w: w),
    "resample": lambda d: d.rejection_resample(lambda *e: 0, [1.0]),
}


def wrong_leaves(spec, element):
    """The leaves that are not as their specifications say, assumed lengths left aside."""
    leaves, structure = flatten(spec)
    values = structure.flatten_like(element)
    pairs = [(spec, spec_of_leaf(value)) for spec, value in zip(leaves, values, strict=True)]
    return [(spec, found) for spec, found in pairs if not covers(without_assumptions(spec, found), found)]


def without_assumptions(spec, found):
    """What is promised where all that is assumed is otherwise; unequal rows are an object array when joined."""
    ragged_rank = max(spec.ragged_rank, found.ragged_rank) if spec.assumed_axes else spec.ragged_rank
    return leaf_spec(with_open_axes(spec, spec.assumed_axes).shape, spec.dtype, ragged_rank)


@pytest.mark.slow
@given(source=st.sampled_from(sorted(SOURCES)), steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4))
def test_every_element_of_any_pipeline_fits_the_specification(source, steps):
    dataset = SOURCES[source]()
    for step in steps:
        dataset = STEPS[step](dataset)
    try:
        elements = list(dataset.take(12))
    except ps.ElementError:  # rows that cannot be put in one batch, or scalars that cannot be taken apart
        return
    if not elements:
        with contextlib.suppress(ps.ElementError):  # nothing tells
            _ = dataset.element_spec
        return
    spec = dataset.element_spec
    for element in elements:
        assert wrong_leaves(spec, element) == []


ROWS = np.zeros((12, 4), np.float32)
KNOWN = {
    "batch(5)": lambda d: (d.batch(5), (None, 4)),
    "batch(4)": lambda d: (d.batch(4), (4, 4)),
    "batch(5, drop_remainder)": lambda d: (d.batch(5, drop_remainder=True), (5, 4)),
    "repeat().batch(5)": lambda d: (d.repeat().batch(5), (5, 4)),
    "batch(5).unbatch()": lambda d: (d.batch(5).unbatch(), (4,)),
    "batch(5).rebatch(3)": lambda d: (d.batch(5).rebatch(3), (3, 4)),
    "batch(4).rebatch(3)": lambda d: (d.batch(4).rebatch(3), (3, 4)),
    "batch(4).rebatch([3, 3])": lambda d: (d.batch(4).rebatch([3, 3]), (3, 4)),
    "rebatch([2, 1])": lambda d: (d.batch(4).rebatch([2, 1]), (None, 4)),
    "padded_batch(4)": lambda d: (d.padded_batch(4), (4, 4)),
    "padded_batch(4, [-1])": lambda d: (d.padded_batch(4, padded_shapes=[-1]), (4, 4)),
    "padded_batch(4, [6])": lambda d: (d.padded_batch(4, padded_shapes=[6]), (4, 6)),
    "concatenate": lambda d: (d.batch(4).concatenate(d.batch(6)), (None, 4)),
    "filter": lambda d: (d.filter(lambda x: False).batch(3), (None, 4)),
    "window": lambda d: (d.window(3), ()),
    "bucket": lambda d: (d.bucket_by_sequence_length(len, [3], [2, 2]), (None, 4)),
    "bucket, drop_remainder": lambda d: (d.bucket_by_sequence_length(len, [3], [2, 2], drop_remainder=True), (2, 4)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_construction_tells_is_exact_also_without_elements(name):
    dataset, shape = KNOWN[name](ps.Dataset.from_tensor_slices(ROWS))
    assert dataset.element_spec.shape == shape
    assert not dataset.element_spec.assumed
    emptied, _ = KNOWN[name](ps.Dataset.from_tensor_slices(ROWS).filter(lambda x: False))
    assert emptied.element_spec.shape[1:] == shape[1:]
    assert list(emptied) == []


def test_functions_of_batches_keep_their_length_if_the_last_one_is_shorter():
    uneven = ps.Dataset.range(10).batch(4)
    assert repr(uneven.map(lambda x: (x + 1, x.sum())).element_spec) == (
        "(TensorSpec(shape=(None,), dtype=~int64), TensorSpec(shape=(), dtype=~int64))"
    )
    assert repr(uneven.shuffle(3).map(np.negative).map(lambda x: x[None]).element_spec) == (
        "TensorSpec(shape=(~1, ~4), dtype=~int64)"
    )
    assert repr(ps.Dataset.range(3).batch(4).map(np.negative).element_spec) == "TensorSpec(shape=(None,), dtype=~int64)"
    assert repr(ps.Dataset.range(8).batch(4).map(np.negative).element_spec) == "TensorSpec(shape=(~4,), dtype=~int64)"


def test_a_specification_says_what_it_assumes():
    images = ps.Dataset.range(10).map(lambda x: np.zeros((28, 28), np.uint8))
    assert repr(images.element_spec) == "TensorSpec(shape=(~28, ~28), dtype=~uint8)"
    assert repr(images.batch(5).element_spec) == "TensorSpec(shape=(5, ~28, ~28), dtype=~uint8)"
    assert repr(images.batch(5).unbatch().batch(3).element_spec) == "TensorSpec(shape=(None, ~28, ~28), dtype=~uint8)"
    assert images.element_spec.assumed
    assert images.element_spec.assumed_axes == {0, 1}
    # A program that compares it finds what it would have found.
    assert images.element_spec == ps.TensorSpec((28, 28), np.uint8)
    assert hash(images.element_spec) == hash(ps.TensorSpec((28, 28), np.uint8))
    for made in (copy.deepcopy(images.element_spec), pickle.loads(pickle.dumps(images.element_spec))):
        assert repr(made) == repr(images.element_spec)


def test_lengths_that_one_result_shows_are_assumed():
    batches = ps.Dataset.from_tensor_slices((ROWS, np.arange(12))).batch(5)
    doubled = batches.map(lambda x, y: (x * 2, y.sum(), x[:2]))
    assert repr(doubled.element_spec) == (
        "(TensorSpec(shape=(None, ~4), dtype=~float32), TensorSpec(shape=(), dtype=~int64), "
        "TensorSpec(shape=(~2, ~4), dtype=~float32))"
    )


def test_each_function_is_called_once_whatever_stands_above():
    calls = []

    def called(name, value):
        calls.append(name)
        return value

    dataset = ps.Dataset.range(20).map(lambda x: called("a", [x, x]), num_parallel_calls=4).cache().prefetch(4)
    dataset = dataset.shuffle(9, seed=1).map(lambda x: called("b", x)).prefetch(2)
    dataset = dataset.flat_map(lambda x: called("c", ps.Dataset.from_tensors(x)))
    dataset = dataset.group_by_window(lambda x: called("d", 0), lambda k, w: called("e", w.batch(4)), window_size=4)
    dataset = dataset.map(lambda x: x).batch(2, drop_remainder=True)
    top = ps.Dataset.range(4).map(lambda x: called("f", x)).batch(2)
    assert top.element_spec == top.element_spec == ps.TensorSpec((2,), np.int64)
    assert calls == ["f"]
    calls.clear()
    below = ps.Dataset.range(20).map(lambda x: called("a", [x, x]), num_parallel_calls=4).shuffle(9).cache().prefetch(4)
    below = below.map(lambda x: called("b", x)).filter(lambda x: called("filter", True)).shuffle(10).batch(4)
    assert below.element_spec == ps.TensorSpec((None, 2), np.int64)
    assert calls == ["a", "b"]
    calls.clear()
    grouped = ps.Dataset.range(20).group_by_window(
        lambda x: called("key", 0), lambda key, w: called("reduce", w.batch(4)), window_size=8
    )
    assert grouped.element_spec == ps.TensorSpec((None,), np.int64)
    assert calls == ["key", "reduce"]
    calls.clear()
    flat = ps.Dataset.range(20).flat_map(lambda x: called("flat", ps.Dataset.range(0))).batch(2)
    assert flat.element_spec == ps.TensorSpec((None,), np.int64)
    assert calls == ["flat"]


def pairs(window):
    return window.batch(2, drop_remainder=True).map(lambda pair: pair[0])


SUMS = ps.Reducer(lambda key: 0, lambda total, x: total + x, lambda total: total)
ABOVE_FEW = {
    "batch of keys": lambda d: d.group_by_reducer(lambda x: x % 3, SUMS).batch(2, drop_remainder=True).map(same),
    "later keys": lambda d: d.group_by_reducer(lambda x: x % 3, SUMS).skip(1).repeat(2).map(same),
    "counted keys": lambda d: d.group_by_reducer(lambda x: x % 3, SUMS).assert_cardinality(3).skip(2).map(same),
    "full windows": lambda d: d.group_by_window(
        lambda x: 0, lambda key, w: w.batch(2, drop_remainder=True).map(lambda x: x.sum()), window_size=3
    ),
    "an empty first dataset": lambda d: d.flat_map(lambda x: ps.Dataset.range(int(x)).map(lambda y: y + x)),
    "short first windows": lambda d: d.interleave(lambda x: ps.Dataset.range(int(x)).window(2).flat_map(pairs), 2),
}


@pytest.mark.parametrize("name", ABOVE_FEW)
def test_a_function_above_a_short_first_group_was_never_called(name):
    dataset = ABOVE_FEW[name](ps.Dataset.range(10))
    spec = dataset.element_spec
    assert spec.assumed and all(spec.is_compatible_with(element) for element in dataset)
    with pytest.raises(ps.ElementError, match=r"output_signature=\.\.\."):
        _ = ABOVE_FEW[name](ps.Dataset.range(10).filter(lambda x: False)).element_spec


def test_a_sampled_cache_keeps_nothing():
    numbers = ps.Dataset.range(5).shuffle(5, seed=1).cache()
    expected = [int(x) for x in ps.Dataset.range(5).shuffle(5, seed=1)]
    assert numbers.map(lambda x: x).element_spec == ps.TensorSpec((), np.int64)
    assert [int(x) for x in numbers] == expected


def test_a_function_without_an_element_to_call_it_with_names_the_way_out():
    nothing = ps.Dataset.range(3).filter(lambda x: False).map(lambda x: x)
    with pytest.raises(ps.ElementError, match=r"map\(.*test_element_spec\.py.*output_signature=\.\.\."):
        _ = nothing.batch(2).element_spec
    with pytest.raises(ps.ElementError, match=r"from_generator\(.*output_signature"):
        _ = ps.Dataset.from_generator(lambda: iter(())).element_spec


def test_rows_of_unequal_length_keep_their_dtype():
    rows = ps.Dataset.from_generator(lambda: iter(ragged_rows()), ps.TensorSpec((None,), np.int32))
    expected = ps.RaggedTensorSpec((None, None), np.int32)
    assert rows.ragged_batch(3).element_spec == expected
    assert rows.padded_batch(3).rebatch(2).element_spec == expected
    assert rows.ragged_batch(3).unbatch().element_spec == ps.TensorSpec((None,), np.int32)
    twice = rows.ragged_batch(2).ragged_batch(2)
    assert twice.element_spec == ps.RaggedTensorSpec((None, None, None), np.int32, ragged_rank=2)
    for dataset in (rows.ragged_batch(3), twice, rows.ragged_batch(2, drop_remainder=True).batch(3)):
        assert all(dataset.element_spec.is_compatible_with(element) for element in dataset)
    # Seen in an element, it is as exact as that element is, but for the rows of a batch.
    seen = rows.ragged_batch(3).map(lambda rows: rows).element_spec
    assert repr(seen) == "RaggedTensorSpec(shape=(None, None), dtype=~int32, ragged_rank=1)"


def test_a_generator_may_promise_ragged_elements():
    signature = ps.RaggedTensorSpec((None, None), np.int16)
    dataset = ps.Dataset.from_generator(lambda: iter([[[1], [2, 3]], [[]], [[4, 5], [6, 7]]]), signature)
    first, second, third = dataset
    assert [row.tolist() for row in first] == [[1], [2, 3]]
    assert first[0].dtype == second[0].dtype == third[0].dtype == np.int16
    assert dataset.element_spec == signature
    bad = ps.Dataset.from_generator(lambda: iter([[[1.5], [2.5, 3.5]]]), signature)
    with pytest.raises(ps.ElementError, match=r"expected RaggedTensorSpec\(.*int16.*got RaggedTensorSpec\(.*float32"):
        list(bad)


@pytest.mark.parametrize(
    ("declared", "value", "fits"),
    [
        (ps.TensorSpec((), np.int64), 3, True),
        (ps.TensorSpec((), np.int64), np.int32(3), False),
        (ps.TensorSpec((), np.float32), 3.5, True),
        (ps.TensorSpec((None, 2), np.float32), np.zeros((5, 2), np.float32), True),
        (ps.TensorSpec((None, 2), np.float32), np.zeros((5, 3), np.float32), False),
        (ps.TensorSpec((None, 2), np.float32), np.zeros(2, np.float32), False),
        (ps.TensorSpec((3, 2), np.float32), ps.TensorSpec((None, 2), np.float32), True),
        (ps.TensorSpec((), object), "word", True),
        (ps.TensorSpec((), "U5"), np.str_("abc"), True),
        (ps.TensorSpec((), "U2"), np.str_("abc"), False),
        (ps.TensorSpec((None,), object), unequal(), True),
        (ps.TensorSpec((None, None), np.int32), unequal(), False),
        (ps.RaggedTensorSpec((7, None), np.int32), unequal(), True),
        (ps.RaggedTensorSpec((7, None), np.int64), unequal(), False),
        (ps.RaggedTensorSpec((6, None), np.int32), unequal(), False),
        (ps.RaggedTensorSpec((None, None), np.int32), np.zeros((2, 3), np.int32), True),
        (ps.RaggedTensorSpec((None, None), np.int32), unequal()[:0], True),
        (ps.RaggedTensorSpec((None, None, 2), np.int32), unequal(), False),
    ],
)
def test_a_specification_tells_what_fits_it(declared, value, fits):
    assert declared.is_compatible_with(value) is fits


def test_a_specification_is_made_of_a_value():
    assert ps.TensorSpec.from_tensor(np.zeros((2, 3), np.uint8)) == ps.TensorSpec((2, 3), np.uint8)
    assert ps.TensorSpec.from_tensor("word") == ps.TensorSpec((), object)
    with pytest.raises(ps.InvalidTypeError, match=r"from_tensor\(tensor\) takes one array or value, got \(1, 2\)"):
        ps.TensorSpec.from_tensor((1, 2))


def test_a_ragged_rank_must_leave_the_shape_alone():
    with pytest.raises(ps.InvalidArgumentError, match="takes 1 to the number of axes, 2, got 3"):
        ps.RaggedTensorSpec((None, None), np.int64, ragged_rank=3)


def test_saved_rows_of_several_shapes_are_specified_by_all_of_them(tmp_path):
    rows = ps.Dataset.from_tensor_slices((unequal(), np.arange(7)))
    rows.save(tmp_path / "rows")
    loaded = ps.Dataset.load(tmp_path / "rows")
    assert loaded.element_spec == (ps.TensorSpec((None,), np.int32), ps.TensorSpec((), np.int64))
    rows.ragged_batch(2).save(tmp_path / "ragged")
    batches = ps.Dataset.load(tmp_path / "ragged")
    for batch in batches:
        assert wrong_leaves(batches.element_spec, batch) == []
    assert batches.element_spec[0] == ps.RaggedTensorSpec((None, None), np.int32, 1)  # in blocks of one row or several
    words = ps.Dataset.from_tensor_slices(["a", "b"])
    words.save(tmp_path / "words")
    assert ps.Dataset.load(tmp_path / "words").element_spec == ps.TensorSpec((), object)


PAIR = {"x": ps.TensorSpec((2,), np.float32), "n": ps.TensorSpec((), np.int64)}


@pytest.mark.parametrize("threads", [None, 3])
def test_a_signature_makes_a_map_exact_and_saves_the_call(threads):
    calls = []

    def pair(x):
        calls.append(x)
        return {"x": np.full(2, x, np.float32), "n": x}

    dataset = ps.Dataset.range(9).map(pair, num_parallel_calls=threads, output_signature=PAIR)
    assert dataset.element_spec == PAIR
    assert not any(leaf.assumed for leaf in dataset.element_spec.values())
    assert dataset.batch(3).unbatch().cardinality() == 9
    assert calls == []
    assert [int(element["n"]) for element in dataset] == list(range(9))
    nothing = ps.Dataset.range(0).map(pair, output_signature=PAIR).batch(4)
    assert repr(nothing.element_spec["x"]) == "TensorSpec(shape=(None, 2), dtype=float32)"


@pytest.mark.parametrize(
    ("function", "signature", "wrong"),
    [
        (lambda x: np.zeros(3 if x == 5 else 2), ps.TensorSpec((2,), np.float64), r"shape=\(2,\).*got .*shape=\(3,\)"),
        (lambda x: "abc" if x == 5 else np.int64(x), ps.TensorSpec((), np.int64), "object"),
        (lambda x: 0.5 if x == 5 else int(x), ps.TensorSpec((), np.int64), "float32"),
        (lambda x: (x, x), ps.TensorSpec((), np.int64), r"expected \*, got \(\*, \*\)"),
        (lambda x: x, ps.TensorSpec((), np.int32), "int32.*got .*int64"),
        (lambda x: np.zeros(2, np.float64), ps.TensorSpec((2,), np.float32), "float32.*got .*float64"),
        (lambda x: np.zeros((2, 1)), ps.TensorSpec((None,), np.float64), r"shape=\(None,\).*got .*shape=\(2, 1\)"),
    ],
)
@pytest.mark.parametrize("threads", [{}, {"num_parallel_calls": 2}])
@pytest.mark.parametrize("source", [lambda: ps.Dataset.range(9), lambda: ps.Dataset.range(9).filter(lambda x: True)])
def test_a_result_that_breaks_the_signature_is_an_error_at_its_row(function, signature, wrong, threads, source):
    iterator = iter(source().map(function, output_signature=signature, **threads))
    with iterator, pytest.raises(ps.ElementError, match=wrong) as caught:
        list(iterator)
    assert "test_element_spec.py" in caught.value.__notes__[0]
    first_wrong = 5 if "5" in str(function.__code__.co_consts) else 0
    assert caught.value.__notes__[0].endswith(f"element {first_wrong}")


@pytest.mark.parametrize("threads", [None, 2])
def test_python_numbers_take_the_declared_dtype_without_loss(threads):
    def promised(function, dtype, shape=()):
        signature = ps.TensorSpec(shape, dtype)
        return list(ps.Dataset.range(40).map(function, num_parallel_calls=threads, output_signature=signature))

    assert promised(lambda x: 0.1 * float(x), np.float64) == [0.1 * x for x in range(40)]
    assert {x.dtype for x in promised(lambda x: int(x), np.uint8)} == {np.dtype(np.uint8)}
    # Whichever kind comes first in a block.
    for shift in (0, 1):
        mixed = promised(lambda x, shift=shift: 0.5 if (x + shift) % 2 else 0, np.float32)
        assert [float(x) for x in mixed] == [0.5 if (x + shift) % 2 else 0 for x in range(40)]
    assert np.array_equal(promised(lambda x: [int(x), 1], np.float32, (2,))[7], [7, 1])
    with pytest.raises(ps.ElementError, match="int8.*got .*int64"):
        promised(lambda x: 10 * int(x), np.int8)


def test_a_map_may_promise_ragged_results():
    signature = ps.RaggedTensorSpec((2, None), np.int32)
    dataset = ps.Dataset.range(3).map(lambda x: [[1] * int(x), [2]], output_signature=signature)
    assert [[row.tolist() for row in element] for element in dataset] == [[[], [2]], [[1], [2]], [[1, 1], [2]]]
    assert dataset.element_spec == signature
    broken = ps.Dataset.range(3).map(lambda x: [[1] * int(x)] * (2 if x < 2 else 3), output_signature=signature)
    with pytest.raises(ps.ElementError, match=r"shape=\(2, None\).*got .*shape=\(3, 2\)"):
        list(broken)


def test_a_signature_has_specifications_for_leaves():
    with pytest.raises(ps.InvalidTypeError, match=r"map\(output_signature=\.\.\.\) takes ps\.TensorSpec leaves, got"):
        ps.Dataset.range(3).map(lambda x: x, output_signature=np.int64)


def test_a_signature_is_not_part_of_a_state():
    dataset = ps.Dataset.range(6).map(lambda x: x)
    iterator = iter(dataset)
    next(iterator)
    again = iter(ps.Dataset.range(6).map(lambda x: x, output_signature=ps.TensorSpec((), np.int64)))
    again.load_state_dict(iterator.state_dict())
    assert [int(x) for x in again] == [1, 2, 3, 4, 5]


def test_a_scan_may_promise_its_outputs():
    signature = ps.TensorSpec((), np.float32)
    dataset = ps.Dataset.range(1, 4).scan(0, lambda total, x: (total + x, float(total)), output_signature=signature)
    assert dataset.element_spec == signature
    assert [float(x) for x in dataset] == [0, 1, 3]
    broken = ps.Dataset.range(3).scan(0, lambda s, x: (s + 1, [s] * int(x)), ps.TensorSpec((0,), np.int64))
    with pytest.raises(ps.ElementError, match=r"shape=\(0,\).*got .*shape=\(1,\)"):
        list(broken)


def test_ragged_rows_are_not_padded_with_empty_strings():
    rows = ps.Dataset.from_generator(lambda: iter(ragged_rows()), ps.TensorSpec((None,), np.int32))
    with pytest.raises(ps.ElementError, match=r"padded_batch\(.*a row holds arrays of unequal shape"):
        list(rows.ragged_batch(3).padded_batch(3))


def test_an_element_that_is_nested_too_deeply_is_an_error_in_words():
    def nested(x):
        for _ in range(400):
            x = {"a": x}
        return x

    with pytest.raises(ps.ElementError, match="nested more than 100 deep, got dict there"):
        next(iter(ps.Dataset.range(10).map(nested).batch(2)))
