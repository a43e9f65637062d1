"""`launch`: runs groups of workers until one has finished, and decides on the next step when a group ends.

Threads and signal handlers only put events into a queue; the thread that called `launch` reads it.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from penstock.errors import InvalidArgumentError
from penstock.launch.events import CheckpointWritten, Events, Signalled, WorkerEnded
from penstock.launch.group import Group
from penstock.launch.worker import Output
from penstock.options import check_integer
from penstock.runtime.wakeups import Wakeups


def launch(
    command: Sequence[str],
    *,
    num_workers: int,
    min_workers: int | None = None,
    max_restarts: int = 0,
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

    With `max_restarts`, a lost worker ends its whole group at once. A group of one worker less starts, which resumes
    from the newest checkpoint if the program restores it. When that group has saved a `ps.Checkpoint`, one of
    `num_workers` takes its place, and resumes from there.

    Args:
        command: the program and its arguments.
        min_workers: no group is smaller; `num_workers` where None, so that every group is of the same size.
        max_restarts: how many lost workers are made up for; that a group grows again does not count.
        devices_per_worker: gives each process this number of virtual CPU devices of JAX, and no other devices.
        environment: taken instead of this process's own.
        stdout: a binary file, this process's own by default; lines that workers write to `stderr` go there.

    Returns:
        0 if every process of the last group gave 0; otherwise the status of the one that failed first, or 128 + n if
        signal n ended it or the launcher. A last line on `stderr` says which.

    Raises:
        InvalidArgumentError: no command, a number too small, or `min_workers` that no restart or group allows.
        OSError: the command cannot be started.
    """
    _check(command, num_workers, devices_per_worker, grace_seconds)
    smallest = _checked_smallest(num_workers, min_workers, max_restarts)
    with Wakeups() as wakeups:
        events = Events(wakeups)
        lock = threading.Lock()
        output, errors = (
            Output(stream, lock, when_lost=lambda: events.put(Signalled(signal.SIGPIPE)))
            for stream in (
                sys.stdout.buffer if stdout is None else stdout,
                sys.stderr.buffer if stderr is None else stderr,
            )
        )
        group = Group(
            command,
            os.environ if environment is None else environment,
            devices_per_worker,
            (output, errors),
            events,
            grace_seconds,
        )
        with _signals_to(events):
            cause = _run_groups(group, num_workers, smallest, max_restarts, errors)
        if cause is None and (output.lost or errors.lost):
            cause = Signalled(signal.SIGPIPE)
        if cause is None:
            return 0
        errors.write(f"penstock: {cause}".encode())
        return cause.exit_status


def _run_groups(
    group: Group, num_workers: int, smallest: int, max_restarts: int, errors: Output
) -> WorkerEnded | Signalled | None:
    """Run groups until one has ended for good; what ended it, None if all its workers gave 0."""
    size, restarts = num_workers, 0
    while True:
        replaceable = restarts < max_restarts
        cause = group.run(size, replaceable=replaceable, may_grow=size < num_workers)
        if isinstance(cause, CheckpointWritten):
            size = num_workers
            errors.write(f"penstock: {cause.path} is complete: {size} workers continue from there".encode())
        elif isinstance(cause, WorkerEnded) and replaceable:
            restarts += 1
            size = max(smallest, size - 1)
            errors.write(f"penstock: {cause}. Restart {restarts} of {max_restarts}, with {size} worker(s)".encode())
        else:
            return cause


def _check(command: Sequence[str], num_workers: int, devices_per_worker: int | None, grace_seconds: float) -> None:
    if isinstance(command, str) or not command:
        raise InvalidArgumentError(
            "launch(command) takes a list of the program and its arguments, such as [sys.executable, 'train.py'], "
            f"got {command!r}"
        )
    check_integer("launch", "num_workers", num_workers, minimum=1)
    if devices_per_worker is not None:
        check_integer("launch", "devices_per_worker", devices_per_worker, minimum=1)
    if not grace_seconds >= 0:
        raise InvalidArgumentError(f"launch(grace_seconds=...) must be at least 0, got {grace_seconds}")


def _checked_smallest(num_workers: int, min_workers: int | None, max_restarts: int) -> int:
    """The size of the smallest group."""
    check_integer("launch", "max_restarts", max_restarts, minimum=0)
    if min_workers is None:
        return num_workers
    if not 1 <= min_workers <= num_workers:
        raise InvalidArgumentError(
            f"launch(min_workers=...) must be from 1 to num_workers, which is {num_workers}, got {min_workers}"
        )
    if min_workers < num_workers and max_restarts == 0:
        raise InvalidArgumentError(
            f"launch(min_workers={min_workers}) needs max_restarts=...: without restarts no smaller group ever starts"
        )
    return min_workers


@contextmanager
def _signals_to(events: Events) -> Iterator[None]:
    """Put the signals that ask a program to end into the queue, in a main thread: no other may do that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, _: Any) -> None:
        events.put(Signalled(number))

    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # A signal that is ignored stays so: this is how `nohup` works.
    before = {number: signal.getsignal(number) for number in asked if signal.getsignal(number) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
