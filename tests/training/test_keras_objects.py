"""What variables are for is known from what was seen being made, whatever the garbage collector knows."""

import copy
import gc

import keras
import numpy as np
import pytest
from tests.distribute.conftest import mirrored

import penstock as ps


@pytest.fixture
def frozen():
    """Objects that exist when it is called are hidden from `gc.get_objects()`."""
    yield gc.freeze
    gc.unfreeze()


def test_metrics_count_once_and_masks_differ_after_gc_freeze(frozen) -> None:
    strategy = mirrored(2)
    with strategy.scope():
        metric, dropout = keras.metrics.Sum(), keras.layers.Dropout(0.5, seed=3)
    frozen()

    def step(rows):
        metric.update_state(rows)
        return dropout(rows, training=True)

    dataset = ps.Dataset.from_tensors(np.ones((64, 2), np.float32)).repeat(2)
    for number, batch in enumerate(strategy.distribute_dataset(dataset), start=1):
        first, second = (np.asarray(part) for part in strategy.run(step, args=(batch,)).values)
        assert float(metric.result()) == 128 * number
        assert not np.array_equal(first, second)


def test_a_copied_metric_is_a_metric() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        copied = copy.deepcopy(keras.metrics.Sum())
    batch = next(iter(strategy.distribute_dataset(ps.Dataset.range(4).batch(4))))
    strategy.run(copied.update_state, args=(batch,))
    assert float(copied.result()) == 6
