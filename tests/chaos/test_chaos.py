"""A few trials of `make chaos`, one of each mode, as a program of its own: it forks processes, as pytest should not."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import forked
import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent


@pytest.fixture(scope="module")
def network() -> Any:
    """The networks of the program, where they can be made."""
    spec = spec_from_file_location("network", PROGRAM / "network.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if reason := module.why_not():
        pytest.skip(reason)
    return module


def chaos(*arguments: str) -> str:
    """What the program says at its end."""
    command = [sys.executable, str(PROGRAM), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.extended
def test_nothing_is_lost_and_nothing_comes_twice_while_processes_die() -> None:
    """Also the dispatcher's, with its journal damaged meanwhile, and while others come that are of another version."""
    trials = ("--seed", "26455", "--trials", "7", "--at-once", "4")
    assert chaos("--dispatcher", *trials) == "7 trials, 0 failed"


@pytest.mark.extended
def test_all_workers_end_after_the_mistake_of_one() -> None:
    """It saves alone, and it is stopped."""
    assert chaos("--mistakes", "--seed", "3", "--trials", "1") == "1 trials, 0 failed"
    assert chaos("--mistakes", "--seed", "8", "--trials", "1") == "1 trials, 0 failed"


@pytest.mark.extended
def test_nothing_is_lost_and_nothing_comes_twice_while_machines_are_cut_off(network: Any) -> None:
    """Workers, a trainer for less and one for more than its lease, and the dispatcher; and two that lose each other."""
    trials = ("--seed", "46845", "--trials", "3")
    assert chaos("--network", "--dispatcher", *trials) == "3 trials, 0 failed"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("addresses", ["training", "ipv6"])
def test_machines_without_names_train_together_and_outlast_a_cable(network: Any, addresses: str) -> None:
    done = subprocess.run([sys.executable, PROGRAM / "machines.py", addresses], stdout=subprocess.PIPE, text=True)
    *together, alone = done.stdout.split()
    assert together == [alone] * 3


@pytest.mark.long
@pytest.mark.timeout(600)
def test_parameter_servers_of_two_machines_count_every_update_once(network: Any) -> None:
    pytest.importorskip("ray")
    done = subprocess.run([sys.executable, PROGRAM / "machines.py", "servers"], stdout=subprocess.PIPE, text=True)
    assert done.stdout == "[1500.0] True\n"


AT_ONCE = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from schedule import Fault, draw
from trial import Trial

if __name__ == "__main__":
    drawn = draw(0, dispatcher=False, network=False, faults=1, default_times=False)
    read = {"mode": "shared", "shape": "rows", "elements": 6, "trainers": 3, "paces": (0.0,) * 3, "idle": 0.0}
    schedule = replace(drawn, **read, returns="newest", faults=(Fault(0.0, "add", "worker"),))
    folder = Path(sys.argv[2])
    trial = Trial(schedule, folder)
    trial.run()
    opened = [float(file.read_text()) for file in folder.glob("*.opened")]
    print(len(opened), trial._breaking.begun > max(opened))
"""


@pytest.mark.extended
def test_what_goes_wrong_at_once_does_so_when_all_trainers_are_ready(tmp_path: Path) -> None:
    """However long their processes take to start: before that, nothing can be lost."""
    program = tmp_path / "at_once.py"
    program.write_text(AT_ONCE)
    done = forked.run(str(program), str(PROGRAM), str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "3 True\n"), done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled_while_machines_are_cut_off(network: Any) -> None:
    assert chaos("--network", "--dispatcher", "--trials", "63") == "63 trials, 0 failed"


@pytest.mark.extended
@pytest.mark.parametrize("end", [pytest.param(os.killpg, marks=pytest.mark.long), os.kill])
def test_an_interrupted_program_leaves_no_network(
    network: Any, end: Callable[[int, int], None], tmp_path: Path
) -> None:
    links = set(os.listdir("/sys/class/net"))
    command = [sys.executable, str(PROGRAM), "--network", "--seed", "46845", "--trials", "1"]
    program = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )  # fmt: skip
    while len(made := namespaces_below(program.pid)) < 4:  # the program's, a dispatcher's, a worker's, a trainer's
        assert program.poll() is None
    end(program.pid, signal.SIGINT if end is os.killpg else signal.SIGKILL)  # Ctrl-C is for all that a shell started
    program.wait(60)
    while made & {name for _, _, name in processes()}:  # the test's own limit of time is the limit
        time.sleep(0.01)
    assert set(os.listdir("/sys/class/net")) == links


def namespaces_below(process: int) -> set[str]:
    """The network namespaces of the descendants of a process, but for this one's own."""
    family, found = {process}, set()
    for child, parent, name in sorted(processes()):
        if parent in family:
            family.add(child)
            found.add(name)
    return found - {os.readlink("/proc/self/ns/net")}


def processes() -> Iterator[tuple[int, int, str]]:
    """The number, the parent and the network namespace of every process."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = (entry / "stat").read_text().rpartition(") ")[2].split()[1]
            yield int(entry.name), int(parent), os.readlink(entry / "ns" / "net")
        except OSError:  # it has ended, or is somebody else's
            continue
