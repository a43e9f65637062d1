"""Cost of 1,000 data workers and 256 trainers for one dispatcher, each with a connection of its own, at their own pace.

The dispatcher is a process of its own, with a journal. The peers are simulated by this process, which sends what they
would send when they would send it: a worker reports every 2 s, a reader every second, and it leases four times a
second.
The dispatcher's processor time is its own, whatever else runs; how long an answer takes depends on both.
"""

import heapq
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import penstock as ps
from benchmarks.timing import Figure
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
SENDERS = 24
STEADY_SECONDS = 20.0
LEASES_A_SECOND = 4.0
POSITIONS = 64


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory, _dispatcher(directory) as (process, target):
        begun, cost = time.perf_counter(), _processor_seconds(process)
        peers = _peers(target)
        arriving, arrived = time.perf_counter() - begun, _processor_seconds(process) - cost
        begun, cost = time.perf_counter(), _processor_seconds(process)
        waits = sorted(_keep_pace(peers, STEADY_SECONDS))
        steady = (_processor_seconds(process) - cost) / (time.perf_counter() - begun)
        connections = sum(os.readlink(entry).startswith("socket:") for entry in _descriptors(process))
        memory = _resident_bytes(process) / 1e6
        changed = _news_of_all_workers(peers, process)
    return [
        Figure("many clients: connections that the dispatcher holds", connections, WORKERS + READERS, unit=""),
        Figure("many clients: until all have come", arriving, 60, unit="s", at_least=False),
        Figure("many clients: the dispatcher's time for that", arrived, 30, unit="s", at_least=False),
        Figure("many clients: messages a second; their pace makes 1,780", len(waits) / STEADY_SECONDS, 1700, unit=""),
        Figure("many clients: share of a core that the dispatcher takes", steady, 1.0, at_least=False),
        Figure("many clients: an answer, median", 1e3 * waits[len(waits) // 2], 50, unit="ms", at_least=False),
        Figure(
            "many clients: an answer, 99 of 100", 1e3 * waits[len(waits) * 99 // 100], 500, unit="ms", at_least=False
        ),
        Figure("many clients: the dispatcher's memory", memory, 1000, unit="MB", at_least=False),
        Figure("many clients: its time to tell a reader of all workers", changed, 20, unit="ms", at_least=False),
    ]


@dataclass(frozen=True)
class _Peer:
    client: DispatcherClient
    says: tuple[tuple[Message, float], ...]
    """Its message, and the seconds until the next."""


@contextmanager
def _dispatcher(directory: str) -> Iterator[tuple[int, str]]:
    """A dispatcher in a process of its own: its id, and its address."""
    command = [sys.executable, "-m", "penstock", "dispatcher", "--port", "0", "--work-dir", directory]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, process.stdout.readline().split()[-1]
        finally:
            process.kill()


def _peers(target: str) -> list[_Peer]:
    """All workers and readers of one job, each with its own connection."""
    first = DispatcherClient(target)
    info = DatasetInfo(kind="rows", length=-1, cardinality=-1)
    dataset_id = first.ask(RegisterDataset(definition=b"x", info=info)).dataset_id
    parameters = JobParameters(dataset_id=dataset_id, policy=ps.service.ShardingPolicy.DYNAMIC)

    def worker(number: int) -> _Peer:
        client = DispatcherClient(target)
        endpoint = Endpoint(address=f"host{number}:4000", process=str(number))
        worker_id = client.ask(WorkerHello(endpoint=endpoint)).worker_id
        return _Peer(client, ((WorkerHeartbeat(worker_id=worker_id), 2.0),))

    def reader(number: int) -> _Peer:
        client = DispatcherClient(target)
        opened = client.ask(OpenEpoch(job_name="job", parameters=parameters, epoch=0, seed=0, consumer=str(number)))
        version = client.ask(ConsumerHeartbeat(consumer_id=opened.consumer_id)).version
        news = ConsumerHeartbeat(consumer_id=opened.consumer_id, version=version)
        lease = Lease(consumer_id=opened.consumer_id, positions=POSITIONS)
        return _Peer(client, ((news, 1.0), (lease, 1 / LEASES_A_SECOND)))

    with ThreadPoolExecutor(SENDERS) as senders:
        peers = [*senders.map(worker, range(WORKERS)), *senders.map(reader, range(READERS))]
    first.close()
    return peers


def _keep_pace(peers: list[_Peer], seconds: float) -> list[float]:
    """Send what is due when it is due, at first at random times; returns how long each answer took."""
    now = time.perf_counter()
    end = now + seconds
    chosen = random.Random(0)
    due = [
        (now + chosen.uniform(0, every), number, said)
        for number, peer in enumerate(peers)
        for said, (_, every) in enumerate(peer.says)
    ]
    heapq.heapify(due)
    lock = threading.Lock()
    waits: list[float] = []

    def send(_: int) -> None:
        while True:
            with lock:
                when, number, said = due[0]
                if when >= end:
                    return
                message, every = peers[number].says[said]
                heapq.heapreplace(due, (when + every, number, said))
            time.sleep(max(0.0, when - time.perf_counter()))
            begun = time.perf_counter()
            peers[number].client.ask(message)
            waits.append(time.perf_counter() - begun)

    with ThreadPoolExecutor(SENDERS) as senders:
        list(senders.map(send, range(SENDERS)))
    return waits


def _news_of_all_workers(peers: list[_Peer], process: int) -> float:
    """Milliseconds of processor time for an answer that lists all workers, as readers get it after a change of them."""
    calls = 100
    asks = [peer for peer in peers if isinstance(peer.says[0][0], ConsumerHeartbeat)]
    before = _processor_seconds(process)
    for peer in asks[:calls]:
        message = peer.says[0][0]
        assert isinstance(message, ConsumerHeartbeat)
        peer.client.ask(ConsumerHeartbeat(consumer_id=message.consumer_id))
    return 1e3 * (_processor_seconds(process) - before) / calls


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _descriptors(process: int) -> list[Path]:
    return list(Path(f"/proc/{process}/fd").iterdir())
