"""No thread outlives its iterator: not after close, not after garbage collection, not at the end of the program."""

import contextlib
import gc
import subprocess
import textwrap
import threading
from pathlib import Path

import forked
import pytest

import penstock as ps
from penstock.distribute.feed import dataset as input
from penstock.distribute.feed.feed import Prefetcher


def prefetching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-distribute"]


def run(tmp_path: Path, program: str) -> "subprocess.CompletedProcess[str]":
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    return forked.run(str(file))


def started(strategy: ps.HostStrategy) -> ps.types.DistributedIterator:
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


@pytest.mark.slow
def test_a_forgotten_iterator_ends_the_thread() -> None:
    steps = started(ps.HostStrategy(2))
    (thread,) = prefetching()
    del steps
    gc.collect()
    thread.join(timeout=60)
    assert not thread.is_alive()


@pytest.mark.slow
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
        thread.join(timeout=60)
        assert not thread.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(0)", "gc.disable(); steps.cycle = steps"])
def test_a_program_ends_with_an_iterator_open(tmp_path: Path, ending: str) -> None:
    program = f"""
        import gc
        import penstock as ps
        steps = iter(ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(10**9).batch(4)))
        next(steps)
        {ending}
    """
    done = run(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_program_that_is_interrupted_ends(tmp_path: Path) -> None:
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
    done = run(tmp_path, program)
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


@pytest.mark.slow
@pytest.mark.parametrize("closes", [False, True])
def test_ctrl_c_while_a_generator_waits_ends_with_one_traceback(tmp_path: Path, closes: bool) -> None:
    program = f"""
        import contextlib, os, signal, threading
        import penstock as ps
        def rows():
            yield 0
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait()
        dataset = ps.Dataset.from_generator(rows).batch(1)
        steps = iter(ps.HostStrategy(1).distribute_dataset(dataset))
        with steps if {closes} else contextlib.nullcontext():
            for step in steps:
                pass
    """
    done = run(tmp_path, program)
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert done.stderr.count("Traceback") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "taken", [0, pytest.param(1, marks=pytest.mark.extended), 2, pytest.param(5, marks=pytest.mark.extended)]
)
@pytest.mark.parametrize("kind", ["divided", "from a function", "per replica"])
def test_a_loop_that_is_left_ends_the_thread(strategy_of, kind: str, taken: int) -> None:
    strategy, dataset = strategy_of(2), ps.Dataset.range(1000).batch(4)
    if kind == "divided":
        distributed = strategy.distribute_dataset(dataset)
    else:
        mode = "PER_REPLICA" if kind == "per replica" else "PER_WORKER"
        options = ps.InputOptions(replication_mode=mode, per_replica_buffer_size=3)
        distributed = strategy.distribute_datasets_from_function(lambda context: dataset, options)

    def leave() -> None:
        for number, _ in enumerate(distributed):
            if number == taken:
                break

    def fail() -> None:
        for number, _ in enumerate(distributed):
            if number == taken:
                raise KeyError("in the loop")

    leave()
    with pytest.raises(KeyError, match="in the loop"):
        fail()
    gc.collect()
    for thread in prefetching():
        thread.join(timeout=60)
    assert prefetching() == []


def test_a_waiting_iterator_ends_when_it_is_closed_from_elsewhere() -> None:
    waiting, go_on = threading.Event(), threading.Event()

    def slow(batch):
        if 8 in batch:
            waiting.set()
            go_on.wait(timeout=30)
        return batch

    steps = iter(ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(100).batch(4).map(slow)))
    failures = []

    def read() -> None:
        try:
            for _ in steps:
                pass
        except ps.errors.ClosedError as error:
            failures.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    assert waiting.wait(timeout=30)
    closer = threading.Thread(target=steps.close)
    closer.start()
    reader.join(timeout=30)  # at once: it does not wait for the function
    assert len(failures) == 1
    go_on.set()
    closer.join(timeout=30)
    assert prefetching() == []


def test_close_while_the_first_step_is_asked_for_leaks_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class ClosedAtOnce(Prefetcher):
        """Another thread calls `close` once the prefetching thread runs."""

        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            start = self._thread.start

            def closing() -> None:
                start()
                closer.start()
                closer.join(0.2)

            self._thread.start = closing

    monkeypatch.setattr(input, "Prefetcher", ClosedAtOnce)
    steps = iter(ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(10**9).batch(4)))
    closer = threading.Thread(target=steps.close)
    with contextlib.suppress(ps.errors.ClosedError):  # or the first step, which was made already
        next(steps)
    closer.join(timeout=30)
    assert prefetching() == []
    with pytest.raises(ps.errors.ClosedError, match="was closed"):
        next(steps)


@pytest.mark.slow
@pytest.mark.parametrize("buffer_size", [0, 1, 4])
@pytest.mark.parametrize("kept", [False, True])
def test_an_interrupted_loop_leaves_nothing(tmp_path: Path, buffer_size: int, kept: bool) -> None:
    program = f"""
        import gc, os, signal, threading
        import penstock as ps
        def interrupt(batch):
            if 40 in batch:
                os.kill(os.getpid(), signal.SIGINT)
            return batch
        options = ps.InputOptions(per_replica_buffer_size={buffer_size})
        dataset = ps.Dataset.range(10**9).batch(4).map(interrupt, num_parallel_calls=2).prefetch(2)
        steps = iter(ps.HostStrategy(2).distribute_dataset(dataset, options))
        try:
            for step in steps:
                pass
        except KeyboardInterrupt:
            print("interrupted")
        if {kept}:
            steps.close()
        del steps
        gc.collect()
        left = [thread for thread in threading.enumerate() if thread.name.startswith("penstock")]
        for thread in left:
            thread.join(60)
        print([thread.name for thread in left if thread.is_alive()])
    """
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n[]\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("buffer_size", [0, 2])
def test_ctrl_c_in_the_first_step_loses_no_step_and_leaves_no_thread(tmp_path: Path, buffer_size: int) -> None:
    program = f"""
        import gc, os, signal, sys, threading
        import penstock as ps
        def interrupt(batch):
            if interrupts:
                interrupts.pop()
                os.kill(os.getpid(), signal.SIGINT)
            return batch
        options = ps.InputOptions(per_replica_buffer_size={buffer_size})
        for _ in range(8):
            interrupts = [True]
            numbers = ps.Dataset.range(24).batch(4).map(interrupt)
            steps = iter(ps.HostStrategy(2).distribute_dataset(numbers, options))
            sys.setswitchinterval(1)  # a new thread comes to its first step before the main one knows that it runs
            seen = []
            while True:
                try:
                    seen.append(next(steps).values[0].tolist())
                except KeyboardInterrupt:
                    sys.setswitchinterval(0.005)
                except StopIteration:
                    break
            assert seen == [[n, n + 1] for n in range(0, 24, 4)], seen
            del steps
            gc.collect()
            for thread in threading.enumerate():
                if thread.name.startswith("penstock"):
                    thread.join(5)
        print([thread.name for thread in threading.enumerate()])
    """
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['MainThread']\n", "")


@pytest.mark.slow
def test_ctrl_c_while_a_replica_starts_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    program = """
        import threading
        import penstock as ps
        start = threading.Thread.start
        def interrupted(thread):
            if thread.name == "penstock-replica":
                raise KeyboardInterrupt  # as it comes while a thread waits for its first moment
            start(thread)
        threading.Thread.start = interrupted
        try:
            ps.HostStrategy(3).run(lambda: 1)
        except KeyboardInterrupt:
            print("interrupted")
    """
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
