"""What `DataLoader` calls the arguments of `ps.torch.loader`, and where they are here."""

from penstock.other_names import names_of

_ORDER = "shuffle the dataset, dataset.shuffle(seed=...)"
_CALLS = "the dataset's map(fn, num_parallel_calls=n) calls fn in n threads, with processes=True in n processes"
_NOTHING = (
    "nothing is needed: map(fn, processes=True) keeps its processes, and map(fn, seed=...) gives fn random numbers"
)

DATA_LOADER = names_of(
    "PyTorch",
    {
        "batch_sampler": "batch the dataset by bucket_by_sequence_length, group_by_window or ragged_batch",
        "batch_size": "batch the dataset, dataset.batch(size), where size is that of all ranks together",
        "collate_fn": "the dataset's batch, padded_batch or ragged_batch make batches; a map after them changes these",
        "drop_last": "dataset.batch(size, drop_remainder=True)",
        "generator": _ORDER,
        "in_order": "elements come in order, and a slow call holds up only those that come much later",
        "multiprocessing_context": _NOTHING,
        "num_workers": _CALLS,
        "persistent_workers": _NOTHING,
        "pin_memory_device": 'device="cuda" pins and copies',
        "prefetch_factor": "input_options=ps.InputOptions(per_replica_buffer_size=n)",
        "sampler": f"{_ORDER}, or map indices, indices.map(data.__getitem__)",
        "shuffle": _ORDER,
        "timeout": "failure_timeout_seconds=... is how long ranks wait for each other",
        "worker_init_fn": _NOTHING,
    },
)
