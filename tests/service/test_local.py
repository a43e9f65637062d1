"""A service of worker processes on this machine, which ends with whoever has started it."""

import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from until import until

import penstock as ps

own_children = pytest.mark.usefixtures("own_children")

# It looks up again and again: Python does not wake a read for an interrupt that came just before it.

PROGRAM = """
import os, select, sys
import penstock as ps
service = ps.service.local(num_workers=2)
dataset = ps.Dataset.range(4).map(lambda x: (x, os.getpid()))
dataset = dataset.apply(ps.service.distribute("distributed_epoch", service.target))
print(os.getpid(), *{int(process) for _, process in dataset}, flush=True)
while not select.select([sys.stdin], [], [], 0.05)[0]:
    pass
"""


def children() -> set[int]:
    """The processes that this one has started and not waited for."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == os.getpid():
                found.add(int(entry.name))
    return found


def running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@own_children
@pytest.mark.extended
def test_functions_run_in_the_worker_processes_and_nothing_is_left_of_them() -> None:
    before = children()
    with ps.service.local(num_workers=2) as service:
        workers = children() - before
        assert len(workers) == 2
        dataset = ps.Dataset.range(50).map(lambda x: (x, os.getpid()))
        results = list(dataset.apply(ps.service.distribute("distributed_epoch", service.target)))
        assert [int(x) for x, _ in results] == list(range(50))
        assert {int(process) for _, process in results} <= workers
        service.stop()
    assert children() == before


@pytest.mark.slow
def test_a_module_of_the_programs_own_is_found_by_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_module.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    import own_module  # noqa: PLC0415  # it was written just now

    with ps.service.local(num_workers=1) as service:
        dataset = ps.Dataset.range(3).map(own_module.double)
        assert [int(x) for x in dataset.apply(ps.service.distribute("distributed_epoch", service.target))] == [0, 2, 4]


@pytest.mark.slow
def test_reading_after_the_service_has_ended_waited_for_it_for_minutes() -> None:
    with ps.service.local(num_workers=1) as service:
        dataset = ps.Dataset.range(10_000).map(lambda x: np.zeros(1 << 20))  # more than a reader holds
        dataset = dataset.apply(ps.service.distribute("distributed_epoch", service.target))
        elements = iter(dataset)
        next(elements)
    with (
        elements,
        pytest.raises(ps.errors.ServiceError, match="has ended, because this program has stopped it, left its"),
    ):
        list(elements)
    with pytest.raises(ps.errors.ServiceError, match="read while it runs"):
        next(iter(dataset))


@pytest.mark.extended
@pytest.mark.parametrize("child", ["list(dataset)", "ps.service.local(num_workers=1)"])
def test_a_process_forked_from_one_that_uses_a_service_uses_it_too(child: str) -> None:
    script = f"""
import os
import penstock as ps
with ps.service.local(num_workers=1) as service:
    dataset = ps.Dataset.range(3).apply(ps.service.distribute("distributed_epoch", service.target))
    assert len(list(dataset)) == 3
    if os.fork() == 0:
        try:
            {child}
        except BaseException as error:
            print(repr(error), flush=True)
        os._exit(0)
    os.wait()
    assert len(list(dataset)) == 3
"""
    # Python itself warns of forks, from 3.12 on.
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@own_children
@pytest.mark.extended
def test_a_service_that_is_forgotten_ends() -> None:
    before = children()
    service = ps.service.local(num_workers=1)
    assert len(children() - before) == 1
    del service
    gc.collect()
    until(lambda: children() == before)


@pytest.mark.extended
@pytest.mark.parametrize(
    "how",
    [signal.SIGKILL, *(pytest.param(how, marks=pytest.mark.extended) for how in (signal.SIGINT, signal.SIGTERM, None))],
)
def test_workers_end_with_their_program_however_that_ends(how: signal.Signals | None) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdin is not None and program.stdout is not None
    pid, *workers = map(int, program.stdout.readline().split())
    assert pid == program.pid
    assert workers and all(map(running, workers))
    if how is None:
        program.stdin.close()
    else:
        program.send_signal(how)
    until(lambda: not any(map(running, workers)))
    assert program.wait() == {None: 0, signal.SIGINT: -signal.SIGINT}.get(how, -(how or 0))
    for stream in (program.stdin, program.stdout, program.stderr):
        assert stream is not None
        stream.close()


@pytest.mark.parametrize(("wrong", "kind"), [(0, ValueError), (1.5, TypeError), ("2", TypeError)])
def test_the_number_of_workers_is_checked(wrong: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"local\(num_workers=...\)"):
        ps.service.local(wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_function_that_prints_much_stopped_its_worker(capsys: pytest.CaptureFixture[str]) -> None:
    def noisy(x: np.int64) -> np.int64:
        print("row", x, "." * 500)  # noqa: T201
        return x

    with ps.service.local(num_workers=1) as service:
        dataset = ps.Dataset.range(300).map(noisy).apply(ps.service.distribute("distributed_epoch", service.target))
        assert [int(x) for x in dataset] == list(range(300))  # 150 kB, where a pipe holds 64 KiB
    printed = capsys.readouterr().err
    assert printed.startswith("[data worker ")
    assert printed.count(".") == 150_000  # lines of two threads may be mixed


@own_children
@pytest.mark.extended
def test_a_function_that_asks_for_input_waited_for_ever() -> None:
    with ps.service.local(num_workers=1) as service:
        dataset = (
            ps.Dataset.range(3).map(lambda x: input()).apply(ps.service.distribute("distributed_epoch", service.target))
        )
        with pytest.raises(EOFError):
            list(dataset)


FORKING_PROGRAM = """
import os, time
import penstock as ps
service = ps.service.local(num_workers=1)
dataset = ps.Dataset.range(1).map(lambda x: os.getpid())
worker, = dataset.apply(ps.service.distribute("distributed_epoch", service.target))
called, = ps.Dataset.range(1).map(lambda x: os.getpid(), num_parallel_calls=1, processes=True)
child = os.fork()
if child:
    print(worker, called, child, flush=True)
time.sleep(1000)
"""


@pytest.mark.extended
def test_workers_outlived_a_killed_program_that_had_forked() -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORKING_PROGRAM], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        worker, called, child = map(int, program.stdout.readline().split())
        program.kill()
    try:
        until(lambda: not running(worker) and not running(called))
        assert running(child)
    finally:
        os.kill(child, signal.SIGKILL)


@own_children
@pytest.mark.extended
def test_a_worker_lost_during_a_drain_is_replaced(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("penstock.service.local"), "SAY_SECONDS", 0.0)
    before = children()
    with ps.service.local(num_workers=1) as service:
        (worker,) = children() - before
        dataset = ps.Dataset.range(10_000).batch(10)
        elements = iter(dataset.apply(ps.service.distribute("distributed_epoch", service.target)))
        assert next(elements).tolist() == list(range(10))
        draining = threading.Thread(target=service.stop, kwargs={"drain": True})
        draining.start()
        until(lambda: "stopping waits for readers: " in caplog.text)
        os.kill(worker, signal.SIGKILL)
        assert len(list(elements)) == 999
        draining.join()


@own_children
@pytest.mark.extended  # it takes three missed reports of two seconds
def test_a_silent_worker_is_killed_and_replaced() -> None:
    before = children()
    with ps.service.local(num_workers=1) as service:
        (worker,) = children() - before
        os.kill(worker, signal.SIGSTOP)
        until(lambda: not running(worker))
        dataset = ps.Dataset.range(5).apply(ps.service.distribute("distributed_epoch", service.target))
        assert [int(x) for x in dataset] == list(range(5))


def test_a_worker_that_a_test_kills_is_not_blamed_on_memory(caplog: pytest.LogCaptureFixture) -> None:
    with ps.service.local(num_workers=1) as service:
        (before,) = [worker.info.endpoint.address for worker in service.status().workers]
        service.kill_worker()
        until(lambda: any(worker.info.endpoint.address != before for worker in service.status().workers))
    assert "memory" not in caplog.text
