"""The engine "local": servers and workers are processes of this machine, started with their lines open."""

import os
import signal
import socket
from contextlib import suppress
from subprocess import TimeoutExpired
from typing import Final

from penstock.parameter_server.engine import Engine, Process, StartedProcesses, StartedServer, TakeLine
from penstock.parameter_server.messages import process_line
from penstock.runtime.child_process import start_child, status_in_words
from penstock.runtime.shared_memory import Arena

_STATUS_SECONDS: Final = 1.0
"""A process whose line has ended is about to end too."""


class _LocalProcess(Process):
    def __init__(self, arguments: list[str], lines: list[socket.socket]) -> None:
        descriptors = [line.fileno() for line in lines]
        self._process = start_child(
            "penstock.parameter_server.process", *arguments, *map(str, descriptors), descriptors=descriptors
        )
        for line in lines:
            line.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def status(self) -> str:
        with suppress(TimeoutExpired):
            self._process.wait(_STATUS_SECONDS)
        return status_in_words(self._process.returncode)

    def write_stacks(self) -> None:
        os.kill(self._process.pid, signal.SIGUSR1)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class _LocalProcesses(StartedProcesses):
    def __init__(self) -> None:
        self._servers = 0

    def start_servers(self, count: int, arena: Arena) -> list[StartedServer]:
        self._servers = count
        return [self._start_server(arena) for _ in range(count)]

    def _start_server(self, arena: Arena) -> StartedServer:
        control, its_control = socket.socketpair()
        reader, its_reader = socket.socketpair()
        process = _LocalProcess(["server"], [its_control, its_reader])
        return StartedServer(process, process_line(control, arena), process_line(reader, arena))

    def start_worker(
        self, number: int, index: int, workers: int, arena: Arena, take_line: TakeLine
    ) -> tuple[Process, list[socket.socket]]:
        line, its_line = socket.socketpair()
        pairs = [socket.socketpair() for _ in range(self._servers)]
        arguments = ["worker", str(index), str(workers)]
        process = _LocalProcess(arguments, [its_line, *(its for its, _ in pairs)])
        take_line(process_line(line, arena))
        return process, [for_server for _, for_server in pairs]


class _LocalEngine(Engine):
    def start(self) -> StartedProcesses:
        return _LocalProcesses()


def engine() -> Engine:
    """The processes of this machine."""
    return _LocalEngine()
