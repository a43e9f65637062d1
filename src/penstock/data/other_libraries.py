"""What libraries other than TensorFlow call the arguments and methods of a dataset, and what to use instead."""

from penstock.other_names import names_of

_PARALLEL = "map(fn, num_parallel_calls=n) calls fn in n threads, with processes=True in n processes"
_SEED = "seed=... takes a number, from which the order of every epoch follows"
_BATCHES = "batch, padded_batch and ragged_batch make batches; a map after them changes these"
_TENSORS = "elements are NumPy's; ps.torch.loader(dataset) gives tensors, ps.jax.loader(dataset, ...) arrays of JAX"
_SPLIT = "shuffle(seed=..., reshuffle_each_iteration=False), then take(n) and skip(n)"
_COLUMNS = "map(lambda row: {...}) gives other columns; readers of tables take columns=[...]"
_ITERATORS_STATE = "an iterator has it: iterator = iter(dataset)"
_ONE_CLASS = "nothing is needed: iter(dataset) reads any dataset from front to back"

KEYWORDS = {
    **names_of(
        "PyTorch",
        {
            "collate_fn": _BATCHES,
            "drop_last": "batch, padded_batch and ragged_batch take drop_remainder=True",
            "generator": _SEED,
            "num_workers": _PARALLEL,
        },
    ),
    **names_of(
        "Hugging Face",
        {
            "batched": "batch(1000).map(fn) calls fn with batches, and unbatch() gives rows again",
            "num_proc": _PARALLEL,
        },
    ),
    **names_of("NumPy", {"random_state": _SEED, "rng": _SEED}),
}
"""Arguments that are tried on any method, and that none has."""

DATASETS = {
    **names_of(
        "PyTorch",
        {
            "collate": _BATCHES,
            "load_state_dict": _ITERATORS_STATE,
            "random_split": _SPLIT,
            "sharding_filter": "shard(num_shards, index), or nothing: strategies and loaders divide batches",
            "state_dict": _ITERATORS_STATE,
        },
    ),
    **names_of(
        "Grain",
        {
            "map_with_index": "enumerate().map(fn) calls fn(index, element)",
            "mix": "ps.Dataset.sample_from_datasets(datasets, weights)",
            "mp_prefetch": "map(fn, num_parallel_calls=n, processes=True), or ps.service.local for the whole pipeline",
            "random_map": "map(fn, seed=...) calls fn(element, generator)",
            "seed": "shuffle(seed=...) and map(fn, seed=...), or for all steps with_options(ps.Options(seed=...))",
            "slice": "dataset[start:stop]",
            "to_iter_dataset": _ONE_CLASS,
        },
    ),
    **names_of(
        "Hugging Face",
        {
            "column_names": "dataset.element_spec has the columns and their types",
            "features": "dataset.element_spec has the columns and their types",
            "iter": "iterate over dataset.batch(batch_size)",
            "num_rows": "len(dataset), or dataset.cardinality() where the length may be unknown",
            "push_to_hub": 'save(directory, format="parquet") writes files to upload',
            "remove_columns": _COLUMNS,
            "rename_column": _COLUMNS,
            "rename_columns": _COLUMNS,
            "select": "ps.Dataset.from_tensor_slices(indices).map(dataset.__getitem__)",
            "select_columns": _COLUMNS,
            "set_epoch": "nothing is needed: each iteration is the next epoch, and its state has the number",
            "set_format": _TENSORS,
            "set_transform": "map(fn)",
            "to_iterable_dataset": _ONE_CLASS,
            "to_list": "list(dataset)",
            "train_test_split": _SPLIT,
            "with_format": _TENSORS,
            "with_transform": "map(fn)",
        },
    ),
    **names_of(
        "WebDataset",
        {
            "compose": "apply(function) gives function(dataset)",
            "decode": "ps.TarDataset decodes numbers, text and arrays; map(ps.image.decode) decodes images",
            "to_tuple": 'map(lambda sample: (sample["jpg"], sample["cls"]))',
            "with_epoch": "repeat().take(n)",
        },
    ),
    **names_of(
        "Ray",
        {
            "iter_batches": "iterate over dataset.batch(batch_size)",
            "iter_torch_batches": "ps.torch.loader(dataset.batch(batch_size))",
            "limit": "take(n)",
            "map_batches": "batch(batch_size).map(fn)",
            "materialize": "cache()",
            "random_shuffle": "shuffle(seed=...)",
            "union": "concatenate(other)",
        },
    ),
}
"""Attributes that are tried on a dataset."""

ITERATORS = names_of(
    "Grain", {"get_state": "use iterator.state_dict()", "set_state": "use iterator.load_state_dict(state)"}
)
"""Attributes that are tried on an iterator."""
