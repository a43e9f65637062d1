"""`penstock demo` as a user runs it: in a process of its own."""

import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock as ps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEMO = [sys.executable, "-m", "penstock", "demo", "--dataset", "digits"]
RESULT = (
    r"Epoch (?P<epoch>\d+), Loss: (?P<loss>[\d.]+), Accuracy: [\d.]+, "
    r"Test Loss: (?P<test_loss>[\d.]+), Test Accuracy: (?P<test_accuracy>[\d.]+)"
)
EPOCH = re.compile(rf"(?P<result>{RESULT}) \(input: [\d.]+ % of the time, [\d.]+ steps/s\)")
RESTORED = re.compile(r"Accuracy of (.+), restored without a strategy: ([\d.]+) % of the 360 test images\.")
GOES_ON = re.compile(r"Goes on in epoch (\d+) after step (\d+), from (.+); --fresh starts anew\.")
STEPS = 23
"""In an epoch: 1,437 images in batches of 64, of which the last holds 29."""
EPOCHS = 6
SHORT = ("--epochs", str(EPOCHS))


def demo(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [*DEMO, "--checkpoints", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def stopped(line_before: str, how: signal.Signals, directory: Path, *arguments: str) -> tuple[list[str], int, str]:
    """A demo that gets a signal after a line: what it wrote, how it ended, and what it wrote to stderr."""
    command = [*DEMO, "--checkpoints", str(directory), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith(line_before):
                break
        process.send_signal(how)
        hanging = threading.Timer(30, process.kill)
        hanging.start()
        rest, errors = process.communicate()
        hanging.cancel()
    return lines + rest.splitlines(), process.returncode, errors


def results(lines: list[str]) -> dict[int, str]:
    """What the lines of the epochs say of each, but how long it took."""
    return {int(found["epoch"]): found["result"] for found in map(EPOCH.fullmatch, lines) if found}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> "tuple[Path, subprocess.CompletedProcess[str]]":
    directory = tmp_path_factory.mktemp("undisturbed")
    return directory, demo(directory, *SHORT)


def test_four_replicas_learn_the_digits(undisturbed) -> None:
    check_learned(*undisturbed, epochs=EPOCHS, percent=92.0)


@pytest.mark.long
def test_four_replicas_learn_the_digits_well(tmp_path: Path) -> None:
    check_learned(tmp_path, demo(tmp_path), epochs=30, percent=97.0)


def check_learned(directory: Path, done: "subprocess.CompletedProcess[str]", epochs: int, percent: float) -> None:
    assert (done.returncode, done.stderr) == (0, "")
    first, saves, *lines, trained, restored = done.stdout.splitlines()
    assert "1,437 images to train on, 360 to test on. 4 replicas (cpu), 16 images per replica and step." in first
    assert saves.startswith(f"Saves every 50 steps in {directory}/demo-digits-batch-64-seed-0: ")
    found = [EPOCH.fullmatch(line) for line in lines]
    assert [int(one["epoch"]) for one in found if one] == list(range(1, epochs + 1))
    assert re.fullmatch(rf"Trained {epochs} epochs on 4 replicas in [\d.]+ s\.", trained)
    path, accuracy = RESTORED.fullmatch(restored).groups()
    assert path == f"{directory}/demo-digits-batch-64-seed-0/ckpt-{epochs * STEPS // 50 + 1}"
    assert accuracy == found[-1]["test_accuracy"]
    assert float(accuracy) >= percent


@pytest.mark.usefixtures("interruptible")
def test_interrupted_and_killed_it_goes_on_as_if_nothing_had_been(undisturbed, tmp_path: Path) -> None:
    first, status, errors = stopped("Epoch 3,", signal.SIGINT, tmp_path, *SHORT)
    assert (status, errors) == (130, "penstock: interrupted\n")
    second, status, _ = stopped("Epoch 5,", signal.SIGKILL, tmp_path, *SHORT)
    assert status == -signal.SIGKILL
    third = demo(tmp_path, *SHORT).stdout.splitlines()
    for lines, before in ((second, first), (third, second)):
        epoch, step, path = GOES_ON.fullmatch(lines[1]).groups()
        done = (int(epoch) - 1) * STEPS + int(step)
        assert done == 50 * int(path.rpartition("-")[2])
        assert max(results(before)) * STEPS - done < 2 * 50  # the newest checkpoint, or the one that was being written
        assert min(results(lines)) == int(epoch)
    assert {**results(first), **results(second), **results(third)} == results(undisturbed[1].stdout.splitlines())


@pytest.mark.long
def test_what_a_complete_run_leaves_can_be_gone_on_from_or_started_anew(undisturbed, tmp_path: Path) -> None:
    run = shutil.copytree(undisturbed[0], tmp_path, dirs_exist_ok=True) / "demo-digits-batch-64-seed-0"
    first, _, *begun, _, restored = undisturbed[1].stdout.splitlines()
    latest = ps.latest_checkpoint(run)
    again = demo(tmp_path, *SHORT).stdout.splitlines()
    message = f"{latest} has had {EPOCHS} epochs already: more --epochs go on, --fresh starts anew."
    assert again == [first, message, restored.replace(str(undisturbed[0]), str(tmp_path))]
    for file in Path(latest, "arrays").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-10])
    damaged = demo(tmp_path, *SHORT)
    assert damaged.returncode == 1
    assert damaged.stderr.startswith(f"penstock: the checkpoint {latest} is damaged: ")
    before = run / f"ckpt-{EPOCHS * STEPS // 50}"
    assert damaged.stderr.endswith(
        f"; restore the one before, {before}. Delete it to go on from the one before, or start anew with --fresh\n"
    )
    anew = demo(tmp_path, "--epochs", "1", "--fresh").stdout.splitlines()
    assert results(anew) == results(begun[:1])
    assert [path.name for path in run.iterdir()] == ["ckpt-1"]


@pytest.mark.long
def test_worker_processes_make_the_same_batches(undisturbed, tmp_path: Path) -> None:
    done = demo(tmp_path, "--epochs", "2", "--service")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == "2 worker processes make the batches."
    whole = results(undisturbed[1].stdout.splitlines())
    assert results(done.stdout.splitlines()) == {1: whole[1], 2: whole[2]}


@pytest.mark.parametrize("package", ["jax", "orbax"])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(tmp_path: Path, package: str) -> None:
    arguments = ["demo", "--dataset", "digits", "--checkpoints", str(tmp_path)]
    without = f"import sys; sys.modules[{package!r}] = None; from penstock.cli import main; sys.exit(main({arguments}))"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"penstock: the demo needs the package {package}: pip install 'penstock[demo]'\n"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Makes new processes hear Ctrl-C, also if a shell that runs the tests in the background made them deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_it_at_once_with_one_line_also_while_it_compiles(tmp_path: Path) -> None:
    _, status, errors = stopped("Saves every", signal.SIGINT, tmp_path)
    assert (status, errors) == (130, "penstock: interrupted\n")
