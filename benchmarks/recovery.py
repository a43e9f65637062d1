"""Time that a reader waits when the worker dies that makes its next element."""

import os
import signal
import statistics
import time

import numpy as np

import penstock as ps
from benchmarks.timing import Figure
from penstock.service.local import LocalService

SERVICES, DEATHS = 4, 9  # a service replaces so many workers at once
ELEMENT_SECONDS = 0.005


def of_process(x: int) -> np.ndarray:
    time.sleep(ELEMENT_SECONDS)
    return np.array([x, os.getpid()])


def waits(service: LocalService) -> list[float]:
    """Seconds from each death to the next element, which is in order."""
    dataset = ps.Dataset.range(1 << 40).map(of_process)
    dataset = dataset.apply(ps.service.distribute("distributed_epoch", service.target, max_outstanding_requests=4))
    found: list[float] = []
    with iter(dataset) as elements:
        for number, (_, process) in enumerate(elements):
            if number % 200 != 199:
                continue
            os.kill(int(process), signal.SIGKILL)
            begun = time.perf_counter()
            for _ in range(8):  # the worst of the elements that were under way
                next(elements)
            found.append(time.perf_counter() - begun)
            if len(found) == DEATHS:
                return found
    return found


def measure() -> list[Figure]:
    """The figures of this file."""
    seconds = []
    for _ in range(SERVICES):
        with ps.service.local(num_workers=3) as service:
            seconds += waits(service)
    p50, p99 = statistics.median(seconds), float(np.percentile(seconds, 99))
    return [
        Figure("8 elements of 5 ms after a worker's death, p50", 1e3 * p50, 100, False, "ms"),
        Figure("the same, p99", 1e3 * p99, 1000, False, "ms"),
    ]
