"""Speed of blocks from two worker processes on this machine to a consumer, by each transport."""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from pyarrow import flight

from benchmarks.timing import Figure
from penstock.data.block import Block
from penstock.runtime.memory import empty
from penstock.service.security.credentials import ServerSettings
from penstock.service.transport.block_server import BlockServer
from penstock.service.transport.connect import connect
from penstock.service.transport.identity import this_machine
from penstock.service.wire.interfaces import Answers
from penstock.service.wire.subjects import Endpoint, PassInfo, Span
from penstock.service.wire.worker_messages import Chunk, End, Fetch
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
    pass_info=PassInfo(number=0),
    span=Span(pass_number=0, start=0, stop=BATCHES),
)


class BareServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """The same batches by Arrow Flight, beside which the network transport is measured."""

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        schema = pa.schema([("images", pa.large_binary())])

        def batches() -> Iterator[pa.RecordBatch]:
            for answer in produce(REQUEST):
                if isinstance(answer, tuple):
                    images = answer[1].columns[0]
                    ends = pa.py_buffer(np.array([0, images.nbytes]))
                    array = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(images)])
                    yield pa.RecordBatch.from_arrays([array], schema=schema)

        return flight.GeneratorStream(schema, batches())


def work() -> None:
    """As a worker process: makes batches for nobody at each "make", then serves them."""
    for line in sys.stdin:
        if line == "serve\n":
            break
        print(seconds_of(produce(REQUEST)), flush=True)
    server, bare = BlockServer(produce, ServerSettings().access()), BareServer("grpc://127.0.0.1:0")
    print(server.port, server.socket, bare.port, flush=True)
    sys.stdin.read()
    server.stop()
    bare.shutdown()


def seconds_of(answers: Answers) -> float:
    """Time of the blocks after the first, up to the end."""
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
        served = [line.split() for line in ask("serve")]
        endpoints = [
            Endpoint(address=f"127.0.0.1:{port}", machine=this_machine(), socket=path) for port, path, _ in served
        ]

        def fetched(protocol: str) -> float:
            lines = [connect(endpoint, protocol) for endpoint in endpoints]
            times = [max(threads.map(lambda line: seconds_of(line.fetch(REQUEST)), lines)) for _ in range(ROUNDS)]
            for line in lines:
                line.close()
            return min(times)

        def fetched_bare() -> float:
            clients = [flight.FlightClient(f"grpc://127.0.0.1:{port}") for *_, port in served]
            streams = [lambda client=client: iter(client.do_get(flight.Ticket(b"")).to_reader()) for client in clients]
            return min(max(threads.map(lambda stream: seconds_of(stream()), streams)) for _ in range(ROUNDS))

        shared, network, bare, memcpy = fetched("shared_memory"), fetched("network"), fetched_bare(), copied()
    for worker in workers:
        worker.communicate()
    return [
        Figure("2 workers' batches of 12.6 MB, shared memory / into their own memory", in_memory / shared, 0.5),
        Figure("2 workers' batches of 12.6 MB, shared memory", GIGABYTES / shared, 3, unit="GB/s"),
        Figure("2 workers' batches of 12.6 MB, over TCP", GIGABYTES / network, 1, unit="GB/s"),
        Figure("the same / by Arrow Flight", bare / network, 0.7),
        Figure("shared memory / memcpy", memcpy / shared, 0.5),
        Figure("over TCP / memcpy", memcpy / network, 0.05),
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
