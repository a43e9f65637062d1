"""A small GPT on packed and mixed documents: after kills other ranks go on with its batches and losses."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from three_corpora import AFTER, CHANGED_AT, LENGTH, SAVED_EVERY, STEPS, VOCABULARY, steps, whole_steps
from torch import nn
from torch_ranks import ends_of_ranks, on_ranks

import penstock as ps

WIDTH, HEADS = 16, 2


class GPT(nn.Module):
    """One block, in which a token attends to the earlier ones of its document."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mixed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        segments = batch["segment_ids"]
        seen = (segments[:, :, None] == segments[:, None, :]).tril()[:, None]
        x = self.tokens(batch["tokens"]) + self.places(batch["positions"])
        heads = self.attention(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3)
        attended = nn.functional.scaled_dot_product_attention(*heads.unbind(2), attn_mask=seen)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return self.logits(x + self.mixed(x))


def loss_of(model: GPT, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """This rank's part of the mean over the tokens of the whole step."""
    targets = batch["tokens"].roll(-1, 1).long()
    losses = nn.functional.cross_entropy(model(batch).transpose(1, 2), targets, reduction="none")
    return (losses * batch["loss_mask"]).sum() / batch["tokens_of_step"][0]


def gathered(batch: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """The batch of all ranks."""
    found = {}
    for name, part in batch.items():
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        found[name] = torch.cat(parts).numpy()
    return found


def train(rank: int, folder: Path, killed_at: int | None) -> None:
    """Train from the newest checkpoint on. The last rank kills itself within a step."""
    torch.manual_seed(0)
    model, step, saved = GPT(), 0, folder / "saved"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    with ps.torch.loader(steps(), input_options=ps.InputOptions(partial_batch="drop")) as loader:
        if saved.exists():
            found = torch.load(saved, weights_only=False)
            step = found["step"]
            model.load_state_dict(found["model"])
            optimizer.load_state_dict(found["optimizer"])
            loader.load_state_dict(found["loader"])
        batches = iter(loader)
        while step < STEPS:
            if step == CHANGED_AT:
                loader.remix(AFTER)
            batch = next(batches)
            everything = gathered(batch)
            if step == killed_at and rank == dist.get_world_size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            total = loss.detach().clone()
            for one in (total, *(weight.grad for weight in model.parameters())):
                dist.all_reduce(one)
            optimizer.step()
            if rank == 0:
                torch.save({"loss": float(total), "batch": everything}, folder / f"step {step}")
            step += 1
            if step % SAVED_EVERY == 0 and rank == 0:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**states, "loader": loader.state_dict(), "step": step}, folder / "new")
                os.replace(folder / "new", saved)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"step {step}", weights_only=False) for step in range(STEPS)]


@pytest.mark.extended
def test_a_killed_gpt_goes_on_with_its_batches_on_other_ranks(tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    for folder in (undisturbed, disturbed):
        folder.mkdir()
    on_ranks(train, 2, undisturbed, None)
    draws = random.Random(1)
    for ranks, killed_at in ((2, draws.randrange(1, 5)), (4, draws.randrange(5, STEPS))):
        ends = ends_of_ranks(train, ranks, disturbed, killed_at)
        assert ends[-1].status == -signal.SIGKILL
    on_ranks(train, 2, disturbed, None)
    expected, found = steps_of(undisturbed), steps_of(disturbed)
    for whole, one, other in zip(whole_steps(), expected, found, strict=True):
        for name, leaf in whole.items():
            assert np.array_equal(one["batch"][name], leaf) and np.array_equal(other["batch"][name], leaf), name
    losses = [step["loss"] for step in found]
    assert losses == pytest.approx([step["loss"] for step in expected], rel=1e-4)
    assert losses[-1] < losses[0] - 0.3
