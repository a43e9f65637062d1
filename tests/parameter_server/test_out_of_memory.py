"""Servers and workers whose memory runs out: what failed is said, nothing is lost, and nobody waits.

Arrays of 40 MB, because C's allocator may have smaller ones in what was freed before, and then takes none from the
system. Where an array must not fit it has 80 MB: a thread's heap has 64 MB of its own.
"""

import re
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import optax
import pytest
from forked import Forked
from memory_limit import memory_left

import penstock as ps
from penstock.parameter_server.closures import dumps
from penstock.parameter_server.messages import (
    Answer,
    Create,
    ProcessLine,
    ReadVariables,
    Ready,
    SnapshotTaken,
    TakeSnapshot,
    process_line,
)
from penstock.parameter_server.rules import Addition

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process's limits can be set by others on Linux only")
SIZE = 10_000_000
WHAT_TO_DO = r"the server is out of memory: give it more, or divide the variables among more servers \(num_ps\)"


@contextmanager
def server_of_tables(count: int) -> Iterator[tuple[int, ProcessLine, ProcessLine]]:
    """A server that holds tables, numbered from 0: its process, and the lines of control and of reading."""
    ends, its_ends = zip(*(socket.socketpair() for _ in range(2)), strict=True)
    files = [end.fileno() for end in its_ends]
    program = "-m", "penstock.parameter_server.process", "server", *map(str, files)
    process = Forked(*program, descriptors=files, training=True)
    for end in its_ends:
        end.close()
    control, reader = (process_line(end, None) for end in ends)
    try:
        assert control.receive() == Ready()
        for table in range(count):
            values = reader.part(np.full((2 * SIZE, 1), table, np.float32))
            reader.send(Create(table, dumps("a rule", Addition()), True, (values,)))
            assert reader.receive() == Answer()
        reader.send(ReadVariables(-1))  # with its answer, what came before is freed
        assert reader.receive() == Answer(error="KeyError: -1")
        yield process.pid, control, reader
    finally:
        control.close()
        reader.close()
        assert process.wait(60) == 0


def read(reader: ProcessLine, table: int) -> np.ndarray:
    reader.send(ReadVariables(table))
    answer = reader.receive()
    assert isinstance(answer, Answer) and answer.error == ""
    return reader.array(answer.values[0])


@pytest.mark.slow
def test_an_answer_for_which_a_server_has_no_room_is_an_error_of_who_asked() -> None:
    with server_of_tables(1) as (server, control, reader):
        # Without descriptors no memory can be shared: there is no room for a copy of the table.
        files = resource.prlimit(server, resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with memory_left(server, 40):
            reader.send(ReadVariables(0))
            answer = reader.receive()
            assert isinstance(answer, Answer) and answer.values == ()
            control.send(TakeSnapshot())
            taken = control.receive()
            assert isinstance(taken, SnapshotTaken) and taken.saved == ()
            for said in (answer.error, taken.error):
                assert re.search(f"MemoryError.*{WHAT_TO_DO}", said)
        assert len(read(reader, 0)) == 2 * SIZE
        resource.prlimit(server, resource.RLIMIT_NOFILE, files)


@pytest.mark.slow
def test_a_checkpoint_too_large_for_a_server_leaves_its_memory() -> None:
    with server_of_tables(2) as (server, control, reader), memory_left(server, 120):
        control.send(TakeSnapshot())  # there is room for one of two copies
        taken = control.receive()
        assert isinstance(taken, SnapshotTaken) and re.search(WHAT_TO_DO, taken.error)
        assert read(reader, 1)[-1] == 1


@pytest.mark.extended
def test_a_server_out_of_memory_says_so_and_keeps_its_variables(tmp_path: Path) -> None:
    with ps.ParameterServerStrategy(num_workers=1) as strategy:
        coordinator = ps.ClusterCoordinator(strategy)
        checkpoint = ps.Checkpoint(coordinator=coordinator)
        variables = strategy.create_variables(np.zeros(2 * SIZE, np.float32), optax.sgd(-1.0))
        small = strategy.create_variables(np.zeros(2, np.float32), optax.sgd(-1.0))

        def step() -> None:
            small.push(np.ones(2, np.float32))
            variables.push(np.ones(2 * SIZE, np.float32))

        coordinator.schedule(step).fetch()  # XLA ends a process that has no room for the threads that compile
        server = strategy.servers[0].pid
        with memory_left(server, 16):
            with pytest.raises(ps.InvalidArgumentError, match=f"refused the request: MemoryError.*{WHAT_TO_DO}"):
                variables.read()
            with pytest.raises(ps.WorkerError, match=f"cannot take what was pushed: MemoryError.*{WHAT_TO_DO}"):
                coordinator.schedule(step).fetch()
            with pytest.raises(ps.WorkerError, match=WHAT_TO_DO):
                coordinator.join()
            with pytest.raises(ps.WorkerError, match=f"server 0 cannot show what it holds: .*{WHAT_TO_DO}"):
                checkpoint.save(tmp_path / "saved")
            assert small.read().tolist() == [1, 1]  # the function's other push was not applied either
        coordinator.schedule(step).fetch()
        assert (small.read().tolist(), variables.read()[[0, -1]].tolist()) == ([2, 2], [2, 2])
        assert checkpoint.save(tmp_path / "saved").startswith(str(tmp_path))


@pytest.mark.extended
def test_a_worker_out_of_memory_is_an_error_of_its_function() -> None:
    with ps.ParameterServerStrategy(num_workers=1) as strategy:
        coordinator = ps.ClusterCoordinator(strategy)
        variables = strategy.create_variables(np.ones(SIZE, np.float32), optax.sgd(-1.0))
        assert coordinator.schedule(lambda: 1).fetch() == 1
        with memory_left(coordinator.worker_processes[0], 16):
            for function, message in (
                (lambda: variables.read().shape, "cannot be mapped into memory"),
                (lambda: np.ones(SIZE).shape, "Unable to allocate"),
            ):
                with pytest.raises(MemoryError, match=message):
                    coordinator.schedule(function).fetch()
                with pytest.raises(MemoryError, match=message):
                    coordinator.join()
        assert coordinator.schedule(lambda: variables.read().sum()).fetch() == SIZE
