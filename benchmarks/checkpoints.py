"""Time that an asynchronous save blocks, against Orbax's own; cost of a part of a checkpoint."""

import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

import penstock as ps
from benchmarks.timing import Figure, best_in_turn, seconds

ARRAYS = 8
BYTES = 40_000_000


def measure() -> list[Figure]:
    """The figures of this file."""
    return [blocked("JAX", _on_device), blocked("NumPy", _in_numpy), part()]


def _on_device(seed: int) -> Any:
    return jax.random.normal(jax.random.key(seed), (BYTES // 4,))


def _in_numpy(seed: int) -> Any:
    return np.random.default_rng(seed).random(BYTES // 8)


def blocked(kind: str, make: Callable[[int], Any]) -> Figure:
    """320 MB in eight arrays: the time until `save` returns, which is what training waits for."""
    state = jax.block_until_ready({f"array {seed}": make(seed) for seed in range(ARRAYS)})
    with (
        tempfile.TemporaryDirectory() as directory,
        ps.Checkpoint(state=state, asynchronous=True, max_to_keep=1) as checkpoint,
        ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler()) as orbax,
    ):

        def ours() -> float:
            started = time.perf_counter()
            checkpoint.save(f"{directory}/ckpt", state=state)
            took = time.perf_counter() - started
            checkpoint.wait()
            return took

        def theirs() -> float:
            shutil.rmtree(f"{directory}/orbax", ignore_errors=True)
            started = time.perf_counter()
            orbax.save(f"{directory}/orbax", ocp.args.PyTreeSave(state))
            took = time.perf_counter() - started
            orbax.wait_until_finished()
            return took

        mine, other = best_in_turn([ours, theirs], rounds=3)
    question = f"320 MB of {kind} arrays, how long an asynchronous save blocks"
    return Figure(f"{question} / Orbax's", mine / other, 1.2, at_least=False)


def part() -> Figure:
    """One number out of 320 MB."""
    state = {"large": _in_numpy(0), "step": 7} | {f"array {seed}": _in_numpy(seed) for seed in range(1, ARRAYS)}
    with tempfile.TemporaryDirectory() as directory:
        path = ps.Checkpoint(state=state).save(f"{directory}/ckpt", state=state)
        whole, one = ps.Checkpoint(state=state), ps.Checkpoint(state={"step": 0})
        ways = [lambda: seconds(lambda: one.restore(path, partial=True)), lambda: seconds(lambda: whole.restore(path))]
        alone, everything = best_in_turn(ways, rounds=3)
    return Figure("one number restored / 320 MB restored", alone / everything, 0.1, at_least=False)
