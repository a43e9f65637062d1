"""The workers of one job as forked processes, which find each other as those of `penstock launch` do.

Tests that are about how workers are started and ended use `launch` itself.
"""

import os
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from forked import Forked

from penstock.addresses import joined_address
from penstock.runtime.ports import free_port


@dataclass(frozen=True)
class Workers:
    """What became of the workers: one status for each, None for one that had to be ended, and what they wrote.

    The lines that they wrote to stdout and to stderr begin with the worker's number, as in "[1] ".
    """

    statuses: list[int | None]
    output: str
    errors: str


def run_workers(
    *arguments: str,
    workers: int,
    devices: int,
    directory: Path | None = None,
    grace_seconds: float = 30,
    host: str = "127.0.0.1",
) -> Workers:
    """Run a program on as many workers, with as many devices each, until all have ended.

    Workers that outlive one that failed by `grace_seconds` are killed.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    common = os.environ | {
        "XLA_FLAGS": flags,
        "PENSTOCK_COORDINATOR_ADDRESS": joined_address(host, free_port()),
        "PENSTOCK_NUM_WORKERS": str(workers),
    }
    processes = []
    for worker in range(workers):
        own = common | {"PENSTOCK_WORKER_INDEX": str(worker)}
        pipes = ("stdout", "stderr")
        processes.append(Forked(*arguments, pipes=pipes, env=own, directory=directory, training=True))
    with ThreadPoolExecutor(workers) as pool:
        written = [pool.submit(process.communicate, 300) for process in processes]
        ended = _when_ended(processes, written, grace_seconds)
    output, errors = zip(*(one.result() for one in written), strict=True)
    return Workers(
        [process.returncode if process in ended else None for process in processes],
        _numbered(output),
        _numbered(errors),
    )


def _numbered(written: Sequence[str]) -> str:
    return "".join(f"[{worker}] {line}" for worker, text in enumerate(written) for line in text.splitlines(True))


def _when_ended(
    processes: list[Forked], written: list["Future[tuple[str, str]]"], grace_seconds: float
) -> list[Forked]:
    """The processes that ended by themselves; the others are killed."""
    running = dict(zip(written, processes, strict=True))
    timeout = None
    while running:
        done, left = wait(running, timeout, FIRST_COMPLETED)
        if not done:
            for late in left:
                os.kill(running[late].pid, signal.SIGKILL)
            break
        if any(running.pop(one).returncode for one in done):
            timeout = grace_seconds
    return [process for process in processes if process not in running.values()]
