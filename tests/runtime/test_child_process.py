"""Processes that a program has started end with it, though they are in a call that never returns."""

import os
import signal
from pathlib import Path

import forked
import pytest
from until import until

# Prints the process that calls it, and stays: nobody writes to the pipe.
HANG = """
import os, sys
import penstock as ps

def hang(*_):
    with open(path, "w") as told:
        told.write(str(os.getpid()))
    open(path + " never").close()

path = sys.argv[1]
"""
DATA_WORKER = """
with ps.service.local(num_workers=1) as service:
    job = ps.service.distribute("distributed_epoch", service.target)
    list(ps.Dataset.range(1).map(hang, output_signature=ps.TensorSpec((), "int64")).apply(job))
"""
PARAMETER_WORKER = """
with ps.ParameterServerStrategy(num_workers=1) as strategy:
    ps.ClusterCoordinator(strategy).schedule(hang).fetch()
"""


@pytest.mark.extended
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(DATA_WORKER, id="data worker", marks=pytest.mark.slow),
        pytest.param(PARAMETER_WORKER, id="parameter servers", marks=pytest.mark.extended),
    ],
)
def test_a_worker_outlived_its_killed_program_in_a_call_without_an_end(program: str, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    os.mkfifo(f"{path} never")
    started = forked.Forked("-c", HANG + program, str(path), pipes=("stdout", "stderr"))
    worker = int(path.read_text())
    started.kill()
    assert started.wait() == -signal.SIGKILL
    until(lambda: not runs(worker))
    started.communicate()  # they have its standard error open until they end


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
