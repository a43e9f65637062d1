"""Lightning and Accelerate drive the loader: every rank gets its slice, and checkpoints of theirs hold the position."""

from itertools import chain
from pathlib import Path
from typing import Any

import accelerate
import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.loggers import CSVLogger
from torch import nn
from torch_ranks import on_ranks

import penstock as ps
from penstock.report.report import load_report

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


class LearnerOfFiles(Learner):
    """As `Learner`, with files of each rank's own, whose lengths nobody knows; it takes the steps itself."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def train_dataloader(self) -> Any:
        lines = ps.TextLineDataset(ps.Dataset.list_files(str(self.folder / "*.txt"), shuffle=False)).map(int).batch(4)
        lines = lines.with_options(ps.Options(auto_shard_policy="FILE"))
        return ps.torch.loader(lines, input_options=ps.InputOptions(partial_batch="drop"))

    def training_step(self, dataloader_iter: Any) -> torch.Tensor:
        batch, _, _ = next(dataloader_iter)
        return super().training_step(batch, 0)


def fitted(rank: int, learner: Learner, folder: Path, devices: int, steps: int, resume: bool) -> list[list[int]]:
    """The rows that Lightning has trained this rank on, until so many steps in all."""
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=devices,
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


def test_lightning_resumes_within_an_epoch_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    before = on_ranks(fitted, 2, Learner(), tmp_path, 2, 2, False, group=False)
    (after,) = on_ranks(fitted, 1, Learner(), tmp_path, 1, 6, True, group=False)
    assert [a + b for a, b in zip(*before, strict=True)] == [ROWS[:8], ROWS[8:16]]
    assert after == [ROWS[start : start + 8] for start in range(16, 48, 8)]


def test_lightning_goes_on_with_files_of_other_ranks_and_loses_no_step(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("".join(f"{number * 10 + row}\n" for row in range(8)))
    before = on_ranks(fitted, 2, LearnerOfFiles(tmp_path), tmp_path, 2, 2, False, group=False)
    after = on_ranks(fitted, 4, LearnerOfFiles(tmp_path), tmp_path, 4, 6, True, group=False)
    steps = [[*chain(*parts)] for parts in [*zip(*before, strict=True), *zip(*after, strict=True)]]
    # Two rows of each of two files in every step.
    assert steps == [
        [first + row, first + row + 1, second + row, second + row + 1]
        for first, second, rows in ((0, 10, range(0, 8, 2)), (20, 30, range(0, 4, 2)))
        for row in rows
    ]


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


def test_accelerate_resumes_within_an_epoch_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    before = on_ranks(accelerated, 2, tmp_path / "checkpoint", 2, False, group=False)
    after = on_ranks(accelerated, 4, tmp_path / "checkpoint", None, True, group=False)
    assert [a + b for a, b in zip(*before, strict=True)] == [ROWS[:8], ROWS[8:16]]
    assert [[*chain(*parts)] for parts in zip(*after, strict=True)] == [
        ROWS[start : start + 8] for start in range(16, 48, 8)
    ]


@pytest.mark.filterwarnings("ignore")  # Lightning warns of itself
def test_lightning_writes_a_report_of_each_epoch_and_logs_its_numbers(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    write = ps.torch.LightningReport(tmp_path / "run.json", metrics=True)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=logger,
        callbacks=[write, ps.torch.LightningReport(tmp_path / "run.html")],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Learner())
    assert trainer.logged_metrics["penstock/steps"] == 6
    trainer.save_checkpoint(tmp_path / "checkpoint.pt")
    trainer.fit(Learner(), ckpt_path=tmp_path / "checkpoint.pt", weights_only=False)
    assert load_report(tmp_path / "run.json").ranks[0].steps.count == 12
    assert "batch at test_trainers.py" in (tmp_path / "run.html").read_text()


@pytest.mark.filterwarnings("ignore")
def test_lightning_without_a_loader_of_penstock_is_told_so(tmp_path: Path) -> None:
    callback = ps.torch.LightningReport(tmp_path / "run.json")
    trainer = lightning.Trainer(
        max_steps=1, accelerator="cpu", logger=False, callbacks=callback, enable_checkpointing=False
    )
    with pytest.raises(ps.InvalidArgumentError, match="return one from train_dataloader, which gave DataLoader"):
        trainer.fit(Learner(), train_dataloaders=torch.utils.data.DataLoader(list(range(4))))
