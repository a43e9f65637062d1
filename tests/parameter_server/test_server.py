"""A server, driven over its lines by messages that arrive in an order of our choice."""

import socket
import threading
from dataclasses import replace

import numpy as np
import pytest

from penstock.parameter_server.line import ProcessLine
from penstock.parameter_server.listening import CONTROL, READER, LineListener, dial
from penstock.parameter_server.messages import (
    Answer,
    Commit,
    Committed,
    Connect,
    Discard,
    ReadVariables,
    Ready,
    Stage,
)
from penstock.parameter_server.server import Server
from penstock.runtime.shared_memory import Arena


def test_a_server_answers_after_commits_that_arrive_at_once() -> None:
    """The second commit takes from the worker's line what is staged there, after which nothing more comes on it."""
    arena = Arena()

    def line() -> tuple[ProcessLine, socket.socket]:
        own, its = socket.socketpair()
        return ProcessLine(own, arena), its

    (control, its_control), (reader, its_reader), (worker, its_worker) = line(), line(), line()
    worker.send(Stage(0, ()))
    worker.send(None)
    worker.send(Stage(1, ()))
    control.send(Connect(7), (its_worker,))
    its_worker.close()
    for closure in range(2):
        control.send(Commit(closure, 7, alone=True))

    server = Server(ProcessLine(its_control, arena), ProcessLine(its_reader, arena), arena)
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
    listener = LineListener("here", "127.0.0.1", "localhost", b"secret", shared_memory=True)
    address = listener.address
    with pytest.raises(ConnectionError):
        dial(replace(address, secret=b"another"), "there", 7, arena)
    control, reader = (dial(address, "here", caller, arena) for caller in (CONTROL, READER))
    lines = dict(listener.take(arena) for _ in range(2))
    thread = threading.Thread(target=Server(lines[CONTROL], lines[READER], arena, listener).run, daemon=True)
    thread.start()
    assert not control.remote
    assert control.receive() == Ready()

    worker = dial(address, "there", 7, arena)
    assert worker.remote
    assert worker.receive() == Ready()
    large = np.arange(1 << 16, dtype=np.float32)
    part = worker.part(large)
    assert part.segment == -1
    np.testing.assert_array_equal(worker.array(part), large)
    worker.send(Stage(1, ()))
    assert worker.receive() == Answer()  # it has arrived, so the coordinator may commit it
    worker.close()  # and the machine is gone
    control.send(Commit(1, 7, alone=True))
    assert control.receive() == Committed(1)

    control.send(Discard(7))
    control.send(Discard(8))
    reader.send(ReadVariables(5))
    assert reader.receive() == Answer(error="KeyError: 5")
    late = dial(address, "there", 8, arena)  # it was discarded before it had called
    assert late.receive() is None
    for end in (control, reader, late):
        end.close()
    thread.join()
    with pytest.raises(OSError, match="refused"):
        dial(address, "there", 9, arena)
    arena.close()


def test_who_says_nothing_keeps_nobody_waiting() -> None:
    listener = LineListener("here", "127.0.0.1", "localhost", b"secret", shared_memory=False)
    silent = socket.create_connection(("localhost", listener.address.port))
    arena = Arena()
    line = dial(listener.address, "here", CONTROL, arena)
    caller, its = listener.take(arena)
    assert caller == CONTROL
    assert line.remote
    for end in (silent, line, its, listener, arena):
        end.close()
