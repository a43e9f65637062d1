"""Starts servers and workers as processes of this machine, each with its lines."""

import os
import socket
import subprocess
import sys

Process = subprocess.Popen[bytes]


def start_server() -> tuple[Process, socket.socket, socket.socket]:
    """A server's process, its control line and the line for reading."""
    control, its_control = socket.socketpair()
    reader, its_reader = socket.socketpair()
    # Its optimizer runs on the processor: accelerators are the workers'.
    process = _start(["server"], [its_control, its_reader], {"JAX_PLATFORMS": "cpu"})
    return process, control, reader


def start_worker(index: int, workers: int, servers: int) -> tuple[Process, socket.socket, list[socket.socket]]:
    """A worker's process, the line to it, and the end of its line to each server that is that server's."""
    line, its_line = socket.socketpair()
    pairs = [socket.socketpair() for _ in range(servers)]
    process = _start(["worker", str(index), str(workers)], [its_line, *(its for its, _ in pairs)], {})
    return process, line, [for_server for _, for_server in pairs]


def _start(arguments: list[str], lines: list[socket.socket], variables: dict[str, str]) -> Process:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    descriptors = [line.fileno() for line in lines]
    command = [sys.executable, "-m", "penstock.parameter_server.process", *arguments, *map(str, descriptors)]
    process = subprocess.Popen(
        command,
        env={**os.environ, **variables, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,  # Ctrl-C is for the program, which ends them
    )
    for line in lines:
        line.close()
    return process


def end(process: Process) -> None:
    """Kill a process, and wait until it has ended."""
    process.kill()
    process.wait()
