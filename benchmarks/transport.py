"""How fast blocks get from two worker processes on this machine to a consumer, by each transport."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.timing import Figure
from penstock.data.block import Block
from penstock.runtime.memory import empty
from penstock.service.fetching import Chunk, End, Fetch
from penstock.service.interfaces import Answers
from penstock.service.subjects import Endpoint, Pass, Span
from penstock.service.transport.connect import connect
from penstock.service.transport.flight import FlightServer
from penstock.service.transport.place import this_machine
from penstock.service.transport.shared_memory_server import SharedMemoryServer
from penstock.structure import LEAF

WORKERS, ROUNDS = 2, 3
BATCH = (84, 224, 224, 3)
BATCHES = 100
GIGABYTES = WORKERS * BATCHES * int(np.prod(BATCH)) / 1e9


def produce(request: Fetch) -> Answers:
    """Batches of 12.6 MB, gathered from a pool in an order that cannot be had by views."""
    rng = np.random.default_rng(0)
    pool = rng.integers(0, 256, (256, *BATCH[1:]), np.uint8)
    for position in range(request.span.stop):
        batch = empty((1, *BATCH), np.dtype(np.uint8))
        pool.take(rng.integers(0, len(pool), BATCH[0]), axis=0, out=batch[0], mode="clip")
        yield Chunk(position=position, skip=0, rows=1), Block((batch,), LEAF, 1)
    yield End(length=request.span.stop)


REQUEST = Fetch(
    dataset_id="images",
    epoch=0,
    seed=0,
    policy=1,
    part=Pass(number=0),
    span=Span(pass_number=0, start=0, stop=BATCHES),
)


def work() -> None:
    """As a worker process: makes batches for nobody at each "make", then serves them."""
    for line in sys.stdin:
        if line == "serve\n":
            break
        print(seconds_of(produce(REQUEST)), flush=True)
    flight, shared = FlightServer(produce, "127.0.0.1"), SharedMemoryServer(produce)
    print(flight.port, shared.path, flush=True)
    sys.stdin.read()
    shared.stop()
    flight.stop()


def seconds_of(answers: Answers) -> float:
    """How long the blocks take after the first, up to the end."""
    next(answers)
    start = time.perf_counter()
    for _ in answers:
        pass
    return time.perf_counter() - start


def measure() -> list[Figure]:
    """The figures of this file."""
    command = [sys.executable, "-m", "benchmarks.transport"]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(WORKERS)
    ]
    with ThreadPoolExecutor(WORKERS) as threads:

        def ask(line: str) -> list[str]:
            for worker in workers:
                print(line, file=worker.stdin, flush=True)
            return list(threads.map(lambda worker: worker.stdout.readline().strip(), workers))

        in_memory = min(max(map(float, ask("make"))) for _ in range(ROUNDS))
        endpoints = [
            Endpoint(address=f"127.0.0.1:{port}", machine=this_machine(), socket=path)
            for port, path in map(str.split, ask("serve"))
        ]

        def fetched(protocol: str) -> float:
            lines = [connect(endpoint, protocol) for endpoint in endpoints]
            times = [max(threads.map(lambda line: seconds_of(line.fetch(REQUEST)), lines)) for _ in range(ROUNDS)]
            for line in lines:
                line.close()
            return min(times)

        shared, flight, memcpy = fetched("shared_memory"), fetched("flight"), copied()
    for worker in workers:
        worker.communicate()
    return [
        Figure("2 workers' batches of 12.6 MB, shared memory / into their own memory", in_memory / shared, 0.6),
        Figure("2 workers' batches of 12.6 MB, shared memory", GIGABYTES / shared, 3.6, unit="GB/s"),
        Figure("2 workers' batches of 12.6 MB, Arrow Flight", GIGABYTES / flight, 1.4, unit="GB/s"),
        Figure("shared memory / memcpy", memcpy / shared, 0.5),
        Figure("Arrow Flight / memcpy", memcpy / flight, 0.05),
    ]


def copied() -> float:
    """Seconds in which one thread copies as many bytes, from memory that no cache holds."""
    source = np.ones((20, *BATCH), np.uint8)
    target = np.empty(BATCH, np.uint8)
    np.copyto(target, source[0])
    start = time.perf_counter()
    for number in range(WORKERS * BATCHES):
        np.copyto(target, source[number % len(source)])
    return time.perf_counter() - start


if __name__ == "__main__":
    work()
