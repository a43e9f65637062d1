"""Messages between workers because of their input, counted in two processes on this machine."""

import io
import json
import sys

import penstock as ps
from benchmarks.timing import Figure
from penstock.launch import launch

STEPS = 1000


def measure() -> list[Figure]:
    """The figures of this file."""
    output = io.BytesIO()
    command = [sys.executable, "-m", "benchmarks.multi_worker"]
    status = launch(command, num_workers=2, devices_per_worker=2, stdout=output, stderr=io.BytesIO())
    if status:
        raise RuntimeError(f"the workers ended with status {status}")
    lines = [line.partition(" ")[2] for line in output.getvalue().decode().splitlines()]
    counts = [json.loads(line) for line in lines if line.startswith("{")]
    return [
        Figure(f"2 workers, {STEPS} steps of known length", max(c["known"] for c in counts), 0, False, " messages"),
        Figure(
            f"2 workers, {STEPS} steps of a filter", max(c["filter"] for c in counts), STEPS + 2, False, " messages"
        ),
    ]


def count() -> None:
    """As one of the workers: how many messages it sends while it iterates."""
    strategy = ps.MultiWorkerMirroredStrategy()
    known = ps.Dataset.range(STEPS * 8).shuffle(100).batch(8)
    datasets = {"known": known, "filter": known.unbatch().filter(lambda x: x >= 0).batch(8)}
    sent = {}
    for name, dataset in datasets.items():
        steps = strategy.distribute_dataset(dataset)
        before = strategy._control.sent
        taken = sum(1 for _ in steps)
        assert taken == STEPS
        sent[name] = strategy._control.sent - before
    print(json.dumps(sent), flush=True)


if __name__ == "__main__":
    count()
