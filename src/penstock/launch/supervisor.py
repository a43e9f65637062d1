"""`launch`: starts the workers, waits for them, and decides what happens when one fails or a signal comes.

Threads and signal handlers only put events into a queue; the thread that called `launch` reads it.
"""

import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from penstock.errors import InvalidArgumentError
from penstock.launch.guard import Guard
from penstock.launch.worker import Output, WorkerProcess
from penstock.runtime.ports import free_port
from penstock.runtime.wakeups import Wakeups

_DEVICES_FLAG: Final = "--xla_force_host_platform_device_count"


@dataclass(frozen=True)
class _WorkerEnded:
    """A worker has ended, with a status as `subprocess` gives it: minus n if signal n ended it."""

    number: int
    status: int

    @property
    def exit_status(self) -> int:
        return self.status if self.status >= 0 else 128 - self.status

    def __str__(self) -> str:
        how = f"exit status {self.status}" if self.status >= 0 else f"ended by {_name(-self.status)}"
        return f"worker {self.number} failed first: {how}"


@dataclass(frozen=True)
class _Signalled:
    """The launcher has to end: a signal came, or its output is no longer read, which counts as SIGPIPE."""

    signal_number: int

    @property
    def exit_status(self) -> int:
        return 128 + self.signal_number

    def __str__(self) -> str:
        if self.signal_number == signal.SIGPIPE:
            return "nobody reads the output any longer"
        return "interrupted" if self.signal_number == signal.SIGINT else f"ended by {_name(self.signal_number)}"


class _Events:
    """A queue of events, into which threads and signal handlers may put."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._heard: deque[_WorkerEnded | _Signalled] = deque()
        self._wakeups = wakeups

    def put(self, event: _WorkerEnded | _Signalled) -> None:
        self._heard.append(event)
        self._wakeups.wake()

    def get(self, timeout: float | None) -> _WorkerEnded | _Signalled | None:
        """The next one; None if none comes within `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._heard:
            if not self._wakeups.wait(None if until is None else max(0.0, until - time.monotonic())):
                return None
        return self._heard.popleft()


def launch(
    command: Sequence[str],
    *,
    num_workers: int,
    devices_per_worker: int | None = None,
    environment: Mapping[str, str] | None = None,
    grace_seconds: float = 10.0,
    stdout: BinaryIO | None = None,
    stderr: BinaryIO | None = None,
) -> int:
    """Run `num_workers` processes of one command until all have ended; gives the status to exit with.

    Every process finds PENSTOCK_COORDINATOR_ADDRESS, PENSTOCK_NUM_WORKERS and PENSTOCK_WORKER_INDEX in its environment.
    Its output comes in whole lines, each after its number in brackets.

    When one fails, the others have `grace_seconds` to end by themselves, and as long again between SIGTERM and SIGKILL.
    In a program's main thread, SIGINT, SIGTERM and SIGHUP go to the workers, who are killed `grace_seconds` later, or
    at a second signal. However this ends, even by SIGKILL, only a process that left its worker's group stays behind.

    Args:
        command: the program and its arguments.
        devices_per_worker: gives each process as many virtual CPU devices of JAX, and no other devices.
        environment: taken instead of this process's own.
        stdout: a binary file, this process's own by default; lines that workers write to `stderr` go there.

    Returns:
        0 if every process gave 0; otherwise the status of the one that failed first, or 128 + n if signal n ended it
        or the launcher. A last line on `stderr` says which.

    Raises:
        InvalidArgumentError: no command, or a number too small.
        OSError: the command cannot be started.
    """
    _check(command, num_workers, devices_per_worker, grace_seconds)
    with Wakeups() as wakeups:
        return _launch(
            command, _Events(wakeups), num_workers, devices_per_worker, environment, grace_seconds, stdout, stderr
        )


def _launch(
    command: Sequence[str],
    events: _Events,
    num_workers: int,
    devices_per_worker: int | None,
    environment: Mapping[str, str] | None,
    grace_seconds: float,
    stdout: BinaryIO | None,
    stderr: BinaryIO | None,
) -> int:
    """As `launch`, which has checked the arguments."""

    def ended(number: int, status: int) -> None:
        events.put(_WorkerEnded(number, status))

    lock = threading.Lock()
    output, errors = (
        Output(stream, lock, when_lost=lambda: events.put(_Signalled(signal.SIGPIPE)))
        for stream in (sys.stdout.buffer if stdout is None else stdout, sys.stderr.buffer if stderr is None else stderr)
    )
    variables = _variables(os.environ if environment is None else environment, num_workers, devices_per_worker)
    workers: list[WorkerProcess] = []
    guard = Guard()
    with _signals_to(events):
        try:
            for number in range(num_workers):
                own = variables | {"PENSTOCK_WORKER_INDEX": str(number)}
                worker = WorkerProcess(command, own, number, (output, errors), guard, ended, grace_seconds)
                workers.append(worker)
            cause = _until_all_ended(workers, events, grace_seconds)
        except BaseException:
            for worker in workers:
                worker.send(signal.SIGKILL)
            raise
        finally:
            for worker in workers:
                worker.join()
            guard.close()
    if cause is None and (output.lost or errors.lost):
        cause = _Signalled(signal.SIGPIPE)
    if cause is None:
        return 0
    errors.write(f"penstock: {cause}".encode())
    return cause.exit_status


def _until_all_ended(
    workers: Sequence[WorkerProcess], events: _Events, grace_seconds: float
) -> _WorkerEnded | _Signalled | None:
    """Wait for all workers; end them when one fails or the launcher has to end. Gives the first such event."""
    running = {worker.number: worker for worker in workers}
    cause: _WorkerEnded | _Signalled | None = None
    steps: list[int] = []  # the signals that are still to come, one whenever the deadline has passed
    deadline = 0.0

    def send(signal_number: int) -> None:
        for worker in running.values():
            worker.send(signal_number)

    while running:
        event = events.get(timeout=max(0.0, deadline - time.monotonic()) if steps else None)
        if event is None:
            send(steps.pop(0))
            deadline = time.monotonic() + grace_seconds
            continue
        if isinstance(event, _WorkerEnded):
            del running[event.number]
        if cause is None and event.exit_status:
            cause, deadline = event, time.monotonic() + grace_seconds
            steps = [signal.SIGTERM, signal.SIGKILL]
            if isinstance(event, _Signalled):
                send(signal.SIGTERM if event.signal_number == signal.SIGPIPE else event.signal_number)
                steps = [signal.SIGKILL]
        elif isinstance(event, _Signalled) and event.signal_number != signal.SIGPIPE:
            send(signal.SIGKILL)
            steps = []
    return cause


def _check(command: Sequence[str], num_workers: int, devices_per_worker: int | None, grace_seconds: float) -> None:
    if isinstance(command, str) or not command:
        raise InvalidArgumentError(
            "launch(command) takes a list of the program and its arguments, such as [sys.executable, 'train.py'], "
            f"got {command!r}"
        )
    for name, value in {"num_workers": num_workers, "devices_per_worker": devices_per_worker}.items():
        if value is not None and value < 1:
            raise InvalidArgumentError(f"launch({name}=...) must be at least 1, got {value}")
    if not grace_seconds >= 0:
        raise InvalidArgumentError(f"launch(grace_seconds=...) must be at least 0, got {grace_seconds}")


def _variables(environment: Mapping[str, str], num_workers: int, devices_per_worker: int | None) -> dict[str, str]:
    """The environment variables of all workers."""
    variables = {
        "PYTHONUNBUFFERED": "1",  # Python would hold back what it writes to a pipe
        **environment,
        "PENSTOCK_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "PENSTOCK_NUM_WORKERS": str(num_workers),
    }
    if devices_per_worker is not None:
        others = re.sub(rf"{_DEVICES_FLAG}(=\S*)?(?!\S)", "", variables.get("XLA_FLAGS", "")).split()
        variables["XLA_FLAGS"] = " ".join([*others, f"{_DEVICES_FLAG}={devices_per_worker}"])
        variables["JAX_PLATFORMS"] = "cpu"
        variables.pop("JAX_NUM_CPU_DEVICES", None)  # it would count instead of the flag
    return variables


@contextmanager
def _signals_to(events: _Events) -> Iterator[None]:
    """Put the signals that ask a program to end into the queue, in a main thread: no other may do that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def told(number: int, _: Any) -> None:
        events.put(_Signalled(number))

    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # A signal that is ignored stays so: this is how `nohup` works.
    before = {number: signal.getsignal(number) for number in asked if signal.getsignal(number) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, told)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _name(signal_number: int) -> str:
    try:
        return signal.Signals(signal_number).name
    except ValueError:  # a real-time signal
        return f"signal {signal_number}"
