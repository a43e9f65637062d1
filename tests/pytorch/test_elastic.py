"""Training under torchrun's elastic agents: ranks and agents are killed, and every row counts once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("elastic.py")
MACHINES = Path(__file__).parents[1] / "chaos" / "machines.py"


def test_a_killed_rank_under_torchrun_costs_no_row(tmp_path: Path) -> None:
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    # Otherwise gloo, too, may find the addresses of the ranks before.
    variables = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    command = [*agent, PROGRAM, tmp_path, "worker", "5"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=variables)
    assert ran.stdout == "True 2\n", ran.stderr
    assert (tmp_path / "worker 5").exists()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_agents_of_two_machines_go_on_with_one_and_then_with_two() -> None:
    """A rank is killed, then an agent with its rank: the other one goes on alone until the agent is back."""
    ran = subprocess.run([sys.executable, MACHINES, "torchrun"], stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode == 3:
        pytest.skip(ran.stdout)
    assert ran.stdout.splitlines()[-1:] == ["True 2 1 2"]
