"""Batches of rows of unequal shape: padded, ragged and by length."""

import numpy as np
import pytest

import penstock as ps
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


def test_a_fixed_axis_that_happens_to_be_as_long_as_the_sequence_is_not_padded():
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


def test_an_axis_that_differs_is_padded_to_the_boundary_though_the_length_is_that_of_another_leaf():
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


def test_an_element_too_long_for_its_buckets_is_named_and_costs_itself_alone():
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


def test_ragged_batch_is_ragged_where_the_length_of_an_axis_is_open_though_rows_are_alike():
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
