"""A step compiled ahead of time from the specification of a distributed dataset."""

import jax
import numpy as np
import pytest
from tests.distribute.conftest import mirrored

import penstock as ps


def image_dataset(rows: int) -> ps.Dataset:
    images = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    return ps.Dataset.from_tensor_slices({"image": images, "label": np.arange(rows)})


@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("partial_batch", ["pad", "drop"])
def test_the_steps_of_a_dataset_run_the_program_that_was_compiled_ahead(replicas: int, partial_batch: str) -> None:
    strategy = mirrored(replicas)
    steps = strategy.distribute_dataset(image_dataset(11).batch(4), ps.InputOptions(partial_batch=partial_batch))
    traced = []

    def step(weights, batch, *, scale):
        traced.append(jax.tree.map(np.shape, batch))
        rows, mask = batch if partial_batch == "pad" else (batch, 1)
        return ps.get_replica_context().all_reduce("SUM", (rows["image"].sum(axis=1) * mask).sum() * scale) + weights

    strategy.compile(step, args=(np.float32(0), steps.element_spec), kwargs={"scale": 2})
    assert len(traced) == 1
    totals = [
        float(np.asarray(of_first_replica(strategy.run(step, (np.float32(0), batch), {"scale": 2})))) for batch in steps
    ]
    assert len(traced) == 1
    images = np.arange(33, dtype=np.float32).reshape(11, 3)
    rows = [images[0:4], images[4:8], images[8:11]][: 3 if partial_batch == "pad" else 2]
    assert totals == [2 * part.sum() for part in rows]


def of_first_replica(value):
    return value.values[0] if isinstance(value, ps.PerReplica) else value


def test_a_specification_with_an_open_length_cannot_be_compiled_for(four) -> None:
    steps = four.distribute_dataset(ps.Dataset.range(11).batch(4))
    with pytest.raises(ps.InvalidArgumentError, match="drop_remainder=True"):
        four.compile(lambda rows: rows, args=(steps.element_spec,))


def test_replicas_in_host_memory_have_nothing_to_compile_but_check_the_call() -> None:
    strategy = ps.HostStrategy(replicas_per_worker=2)
    ran = []
    strategy.compile(ran.append, args=(strategy.distribute_dataset(ps.Dataset.range(4).batch(2)).element_spec,))
    assert ran == []
    with pytest.raises(ps.InvalidTypeError, match="takes a function"):
        strategy.compile(None)
