"""What the processes of a mesh are told when one of them fails. Each case is run by itself."""

import os
import signal
from typing import Any

import jax
from scenarios.meshes import P, _mesh

import penstock as ps

NEEDS_STRATEGY = False


def _steps(dataset: ps.Dataset) -> Any:
    loader = ps.jax.loader(dataset, _mesh(), P("data"), failure_timeout_seconds=1)
    done = 0
    try:
        for batch in loader:
            jax.block_until_ready(batch)
            done += 1
    except (ps.WorkerError, ValueError) as error:
        return {"done": done, "error": f"{type(error).__name__}: {error}"}
    return {"done": done, "error": None}


def row_fails(_: None) -> Any:
    """The input of process 1 fails in its third step, whose rows process 0 has."""

    def checked(row: Any) -> Any:
        if row == 11 and jax.process_index() == 1:
            raise ValueError("a bad row")
        return row

    return _steps(ps.Dataset.range(10**9).map(checked).batch(4))


def killed(_: None) -> Any:
    """Process 1 is lost while process 0 waits for what it says of its next step."""

    def maybe_killed(row: Any) -> Any:
        if row == 300 and jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return row % 3 != 0

    return _steps(ps.Dataset.range(4000).filter(maybe_killed).batch(4, drop_remainder=True))
