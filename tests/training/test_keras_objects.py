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


@pytest.mark.slow
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


class Extreme(keras.Metric):
    """A metric that somebody wrote, which keeps one number by some rule."""

    def __init__(self, rule, aggregation="sum"):
        super().__init__(name="extreme")
        self.rule = rule
        self.kept = self.add_variable((), "zeros", aggregation=aggregation, name="kept")

    def update_state(self, rows):
        self.kept.assign(self.rule(self.kept, rows))

    def result(self):
        return self.kept.value


def maximum(kept, rows):
    return keras.ops.maximum(kept, keras.ops.max(rows))


def kept_over_steps(metric_of, rows: int = 16) -> float:
    """What a metric keeps of 0 to 15 in batches of 8 on 4 replicas, or of fewer with a ragged step."""
    strategy = mirrored(4)
    with strategy.scope():
        metric = metric_of()
    for batch in strategy.distribute_dataset(ps.Dataset.range(rows).batch(8)):
        strategy.run(lambda values: metric.update_state(keras.ops.cast(values, "float32")), args=(batch,))
    return float(metric.result())


@pytest.mark.parametrize("rows", [16, 7])
@pytest.mark.parametrize(
    "rule", [maximum, lambda kept, rows: 0.9 * kept + keras.ops.sum(rows), lambda kept, rows: kept + kept]
)
def test_a_metric_that_is_no_sum_is_refused(rule, rows: int) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=r"extreme/kept by more than adding.*only_first_replica"):
        kept_over_steps(lambda: Extreme(rule), rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        lambda kept, rows: kept + keras.ops.sum(rows),
        lambda kept, rows: keras.ops.where(keras.ops.shape(rows)[0] > 0, kept.value + keras.ops.sum(rows), kept.value),
        lambda kept, rows: keras.ops.cond(
            keras.ops.any(rows >= 0), lambda: kept + keras.ops.sum(rows), lambda: kept.value - 0.0
        ),
    ],
)
@pytest.mark.parametrize("rows", [16, 11])
def test_a_metric_that_somebody_wrote_is_summed(rule, rows: int) -> None:
    assert kept_over_steps(lambda: Extreme(rule), rows) == sum(range(rows))


@pytest.mark.slow
def test_variables_become_one_as_their_aggregation_says() -> None:
    assert kept_over_steps(lambda: Extreme(lambda kept, rows: rows[0], "mean")) == 11  # of 8, 10, 12, 14
    assert kept_over_steps(lambda: Extreme(lambda kept, rows: rows[0], "only_first_replica")) == 8
    with pytest.raises(ps.InvalidArgumentError, match="aggregation='none'"):
        kept_over_steps(lambda: Extreme(maximum, "none"))


def test_a_maximum_is_right_on_one_replica() -> None:
    strategy = mirrored(1)
    with strategy.scope():
        metric = Extreme(maximum)
    for batch in strategy.distribute_dataset(ps.Dataset.range(16).map(np.float32).batch(8)):
        strategy.run(metric.update_state, args=(batch,))
    assert float(metric.result()) == 15
