"""Workers for tests: in this process, and in one of their own."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from forked import Forked

import penstock as ps
from penstock.runtime.ports import free_port
from penstock.service.wire.subjects import Endpoint

PRODUCING = Path(__file__).parent / "producing.py"


@contextmanager
def worker_process(*arguments: str) -> Iterator[tuple[Endpoint, Forked]]:
    """A worker in a process of its own, and how to reach it."""
    process = Forked(str(PRODUCING), *arguments, pipes=("stdin", "stdout"))
    assert process.stdin is not None and process.stdout is not None
    try:
        yield Endpoint(**json.loads(process.stdout.readline())), process
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """That of a dispatcher with two workers, in this process."""
    with ps.service.DispatchServer(ps.service.DispatcherConfig(heartbeat_seconds=0.2)) as dispatcher:
        address = dispatcher.target.split("://")[1]
        config = ps.service.WorkerConfig(dispatcher_address=address)
        with ps.service.WorkerServer(config), ps.service.WorkerServer(config):
            yield address


@pytest.fixture(scope="module")
def worker() -> Iterator[Endpoint]:
    """A worker process that the tests of a file share."""
    with worker_process() as (endpoint, _):
        yield endpoint


@pytest.fixture
def new_worker() -> Any:
    """Starts worker processes for one test."""
    return worker_process


@pytest.fixture(scope="session")
def producing() -> Any:
    """What the worker processes run, in this process."""
    spec = spec_from_file_location("producing", PRODUCING)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class DispatcherProcess:
    """A dispatcher in a process of its own, that can be killed and started again at the same port.

    Attributes:
        address: "host:port", the same for all its lives.
    """

    def __init__(self, *arguments: str) -> None:
        self._arguments = [*arguments, "--heartbeat-seconds", "0.2"]
        self._process = self._started(str(free_port()))
        self.address = self._greeting()

    def _started(self, port: str) -> Forked:
        return Forked("-m", "penstock", "dispatcher", "--port", port, *self._arguments, pipes=("stdout",))

    def _greeting(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().split("://")[1].strip()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def terminate(self) -> int:
        """SIGTERM; waits for the end, and gives the exit status."""
        self._process.terminate()
        status = self._process.wait(30)
        self.kill()
        return status

    def stop_for(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so many seconds."""
        self._process.pause()
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)

    def start(self) -> None:
        """Start it again, and wait until it listens."""
        self._process = self._started(self.address.partition(":")[2])
        assert self._greeting() == self.address


@pytest.fixture
def start_dispatcher() -> Iterator[Callable[..., DispatcherProcess]]:
    """Starts a `DispatcherProcess` with the command's arguments; it is killed after the test."""
    started: list[DispatcherProcess] = []

    def start(*arguments: str) -> DispatcherProcess:
        started.append(DispatcherProcess(*arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()
