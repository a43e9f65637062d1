"""The commands of the data service: what they print, which signals and mistakes end them, and with which status.

The first test starts them as a user does; the others fork them, and what ends before it does anything runs right here.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from forked import Forked, run
from until import until

import penstock as ps
from penstock.cli import main
from penstock.cli.status_page import page
from penstock.service.wire.dispatcher_messages import ConsumerStatus, EpochStatus, Status, WorkerStatus
from penstock.service.wire.subjects import Endpoint, WorkerInfo

Process = Forked | subprocess.Popen[str]


def started(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "penstock", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def forked(*arguments: str) -> Forked:
    return Forked("-m", "penstock", *arguments, pipes=("stdout", "stderr"))


@contextmanager
def running(*arguments: str, start: Callable[..., Process] = forked) -> Iterator[tuple[Process, str]]:
    """A command that goes on, and the first line that it writes."""
    process = start(*arguments)
    try:
        assert process.stdout is not None and process.stderr is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_service_of_processes_from_its_beginning_to_its_end() -> None:
    with running("dispatcher", "--port", "0", "--heartbeat-seconds", "0.2", start=started) as (dispatcher, line):
        address = re.fullmatch(r"penstock: dispatcher at grpc://(localhost:\d+)\n", line)[1]  # type: ignore[index]
        with running("worker", "--dispatcher", address, start=started) as (worker, line):
            assert re.fullmatch(rf"penstock: data worker at grpc://localhost:\d+, dispatcher at {address}\n", line)
            dataset = ps.Dataset.range(10).map(lambda x: (x, os.getpid()))
            dataset = dataset.apply(ps.service.distribute("distributed_epoch", address, job_name="job"))
            assert sorted((int(x), int(process)) for x, process in dataset) == [(x, worker.pid) for x in range(10)]
            shown = run("-m", "penstock", "status", address)
            assert shown.returncode == 0
            assert re.search(r"^0 +localhost:\d+ ", shown.stdout, re.MULTILINE)
            assert "job 'job', epoch 0," in shown.stdout
            stopped = run("-m", "penstock", "stop", address)
            assert (stopped.returncode, stopped.stdout) == (
                0,
                "penstock: the service is stopping, as soon as its readers are done\n",
            )
            assert worker.wait(60) == 0
        assert dispatcher.wait(60) == 0


@pytest.mark.slow
def test_sigterm_lets_a_worker_finish_what_it_was_asked(tmp_path: Path) -> None:
    asked, answer = tmp_path / "asked", tmp_path / "answer"

    def slow(x: int) -> int:
        asked.touch()
        while not answer.exists():
            time.sleep(0.01)
        return x

    with ps.service.DispatchServer() as dispatcher:
        address = dispatcher.target.split("://")[1]
        with running("worker", "--dispatcher", address) as (worker, _):
            dataset = ps.Dataset.range(1).map(slow).apply(ps.service.distribute("distributed_epoch", address))
            results: list[int] = []
            reading = threading.Thread(target=lambda: results.extend(int(x) for x in dataset))
            reading.start()
            until(asked.exists)
            worker.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                worker.wait(0.3)
            answer.touch()
            reading.join(60)
            assert results == [0]
            assert worker.wait(60) == 0


@pytest.mark.slow
def test_what_a_function_printed_after_the_program_had_ended_was_an_error_of_a_reader() -> None:
    def noisy(x: int) -> int:
        print("row", x)  # noqa: T201
        return x

    with ps.service.DispatchServer() as dispatcher:
        arguments = ["worker", "--dispatcher", dispatcher.target.split("://")[1], "--until-input-ends"]
        worker = Forked("-m", "penstock", *arguments, pipes=("stdin", "stdout"))
        assert worker.stdin is not None and worker.stdout is not None
        try:
            assert worker.stdout.readline().startswith("penstock: data worker at ")
            worker.stdout.close()
            noise = ps.Dataset.range(3).map(noisy)
            noise = noise.apply(ps.service.distribute("distributed_epoch", dispatcher.target))
            assert [int(x) for x in noise] == [0, 1, 2]
            worker.stdin.close()
            assert worker.wait(60) == 0
        finally:
            worker.kill()
            worker.wait()
            worker.stdin.close()


@pytest.mark.slow
@pytest.mark.parametrize(("how", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_servers_end_on_signals(how: signal.Signals, status: int) -> None:
    with running("dispatcher", "--port", "0") as (dispatcher, line):
        with running("worker", "--dispatcher", line.split("://")[1].strip()) as (worker, _):
            worker.send_signal(how)
            assert worker.wait(60) == status
        dispatcher.send_signal(how)
        assert dispatcher.wait(60) == status


@pytest.mark.extended
def test_a_worker_waits_for_its_dispatcher_and_says_so() -> None:
    process = Forked("-m", "penstock", "worker", "--dispatcher", "localhost:1", pipes=("stderr",))
    assert process.stderr is not None
    said = process.stderr.readline()
    assert "waiting for the dispatcher, for 3600 s at most: the dispatcher at localhost:1 cannot be reached" in said
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    process.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["status", "localhost"], 2, 'penstock: HOST:PORT needs the address of a dispatcher as "host:port"'),
        (["stop", "http://x:1"], 2, "penstock: HOST:PORT: there is no protocol 'http'"),
        (["worker", "--dispatcher", "x"], 2, 'penstock: --dispatcher needs the address of a dispatcher as "host:port"'),
        (
            ["worker", "--dispatcher", "x:1", "--worker-address", "x"],
            2,
            'penstock: --worker-address must be "host:port"',
        ),
        (["dispatcher", "--port", "-1"], 2, "penstock: --port must be from 0 to 65535, got -1"),
        (["dispatcher", "--heartbeat-seconds", "0"], 2, "penstock: --heartbeat-seconds must be a number of seconds"),
        (["dispatcher", "--worker-address", ""], 2, "penstock: --worker-address must not hold an empty address"),
        (["dispatcher", "--tls-cert", "x"], 2, "penstock: --tls-cert and --tls-key belong together, got only one"),
        (
            ["dispatcher", "--host", "0.0.0.0"],
            2,
            "penstock: --host 0.0.0.0 lets other machines in, who could run their programs here: give --token-file and "
            "--tls-cert and --tls-key too, or --insecure if no",
        ),
        (["worker"], 2, "the following arguments are required: --dispatcher"),
    ],
)
def test_what_cannot_work_is_said_with_a_status(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of_main(*arguments) == status
    assert message in capsys.readouterr().err


def status_of_main(*arguments: str) -> int:
    """The status with which a process that runs the command ends."""
    with pytest.raises(SystemExit) as ended:  # as argparse does it too
        raise SystemExit(main(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_status_of_a_service_with_a_token_of_its_own_did_not_say_how(capsys: pytest.CaptureFixture[str]) -> None:
    with ps.service.DispatchServer(ps.service.DispatcherConfig(token="a-token-of-its-own")) as dispatcher:
        assert status_of_main("status", dispatcher.target) == 1
    assert "lets in the program that has started it alone: call service.status() there" in capsys.readouterr().err
    with ps.service.local(num_workers=1) as service:
        assert len(service.status().workers) == 1


@pytest.mark.parametrize("command", ["dispatcher", "worker", "status", "stop"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of_main(command, "--help") == 0
    shown = capsys.readouterr().out
    assert f"usage: penstock {command}" in shown
    assert "%%" not in shown


def test_the_command_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("usage: penstock")
    for command in ("demo", "launch", "dispatcher", "worker", "status", "stop", "check"):
        assert f"\n    {command}" in shown


def test_the_page_of_a_status() -> None:
    def worker(place: int, alive: bool) -> WorkerStatus:
        endpoint = Endpoint(address=f"host{place}:40")
        info = WorkerInfo(worker_id=place, endpoint=endpoint, place=place)
        return WorkerStatus(
            info=info,
            seconds_since_heard=0.52,
            alive=alive,
            elements_per_second=1234.5,
            bytes_per_second=12_600_000,
            busy_fraction=0.8,
            window_hits=3 * alive,
            window_misses=1,
        )

    reader = ConsumerStatus(
        consumer_id=5,
        consumer="ab12",
        trainer="",
        seconds_since_heard=1,
        elements_per_second=10,
        waiting_fraction=0.75,
        leased_positions=1500,
        process="host2:77",
    )
    epoch = EpochStatus(
        job="train",
        epoch=2,
        dataset_id="1f",
        policy=1,
        finished=False,
        positions=100_000,
        leased=1500,
        consumed=7_000,
        consumers=[reader],
    )
    status = Status(
        version="1.0", seconds_up=3725, workers=[worker(1, False), worker(0, True)], epochs=[epoch], datasets=1
    )
    assert page("host:5050", status).splitlines() == [
        "dispatcher host:5050, penstock 1.0, up 1 h 2 min: 1 data worker, 1 dataset",
        "",
        "WORKER  ADDRESS   HEARD      ELEMENTS/S  MB/S  BUSY  WINDOW HITS",
        "0       host0:40  0.5 s ago  1,234       12.6  80%   75%",
        "1       host1:40  lost       1,234       12.6  80%   0%",
        "",
        "job 'train', epoch 2, dataset 1f, DYNAMIC: 100,000 positions, 7,000 consumed (7%), 1,500 with readers",
        "READER    HEARD      ELEMENTS/S  WAITS  HOLDS",
        "host2:77  1.0 s ago  10          75%    1,500",
        "readers wait for the data workers, 75% of their time: more workers would help",
    ]


@pytest.mark.slow
def test_a_page_that_is_no_longer_read_ends_the_command_in_silence() -> None:
    with ps.service.DispatchServer() as dispatcher:
        process = forked("status", "--watch", "--interval", "0", f"localhost:{dispatcher.port}")
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("dispatcher localhost:")
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
        process.stderr.close()


def test_logs_and_status_are_json_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--port", "0", "--log-format", "json", "--log-level", "info")
    with running("dispatcher", *options) as (dispatcher, line):
        address = line.rpartition("//")[2].strip()
        assert main(["status", "--json", address]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["version"], found["workers"], found["counts"]["journal_bytes"]) == (ps.__version__, [], -1)
        with pytest.raises(ps.errors.ServiceError):
            ps.service.status(ps.service.ServiceAddress(address, token="of-somebody-else-entirely"))
        assert main(["stop", "--now", address]) == 0
        lines = [json.loads(line) for line in dispatcher.communicate()[1].splitlines() if line.startswith("{")]
    assert any(line["level"] == "INFO" and "a caller was refused" in line["message"] for line in lines)
