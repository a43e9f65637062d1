"""`benchmarks/gpu.py` in small form, without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.extended
def test_every_section_gives_figures_or_a_reason(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--small", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=480)
    sections = json.loads((tmp_path / "gpu.json").read_text())["sections"]
    assert list(sections) == ["decode", "workers", "torch_steps", "jax_steps", "torch_copies", "jax_copies"]
    for name in ("decode", "workers", "jax_steps", "jax_copies"):
        assert all(row["value"] >= 0 for row in sections[name]["results"])
    assert [row["case"] for row in sections["jax_steps"]["results"][:3]] == [
        "ResNet, input off",
        "ResNet, input on",
        "ResNet, exposed wait",
    ]
    assert (tmp_path / "gpu.svg").read_text().count("<rect") == sum(
        len(s.get("results", [])) for s in sections.values()
    )
