"""`penstock top`: the numbers of a running process, on a terminal and for Prometheus."""

import os
import re
import urllib.request
from collections.abc import Iterator

import pytest
from forked import Forked

from penstock.cli import main
from penstock.runtime import watchdog

PROGRAM = """
import sys
import penstock as ps

with iter(ps.Dataset.range(6).batch(2)) as rows:
    next(rows)
    print("begun", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def process() -> Iterator[Forked]:
    environment = dict(os.environ) | {watchdog.VARIABLE: "60"}
    process = Forked("-c", PROGRAM, pipes=("stdin", "stdout"), env=environment)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    yield process
    process.communicate()


@pytest.mark.slow
def test_top_shows_the_wait_and_the_work_of_operators(process: Forked, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(process.pid), "--interval", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("the next element of batch(batch_size=2) at ")
    assert any(line.startswith("batch") for line in lines[1:])


@pytest.mark.slow
def test_a_trainer_is_read_by_prometheus_when_that_is_asked(
    process: Forked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves until its process ends: here it is read between two looks."""
    texts = []

    def read(_: float) -> None:
        address = re.search(r"at (http://127.0.0.1:\d+/metrics)\n", capsys.readouterr().out)
        assert address is not None
        with urllib.request.urlopen(address[1]) as answer:
            texts.append(answer.read().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.processes.time.sleep", read)
    assert main(["top", str(process.pid), "--metrics-port", "0"]) == 130
    assert re.search(r'^penstock_steps\{iterator="0"\} [1-3]$', texts[0], re.MULTILINE)
    assert re.search(r'^penstock_operator_rows\{iterator="0",operator="1_batch"\} [1-3]$', texts[0], re.MULTILINE)


def test_top_says_that_a_process_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    ended = Forked("-c", "")
    assert ended.wait(60) == 0
    assert main(["top", str(ended.pid)]) == 1
    assert f"there is no process {ended.pid} on this machine" in capsys.readouterr().err


@pytest.mark.slow
def test_top_of_a_process_that_iterates_over_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "import sys; from penstock.runtime.watchdog import answer_dumps; answer_dumps(); print(flush=True); input()"
    )
    environment = dict(os.environ) | {watchdog.VARIABLE: "60"}
    worker = Forked("-c", program, pipes=("stdin", "stdout"), env=environment)  # as a data worker begins
    assert worker.stdout is not None and worker.stdout.readline() == "\n"
    assert main(["top", str(worker.pid), "--interval", "0"]) == 0
    assert capsys.readouterr().out.startswith("it iterates over nothing now; `penstock status HOST:PORT` shows")
    worker.communicate()
