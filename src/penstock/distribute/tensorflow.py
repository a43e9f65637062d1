"""TensorFlow's names for the arguments and methods of strategies and replicas, where they differ."""

from penstock.other_names import NotHere, OtherNames

_COMPILED = NotHere("run compiles the function for the shapes that it is given, once for each")
_BY_XLA = NotHere("XLA chooses how the devices exchange values")
_FOUND = NotHere(
    "coordinator_address, num_workers and worker_index say who takes part; without them the launcher's environment does"
)
_BY_HAND = NotHere("shard over a mesh of jax.sharding; a replica is one device here")
_NEXT = NotHere("use iter(strategy.distribute_dataset(dataset))")

STRATEGY = OtherNames(
    keywords={
        "__init__": {
            "cluster_resolver": _FOUND,
            "communication_options": _BY_XLA,
            "cross_device_ops": _BY_XLA,
            "experimental_device_assignment": NotHere("a replica is one core"),
            "experimental_spmd_xla_partitioning": _BY_HAND,
            "tpu_cluster_resolver": _FOUND,
        },
        "distribute_dataset": {"options": "input_options"},
        "distribute_datasets_from_function": {"options": "input_options"},
        "reduce": {"reduce_op": "op"},
        "run": {"options": _COMPILED},
    },
    attributes={
        "cluster_resolver": _FOUND,
        "colocate_vars_with": _BY_HAND,
        "configure": _FOUND,
        "experimental_assign_to_logical_device": _BY_HAND,
        "experimental_distribute_dataset": "distribute_dataset",
        "experimental_distribute_datasets_from_function": "distribute_datasets_from_function",
        "experimental_distribute_values_from_function": "distribute_values_from_function",
        "experimental_local_results": "local_results",
        "experimental_make_numpy_dataset": NotHere("use ps.Dataset.from_tensor_slices(arrays)"),
        "experimental_replicate_to_logical_devices": _BY_HAND,
        "experimental_run": NotHere("use strategy.run(fn, args=(next(iterator),))"),
        "experimental_run_v2": "run",
        "experimental_split_to_logical_devices": _BY_HAND,
        "extended": NotHere("it is for those who write strategies"),
        "group": NotHere("nothing has to be grouped: there are no graphs"),
        "make_dataset_iterator": _NEXT,
        "make_input_fn_iterator": NotHere("use iter(strategy.distribute_datasets_from_function(dataset_fn))"),
        "unwrap": "local_results",
        "update_config_proto": _FOUND,
    },
)
"""Of every strategy."""

REPLICA = OtherNames(
    keywords={"all_gather": {"options": _BY_XLA}, "all_reduce": {"reduce_op": "op", "options": _BY_XLA}},
    attributes={
        "devices": NotHere("strategy.run places what a replica is given"),
        "merge_call": NotHere("there is no cross-replica context: all_reduce joins the replicas' values"),
        "strategy": NotHere("use the strategy that the function is run by"),
    },
)
"""Of what `ps.get_replica_context()` gives."""
