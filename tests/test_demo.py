"""`penstock demo` as a user runs it, in a process of its own: it learns, says so, and goes on where it was stopped."""

import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import forked
import numpy as np
import pytest
from PIL import Image

import penstock as ps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEMO = ("-m", "penstock", "demo", "--dataset", "digits", "--batch-size-per-replica", "14")
RESULT = (
    r"Epoch (?P<epoch>\d+), Loss: (?P<loss>[\d.]+), Accuracy: [\d.]+, "
    r"Test Loss: (?P<test_loss>[\d.]+), Test Accuracy: (?P<test_accuracy>[\d.]+)"
)
EPOCH = re.compile(rf"(?P<result>{RESULT}) \(input: [\d.]+ % of the time, [\d.]+ steps/s\)")
RESTORED = re.compile(r"Accuracy of (.+), restored without a strategy: ([\d.]+) % of the 360 test images\.")
GOES_ON = re.compile(r"Resumes in epoch (\d+) after step (\d+), from (.+); --fresh starts again\.")
RUN = "demo-digits-batch-56-seed-0"
STEPS = 26
"""In an epoch: 1,437 images in batches of 56, of which the last holds 37."""
EPOCHS = 5
SHORT = ("--epochs", str(EPOCHS))


def demo(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return forked.run(*DEMO, "--checkpoints", str(directory), *arguments, timeout=280, training=True)


def stopped(line_before: str, how: signal.Signals, directory: Path, *arguments: str) -> tuple[list[str], int, str]:
    """A demo that gets a signal after a line: what it wrote, how it ended, and what it wrote to stderr."""
    command = (*DEMO, "--checkpoints", str(directory), *arguments)
    process = forked.Forked(*command, pipes=("stdout", "stderr"), training=True)
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
    return lines + rest.splitlines(), process.wait(), errors


def results(lines: list[str]) -> dict[int, str]:
    """What the lines of the epochs say of each, but how long it took."""
    return {int(found["epoch"]): found["result"] for found in map(EPOCH.fullmatch, lines) if found}


@dataclass(frozen=True)
class Disturbed:
    """Three runs of which each goes on where the one before was stopped; what each wrote, and the last to its end."""

    interrupted: list[str]
    killed: list[str]
    last: "subprocess.CompletedProcess[str]"
    directory: Path

    def __iter__(self) -> Iterator[list[str]]:
        yield from (self.interrupted, self.killed, self.last.stdout.splitlines())


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Disturbed:
    """The first is interrupted after epoch 3, the second killed after epoch 5.

    These end, after 78 and 130 steps, long after a save and long before the next, so the next run begins with the end
    of an epoch that the one before has told of, and takes a whole one that it has told of too.
    """
    directory = tmp_path_factory.mktemp("disturbed")
    first, status, errors = stopped("Epoch 3,", signal.SIGINT, directory)
    assert (status, errors) == (130, "penstock: interrupted\n")
    second, status, _ = stopped("Epoch 5,", signal.SIGKILL, directory)
    assert status == -signal.SIGKILL
    return Disturbed(first, second, demo(directory, *SHORT), directory)


@pytest.mark.extended
def test_four_replicas_learn_the_digits(disturbed: Disturbed) -> None:
    check_begin(disturbed.interrupted, disturbed.directory)
    *_, last = disturbed
    check_end(disturbed.last, disturbed.directory, epochs=EPOCHS, trained=len(results(last)), percent=92.0)


@pytest.mark.extended
def test_interrupted_and_killed_it_goes_on_as_if_nothing_had_been(disturbed: Disturbed) -> None:
    """Of the steps after the newest checkpoint, up to 50, both the run that was stopped and the next one tell."""
    for before, lines in pairwise(disturbed):
        epoch, step, path = GOES_ON.fullmatch(lines[1]).groups()
        done = (int(epoch) - 1) * STEPS + int(step)
        assert done == 50 * int(path.rpartition("-")[2])
        told, again = results(before), results(lines)
        assert max(told) * STEPS - done < 2 * 50  # the newest checkpoint, or the one that was being written
        assert min(again) == int(epoch)
        common = told.keys() & again.keys()
        assert common >= {max(told) - 1, max(told)}  # the epoch it goes on in, and a whole one
        assert {epoch: again[epoch] for epoch in common} == {epoch: told[epoch] for epoch in common}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> "tuple[Path, subprocess.CompletedProcess[str]]":
    directory = tmp_path_factory.mktemp("undisturbed")
    return directory, demo(directory, *SHORT)


@pytest.mark.long
def test_disturbed_runs_tell_of_every_epoch_what_an_undisturbed_one_tells(disturbed: Disturbed, undisturbed) -> None:
    _, done = undisturbed
    whole = results(done.stdout.splitlines())
    for lines in disturbed:
        told = results(lines)
        assert {epoch: told[epoch] for epoch in told if epoch <= EPOCHS} == {
            epoch: whole[epoch] for epoch in told if epoch <= EPOCHS
        }


@pytest.mark.long
def test_four_replicas_learn_the_digits_well(tmp_path: Path) -> None:
    done = demo(tmp_path)
    check_begin(done.stdout.splitlines(), tmp_path)
    check_end(done, tmp_path, epochs=30, trained=30, percent=97.0)


def check_begin(lines: list[str], directory: Path) -> None:
    """What a run says that begins anew, and that it tells of every epoch."""
    first, saves, *epochs = lines
    assert "1,437 images to train on, 360 to test on. 4 replicas (cpu), 14 images per replica and step." in first
    assert saves.startswith(f"Saves every 50 steps in {directory}/{RUN}: ")
    assert list(results(epochs)) == list(range(1, len(results(epochs)) + 1))


def check_end(
    done: "subprocess.CompletedProcess[str]", directory: Path, epochs: int, trained: int, percent: float
) -> None:
    """What a run says that goes to the end of so many epochs, and how good the model is then."""
    assert (done.returncode, done.stderr) == (0, "")
    *begun, summary, restored = done.stdout.splitlines()
    told = [EPOCH.fullmatch(line) for line in begun[2:]]
    assert [int(one["epoch"]) for one in told] == list(range(epochs - trained + 1, epochs + 1))
    assert re.fullmatch(rf"Trained {trained} epochs on 4 replicas in [\d.]+ s\.", summary)
    path, accuracy = RESTORED.fullmatch(restored).groups()
    assert path == f"{directory}/{RUN}/ckpt-{epochs * STEPS // 50 + 1}"
    assert accuracy == told[-1]["test_accuracy"]
    assert float(accuracy) >= percent


@pytest.mark.long
def test_what_a_complete_run_leaves_can_be_gone_on_from_or_started_anew(undisturbed, tmp_path: Path) -> None:
    run = shutil.copytree(undisturbed[0], tmp_path, dirs_exist_ok=True) / RUN
    first, _, *begun, _, restored = undisturbed[1].stdout.splitlines()
    latest = ps.latest_checkpoint(run)
    again = demo(tmp_path, *SHORT).stdout.splitlines()
    message = f"{latest} has had {EPOCHS} epochs already: more --epochs continue it, --fresh starts again."
    assert again == [first, message, restored.replace(str(undisturbed[0]), str(tmp_path))]
    for file in Path(latest, "arrays").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-10])
    damaged = demo(tmp_path, *SHORT)
    assert damaged.returncode == 1
    assert damaged.stderr.startswith(f"penstock: the checkpoint {latest} is damaged: ")
    before = run / f"ckpt-{EPOCHS * STEPS // 50}"
    assert damaged.stderr.endswith(
        f"; restore the one before, {before}. Delete it to resume from the one before, or start again with --fresh\n"
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


@pytest.mark.extended
def test_it_trains_on_a_folder_of_images_and_resumes_with_worker_processes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name, colour in (("red", 0), ("green", 1), ("blue", 2)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(20):
            pixels = random.integers(0, 100, (50, 70, 3), np.uint8)
            pixels[..., colour] += 120
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.jpg")
    command = ("-m", "penstock", "demo", "--data", str(tmp_path / "pictures"), "--checkpoints", str(tmp_path))
    for epochs, begin in ((1, "Saves every 50 steps in "), (3, "Resumes in epoch 2 after step 0, from ")):
        done = forked.run(*command, "--service", "--epochs", str(epochs), timeout=280, training=True)
        assert (done.returncode, done.stderr) == (0, "")
        first, second, third, *_, restored = done.stdout.splitlines()
        assert first.startswith(f"{tmp_path}/pictures (blue, green, red): 48 images to train on, 12 to test on.")
        assert second == "2 worker processes make the batches."
        assert third.startswith(f"{begin}{tmp_path}/demo-folder-pictures-batch-64-seed-0-service")
    assert restored.endswith("restored without a strategy: 100.00 % of the 12 test images.")


def test_a_directory_that_it_cannot_train_on_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "one" / "class").mkdir(parents=True)
    for number in range(5):
        Image.new("RGB", (9, 9)).save(tmp_path / "one" / "class" / f"{number}.png")
    for directory, message in ((tmp_path / "one", "has one class, 'class'"), (tmp_path / "none", "none' ")):
        done = forked.run("-m", "penstock", "demo", "--data", str(directory), timeout=280, training=True)
        assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.extended
@pytest.mark.parametrize("package", ["jax", "orbax"])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(tmp_path: Path, package: str) -> None:
    arguments = ["demo", "--dataset", "digits", "--checkpoints", str(tmp_path)]
    program = tmp_path / "without.py"
    program.write_text(
        f"""
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == {package!r}]:
    del sys.modules[name]
sys.modules[{package!r}] = None
from penstock.cli import main
sys.exit(main({arguments}))
"""
    )
    # The process that has JAX loaded has loaded the demo too, which would not look for it again.
    done = forked.run(str(program), training=package != "jax")
    assert done.returncode == 1
    assert done.stderr == f"penstock: the demo needs the package {package}: pip install 'penstock-data[demo]'\n"


def test_ctrl_c_ends_it_at_once_with_one_line_also_while_it_compiles(tmp_path: Path) -> None:
    _, status, errors = stopped("Saves every", signal.SIGINT, tmp_path)
    assert (status, errors) == (130, "penstock: interrupted\n")
