"""The models and copies of `benchmarks.gpu` in PyTorch."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import penstock as ps
from benchmarks.gpu import result, step_seconds

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """Two convolutions and a shortcut: the basic block of He et al., "Deep Residual Learning", 2015."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.shortcut(x))


class GPT(nn.Module):  # type: ignore[misc]  # as above
    """A causal transformer over 1,000 tokens."""

    def __init__(self, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(1000, width)
        block = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.logits = nn.Linear(width, 1000)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x: Any) -> Any:
        return self.logits(self.blocks(self.tokens(x), mask=self.mask, is_causal=True))


def resnet_step(small: bool) -> Callable[[Any], Any]:
    """A training step of ResNet-18 over (images, labels)."""
    widths = (8, 16) if small else (64, 128, 256, 512)
    layers: list[Any] = [nn.Conv2d(3, widths[0], 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    for number, width in enumerate(widths):
        layers += [Block(widths[max(number - 1, 0)], width, 2 if number else 1), Block(width, width, 1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)).to(DEVICE)

    def loss(batch: Any) -> Any:
        pictures, labels = batch
        return nn.functional.cross_entropy(model(pictures.permute(0, 3, 1, 2)), labels.long())

    return training_step(model, loss)


def gpt_step(small: bool, length: int) -> Callable[[Any], Any]:
    """A training step of a GPT over tokens."""
    model = GPT(length, 32 if small else 768, 1 if small else 12).to(DEVICE)

    def loss(tokens: Any) -> Any:
        logits = model(tokens.long())[:, :-1]
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].long().flatten())

    return training_step(model, loss)


def training_step(model: Any, loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One step of SGD in bfloat16 where the device is a GPU."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(batch: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
            value = loss(batch)
        value.backward()
        optimizer.step()
        return value

    return step


def loader(dataset: ps.Dataset) -> Any:
    """Batches on the device."""
    return ps.torch.loader(dataset, device=DEVICE)


def wait(value: Any) -> None:
    """Return when the device has nothing left to do."""
    value.item()


def peak_memory() -> int:
    """The bytes of the device that tensors have taken at most."""
    return torch.cuda.max_memory_allocated() if DEVICE.type == "cuda" else 0


def copies(small: bool) -> Iterator[dict[str, Any]]:
    """GB a second of batches of 38 MB to the device: pageable, pinned, and by the loader."""
    rows = np.zeros((8 if small else 1024, 3 * 56 * 56), np.float32)
    pageable = torch.from_numpy(rows)
    gigabytes = rows.nbytes / 1e9
    ways = {"pageable": pageable}
    if DEVICE.type == "cuda":
        ways["pinned"] = pageable.pin_memory()
    for name, tensor in ways.items():
        seconds = step_seconds(lambda: tensor.to(DEVICE, non_blocking=True)[0, 0], wait, small)  # noqa: B023
        yield result(name, gigabytes / seconds, "GB/s")
    dataset = ps.Dataset.from_tensors(rows).repeat()
    with loader(dataset) as batches:
        ready = iter(batches)
        yield result("ps.torch.loader", gigabytes / step_seconds(lambda: next(ready)[0, 0], wait, small), "GB/s")
    matrix = torch.ones(64 if small else 8192, 64 if small else 8192, device=DEVICE)
    with loader(dataset) as batches:
        ready = iter(batches)
        alone = step_seconds(lambda: (matrix @ matrix)[0, 0], wait, small)
        beside = step_seconds(lambda: (matrix @ matrix)[0, 0] + next(ready)[0, 0], wait, small)
    yield result("a matrix product alone", alone * 1e3, "ms")
    yield result("the same beside the loader's copies", beside * 1e3, "ms")
