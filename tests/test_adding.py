"""What `docs/adding.md` adds to penstock can be added as it says, and works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "adding.md"


def apply_diff(diff: str, root: Path) -> None:
    """Make the changes of one file; the lines around them say where."""
    header, *hunks = re.split(r"^@@\n", diff, flags=re.MULTILINE)
    path = root / header.split("+++ b/")[1].strip()
    text = path.read_text() if path.exists() else ""
    for hunk in hunks:
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        assert before == "" or text.count(before) == 1, f"{path.relative_to(root)} holds this not once:\n{before}"
        text = text.replace(before, after) if before else text + after
    path.write_text(text)


@pytest.mark.extended
def test_what_the_page_adds_can_be_added_and_works(tmp_path: Path) -> None:
    page = PAGE.read_text()
    for part in ("src/penstock", "tests/data", "tests/distribute", "tests/service", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for block in re.findall(r"^```diff\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        for diff in re.split(r"^(?=--- )", block, flags=re.MULTILINE)[1:]:
            apply_diff(diff, tmp_path)
    program, printed = re.findall(r"^```(?:python|text)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.stdout == printed, ran.stderr
