"""A few trials of `make chaos`, one of each mode, as a program of its own: it forks processes, as pytest should not."""

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent


def test_nothing_is_lost_and_nothing_comes_twice_while_processes_die() -> None:
    command = [sys.executable, str(PROGRAM), "--seed", "7000", "--trials", "7", "--at-once", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "7 trials, 0 failed"
