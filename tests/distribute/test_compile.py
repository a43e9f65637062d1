"""A step compiled ahead of time from the specification of a distributed dataset is what its steps then run."""

import jax
import numpy as np
import pytest
from tests.distribute.conftest import mirrored

import penstock as ps


def image_dataset(rows: int) -> ps.Dataset:
    images = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    return ps.Dataset.from_tensor_slices({"image": images, "label": np.arange(rows)})


@pytest.mark.slow
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


def test_a_step_that_is_not_as_it_was_assumed_to_be_names_the_signature(four) -> None:
    def rows(x):
        return np.zeros(3 if x < 8 else 2, np.float32)

    def step(batch):
        return batch.sum()

    def unrelated(batch):
        return batch.max()

    assumed = four.distribute_dataset(ps.Dataset.range(16).map(rows).batch(8))
    spec = assumed.element_spec
    assert repr(spec.values[0]) == "TensorSpec(shape=(2, ~3), dtype=~float32)"
    four.compile(step, args=(spec,))
    first, second = assumed
    four.run(step, args=(first,))
    with pytest.raises(ps.InvalidArgumentError, match=r"assumed.*shape \(2, 2\).*map\(output_signature=\.\.\.\)"):
        four.run(step, args=(second,))
    # Nobody relied on it elsewhere; and where it is promised, the dataset itself says which row breaks it.
    four.run(unrelated, args=(second,))
    promised = ps.Dataset.range(16).map(rows, output_signature=ps.TensorSpec((3,), np.float32)).batch(8)
    with pytest.raises(ps.ElementError, match=r"output_signature.*shape=\(3,\).*got .*shape=\(2,\)"):
        list(four.distribute_dataset(promised))


def test_batches_that_a_function_makes_are_assumed_to_be_alike(four) -> None:
    batches = ps.Dataset.from_generator(lambda: iter([np.zeros((8, 2), np.float32), np.zeros((4, 2), np.float32)]))
    steps = four.distribute_dataset(batches)
    assert repr(steps.element_spec.values[0]) == "TensorSpec(shape=(~2, ~2), dtype=~float32)"

    def step(batch):
        return batch.sum()

    four.compile(step, args=(steps.element_spec,))
    first, second = steps
    four.run(step, args=(first,))
    with pytest.raises(ps.InvalidArgumentError, match=r"output_signature"):
        four.run(step, args=(second,))


def test_rows_of_unequal_length_cannot_be_compiled_for(four) -> None:
    rows = ps.Dataset.from_generator(lambda: iter([[1], [2, 3]] * 4), ps.TensorSpec((None,), np.int64))
    steps = four.distribute_dataset(rows.ragged_batch(4, drop_remainder=True))
    assert repr(steps.element_spec.values[0]) == "RaggedTensorSpec(shape=(1, None), dtype=int64, ragged_rank=1)"
    with pytest.raises(ps.InvalidTypeError, match="padded_batch"):
        four.compile(lambda batch: batch, args=(steps.element_spec,))


def test_distributing_a_dataset_calls_none_of_its_functions(four) -> None:
    called = []
    dataset = ps.Dataset.range(16).map(lambda x: called.append(x) or x).batch(8)
    steps = four.distribute_dataset(dataset)
    assert len(steps) == 2
    assert called == []
    assert steps.element_spec == steps.element_spec
    assert called == [0]
