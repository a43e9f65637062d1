"""Partitioners against the values of TensorFlow 2.21's, and the rows of shards."""

import numpy as np
import pytest

import penstock as ps
from penstock.parameter_server.partitioners import row_bounds

# Each as tf.distribute.experimental.partitioners gave it for float32: shape, partitions.
TENSORFLOW = [
    (ps.parameter_server.FixedShardsPartitioner(2), (10, 3), [2, 1]),
    (ps.parameter_server.FixedShardsPartitioner(4), (3, 2), [3, 1]),
    (ps.parameter_server.MinSizePartitioner(4, 2), (6, 1), [2, 1]),
    (ps.parameter_server.MinSizePartitioner(4, 10), (6, 1), [6, 1]),
    (ps.parameter_server.MinSizePartitioner(), (1 << 20, 1), [1, 1]),
    (ps.parameter_server.MinSizePartitioner(max_shards=8), (300_000, 1), [5, 1]),
    (ps.parameter_server.MinSizePartitioner(100, 3), (7,), [1]),
    (ps.parameter_server.MaxSizePartitioner(4), (6, 1), [6, 1]),
    (ps.parameter_server.MaxSizePartitioner(4, 2), (6, 1), [2, 1]),
    (ps.parameter_server.MaxSizePartitioner(1024), (6, 1), [1, 1]),
    (ps.parameter_server.MaxSizePartitioner(100), (10, 10), [5, 1]),
    (ps.parameter_server.MaxSizePartitioner(1), (10, 10), [10, 1]),
]


@pytest.mark.parametrize(("partitioner", "shape", "expected"), TENSORFLOW)
def test_partitions_are_tensorflows(partitioner, shape, expected) -> None:
    assert partitioner(shape, np.float32) == expected


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 8])
def test_shards_hold_every_row_once_and_differ_by_one_row_at_most(shards) -> None:
    bounds = row_bounds((7, 2), np.float32, ps.parameter_server.FixedShardsPartitioner(shards))
    assert [row for begin, end in bounds for row in range(begin, end)] == list(range(7))
    sizes = [end - begin for begin, end in bounds]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_scalars_are_not_divided() -> None:
    assert row_bounds((), np.float32, ps.parameter_server.FixedShardsPartitioner(4)) == [(0, 1)]


@pytest.mark.parametrize("answer", [None, 2, [2], [2.5, 1], [0, 1], [1, 2], [11, 1], ["2", 1], [2, 1, 1]], ids=str)
def test_answers_of_a_partitioner_are_checked(answer) -> None:
    with pytest.raises(
        (ps.InvalidTypeError, ps.InvalidArgumentError), match=r"a number of shards for each axis of \(10, 3\)"
    ):
        row_bounds((10, 3), np.float32, lambda shape, dtype: answer)
