"""From a dataset to steps: what each worker reads, the agreement between workers, and prefetching."""
