"""`penstock launch` with real processes, which tell by a pipe how far they are: it ends with its last writer.

The launchers are forked from a process that has penstock loaded; they start the workers as always.
"""

import io
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forked
import pytest

from penstock.errors import InvalidArgumentError
from penstock.launch import launch

LAUNCH = ("-m", "penstock", "launch")

WORKER = """
import os, signal, subprocess, sys
number = os.environ["PENSTOCK_WORKER_INDEX"]
arguments = sys.argv[1:]
def sleep():
    while True:
        signal.pause()
"""

# Holds a pipe open until it ends, and so does a process that it has started.
HOLD = """
pipe = open(arguments[0], "w")
child = subprocess.Popen(["sleep", "1000"], pass_fds=[pipe.fileno()])
def ready():
    print(os.getpid(), child.pid, file=pipe, flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return tmp_path / "program.py"


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return forked.run(*LAUNCH, *map(str, arguments))


@contextmanager
def running(*arguments: object) -> Iterator[forked.Forked]:
    process = forked.Forked(*LAUNCH, *map(str, arguments), pipes=("stdout", "stderr"))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def launched(source: str, num_workers: int = 2, **options: object) -> tuple[int, list[str], list[str]]:
    """The status of `launch`, and the lines on standard output and on standard error, sorted."""
    output, errors = io.BytesIO(), io.BytesIO()
    command = [sys.executable, "-c", WORKER + source]
    status = launch(command, num_workers=num_workers, stdout=output, stderr=errors, **options)  # type: ignore[arg-type]
    return status, sorted(output.getvalue().decode().splitlines()), sorted(errors.getvalue().decode().splitlines())


def assert_gone(processes: list[str]) -> None:
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(int(process), 0)


@pytest.mark.slow
def test_every_worker_learns_who_it_is(program: Path) -> None:
    program.write_text(
        "import os; print(*(os.environ['PENSTOCK_' + name] for name in "
        "('COORDINATOR_ADDRESS', 'NUM_WORKERS', 'WORKER_INDEX')))"
    )
    done = run("-n", 3, program)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in sorted(done.stdout.splitlines())]
    assert [(line[0], line[2], line[3]) for line in lines] == [("[0]", "3", "0"), ("[1]", "3", "1"), ("[2]", "3", "2")]
    (address,) = {line[1] for line in lines}
    host, port = address.split(":")
    assert host == "127.0.0.1"
    assert 0 < int(port) < 2**16


@pytest.mark.slow
@pytest.mark.parametrize("separator", [[], ["--"]])
def test_what_follows_the_program_is_for_the_program(program: Path, separator: list[str]) -> None:
    program.write_text("import sys; print(sys.argv[1:])")
    done = run("-n", 1, *separator, program, "-n", 5, "--help", "--", "-m", "--grace=x")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[0] ['-n', '5', '--help', '--', '-m', '--grace=x']\n"


@pytest.mark.slow
def test_a_module_is_started_by_its_name() -> None:
    done = run("-n", 1, "-m", "tokenize", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("[0] usage: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("program.py",), "the following arguments are required: -n/--workers\n"),
        ((), "the following arguments are required: -n/--workers, PROGRAM\n"),
        (("-n", "two", "program.py"), "argument -n/--workers: must be a whole number, got 'two'"),
        (("-n", "0", "program.py"), "argument -n/--workers: must be at least 1, got 0"),
        (
            ("-n", "1", "--grace", "-1", "program.py"),
            "argument --grace: must be a number of seconds, at least 0, got -1",
        ),
        (("-n", "1", "--grace", "x", "program.py"), "must be a number of seconds, at least 0, got x"),
        (("-n", "1"), "the following arguments are required: PROGRAM\n"),
        (("-n", "1", "nowhere.py"), "penstock: there is no nowhere.py: give the path of a Python script, or -m and a"),
    ],
)
def test_wrong_arguments_are_explained(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.extended
def test_a_program_in_an_unreadable_directory_is_named_without_traceback(tmp_path: Path) -> None:
    without_rights = ["--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root may read everything, unless setpriv takes that away")
    (tmp_path / "closed").mkdir(mode=0)
    command = [sys.executable, "-m", "penstock", "launch", "-n", "1", "closed/program.py"]
    as_others = ["setpriv", *without_rights] if os.geteuid() == 0 else []
    done = subprocess.run([*as_others, *command], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "penstock: closed/program.py: Permission denied\n")


@pytest.mark.slow
def test_lines_stay_whole_and_in_order_and_on_their_stream() -> None:
    status, output, errors = launched(
        "for i in range(300):\n"
        "    for stream in 1, 2:\n"
        "        os.write(stream, b'%03d' % i)\n"
        "        os.write(stream, b'.' * 300 + (b'\\n' if i < 299 else b''))\n"
    )
    assert status == 0
    expected = [f"[{worker}] {i:03d}{'.' * 300}" for worker in range(2) for i in range(300)]
    assert output == expected
    assert errors == expected


def test_output_that_is_no_text_arrives_as_it_is() -> None:
    output = io.BytesIO()
    command = [sys.executable, "-c", r"import os; os.write(1, b'\xff\r\n\n\x00')"]
    assert launch(command, num_workers=1, stdout=output, stderr=io.BytesIO()) == 0
    assert output.getvalue() == b"[0] \xff\r\n[0] \n[0] \x00\n"


@pytest.mark.slow
def test_numbers_are_coloured_on_a_terminal_only(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    program.write_text("print('hello')")
    terminal, its_end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, *LAUNCH, "-n", "1", str(program)], stdout=its_end, stderr=subprocess.PIPE
    ) as process:
        assert os.read(terminal, 100) == b"\x1b[36m[0]\x1b[0m hello\r\n"
    os.close(terminal)
    os.close(its_end)
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "how"),
    [
        ("sys.exit(3)", 3, "exit status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "ended by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, "ended by SIGTERM"),
    ],
)
def test_the_worker_that_failed_first_is_named(end: str, status: int, how: str) -> None:
    result, _, errors = launched(f"if number == '1':\n    {end}\nsleep()", grace_seconds=0.1)
    assert result == status
    assert errors == [f"penstock: worker 1 failed first: {how}"]


@pytest.mark.slow
def test_the_others_may_report_the_failure_of_their_peer(pipe: Path, program: Path) -> None:
    program.write_text(
        WORKER
        + "if number == '1':\n"
        + "    peer = open(arguments[0], 'w')\n"
        + "    sys.exit(5)\n"
        + "open(arguments[0]).read()\n"
        + "print('my peer is gone')\n"
    )
    done = run("-n", 2, "--grace", 1000, program, pipe)
    assert (done.returncode, done.stdout) == (5, "[0] my peer is gone\n")
    assert done.stderr == "penstock: worker 1 failed first: exit status 5\n"


@pytest.mark.extended
def test_others_are_told_to_end_before_they_are_killed(pipe: Path, program: Path) -> None:
    program.write_text(
        WORKER
        + "if number == '1':\n"
        + "    open(arguments[0]).read()\n"
        + "    sys.exit(5)\n"
        + "signal.signal(signal.SIGTERM, lambda *_: print('I do not listen'))\n"
        + "open(arguments[0], 'w').close()\n"
        + "sleep()\n"
    )
    done = run("-n", 2, "--grace", 1, program, pipe)
    assert done.returncode == 5
    assert done.stdout == "[0] I do not listen\n"
    assert done.stderr == "penstock: worker 1 failed first: exit status 5\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "message"),
    [
        (signal.SIGINT, 130, "penstock: interrupted\n"),
        (signal.SIGTERM, 143, "penstock: ended by SIGTERM\n"),
        (signal.SIGHUP, 129, "penstock: ended by SIGHUP\n"),
    ],
)
def test_a_signal_ends_everything(pipe: Path, program: Path, number: int, status: int, message: str) -> None:
    ends = f"signal.signal({int(number)}, lambda *_: sys.exit(0))\nready()\nsleep()\n"
    program.write_text(WORKER + HOLD + ends)
    with running("-n", 2, "--grace", 1000, program, pipe) as process, pipe.open() as reader:
        processes = [reader.readline().split() for _ in range(2)]
        process.send_signal(number)
        assert reader.read() == ""  # nobody holds it any longer
        assert process.communicate() == ("", message)
    assert process.returncode == status
    assert_gone([worker for worker, _ in processes])


@pytest.mark.slow
def test_who_does_not_hear_the_signal_is_killed(pipe: Path, program: Path) -> None:
    program.write_text(WORKER + HOLD + "signal.signal(signal.SIGINT, signal.SIG_IGN)\nready()\nsleep()\n")
    with running("-n", 2, "--grace", 0.1, program, pipe) as process, pipe.open() as reader:
        processes = [reader.readline().split() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert reader.read() == ""
        assert process.communicate() == ("", "penstock: interrupted\n")
    assert process.returncode == 130
    assert_gone([worker for worker, _ in processes])


@pytest.mark.slow
def test_a_second_ctrl_c_kills_at_once(pipe: Path, program: Path) -> None:
    program.write_text(WORKER + HOLD + "signal.signal(signal.SIGINT, lambda *_: print('heard'))\nready()\nsleep()\n")
    with running("-n", 1, "--grace", 1000, program, pipe) as process, pipe.open() as reader:
        reader.readline()
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "[0] heard\n"
        process.send_signal(signal.SIGINT)
        assert reader.read() == ""
        assert process.communicate() == ("", "penstock: interrupted\n")
    assert process.returncode == 130


@pytest.mark.slow
def test_workers_end_with_a_launcher_that_is_killed(pipe: Path, program: Path) -> None:
    program.write_text(WORKER + HOLD + "ready()\nsleep()\n")
    with running("-n", 2, program, pipe) as process, pipe.open() as reader:
        for _ in range(2):
            reader.readline()
        process.kill()
        assert reader.read() == ""


@pytest.mark.slow
def test_what_a_worker_leaves_behind_ends_with_it(pipe: Path, program: Path) -> None:
    program.write_text(WORKER + HOLD + "ready()\n")
    with running("-n", 1, "--grace", 1000, program, pipe) as process, pipe.open() as reader:
        reader.readline()
        assert reader.read() == ""
        assert process.communicate() == ("", "")
    assert process.returncode == 0


@pytest.mark.slow
def test_workers_end_when_nobody_reads_their_output(program: Path) -> None:
    program.write_text("while True: print('more')")
    with running("-n", 2, program) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith(" more\n")
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 141
    assert errors.splitlines()[-1] == "penstock: the output has no reader any longer"


@pytest.mark.slow
def test_virtual_devices_replace_what_was_asked_for_before() -> None:
    show = "print(*(os.environ.get(name) for name in ('JAX_PLATFORMS', 'JAX_NUM_CPU_DEVICES', 'XLA_FLAGS')))"
    flag = "--xla_force_host_platform_device_count"
    before = os.environ | {
        "JAX_PLATFORMS": "cuda",
        "JAX_NUM_CPU_DEVICES": "3",
        "XLA_FLAGS": f"{flag}=8 --xla_dump_to=/x {flag}=4",
    }
    assert launched(show, 1, devices_per_worker=2, environment=before) == (
        0,
        [f"[0] cpu None --xla_dump_to=/x {flag}=2"],
        [],
    )
    assert launched(show, 1, environment=before) == (0, [f"[0] cuda 3 {before['XLA_FLAGS']}"], [])
    nothing = {"PATH": os.environ["PATH"]}
    assert launched(show, 1, devices_per_worker=1, environment=nothing) == (0, [f"[0] cpu None {flag}=1"], [])


@pytest.mark.slow
def test_it_runs_in_any_thread() -> None:
    results: list[tuple[int, list[str], list[str]]] = []
    thread = threading.Thread(target=lambda: results.append(launched("print('hello')")))
    thread.start()
    thread.join()
    assert results == [(0, ["[0] hello", "[1] hello"], [])]


def test_a_command_that_cannot_be_started_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        launch(["/nowhere/at/all"], num_workers=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": "train.py"}, "launch(command) takes a list of the program and its arguments"),
        ({"command": []}, "launch(command) takes a list of the program and its arguments"),
        ({"num_workers": 0}, "launch(num_workers=...) must be at least 1, got 0"),
        ({"devices_per_worker": 0}, "launch(devices_per_worker=...) must be at least 1, got 0"),
        ({"grace_seconds": -1.0}, "launch(grace_seconds=...) must be at least 0, got -1.0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        launch(**({"command": ["true"], "num_workers": 1} | arguments))  # type: ignore[arg-type]
    assert str(raised.value).startswith(message)


@pytest.mark.extended
def test_jax_processes_find_each_other(program: Path) -> None:
    program.write_text("""
import jax
from penstock.distribute.cluster.finding import find_cluster
found = find_cluster()
jax.distributed.initialize(
    found.coordinator_address, found.num_workers, found.worker_index, cluster_detection_method="deactivate"
)
print(jax.process_index(), jax.process_count(), jax.local_device_count(), jax.device_count())
""")
    done = run("-n", 2, "--devices-per-worker", 3, program)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[0] 0 2 3 6", "[1] 1 2 3 6"])


@pytest.mark.slow
def test_a_group_without_the_lost_worker_grows_at_its_checkpoint(tmp_path: Path) -> None:
    source = f"""
count, saved = os.environ["PENSTOCK_NUM_WORKERS"], {str(tmp_path / "saved")!r}
if count == "2":
    if number == "0":
        open(saved, "w").close()
        with open(os.environ["PENSTOCK_CHECKPOINT_PIPE"], "w") as pipe:
            pipe.write("run/ckpt-7\\n")
    sleep()
elif not os.path.exists(saved):
    if number == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    sleep()
print(count, os.environ.get("PENSTOCK_CHECKPOINT_PIPE"))
"""
    status, output, said = launched(source, 3, min_workers=1, max_restarts=1, grace_seconds=1000)
    assert (status, output) == (0, ["[0] 3 None", "[1] 3 None", "[2] 3 None"])
    assert said == [
        "penstock: run/ckpt-7 is complete: 3 workers continue from there",
        "penstock: worker 1 failed first: ended by SIGKILL. Restart 1 of 1, with 2 worker(s)",
    ]


@pytest.mark.slow
def test_restarts_end_and_groups_are_not_smaller_than_allowed() -> None:
    source = "print(os.environ['PENSTOCK_NUM_WORKERS'])\nif number == '0':\n    sys.exit(4)\nsleep()"
    status, output, said = launched(source, 3, min_workers=2, max_restarts=2, grace_seconds=0.1)
    assert status == 4
    assert [line for line in output if line.startswith("[0]")] == ["[0] 2", "[0] 2", "[0] 3"]
    assert said == [
        "penstock: worker 0 failed first: exit status 4",
        "penstock: worker 0 failed first: exit status 4. Restart 1 of 2, with 2 worker(s)",
        "penstock: worker 0 failed first: exit status 4. Restart 2 of 2, with 2 worker(s)",
    ]


@pytest.mark.slow
def test_ctrl_c_ends_a_launcher_that_would_restart(pipe: Path, program: Path) -> None:
    program.write_text(WORKER + HOLD + "ready()\nsleep()\n")
    with running("-n", 2, "--max-restarts", 5, program, pipe) as process, pipe.open() as reader:
        for _ in range(2):
            reader.readline()
        process.send_signal(signal.SIGINT)
        assert reader.read() == ""
        assert process.communicate()[1].splitlines()[-1] == "penstock: interrupted"
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_restarts": -1}, "launch(max_restarts=...) must be at least 0, got -1"),
        ({"min_workers": 0}, "launch(min_workers=...) must be from 1 to num_workers, which is 2, got 0"),
        ({"min_workers": 3, "max_restarts": 1}, "launch(min_workers=...) must be from 1 to num_workers, which is 2"),
        ({"min_workers": 1}, "launch(min_workers=1) needs max_restarts=...: without restarts no smaller group"),
    ],
)
def test_restarts_that_cannot_be_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        launch(["true"], num_workers=2, **arguments)
