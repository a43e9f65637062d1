"""Servers and workers whose memory runs out: what failed is said, nothing is lost, and nobody waits.

Arrays of 40 MB, because C's allocator may have smaller ones in what was freed before, and then takes none from the
system.
"""

import sys
from pathlib import Path

import numpy as np
import optax
import pytest
from memory_limit import memory_left

import penstock as ps

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(sys.platform != "linux", reason="a process's limits can be set by others on Linux only"),
]
SIZE = 10_000_000
WHAT_TO_DO = r"the server is out of memory: give it more, or divide the variables among more servers \(num_ps\)"


def test_a_server_out_of_memory_says_so_and_keeps_its_variables(tmp_path: Path) -> None:
    with ps.ParameterServerStrategy(num_workers=1) as strategy:
        coordinator = ps.ClusterCoordinator(strategy)
        checkpoint = ps.Checkpoint(coordinator=coordinator)
        variables = strategy.create_variables(np.zeros(SIZE, np.float32), optax.sgd(-1.0))
        small = strategy.create_variables(np.zeros(2, np.float32), optax.sgd(-1.0))

        def step() -> None:
            small.push(np.ones(2, np.float32))
            variables.push(np.ones(SIZE, np.float32))

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
