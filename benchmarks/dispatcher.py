"""Messages that a dispatcher answers: 1,000 workers report every 2 s, 256 readers every second, and lease.

Peers are simulated. Alone, the machine is told of messages in this process; over sockets, processes of their own send
them as workers and readers do, and share the cores with the dispatcher. A second of such a service is 500 reports of
workers, 256 of readers and, where each reader asks for spans four times a second, 1,024 requests for leases.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection

import penstock as ps
from benchmarks.timing import Figure, seconds
from penstock.service.dispatcher.journal import Journal
from penstock.service.dispatcher.machine.machine import Machine
from penstock.service.dispatcher.machine.state import State
from penstock.service.transport.dispatcher_client import DispatcherClient
from penstock.service.wire.dispatcher_messages import (
    ConsumerHeartbeat,
    Lease,
    OpenEpoch,
    RegisterDataset,
    WorkerHeartbeat,
    WorkerHello,
)
from penstock.service.wire.subjects import DatasetInfo, Endpoint, JobParameters, Message

WORKERS = 1000
READERS = 256
CALLS = 2000
PEER_PROCESSES = 2
PEER_THREADS = 8
REPORTS_A_SECOND = WORKERS / 2 + READERS
LEASES_A_SECOND = 4 * READERS

CONFIG = ps.service.DispatcherConfig(heartbeat_seconds=60, lease_seconds=600)

Tell = Callable[[Message], object]


def measure() -> list[Figure]:
    machine = Machine(ps.service.DispatcherConfig(), now=0.0)
    alone = _rates(lambda message: machine.answer(message, 0.0))
    clock = 20 / seconds(lambda: [machine.pass_time(0.1) for _ in range(20)])
    with ps.service.DispatchServer(CONFIG) as server:
        workers, readers = _peers_of(server)
        reports = _rate_over_sockets(server.target, [WorkerHeartbeat(worker_id=worker) for worker in workers])
        client = DispatcherClient(server.target)
        news = _rate_over_sockets(server.target, _heartbeats(client.ask, readers))
        client.close()
        leases = _leases_over_sockets(server.target, readers)
    with (
        tempfile.TemporaryDirectory() as directory,
        ps.service.DispatchServer(replace(CONFIG, work_dir=directory)) as server,
    ):
        _, readers = _peers_of(server)
        kept = _leases_over_sockets(server.target, readers)
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal(directory, State())
        machine = Machine(ps.service.DispatcherConfig(), 0.0, journal.write, journal.state)
        alone_kept = _rates(lambda message: machine.answer(message, 0.0))
        journal.close()
    added = 1e6 * (1 / alone_kept[2] - 1 / alone[2])
    load = (WORKERS / 2) / reports + READERS / news + LEASES_A_SECOND / leases
    return [
        Figure("dispatcher: reports of workers, the machine alone", alone[0], 50_000, unit="per s"),
        Figure("dispatcher: reports of readers, the machine alone", alone[1], 1_000, unit="per s"),
        Figure("dispatcher: leases, the machine alone", alone[2], 10_000, unit="per s"),
        Figure("dispatcher: looks at the clock, the machine alone", clock, 100, unit="per s"),
        Figure("dispatcher: reports of workers, over sockets", reports, WORKERS / 2, unit="per s"),
        Figure("dispatcher: reports of readers, over sockets", news, READERS, unit="per s"),
        Figure("dispatcher: leases, over sockets", leases, LEASES_A_SECOND, unit="per s"),
        Figure("dispatcher: leases with a journal, the machine alone", alone_kept[2], 2_000, unit="per s"),
        Figure("dispatcher: leases with a journal, over sockets", kept, LEASES_A_SECOND, unit="per s"),
        Figure("dispatcher: what the journal adds to a lease", added, 100, unit="µs", at_least=False),
        Figure("dispatcher: its time that 1,000 workers and 256 readers take", load, 1.0, at_least=False),
    ]


def _rates(tell: Tell) -> tuple[float, float, float]:
    """Reports of workers, reports of readers and leases, each per second."""
    workers, readers = _peers(tell)

    def rate(messages: list[Message]) -> float:
        return CALLS / seconds(lambda: [tell(messages[i % len(messages)]) for i in range(CALLS)])

    return (
        rate([WorkerHeartbeat(worker_id=worker) for worker in workers]),
        rate(_heartbeats(tell, readers)),
        rate([Lease(consumer_id=reader, positions=64) for reader in readers]),
    )


def _peers(tell: Tell) -> tuple[list[int], list[int]]:
    """The ids of as many workers and readers of one job as there are to be."""
    info = DatasetInfo(kind="rows", length=-1, cardinality=-1)
    dataset_id = tell(RegisterDataset(definition=b"x", info=info)).dataset_id  # type: ignore[attr-defined]
    workers = [
        tell(WorkerHello(endpoint=Endpoint(address=f"host{number}:4000", process=str(number)))).worker_id  # type: ignore[attr-defined]
        for number in range(WORKERS)
    ]
    parameters = JobParameters(dataset_id=dataset_id, policy=ps.service.ShardingPolicy.DYNAMIC)
    readers = [
        tell(OpenEpoch(job_name="job", parameters=parameters, epoch=0, seed=0, consumer=str(number))).consumer_id  # type: ignore[attr-defined]
        for number in range(READERS)
    ]
    return workers, readers


def _heartbeats(tell: Tell, readers: list[int]) -> list[Message]:
    """Messages of readers in each second while no worker comes or goes."""
    version = tell(ConsumerHeartbeat(consumer_id=readers[0])).version  # type: ignore[attr-defined]
    return [ConsumerHeartbeat(consumer_id=reader, version=version) for reader in readers]


def _peers_of(server: ps.service.DispatchServer) -> tuple[list[int], list[int]]:
    client = DispatcherClient(server.target)
    try:
        return _peers(client.ask)
    finally:
        client.close()


def _leases_over_sockets(target: str, readers: list[int]) -> float:
    return _rate_over_sockets(target, [Lease(consumer_id=reader, positions=64) for reader in readers])


def _rate_over_sockets(target: str, messages: list[Message]) -> float:
    """Rate at which these messages are answered, when processes with threads of their own send them."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(PEER_PROCESSES)]
    processes = [
        context.Process(target=_peer, args=(theirs, target, messages[number::PEER_PROCESSES]))
        for number, (_, theirs) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for ours, _ in pipes:
        ours.recv()
    begun = time.perf_counter()
    for ours, _ in pipes:
        ours.send(None)
    for ours, _ in pipes:
        ours.recv()
    taken = time.perf_counter() - begun
    for process in processes:
        process.join()
    return CALLS // (PEER_PROCESSES * PEER_THREADS) * PEER_PROCESSES * PEER_THREADS / taken


def _peer(pipe: Connection, target: str, messages: list[Message]) -> None:
    """Send the messages in turn, from several threads."""
    client = DispatcherClient(target)
    client.ask(messages[0])

    def send(offset: int) -> None:
        for number in range(CALLS // (PEER_PROCESSES * PEER_THREADS)):
            client.ask(messages[(offset + number * PEER_THREADS) % len(messages)])

    pipe.send(None)
    pipe.recv()
    with ThreadPoolExecutor(PEER_THREADS) as threads:
        list(threads.map(send, range(PEER_THREADS)))
    pipe.send(None)
    client.close()
