"""A small GPT of Flax NNX on packed and mixed documents: it is killed, and goes on with the same batches and losses."""

import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import Forked
from three_corpora import CHANGED_AT, STEPS, whole_steps

PROGRAM = Path(__file__).parents[1] / "support" / "packed_gpt.py"


def ended(folder: Path, axes: str, killed_at: int = -1) -> int:
    return Forked(str(PROGRAM), str(folder), axes, str(killed_at), training=True).wait()


def steps_of(folder: Path) -> list[dict[str, Any]]:
    found = []
    for step in range(STEPS):
        with np.load(folder / f"step {step}.npz") as file:
            found.append(dict(file))
    return found


@pytest.mark.extended
def test_a_killed_gpt_goes_on_with_its_batches_on_another_mesh(tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    for folder in (undisturbed, disturbed):
        folder.mkdir()
    assert ended(undisturbed, "2x2") == 0
    draws = random.Random(1)
    assert ended(disturbed, "2x2", draws.randrange(3, CHANGED_AT)) == -signal.SIGKILL
    assert ended(disturbed, "4x1", draws.randrange(CHANGED_AT, STEPS)) == -signal.SIGKILL
    assert ended(disturbed, "2x2") == 0
    expected, found = steps_of(undisturbed), steps_of(disturbed)
    for whole, one, other in zip(whole_steps(), expected, found, strict=True):
        for name, leaf in whole.items():
            assert np.array_equal(one[name], leaf) and np.array_equal(other[name], leaf), name
    losses = [float(step["loss"]) for step in found]
    assert losses == pytest.approx([float(step["loss"]) for step in expected], rel=1e-4)
    assert losses[-1] < losses[0]
