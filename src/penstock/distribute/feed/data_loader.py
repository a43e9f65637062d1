"""Arguments of PyTorch's `DataLoader`, as errors of `ps.torch.loader` and `ps.jax.loader` answer them."""

from typing import Final

from penstock.other_names import Names, NotHere

_SHUFFLED: Final = NotHere("dataset.shuffle(seed=...) orders all rows; without it they come in order")
_CALLS: Final = NotHere(
    "dataset.map(fn, num_parallel_calls=ps.AUTOTUNE) calls in threads, and "
    "map(fn, num_parallel_calls=4, processes=True) in processes, which are kept for the next epoch"
)
DATA_LOADER: Final[Names] = {
    "batch_size": NotHere("dataset.batch(n) makes the batches: n is the rows of one step of all processes together"),
    "shuffle": _SHUFFLED,
    "generator": _SHUFFLED,
    "sampler": NotHere("dataset.select(indices), sample(weights) or shuffle(seed=...), or ps.Dataset.from_sampler"),
    "batch_sampler": NotHere("dataset.bucket_by_sequence_length(...), group_by_window(...) or ragged_batch(...)"),
    "num_workers": _CALLS,
    "persistent_workers": _CALLS,
    "multiprocessing_context": _CALLS,
    "worker_init_fn": NotHere("dataset.map(fn, seed=1) gives functions random numbers, in processes the same"),
    "collate_fn": NotHere(
        "dataset.batch(n), padded_batch or ragged_batch put rows together; collate=... takes the arrays of a batch"
    ),
    "drop_last": NotHere(
        'dataset.batch(n, drop_remainder=True), or input_options=ps.InputOptions(partial_batch="drop")'
    ),
    "timeout": NotHere("failure_timeout_seconds=... is how long other processes are waited for"),
    "prefetch_factor": NotHere("input_options=ps.InputOptions(per_replica_buffer_size=...)"),
    "pin_memory_device": NotHere('of ps.torch.loader device="cuda" pins and copies, and pin_memory=True pins alone'),
    "in_order": NotHere("elements come in order; many calls go on behind a slow one"),
}
