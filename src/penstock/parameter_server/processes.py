"""Starts servers and workers as processes of this machine, each with its lines."""

import socket
import subprocess

from penstock.runtime.child_process import start_child

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
    descriptors = [line.fileno() for line in lines]
    process = start_child(
        "penstock.parameter_server.process",
        *arguments,
        *map(str, descriptors),
        descriptors=descriptors,
        variables=variables,
    )
    for line in lines:
        line.close()
    return process


def end(process: Process) -> None:
    """Kill a process, and wait until it has ended."""
    process.kill()
    process.wait()
