"""Training programs: DistributedDataParallel by torchrun, FSDP2 with checkpoints by DCP on another number of ranks."""

import re
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_ranks import on_ranks

import penstock as ps

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"


def test_the_program_of_the_page_runs_under_torchrun(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(# ddp.py\n.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "ddp.py").write_text(program)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "ddp.py"]
    ran = subprocess.run(torchrun, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.stdout.splitlines() == ["weight 2.0 bias 1.0"], ran.stderr


def trained(rank: int, shape: tuple[int, ...], folder: Path, steps: int | None, restore: bool) -> list[list[int]]:
    """The rows that this rank has trained on: some steps before a checkpoint, or all that come after it."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("shard", "tensor")[: len(shape)])
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    fully_shard(model, mesh=mesh["shard"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    rows = ps.Dataset.range(48).shuffle(48, seed=5).filter(lambda n: n % 6 != 1).batch(8, drop_remainder=True)
    seen = []
    with ps.torch.loader(rows, mesh, dp="shard") as loader:
        if restore:
            saved: dict[str, Any] = {"model": get_model_state_dict(model), "loader": loader}
            dcp.load(saved, checkpoint_id=folder)
            set_model_state_dict(model, saved["model"])
        for number, batch in enumerate(loader, 1):
            seen.append(batch.tolist())
            model(batch.float()[:, None]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == steps:
                dcp.save({"model": get_model_state_dict(model), "loader": loader}, checkpoint_id=folder)
                break
    return seen


def test_fsdp_resumes_within_an_epoch_on_other_ranks(tmp_path: Path) -> None:
    whole = [n for n in map(int, ps.Dataset.range(48).shuffle(48, seed=5)) if n % 6 != 1]
    before = on_ranks(trained, 4, (4,), tmp_path / "checkpoint", 2, False)
    two = on_ranks(trained, 2, (2,), tmp_path / "checkpoint", None, True)
    mesh = on_ranks(trained, 4, (2, 2), tmp_path / "checkpoint", None, True)
    steps = [[*chain(*parts)] for parts in [*zip(*before, strict=True), *zip(*two, strict=True)]]
    assert [*chain(*steps)] == whole
    assert mesh == [two[0], two[0], two[1], two[1]]
