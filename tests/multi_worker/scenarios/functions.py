"""Datasets and values that the user's function makes for each worker or replica."""

from typing import Any

import numpy as np
from scenarios.steps import all_of, said, shares_of

import penstock as ps

rows = ps.Dataset.range


def unequal_pipelines(strategy: Any) -> Any:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        return rows(7 + 5 * context.input_pipeline_id).batch(2)

    distributed = strategy.distribute_datasets_from_function(dataset_fn)
    return {"steps": all_of(strategy, distributed), "cardinality": distributed.cardinality()}


def unequal_pipelines_of_unknown_length(strategy: Any) -> Any:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        return rows(7 + 5 * context.input_pipeline_id).filter(lambda row: row < 11).batch(2)

    distributed = strategy.distribute_datasets_from_function(dataset_fn)
    return {"steps": all_of(strategy, distributed), "cardinality": distributed.cardinality()}


def one_known_and_one_unknown_length(strategy: Any) -> Any:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        dataset = rows(5)
        return (dataset.filter(lambda row: row < 2) if context.input_pipeline_id else dataset).batch(2)

    return all_of(strategy, strategy.distribute_datasets_from_function(dataset_fn))


def one_pipeline_without_data(strategy: Any) -> Any:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        return rows(3 * context.input_pipeline_id).batch(2)

    return all_of(strategy, strategy.distribute_datasets_from_function(dataset_fn))


def contexts(strategy: Any) -> Any:
    seen = []

    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        numbers = context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync
        seen.append([*numbers, context.get_per_replica_batch_size(12)])
        return rows(2).batch(1)

    strategy.distribute_datasets_from_function(dataset_fn)
    strategy.distribute_datasets_from_function(dataset_fn, ps.InputOptions(replication_mode="PER_REPLICA"))
    strategy.distribute_datasets_from_function(dataset_fn)
    return seen


def pipelines_per_replica(strategy: Any) -> Any:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        first = 10 * context.input_pipeline_id
        return rows(first, first + 3 + context.input_pipeline_id).batch(2)

    options = ps.InputOptions(replication_mode="PER_REPLICA")
    distributed = strategy.distribute_datasets_from_function(dataset_fn, options)
    return {"steps": all_of(strategy, distributed), "cardinality": distributed.cardinality()}


def scalars_without_end(strategy: Any) -> Any:
    distributed = strategy.distribute_datasets_from_function(
        lambda context: ps.Dataset.counter(100 * context.input_pipeline_id)
    )
    with iter(distributed) as steps:
        return [shares_of(strategy, next(steps)) for _ in range(3)]


def scalars_that_end(strategy: Any) -> Any:
    try:
        strategy.distribute_datasets_from_function(lambda context: rows(5))
    except ps.ElementError as error:
        return said(error)
    return None


def string_lookup(strategy: Any) -> Any:
    with strategy.scope():
        layer = ps.preprocessing.StringLookup(vocabulary=["a", "b", "c", "d", "f"])

    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        dataset = ps.Dataset.from_tensor_slices(np.array(["a", "c", "e"], object)).repeat()
        dataset = dataset.batch(context.get_per_replica_batch_size(4))
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id).map(layer)

    with iter(strategy.distribute_datasets_from_function(dataset_fn)) as steps:
        return [shares_of(strategy, next(steps)) for _ in range(3)]


def values(strategy: Any) -> Any:
    distributed = strategy.distribute_values_from_function(
        lambda context: {"id": context.replica_id_in_sync_group, "all": np.full(2, context.num_replicas_in_sync)}
    )
    doubled = strategy.run(lambda value: value["id"] * 2 + value["all"], args=(distributed,))
    return {"values": shares_of(strategy, distributed), "doubled": strategy.gather(doubled, axis=0)}


def partial_of_two_sizes(strategy: Any) -> Any:
    """The workers' batches have sizes of their own, so that no size is that of a full step."""

    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        return rows(8 + 2 * context.input_pipeline_id).batch(2 + 2 * context.input_pipeline_id)

    options = [ps.InputOptions(partial_batch=kind) for kind in ("pad", "drop")]
    return [all_of(strategy, strategy.distribute_datasets_from_function(dataset_fn, one)) for one in options]


def partial(strategy: Any) -> Any:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        return rows(7 + 5 * context.input_pipeline_id).batch(2)

    seen = {}
    for kind in ("ragged", "pad", "drop"):
        distributed = strategy.distribute_datasets_from_function(dataset_fn, ps.InputOptions(partial_batch=kind))
        seen[kind] = {
            "steps": all_of(strategy, distributed),
            "length": len(distributed),
            "spec": repr(distributed.element_spec),
        }
    return seen
