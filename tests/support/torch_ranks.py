"""Ranks of torch.distributed as real processes, forked from one that has imported torch."""

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import torch.distributed

from penstock.runtime.ports import free_port

_PRELOADED = [
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict",
    "penstock.torch.loader",
    "penstock.data.file_datasets",
    "pytorch_lightning",
    "accelerate",
    "torch_ranks",
]


@dataclass(frozen=True)
class Ended:
    """What became of a rank: what its function gave, or the error as text; both None where the process was ended."""

    value: Any = None
    error: str | None = None
    status: int | None = 0


def on_ranks(function: Callable[..., Any], count: int, *arguments: Any, group: bool = True, seconds: float = 90) -> Any:
    """What `function(rank, *arguments)` gives on each rank; an error of any of them is raised."""
    ended = ends_of_ranks(function, count, *arguments, group=group, seconds=seconds)
    failed = [one for one in ended if one.error is not None or one.status != 0]
    assert not failed, "\n".join(str(one.error or f"ended with status {one.status}") for one in failed)
    return [one.value for one in ended]


def ends_of_ranks(
    function: Callable[..., Any], count: int, *arguments: Any, group: bool = True, seconds: float = 90
) -> list[Ended]:
    """As `on_ranks`, where ranks may fail; those that have not ended in time are killed, and have no status.

    Args:
        function: called by its value, so it may be one of a test's file.
        count: how many ranks there are.
        arguments: given to each.
        group: whether the process group is initialised before; torchrun's variables are set in any case.
        seconds: how long all of them may take.
    """
    cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
    called = cloudpickle.dumps((function, arguments))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    port, started = free_port(), []
    for rank in range(count):
        ours, theirs = context.Pipe(duplex=False)
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
        process = context.Process(target=_run, args=(called, rank, variables, group, theirs))
        process.start()
        theirs.close()
        started.append((process, ours))
    deadline = time.monotonic() + seconds
    ended = [_end_of(process, ours, deadline) for process, ours in started]
    for process, ours in started:
        ours.close()
        process.close()
    return ended


def _end_of(process: Any, ours: Connection, deadline: float) -> Ended:
    found: dict[str, Any] = {}
    if wait([ours], max(deadline - time.monotonic(), 0)):
        try:
            found = ours.recv()
        except EOFError:
            found = {}
    process.join(max(deadline - time.monotonic(), 0))
    if process.exitcode is None:
        process.kill()
        process.join()
        return Ended(**found, status=None)
    return Ended(**found, status=process.exitcode)


def _run(called: bytes, rank: int, variables: dict[str, Any], group: bool, answer: Connection) -> None:
    os.environ |= {name: str(value) for name, value in variables.items()} | {"MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    function, arguments = cloudpickle.loads(called)
    try:
        if group:
            torch.distributed.init_process_group("gloo")
        value = function(rank, *arguments)
        answer.send({"value": value})
        if group:
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
    except BaseException as error:
        traceback.print_exc()
        answer.send({"error": f"{type(error).__name__}: {error}"})
        sys.last_value = error  # as where a program ends by it
        raise SystemExit(1) from None
