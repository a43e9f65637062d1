"""`penstock check` proves a user's own pipeline, or tells where it breaks a promise."""

import os
import subprocess
from pathlib import Path
from typing import Any

import forked
import pytest

import penstock as ps
from penstock.service.check import check

pytestmark = pytest.mark.slow

SCRIPT = """
import os
import penstock as ps

def square(x):
    return x * x

def dataset():
    return ps.Dataset.range(300).shuffle(50).map(square).filter(lambda x: x % 2 == 0).batch(4)

unstable = ps.Dataset.range(20).map(lambda x: x + (os.getpid() if x == 7 else 0))
if __name__ == "__main__":
    raise SystemExit("this is for training")
"""


def run(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "train.py").write_text(SCRIPT)
    return forked.run("-m", "penstock", "check", *arguments, directory=tmp_path)


@pytest.mark.extended
def test_a_sound_pipeline_is_the_same_through_every_service(tmp_path: Path) -> None:
    done = run(tmp_path, "train.py:dataset", "--workers", "2", "--kills", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "in process: 38 elements",
        "in process, once more: the same",
        "2 workers: the same",
        "2 workers, of which one is killed: the same",
        *(f"restored after {given} elements: the same" for given in (0, 9, 19, 28)),
        "penstock: the same elements in all runs",
    ]


@pytest.mark.extended
def test_the_first_element_that_differs_is_told_with_its_position(tmp_path: Path) -> None:
    done = run(tmp_path, "train:unstable", "--workers", "1", "--kills", "0")
    assert done.returncode == 1
    assert "in process, once more: the same" in done.stdout
    assert "1 worker: DIFFERENT from element 7 on" in done.stdout
    assert "penstock: 1 worker: element 7 is" in done.stdout


def test_a_pipeline_that_is_not_the_same_twice_is_told_before_any_service() -> None:
    calls = iter(range(1000))
    found = check(ps.Dataset.range(3).map(lambda x: x + 10 * next(calls)), worker_counts=[], kills=0, limit=1)
    assert str(found[0]).startswith("in process, once more: element 0 is")
    assert "a function depends on the time, the process or its own random generator; map(fn, seed" in str(found[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kills": -1}, r"check\(kills=...\) must be at least 0, got -1"),
        ({"limit": 0}, r"check\(limit=...\) must be at least 1, got 0"),
        ({"worker_counts": [2, 0]}, r"check\(worker_counts=...\) must be at least 1, got 0"),
    ],
)
def test_numbers_that_are_too_small_are_refused_before_any_service(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=message):
        check(ps.Dataset.range(3), **arguments)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("train.py", "SCRIPT.PY:NAME"),
        ("train.py:nothing", "has no 'nothing'"),
        ("other.py:dataset", "there is no other.py"),
        (
            "train.py:square",
            "train.py:square must be a function that needs no arguments: missing a required argument: 'x'",
        ),
        ("train.py:os", "must be a ps.Dataset"),
    ],
)
def test_what_is_no_dataset_is_refused(tmp_path: Path, place: str, message: str) -> None:
    done = run(tmp_path, place)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_dataset_that_is_distributed_already_is_refused() -> None:
    dataset = ps.Dataset.range(3).apply(
        ps.service.distribute("distributed_epoch", f"localhost:{os.getpid() % 999 + 1}")
    )
    with pytest.raises(ps.InvalidArgumentError, match="not after it"):
        check(dataset)
