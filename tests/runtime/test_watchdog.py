"""A process that hangs says for what, by itself and when it is asked."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from forked import Forked
from until import until

import penstock as ps
from penstock.cli import main
from penstock.paths import private_directory
from penstock.runtime import watchdog

HANGS = """
import sys, threading
import penstock as ps

def decode(row):
    if row:
        print("hangs", flush=True)
        threading.Event().wait(60)
    return row

dataset = ps.Dataset.range(2).map(decode, **eval(sys.argv[1]))
for row in dataset.with_options(ps.Options(watchdog_seconds=float(sys.argv[2]))):
    pass
"""


@pytest.fixture
def watched() -> Iterator[None]:
    """End the thread that watches, which lasts as long as this process otherwise."""
    yield
    assert watchdog._watchdog is not None
    watchdog._watchdog.close()
    watchdog._forget()


@contextmanager
def hanging(arguments: str, seconds: str) -> Iterator[Forked]:
    environment = dict(os.environ) | {watchdog.VARIABLE: "60"}
    process = Forked("-c", HANGS, arguments, seconds, pipes=("stdout", "stderr"), env=environment)
    try:
        assert process.stdout is not None and process.stdout.readline() == "hangs\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def sockets() -> set[str]:
    directory = private_directory()
    assert directory is not None
    return {path.stem for path in directory.glob("*.dump")}


def test_a_hang_is_told_once_with_operator_and_stack(caplog: pytest.LogCaptureFixture, watched: None) -> None:
    caplog.set_level(logging.WARNING, "penstock.runtime.watchdog")
    goes_on = threading.Event()

    def waits(row: int) -> int:
        assert row == 0 or goes_on.wait(60)
        return row

    dataset = ps.Dataset.range(2).map(waits, num_parallel_calls=2).batch(1)
    with iter(dataset.with_options(ps.Options(watchdog_seconds=0.2))) as rows:
        next(rows)
        reading = threading.Thread(target=next, args=(rows,), name="reading")
        reading.start()
        until(lambda: bool(caplog.records))
        goes_on.set()
        reading.join()
        until(lambda: len(caplog.records) == 2)
        assert re.search(r"at \d\d:\d\d:\d\d no step had come for \d s: see the log", str(rows.report()))
    told, came = (record.getMessage() for record in caplog.records)
    assert "no step has come for too long" in told
    assert f"process {os.getpid()} on " in told
    assert re.search(r"waits (at least \d s )?for the next element of batch\(batch_size=1\) at ", told)
    assert "penstock-worker\n  waits for map(function=" in told
    assert f"{__file__}:" in told and "test_a_hang_is_told_once_with_operator_and_stack.<locals>.waits" in told
    assert "the next element of batch(batch_size=1)" in came and " came after " in came


def test_a_step_in_time_is_no_hang(caplog: pytest.LogCaptureFixture, watched: None) -> None:
    assert list(ps.Dataset.range(3).with_options(ps.Options(watchdog_seconds=60))) == [0, 1, 2]
    assert caplog.records == []


def test_without_seconds_there_is_no_thread_and_no_socket() -> None:
    assert list(ps.Dataset.range(1).with_options(ps.Options(watchdog_seconds=0))) == [0]
    assert watchdog._watchdog is None
    assert str(os.getpid()) not in sockets()


def test_the_watchdog_is_no_part_of_what_a_dataset_is() -> None:
    dataset = ps.Dataset.range(3)
    assert dataset.with_options(ps.Options(watchdog_seconds=1)).fingerprint() == dataset.fingerprint()


@pytest.mark.extended
def test_dump_shows_what_a_process_and_its_children_wait_for(capsys: pytest.CaptureFixture[str]) -> None:
    with hanging("dict(num_parallel_calls=1, processes=True)", "60") as process:
        assert main(["dump", str(process.pid)]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"process {process.pid} on ")
        assert "waits for map(function=decode, num_parallel_calls=1, processes=True) at " in shown
        child = int(shown.partition("waits for process ")[2].split()[0])
        whole = shown.partition(f"started by process {process.pid}: process {child} on ")[2]
        assert " in decode\n" in whole
        assert {str(process.pid), str(child)} <= sockets()


@pytest.mark.slow
def test_the_socket_of_a_killed_process_is_removed(watched: None) -> None:
    with hanging("{}", "60") as process:
        assert str(process.pid) in sockets()
    assert str(process.pid) in sockets()  # it had no time to
    with iter(ps.Dataset.range(1).with_options(ps.Options(watchdog_seconds=60))):
        assert str(process.pid) not in sockets()
        assert str(os.getpid()) in sockets()


@pytest.mark.slow
def test_a_process_removes_its_socket_at_its_end() -> None:
    program = "import os, penstock as ps; list(ps.Dataset.range(1)); print(os.listdir(f'/tmp/penstock-{os.getuid()}'))"
    environment = dict(os.environ) | {watchdog.VARIABLE: "60"}
    process = Forked("-c", program, pipes=("stdout",), env=environment)
    assert f"'{process.pid}.dump'" in process.communicate()[0]
    assert str(process.pid) not in sockets()


FORKS = """
import os, signal, threading
import penstock as ps

dataset = ps.Dataset.range(1)
with iter(dataset):
    child = os.fork()
    names = [thread.name for thread in threading.enumerate()]
    with iter(dataset):
        print(child, names, flush=True)
        signal.pause()
"""


@pytest.mark.slow
def test_a_forked_process_watches_by_itself() -> None:
    environment = dict(os.environ) | {watchdog.VARIABLE: "60"}
    process = Forked("-c", FORKS, pipes=("stdout",), env=environment)
    assert process.stdout is not None
    told = dict(line.split(" ", 1) for line in (process.stdout.readline(), process.stdout.readline()))
    (child,) = (int(number) for number in told if number != "0")
    try:
        assert told["0"] == "['MainThread']\n"
        assert "penstock-watchdog" in told[str(child)]
        for pid in (child, process.pid):
            assert watchdog.ask(pid, "dump").startswith(f"process {pid} on ")
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.communicate()


def test_dump_says_why_a_process_does_not_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert main(["dump", str(gone.pid)]) == 1
    assert f"there is no process {gone.pid} on this machine" in capsys.readouterr().err
    assert main(["dump", str(os.getpid())]) == 1
    assert "answers from its first iter(dataset) on, unless PENSTOCK_WATCHDOG_SECONDS" in capsys.readouterr().err

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert main(["dump", str(os.getpid())]) == 1
    assert "belongs to another user: only that user and root can ask it" in capsys.readouterr().err


@pytest.mark.slow
def test_dump_ends_if_a_process_never_answers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_ANSWER_SECONDS", 0.1)
    with hanging("{}", "60") as process:
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            watchdog.ask(process.pid, "dump", 0.1)


@pytest.mark.parametrize("seconds", [-1, float("inf"), "5", True])
def test_watchdog_seconds_that_are_none_are_refused(seconds: object) -> None:
    with pytest.raises((ps.InvalidArgumentError, ps.InvalidTypeError), match="watchdog_seconds"):
        ps.Options(watchdog_seconds=seconds)  # type: ignore[arg-type]


def test_seconds_of_the_environment_that_are_none_are_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, watched: None
) -> None:
    monkeypatch.setenv(watchdog.VARIABLE, "soon")
    assert list(ps.Dataset.range(1)) == [0]
    assert "PENSTOCK_WATCHDOG_SECONDS takes a number of seconds, got 'soon'" in caplog.text
