"""What the processes of a mesh are told when one of them fails. Each case is run by itself."""

import os
import signal
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from scenarios.meshes import ROWS, P, _mesh, _refusal

import penstock as ps

NEEDS_STRATEGY = False


def _steps(dataset: ps.Dataset) -> Any:
    multihost_utils.sync_global_devices("both make the loader now")
    loader = ps.jax.loader(dataset, _mesh(), P("data"), failure_timeout_seconds=2)
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


def uneven_results(_: None) -> Any:
    """A function of the rows whose results differ in shape between the processes."""
    rows = ps.Dataset.range(16).batch(8)
    sharding = _mesh(), P(("data", "fsdp"))
    with ps.jax.loader(rows, *sharding, collate=lambda _: np.zeros(3 + jax.process_index())) as loader:
        return _refusal(lambda: next(iter(loader)))


def absent(_: None) -> Any:
    """Process 1 does not make the loader until process 0 has given up."""
    if jax.process_index() == 1:
        multihost_utils.sync_global_devices("process 0 has given up")
    told = _refusal(lambda: ps.jax.loader(ROWS.batch(4), _mesh(), P("data"), failure_timeout_seconds=0.5))
    if jax.process_index() == 0:
        multihost_utils.sync_global_devices("process 0 has given up")
    return told


def refused_by_one(_: None) -> Any:
    """Process 1 names an axis that is not there; then all make a loader."""
    told = _refusal(lambda: ps.jax.loader(ROWS.batch(4), _mesh(), P("dta" if jax.process_index() else "data")))
    with ps.jax.loader(ROWS.batch(4), _mesh(), P("data")) as loader:
        return {"error": told, "steps": len(loader)}


def loaded_by_one(_: None) -> Any:
    """Process 0 alone loads a state."""
    multihost_utils.sync_global_devices("both make the loader now")
    loader = ps.jax.loader(ROWS.batch(4).repeat(), _mesh(), P("data"), failure_timeout_seconds=3)
    if jax.process_index() == 0:
        return _refusal(lambda: loader.load_state_dict(loader.state_dict()))
    return _refusal(lambda: [None for _ in loader])


def killed(_: None) -> Any:
    """Process 1 is lost while process 0 waits for what it says of its next step."""

    def maybe_killed(row: Any) -> Any:
        if row == 300 and jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return row % 3 != 0

    return _steps(ps.Dataset.range(4000).filter(maybe_killed).batch(4, drop_remainder=True))
