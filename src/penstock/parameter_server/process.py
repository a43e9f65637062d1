"""`python -m penstock.parameter_server.process`: a server or a worker, over lines that its parent has opened.

Arguments: `server CONTROL READER`, or `worker INDEX WORKERS COORDINATOR SERVER...`, where lines are descriptors.
"""

import socket
import sys

import jax

from penstock.parameter_server.messages import ProcessLine, process_line
from penstock.parameter_server.server import Server
from penstock.parameter_server.worker import WorkerProgram
from penstock.runtime.child_process import end_with_parent, leave_sigterm_to_parent
from penstock.runtime.shared_memory import Arena

IDLE_BYTES = 1 << 30
"""Versions of variables, and gradients, come and go with every function, and are as large as each other."""


def stay_on_processor() -> None:
    """Have JAX compute a server's updates on the processor: accelerators are the workers'."""
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]


def main(kind: str, *numbers: str) -> None:
    """Run until the line to the coordinator ends."""
    end_with_parent()
    leave_sigterm_to_parent()
    arena = Arena(IDLE_BYTES)

    def line(descriptor: str) -> ProcessLine:
        return process_line(socket.socket(fileno=int(descriptor)), arena)

    if kind == "server":
        stay_on_processor()
        control, reader = map(line, numbers)
        Server(control, reader, arena).run()
    else:
        index, workers, *descriptors = numbers
        coordinator, *servers = map(line, descriptors)
        WorkerProgram(int(index), int(workers), coordinator, servers, arena).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
