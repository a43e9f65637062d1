"""Strings in a batch stay in host memory, and a step on devices is told so only where it uses them."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.distribute.conftest import mirrored

import penstock as ps

NAMES = np.array(["a", "bb", "ccc", "d", "ee", "f"])


def steps_of(strategy: ps.Strategy, batch: int = 4, names: Any = NAMES) -> ps.types.DistributedDataset:
    dataset = ps.Dataset.from_tensor_slices({"name": names, "number": np.arange(6)})
    return strategy.distribute_dataset(dataset.batch(batch))


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_strings_pass_by_steps_that_do_not_use_them(replicas: int) -> None:
    strategy, traced = mirrored(replicas), []

    def step(batch):
        traced.append(batch["number"].shape)
        return ps.get_replica_context().all_reduce("SUM", batch["number"].sum())

    totals, names = [], []
    for _ in range(2):
        for batch in steps_of(strategy):
            totals.append(int(strategy.local_results(strategy.run(step, args=(batch,)))[0]))
            names += strategy.gather(batch["name"], axis=0).tolist()
    assert totals == [6, 9] * 2
    assert names == [*NAMES.tolist()] * 2
    assert len(traced) == 2  # one program for the full steps, one for the last
    results = strategy.run_steps(step, iter(steps_of(strategy)), 2)
    assert np.asarray(strategy.local_results(results)[0]).tolist() == [6, 9]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    "use", [lambda name: name + "x", jnp.asarray, lambda name: name, lambda name: name.shape, lambda name: name[0], len]
)
def test_a_step_that_uses_them_is_told_where_they_are(replicas: int, use) -> None:
    strategy = mirrored(replicas)
    with pytest.raises(ps.InvalidTypeError, match=r"array of dtype (object|<U3|StringDT).*turn strings into numbers"):
        strategy.run(lambda batch: use(batch["name"]), args=(next(iter(steps_of(strategy))),))


def test_strings_of_any_length_are_strings_too() -> None:
    strategy, names = mirrored(2), NAMES.astype(np.dtypes.StringDType())
    seen = []
    for batch in steps_of(strategy, names=names):
        strategy.run(lambda batch: batch["number"].sum(), args=(batch,))
        seen += strategy.gather(batch["name"], axis=0).tolist()
    assert seen == NAMES.tolist()
    with pytest.raises(ps.InvalidTypeError, match="takes numbers"):
        strategy.reduce("SUM", ps.PerReplica([names, names]))


def test_a_step_with_strings_can_be_compiled_ahead() -> None:
    strategy, traced = mirrored(2), []

    def step(batch):
        traced.append(batch["number"].shape)
        return batch["number"].sum()

    dataset = ps.Dataset.from_tensor_slices({"name": NAMES, "number": np.arange(6)}).batch(2)
    distributed = strategy.distribute_dataset(dataset)
    strategy.compile(step, args=(distributed.element_spec,))
    ahead = len(traced)
    for batch in distributed:
        strategy.run(step, args=(batch,))
    assert len(traced) == ahead
