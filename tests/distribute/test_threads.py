"""No thread outlives its iterator: not after close, not after garbage collection, not at the end of the program."""

import gc
import subprocess
import sys
import textwrap
import threading

import pytest

import penstock as ps


def prefetching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-distribute"]


def started(strategy: ps.HostStrategy) -> ps.DistributedIterator:
    steps = iter(strategy.distribute_dataset(ps.Dataset.range(1000).batch(4)))
    next(steps)
    assert len(prefetching()) == 1
    return steps


def test_close_ends_the_thread() -> None:
    started(ps.HostStrategy(2)).close()
    assert prefetching() == []


def test_the_end_of_the_data_ends_the_thread() -> None:
    for _ in ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(8).batch(4)):
        pass
    assert prefetching() == []


def test_a_forgotten_iterator_ends_the_thread() -> None:
    steps = started(ps.HostStrategy(2))
    (thread,) = prefetching()
    del steps
    gc.collect()
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_a_failed_step_does_not_keep_the_iterator_alive() -> None:
    def fail(batch):
        raise KeyError("broken")

    steps = iter(ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(8).batch(4).map(fail)))
    with pytest.raises(KeyError, match="broken"):
        next(steps)
    threads = prefetching()
    del steps
    gc.collect()
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive()


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(0)", "gc.disable(); steps.cycle = steps"])
def test_a_program_ends_with_an_iterator_open(ending: str) -> None:
    program = f"""
        import gc
        import penstock as ps
        steps = iter(ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(10**9).batch(4)))
        next(steps)
        {ending}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_is_interrupted_ends() -> None:
    program = """
        import os, signal
        import numpy as np
        import penstock as ps
        def interrupt(batch):
            if 40 in batch:
                os.kill(os.getpid(), signal.SIGINT)
            return batch
        dataset = ps.Dataset.range(10**9).batch(4).map(interrupt)
        for step in ps.HostStrategy(2).distribute_dataset(dataset):
            pass
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
