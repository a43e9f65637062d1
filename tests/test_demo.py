"""`penstock demo` as a user runs it: in a process of its own."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEMO = [sys.executable, "-m", "penstock", "demo", "--dataset", "digits"]
EPOCH = re.compile(
    r"Epoch (\d+), Loss: ([\d.]+), Accuracy: ([\d.]+), Test Loss: ([\d.]+), Test Accuracy: ([\d.]+) "
    r"\(input: [\d.]+ % of the time, [\d,]+ images/s\)"
)


def demo(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*DEMO, *arguments], capture_output=True, text=True, check=False)


def test_four_replicas_learn_the_digits() -> None:
    done = demo()
    assert (done.returncode, done.stderr) == (0, "")
    first, *epochs, last = done.stdout.splitlines()
    assert "1,437 images to train on, 360 to test on. 4 replicas (cpu), 16 images per replica and step." in first
    numbers = [EPOCH.fullmatch(line) for line in epochs]
    assert [int(found[1]) for found in numbers if found] == list(range(1, len(epochs) + 1))
    assert float(numbers[-1][5]) >= 97.0
    assert last.startswith(f"Trained {len(epochs)} epochs of 1,437 images on 4 replicas in ")
    assert last.endswith(f"{numbers[-1][5]} % of the 360 test images are recognised.")


# 1,437 images in batches of 200: the last holds 37, for 5 replicas 8, 8, 8, 8 and 5. In batches of 1,436 the last holds
# one image, and three of 4 replicas get none.
@pytest.mark.parametrize(("replicas", "batch_size"), [(5, 200), (4, 1436)])
def test_the_number_of_replicas_does_not_change_what_is_learnt(replicas: int, batch_size: int) -> None:
    def losses(count: int) -> list[float]:
        share = batch_size // count
        done = demo("--epochs", "2", "--replicas", str(count), "--batch-size-per-replica", str(share))
        return [float(loss) for epoch in EPOCH.findall(done.stdout) for loss in (epoch[1], epoch[3])]

    alone = losses(1)
    assert len(alone) == 4
    assert losses(replicas) == pytest.approx(alone, abs=2e-4)


def test_a_missing_package_is_named_with_the_extra_that_brings_it() -> None:
    without_jax = "import sys; sys.modules['jax'] = None; from penstock.cli import main; sys.exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", without_jax], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "penstock: the demo needs the package jax: pip install 'penstock[demo]'\n"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Makes new processes hear Ctrl-C, also if a shell that runs the tests in the background made them deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("line_before", ["scikit-learn's digits", "Epoch 2,"], ids=["compiling", "training"])
def test_ctrl_c_ends_it_at_once_with_one_line(line_before: str) -> None:
    command = [*DEMO, "--epochs", "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(line_before):
                break
        process.send_signal(signal.SIGINT)
        stopped = threading.Timer(30, process.kill)
        stopped.start()
        _, errors = process.communicate()
        stopped.cancel()
    assert process.returncode == 130
    assert errors == "penstock: interrupted\n"
