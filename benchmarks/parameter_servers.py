"""Parameter servers, local and on Ray: closures in a second beside TensorFlow's, and how long large arrays travel."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optax
import ray

import penstock as ps
from benchmarks.timing import Figure, seconds

CLOSURES, ROUNDS = 300, 5
LARGE_ROUNDS = 8
LARGE_GOALS = {
    "": {10: (2, 20, 20), 100: (2, 10, 10)},
    " on Ray": {10: (2, 100, 100), 100: (2, 10, 10)},
}
"""By MB: a pull in ms, a pull and a push in copies."""


def measure() -> list[Figure]:
    """The figures; those against TensorFlow where an interpreter for it is named."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    half = {"num_cpus": 0.25}
    engines = {
        "": "local",
        " on Ray": ps.ray.ParameterServers(half, half),
        " on Ray, over TCP": ps.ray.ParameterServers(half, half, shared_memory=False),
    }
    figures = closures(engines)
    for name, all_goals in LARGE_GOALS.items():
        with ps.ParameterServerStrategy(num_workers=1, num_ps=1, engine=engines[name]) as strategy:
            coordinator = ps.ClusterCoordinator(strategy)
            for megabytes, goals in all_goals.items():
                figures += large(strategy, coordinator, name, megabytes, *goals)
    ray.shutdown()
    return figures


def closures(engines: dict[str, Any]) -> list[Figure]:
    """Functions of a linear model of three weights on two workers, of this machine's processes and of Ray's actors."""
    figures = []
    with ExitStack() as stack:
        theirs = stack.enter_context(tensorflow())
        runs = {name: stack.enter_context(tiny_model(engine)) for name, engine in engines.items()}
        rounds = [({name: seconds(run) for name, run in runs.items()}, theirs(CLOSURES)) for _ in range(ROUNDS)]
    for name in engines:
        ours = min(mine[name] for mine, _ in rounds)
        figures.append(
            Figure(f"closures of a tiny model{name}", CLOSURES / ours, 100 if name else 1000, unit=" a second")
        )
        if all(other is not None for _, other in rounds):
            other = min(other for _, other in rounds if other is not None)
            figures.append(Figure(f"closures of a tiny model{name} / TensorFlow's", other / ours, 0.7 if name else 5))
    return figures


@contextmanager
def tiny_model(engine: Any) -> Iterator[Callable[[], None]]:
    """Gives what runs many functions: each reads, computes the gradients of four rows, and pushes them."""
    with ps.ParameterServerStrategy(num_workers=2, num_ps=1, engine=engine) as strategy:
        coordinator = ps.ClusterCoordinator(strategy)
        weights = strategy.create_variables({"w": np.zeros(3, np.float32), "b": 0.0}, optax.sgd(0.1))
        x = np.ones((4, 3), np.float32)

        def step() -> None:
            now = weights.read()
            error = x @ now["w"] + now["b"] - 1
            weights.push({"w": error @ x / 2, "b": 2 * error.mean()})

        def run() -> None:
            for _ in range(CLOSURES):
                coordinator.schedule(step)
            coordinator.join()

        run()
        yield run


def large(
    strategy: ps.ParameterServerStrategy,
    coordinator: ps.ClusterCoordinator,
    name: str,
    megabytes: int,
    again_goal: float,
    pull_goal: float,
    push_goal: float,
) -> list[Figure]:
    """The best of a pull of a published version, and of a push until it is applied, against a copy in memory."""
    count = megabytes * 250_000
    variables = strategy.create_variables(np.zeros(count, np.float32), optax.sgd(1.0))

    def step() -> tuple[float, float, float]:
        start = time.perf_counter()
        values = variables.read()
        first = time.perf_counter()
        variables.read()
        again = time.perf_counter()
        variables.push(values)
        return first - start, again - first, again

    times = []
    for _ in range(LARGE_ROUNDS):
        *pulls, pushed_at = coordinator.schedule(step).fetch()
        times.append((*pulls, time.perf_counter() - pushed_at))
    source, target = np.zeros(count, np.float32), np.ones(count, np.float32)
    copy = min(seconds(lambda: np.copyto(target, source)) for _ in range(LARGE_ROUNDS))
    first, again, push = (min(column) for column in zip(*times, strict=True))
    pull, pushed = f"pull of {megabytes} MB{name}", f"push of {megabytes} MB{name}"
    return [
        Figure(f"{pull} that another has pulled", again * 1e3, again_goal, at_least=False, unit=" ms"),
        Figure(f"{pull} after a push / a copy in memory", first / copy, pull_goal, at_least=False),
        Figure(f"{pushed}, until fetch says that it is applied / a copy", push / copy, push_goal, at_least=False),
    ]


@contextmanager
def tensorflow() -> Iterator[Callable[[int], float | None]]:
    """Gives what TensorFlow takes for a number of closures; None where no interpreter for it is named."""
    python = os.environ.get("PENSTOCK_BENCH_TENSORFLOW")
    if not python:
        print("PENSTOCK_BENCH_TENSORFLOW names no interpreter with TensorFlow: not compared with it", file=sys.stderr)
        yield lambda closures: None
        return
    with subprocess.Popen(
        [python, Path(__file__).with_name("parameter_servers_in_tensorflow.py")],
        env={**os.environ, "GRPC_FAIL_FAST": "use_caller"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def ask(closures: int) -> float:
            print(closures, file=requests, flush=True)
            return float(answers.readline())

        ask(20)
        yield ask
        requests.close()
