"""Statistics as one dictionary of numbers, for those that plot a run: W&B, MLflow, TensorBoard, Prometheus."""

from penstock.statistics.schema import Snapshot


def metrics_of(snapshot: Snapshot, skipped: int) -> dict[str, float]:
    """Return the numbers of an iterator by name, those of its operators with their place in the dataset."""
    steps = snapshot.steps
    blocked, yours = steps.blocked, steps.yours
    found: dict[str, float] = {
        "steps": steps.count,
        "steps_per_second": steps.count / snapshot.elapsed if snapshot.elapsed else 0.0,
        "waiting_share": blocked.total / max(blocked.total + yours.total, 1e-9),
        "blocked_seconds": blocked.total,
        "blocked_seconds_mean": blocked.mean,
        "blocked_seconds_p99": blocked.percentile(99),
        "yours_seconds": yours.total,
        "yours_seconds_mean": yours.mean,
        "skipped_rows": skipped,
    }
    for number, operator in enumerate(snapshot.operators):
        counts = snapshot.of(number)
        own = {"rows": counts.rows, "bytes": counts.nbytes, "seconds": counts.seconds, "waited_seconds": counts.waited}
        found |= {f"{number}_{operator.name}/{name}": value for name, value in own.items()}
    return {f"penstock/{name}": float(value) for name, value in found.items()}
