"""What needs all ways in which workers reach each other."""

from typing import Any

import jax.numpy as jnp

import penstock as ps


def _sum(batch: Any) -> Any:
    return ps.get_replica_context().all_reduce("SUM", jnp.sum(batch))


def sums_of_filtered_rows(strategy: Any) -> Any:
    rows = ps.Dataset.range(9).filter(lambda x: x > 0).batch(4)
    return [
        int(strategy.local_results(strategy.run(_sum, args=(step,)))[0]) for step in strategy.distribute_dataset(rows)
    ]
