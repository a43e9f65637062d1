"""Lightning and Accelerate drive the loader: every rank gets its slice, and checkpoints of theirs hold the position."""

from pathlib import Path
from typing import Any

import accelerate
import pytorch_lightning as lightning
import torch
from torch import nn
from torch_ranks import on_ranks

import penstock as ps

ROWS = [int(row) for row in ps.Dataset.range(48).shuffle(48, seed=5)]


def batches() -> ps.Dataset[Any]:
    return ps.Dataset.range(48).shuffle(48, seed=5).batch(8)


class Learner(lightning.LightningModule):
    """Notes the rows that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.rows: list[list[int]] = []

    def train_dataloader(self) -> Any:
        return ps.torch.loader(batches())

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        self.rows.append(batch.tolist())
        return self.layer(batch.float()[:, None]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-5)


def fitted(rank: int, folder: Path, steps: int, resume: bool) -> list[list[int]]:
    """The rows that Lightning has trained this rank on, until so many steps in all."""
    learner = Learner()
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(learner, ckpt_path=folder / "checkpoint.pt" if resume else None)
    trainer.save_checkpoint(folder / "checkpoint.pt")
    return learner.rows


def test_lightning_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    before = on_ranks(fitted, 2, tmp_path, 2, False, group=False)
    after = on_ranks(fitted, 2, tmp_path, 6, True, group=False)
    assert [a + b for a, b in zip(*before, strict=True)] == [ROWS[:8], ROWS[8:16]]
    assert [a + b for a, b in zip(*after, strict=True)] == [ROWS[start : start + 8] for start in range(16, 48, 8)]


def accelerated(rank: int, folder: Path, steps: int | None, restore: bool) -> list[list[int]]:
    """The rows that Accelerate has trained this rank on: some steps before a checkpoint, or all that come after it."""
    accelerator = accelerate.Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-5))
    seen = []
    with ps.torch.loader(batches()) as loader:
        accelerator.register_for_checkpointing(loader)
        if restore:
            accelerator.load_state(folder)
        for number, batch in enumerate(loader, 1):
            seen.append(batch.tolist())
            accelerator.backward(model(batch.float()[:, None]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            if number == steps:
                accelerator.save_state(folder)
                accelerator.wait_for_everyone()
                break
    return seen


def test_accelerate_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    before = on_ranks(accelerated, 2, tmp_path / "checkpoint", 2, False, group=False)
    after = on_ranks(accelerated, 2, tmp_path / "checkpoint", None, True, group=False)
    assert [a + b for a, b in zip(*before, strict=True)] == [ROWS[:8], ROWS[8:16]]
    assert [a + b for a, b in zip(*after, strict=True)] == [ROWS[start : start + 8] for start in range(16, 48, 8)]
