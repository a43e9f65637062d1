"""`run`, `reduce` and `gather` over the replicas of all workers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scenarios.steps import said, shares_of

import penstock as ps

rows = ps.Dataset.range


def _sums(batch: Any) -> Any:
    context = ps.get_replica_context()
    total = jnp.sum(batch)
    return {
        "replica": context.replica_id_in_sync_group,
        "own": total,
        "sum": context.all_reduce("SUM", total),
        "mean": context.all_reduce("MEAN", total * 1.0),
        "nested": context.all_reduce("SUM", (batch.shape[0], {"squares": jnp.sum(batch**2)})),
        "batch": batch * 2,
    }


def _computed(strategy: Any, step: Any) -> Any:
    try:
        over_replicas = {op: strategy.reduce(op, step) for op in ("SUM", "MEAN")}
    except ps.InvalidArgumentError as error:
        over_replicas = said(error)
    result = strategy.run(_sums, args=(step,))
    return {
        "run": shares_of(strategy, result),
        "over_rows": {op: strategy.reduce(op, step, axis=0) for op in ("SUM", "MEAN")},
        "over_replicas": over_replicas,
        "gather": strategy.gather(step, axis=0),
        "gather_doubled": strategy.gather(result["batch"], axis=0),
        "reduced_result": strategy.reduce("SUM", result["own"]),
    }


def steps(strategy: Any) -> Any:
    sizes = {"even": 8, "ragged": 7, "half": 3}  # workers without rows: see the steps of files
    seen = {}
    for name, size in sizes.items():
        (step,) = strategy.distribute_dataset(rows(size).batch(8))
        seen[name] = _computed(strategy, step)
    return seen


def steps_of_files(strategy: Any) -> Any:
    """The second worker, then the first, has less and at last no rows."""
    seen = []
    for names in (["long.txt", "short.txt"], ["short.txt", "long.txt"], ["empty.txt", "one.txt"]):
        distributed = strategy.distribute_dataset(ps.TextLineDataset(names).map(int).batch(8))
        seen.append([_computed(strategy, step) for step in distributed])
    return seen


def steps_of_functions(strategy: Any) -> Any:
    """Of known length."""

    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        return rows(10 - 5 * context.input_pipeline_id).batch(2)

    return [_computed(strategy, step) for step in strategy.distribute_datasets_from_function(dataset_fn)]


def padded_steps(strategy: Any) -> Any:
    def masked_sum(batch: Any, mask: Any) -> Any:
        return ps.get_replica_context().all_reduce("SUM", (jnp.sum(jnp.where(mask, batch, 0)), jnp.sum(mask)))

    options = ps.InputOptions(partial_batch="pad")
    dataset = ps.TextLineDataset(["long.txt", "short.txt"]).map(int).batch(8)
    before = strategy._control.sent
    distributed = strategy.distribute_dataset(dataset, options)
    seen = [shares_of(strategy, strategy.run(masked_sum, args=step)) for step in distributed]
    return {"steps": seen, "sent": strategy._control.sent - before}


def nested(strategy: Any) -> Any:
    arrays = {"x": np.arange(14, dtype=np.float32).reshape(7, 2), "y": (np.arange(7), np.ones(7, np.float32))}
    (step,) = strategy.distribute_dataset(ps.Dataset.from_tensor_slices(arrays).batch(8))
    doubled = strategy.run(lambda batch, factor: jax.tree.map(lambda leaf: leaf * factor, batch), args=(step, 2))
    return {
        "gather": strategy.gather(doubled, axis=0),
        "sum": strategy.reduce("SUM", doubled, axis=0),
        "last axis": strategy.gather(strategy.run(lambda batch: batch["x"][:1].T, args=(step,)), axis=1),
    }


def plain_values(strategy: Any) -> Any:
    """Values that every replica has."""
    total = strategy.run(
        lambda weights, name: weights["w"] + len(name), args=({"w": np.ones(2)},), kwargs={"name": "ab"}
    )
    return {
        "run": shares_of(strategy, total),
        "sum": strategy.reduce("SUM", 3),
        "mean": strategy.reduce("MEAN", np.array([3.0])),
    }


def strings(strategy: Any) -> Any:
    """Full and ragged steps of strings and of rows of unequal length; the first worker has no rows in the last step."""
    names = {"name": np.array(["a", "bb", "ccc", "d", "ee", "f", "g"]), "number": np.arange(7)}
    seen = {"steps": [], "lines": []}
    for step in strategy.distribute_dataset(ps.Dataset.from_tensor_slices(names).batch(4)):
        seen["steps"].append(strategy.gather(step, axis=0))
    for step in strategy.distribute_dataset(ps.TextLineDataset(["short.txt", "long.txt"]).batch(4)):
        seen["lines"].append(strategy.gather(step, axis=0))
    ragged = ps.Dataset.range(5).map(np.arange).ragged_batch(8)
    (step,) = strategy.distribute_dataset(ragged)
    seen["ragged"] = [row.tolist() for row in strategy.gather(step, axis=0)]
    seen["of each"] = strategy.gather(np.array(["x"]), axis=0)
    try:
        strategy.gather(np.array([{"a": 1}]), axis=0)
    except ps.InvalidTypeError as error:
        seen["refused"] = said(error)
    return seen


def predictions_in_order(strategy: Any) -> Any:
    """The guide's snippet: the index of each row tells where its prediction belongs."""
    predictions = {}
    for index, inputs in strategy.distribute_dataset(rows(23).enumerate().batch(6)):
        result = strategy.run(lambda index, inputs: (index, 2 * inputs), args=(index, inputs))
        for indices, outputs in strategy.local_results(result):
            predictions |= dict(zip(indices.tolist(), outputs.tolist(), strict=True))
    return sorted(predictions.items())


def a_result_that_is_no_number(strategy: Any) -> Any:
    try:
        strategy.run(lambda: "a string")
    except ps.InvalidTypeError as error:
        return said(error)
    return None


def many_steps(strategy: Any) -> Any:
    """Four full steps and a ragged one, of shared global batches and of files that workers read for themselves."""

    def step(total: Any, batch: Any) -> Any:
        own = ps.get_replica_context().all_reduce("SUM", jnp.sum(batch))
        return total + own, {"sum": own, "replica": ps.get_replica_context().replica_id_in_sync_group}

    seen = []
    for dataset in (rows(37).batch(8), ps.TextLineDataset(["long.txt", "short.txt"]).map(int).batch(8)):
        iterator = iter(strategy.distribute_dataset(dataset))
        total, told = 0, []
        try:
            while True:
                total, results = strategy.run_steps(step, iterator, 3, state=total, donate_state=bool(told))
                told.append(shares_of(strategy, results))
        except ps.OutOfRangeError:
            seen.append({"results": told, "total": shares_of(strategy, total)})
    return seen


# Training.


def _data() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    features = random.normal(size=(30, 3)).astype(np.float32)
    return {"x": features, "y": features @ np.array([1.0, -2.0, 0.5], np.float32) + 0.25}


def _train_step(weights: Any, batch: Any) -> Any:
    def loss_of(weights: Any) -> Any:
        return jnp.sum((batch["x"] @ weights["w"] + weights["b"] - batch["y"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(weights)
    count = batch["x"].shape[0]
    loss, gradients, count = ps.get_replica_context().all_reduce("SUM", (loss, gradients, count))
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient / count, weights, gradients), loss / count


def linear_regression(strategy: Any) -> Any:
    """Batches of 8 over 30 rows: the last one has 6, which leave the last replica empty."""
    distributed = strategy.distribute_dataset(ps.Dataset.from_tensor_slices(_data()).shuffle(30, seed=1).batch(8))
    weights: Any = {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}
    losses = []
    for _ in range(3):
        for batch in distributed:
            weights, loss = strategy.run(_train_step, args=(weights, batch))
            losses.append(strategy.reduce("MEAN", loss))
    return {"weights": shares_of(strategy, weights), "losses": losses}
