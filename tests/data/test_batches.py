"""Batches of rows of unequal shape, padded, ragged and by length, hold every row once, with the values it had."""

import threading

import numpy as np
import pytest

import penstock as ps
from penstock.data.node import Run
from penstock.runtime.threads import Threads
from penstock.sharding import SliceRule
from penstock.structure import map_structure
from penstock.testing import check_conformance

LENGTHS = [1, 2, 4, 5]


def column_of(*rows):
    """A dataset of rows of unequal shape, whose specification is known."""
    column = np.empty(len(rows), dtype=object)
    for position, row in enumerate(rows):
        column[position] = row
    return ps.Dataset.from_tensor_slices(column)


def values(dataset):
    return [map_structure(lambda leaf: (leaf.dtype.str, leaf.tolist()), element) for element in dataset]


def with_labels(declared):
    """(tokens, label, two fixed numbers), each length once."""

    def elements():
        for n in LENGTHS:
            yield np.full(n, n), np.int64(n), np.array([n, -n])

    signature = (ps.TensorSpec((None,), "int64"), ps.TensorSpec((), "int64"), ps.TensorSpec((2,), "int64"))
    if declared:
        return ps.Dataset.from_generator(elements, output_signature=signature)
    return ps.Dataset.from_tensor_slices(LENGTHS).map(lambda n: (np.full(n, n), n, np.array([n, -n])))


@pytest.mark.parametrize("declared", [True, False])
def test_buckets_pad_only_unknown_axes_to_their_boundary(declared):
    buckets = with_labels(declared).bucket_by_sequence_length(
        lambda tokens, label, pair: len(tokens), [3, 7], [2, 2, 2], pad_to_bucket_boundary=True
    )
    tokens, labels, pairs = zip(*buckets, strict=True)
    assert [batch.tolist() for batch in tokens] == [[[1, 0], [2, 2]], [[4, 4, 4, 4, 0, 0], [5, 5, 5, 5, 5, 0]]]
    assert [batch.tolist() for batch in labels] == [[1, 2], [4, 5]]
    assert [batch.tolist() for batch in pairs] == [[[1, -1], [2, -2]], [[4, -4], [5, -5]]]


def test_a_fixed_axis_as_long_as_the_sequence_is_not_padded():
    lengths = [1, 2, 2, 2, 2]  # the second batch has rows of length 2 alone, as its pairs
    dataset = ps.Dataset.from_tensor_slices(lengths).map(lambda n: (np.full(n, n), np.array([n, -n])))
    buckets = dataset.bucket_by_sequence_length(
        lambda tokens, pair: len(tokens), [6], [2, 2], pad_to_bucket_boundary=True
    )
    shapes = [(tokens.shape, pairs.shape) for tokens, pairs in buckets]
    assert shapes == [((2, 5), (2, 2)), ((2, 5), (2, 2)), ((1, 5), (1, 2))]
    check_conformance(
        lambda: dataset.bucket_by_sequence_length(lambda t, p: len(t), [6], [2, 2], pad_to_bucket_boundary=True)
    )


def test_a_differing_axis_is_padded_to_the_boundary_of_another_leaf():
    dataset = ps.Dataset.from_tensor_slices([2, 3, 3]).map(lambda n: (np.full(n, n), np.zeros((n + 1, 2))))
    buckets = dataset.bucket_by_sequence_length(
        lambda source, target: len(source), [7], [3, 3], pad_to_bucket_boundary=True
    )
    assert [(source.shape, target.shape) for source, target in buckets] == [((3, 6), (3, 6, 2))]


def test_shapes_that_are_given_for_some_leaves_hold_for_those():
    shapes = ([None], [], [3])
    buckets = with_labels(False).bucket_by_sequence_length(
        lambda tokens, label, pair: len(tokens), [3, 7], [2, 2, 2], shapes, pad_to_bucket_boundary=True
    )
    assert [tuple(leaf.shape for leaf in batch) for batch in buckets] == [
        ((2, 2), (2,), (2, 3)),
        ((2, 6), (2,), (2, 3)),
    ]


def test_an_element_too_long_for_its_buckets_costs_only_itself():
    dataset = ps.Dataset.from_tensor_slices([1, 9, 2]).map(lambda n: [n] * int(n))
    iterator = iter(dataset.bucket_by_sequence_length(len, [3], [2, 2], pad_to_bucket_boundary=True))
    with pytest.raises(ps.ElementError, match=r"test_batches.*length 9 is longer than 2.*add a boundary"):
        next(iterator)
    assert next(iterator).tolist() == [[1, 0], [2, 2]]


def test_ragged_batch_is_dense_where_all_shapes_are_known_to_be_equal():
    dataset = ps.Dataset.from_tensor_slices((np.arange(6).reshape(3, 2), np.arange(3))).ragged_batch(2)
    assert values(dataset) == [
        (("<i8", [[0, 1], [2, 3]]), ("<i8", [0, 1])),
        (("<i8", [[4, 5]]), ("<i8", [2])),
    ]
    assert dataset.element_spec == (ps.TensorSpec((None, 2), "int64"), ps.TensorSpec((None,), "int64"))


def test_ragged_batch_is_ragged_for_open_axes_of_equal_rows():
    signature = ps.TensorSpec((None,), "int64")
    dataset = ps.Dataset.from_generator(lambda: iter([[1, 2], [3, 4], [5]]), output_signature=signature).ragged_batch(2)
    assert [(batch.dtype, [row.tolist() for row in batch]) for batch in dataset] == [
        (np.dtype(object), [[1, 2], [3, 4]]),
        (np.dtype(object), [[5]]),
    ]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("<end>", [[["a", "<end>"], ["b", "ccc"]], [["ddddd", "<end>"]]]),
        (None, [[["a", ""], ["b", "ccc"]], [["ddddd", ""]]]),
    ],
)
def test_neither_padding_nor_rows_are_cut_to_the_width_of_the_first_string(value, wanted):
    rows = column_of(np.array(["a"]), np.array(["b", "ccc"]), np.array(["ddddd"]))
    dataset = rows.padded_batch(2, padded_shapes=(2,), padding_values=value)
    assert [batch.tolist() for batch in dataset] == wanted
    assert dataset.element_spec == ps.TensorSpec((None, 2), "<U5")


def test_bytes_are_padded_by_longer_bytes():
    rows = column_of(np.array([b"a"]), np.array([b"b", b"c"]))
    assert [batch.tolist() for batch in rows.padded_batch(2, padding_values=b"<end>")] == [
        [[b"a", b"<end>"], [b"b", b"c"]]
    ]
    with pytest.raises(ps.InvalidArgumentError, match="cannot be padded with '<end>'"):
        list(rows.padded_batch(2, padding_values="<end>"))


def test_a_padding_value_that_would_become_infinite_is_refused():
    rows = column_of(np.zeros(1, np.float32), np.zeros(2, np.float32))
    with pytest.raises(ps.InvalidArgumentError, match="rows of float32 cannot be padded with"):
        list(rows.padded_batch(2, padding_values=np.float64(1e300)))
    (padded,) = rows.padded_batch(2, padding_values=np.float64(0.1))
    assert padded.tolist() == [[0, np.float32(0.1)], [0, 0]]


def test_padded_shapes_may_leave_an_axis_open_by_minus_one():
    dataset = ps.Dataset.from_tensor_slices(np.zeros((2, 3, 2))).padded_batch(2, padded_shapes=(-1, 4))
    assert [batch.shape for batch in dataset] == [(2, 3, 4)]
    assert dataset.element_spec == ps.TensorSpec((2, 3, 4), "float64")


LARGE = np.random.default_rng(0).integers(0, 255, (40, 1 << 18)).astype(np.uint8)
LARGE_SOURCES = {
    "index": lambda: ps.Dataset.from_tensor_slices((LARGE, np.arange(40))).shuffle(40, seed=1),
    "stream": lambda: (
        ps.Dataset.from_tensor_slices((LARGE, np.arange(40))).filter(lambda x, y: True).shuffle(30, seed=1)
    ),
    "kept": lambda: ps.Dataset.from_tensor_slices((LARGE, np.arange(40))).map(lambda x, y: (x, y)).cache().shuffle(40),
    "pieces": lambda: ps.Dataset.from_tensor_slices(LARGE).rebatch(1 << 17).filter(lambda x: True),
}


@pytest.mark.parametrize("source", LARGE_SOURCES)
def test_threads_copy_the_rows_of_large_batches(source):
    dataset = LARGE_SOURCES[source]().with_options(ps.Options(seed=3))
    in_threads = dataset.batch(12, num_parallel_calls=3)
    iterator = iter(in_threads)
    found = [next(iterator)]
    workers = [thread.name for thread in threading.enumerate() if thread.name == "penstock-worker"]
    assert len(workers) >= 2, "the calling thread copies too"
    state = iterator.state_dict()
    found.extend(iterator)
    expected = list(dataset.batch(12))
    serial = iter(dataset.batch(12))
    serial.load_state_dict(state)  # the number of threads changes no element
    for one, other in [*zip(found, expected, strict=True), *zip(serial, expected[1:], strict=True)]:
        assert all(map(np.array_equal, one, other)) if isinstance(one, tuple) else np.array_equal(one, other)


def test_batches_in_threads_are_shown_and_checked():
    dataset = ps.Dataset.range(10).batch(2, num_parallel_calls=3)
    assert (
        "batch(batch_size=2, num_parallel_calls=3)" in dataset.explain() and "index, 3 threads, 5" in dataset.explain()
    )
    assert [batch.tolist() for batch in ps.Dataset.range(3).batch(2, num_parallel_calls=ps.AUTOTUNE)] == [[0, 1], [2]]
    with pytest.raises(ps.InvalidArgumentError, match=r"batch\(num_parallel_calls=...\) must be at least 1, got 0"):
        ps.Dataset.range(3).batch(2, num_parallel_calls=0)


def test_an_error_below_a_batch_in_threads_costs_that_batch():
    def rows(x):
        if x == 4:
            raise ValueError("no row 4")
        return np.full(1 << 19, x, np.uint8)

    iterator = iter(ps.Dataset.range(9).map(rows).filter(lambda x: True).batch(3, num_parallel_calls=2))
    assert next(iterator)[:, 0].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="no row 4"):
        next(iterator)
    assert next(iterator)[:, 0].tolist() == [6, 7, 8]


@pytest.mark.parametrize(
    ("rows", "padding"),
    [
        ([["a"], ["a", "b"]], 0),
        ([["a"], ["a", "b"]], b""),
        ([[b"a"], [b"a", b"b"]], ""),
        ([[b"a"], [b"a", b"b"]], None),
    ],
    ids=str,
)
def test_strings_are_not_padded_with_something_else(rows, padding):
    padded = ps.Dataset.from_list(rows).padded_batch(2, padding_values=padding)
    if padding is None:
        assert next(iter(padded)).tolist() == [[b"a", b""], [b"a", b"b"]]
        return
    with pytest.raises(ps.InvalidArgumentError, match=r"test_batches.py.*rows of (str|bytes) cannot be padded with"):
        next(iter(padded))


@pytest.mark.parametrize("rows", [[np.zeros(2), None, None], [None, np.zeros(2), np.zeros(3)]], ids=["after", "before"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_arrays_beside_none_are_batched_as_objects_or_refused(rows, size):
    column = np.array(rows, dtype=object)
    for dataset in (
        ps.Dataset.from_tensor_slices(column),
        ps.Dataset.from_tensor_slices(column).filter(lambda x: True),
    ):
        try:
            found = [row for batch in dataset.batch(size) for row in batch]
        except ps.ElementError as error:
            assert "one shape" in str(error) or "one dtype" in str(error)  # noqa: PT017  # either way is right
        else:
            assert [row is None for row in found] == [row is None for row in rows]
        assert [np.shape(row) for row in dataset] == [np.shape(row) for row in rows]
        with pytest.raises(ValueError, match="read-only"):
            next(row for row in dataset if row is not None)[0] = 1


@pytest.mark.parametrize("local", [(0,), (0, 2), (1, 3), (0, 1), (0, 1, 3), (2, 3)])
@pytest.mark.parametrize("count", [9, 10, 11, 12])
def test_slices_that_are_not_adjacent_hold_their_rows_of_a_short_batch(count, local):
    batches = ps.Dataset.range(100, 100 + count).batch(8)
    slices = batches.node.local_slices(SliceRule(4), local)
    run = Run(slices, 1, Threads())
    whole = [np.arange(100, 108), np.arange(108, 100 + count)]
    expected = []
    for batch in whole:
        each = -(-len(batch) // 4)
        own = np.concatenate([batch[number * each : (number + 1) * each] for number in local])
        expected.append((own.tolist(), len(batch)))
    for indices in (range(2), range(1, 2), np.array([1, 0]), np.array([1])):
        rows = slices.read(run, 0, indices).rows()
        assert [(own.tolist(), int(size)) for own, size in rows] == [expected[int(number)] for number in indices]


@pytest.mark.parametrize("first", [np.empty(0, object), np.array(["a"], object)], ids=["nothing", "a word"])
def test_a_row_that_holds_arrays_is_not_padded_beside_rows_that_hold_none(first):
    nested = np.empty(2, object)
    nested[:] = [np.arange(2), np.arange(3)]
    rows = ps.Dataset.range(2).map(lambda x: nested if x else first)
    with pytest.raises(ps.ElementError, match="a row holds arrays of unequal shape: pad them first"):
        list(rows.padded_batch(2))
