"""A server, driven over its lines by messages that arrive in an order of our choice."""

import socket
import threading

import numpy as np
import pytest

from penstock.parameter_server.messages import (
    CONTROL,
    READER,
    Answer,
    Commit,
    Committed,
    Connect,
    Discard,
    ProcessLine,
    ReadVariables,
    Ready,
    StagePushes,
    process_line,
)
from penstock.parameter_server.server import Server
from penstock.rpc.listener import Access, Address, Listener, dial
from penstock.runtime.shared_memory import Arena


def test_a_server_answers_after_commits_that_arrive_at_once() -> None:
    """The second commit takes from the worker's line what is staged there, after which nothing more comes on it."""
    arena = Arena()

    def line() -> tuple[ProcessLine, socket.socket]:
        own, its = socket.socketpair()
        return process_line(own, arena), its

    (control, its_control), (reader, its_reader), (worker, its_worker) = line(), line(), line()
    worker.send(StagePushes(0, ()))
    worker.send(None)
    worker.send(StagePushes(1, ()))
    control.send(Connect(7), (its_worker,))
    its_worker.close()
    for closure in range(2):
        control.send(Commit(closure, 7, alone=True))

    server = Server(process_line(its_control, arena), process_line(its_reader, arena), arena)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert [control.receive() for _ in range(3)] == [Ready(), Committed(0), Committed(1)]
    reader.send(ReadVariables(5))
    assert reader.receive() == Answer(error="KeyError: 5")
    for end in (control, reader, worker):
        end.close()
    thread.join()
    assert its_control.fileno() == its_reader.fileno() == -1
    arena.close()


def test_processes_that_know_the_secret_reach_a_server_on_another_machine() -> None:
    arena = Arena()
    listener = Listener(lambda: Access((b"secret",)), "127.0.0.1", local=True)
    here, there = Address(local=listener.local), Address("localhost", listener.port)
    with pytest.raises(ConnectionError):
        dial(there, b"another", 7)
    control, reader = (process_line(dial(here, b"secret", caller), arena) for caller in (CONTROL, READER))
    taken = dict(listener.take(30) for _ in range(2))
    lines = {caller: process_line(connection, arena) for caller, connection in taken.items()}
    thread = threading.Thread(target=Server(lines[CONTROL], lines[READER], arena, listener).run, daemon=True)
    thread.start()
    assert not control.remote
    assert control.receive() == Ready()

    worker = process_line(dial(there, b"secret", 7), arena)
    assert worker.remote
    assert worker.receive() == Ready()
    large = np.arange(1 << 16, dtype=np.float32)
    part = worker.part(large)
    assert part.place.segment == -1
    worker.withdraw()
    worker.send(StagePushes(1, ()))
    assert worker.receive() == Answer()  # it has arrived, so the coordinator may commit it
    worker.close()  # and the machine is gone
    control.send(Commit(1, 7, alone=True))
    assert control.receive() == Committed(1)

    control.send(Discard(7))
    control.send(Discard(8))
    reader.send(ReadVariables(5))
    assert reader.receive() == Answer(error="KeyError: 5")
    late = process_line(dial(there, b"secret", 8), arena)  # it was discarded before it had called
    assert late.receive() is None
    for end in (control, reader, late):
        end.close()
    thread.join()
    with pytest.raises(OSError, match="refused"):
        dial(there, b"secret", 9)
    arena.close()
