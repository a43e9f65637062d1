"""A server, driven over its lines by messages that arrive in an order of our choice."""

import socket
import threading

from penstock.parameter_server.line import ProcessLine
from penstock.parameter_server.messages import Answer, Commit, Committed, Connect, ReadVariables, Ready, Stage
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
