"""Placement of the tensors of a step: in host memory, pinned host memory, or on a device, ahead of the step."""

from typing import Any

import numpy as np
import torch

from penstock.distribute.feed.steps import StepLeaf
from penstock.distribute.values import PerReplica
from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError
from penstock.statistics.tracing import span
from penstock.structure import flatten
from penstock.torch.tensors import tensor_of


class Placing:
    """Makes the tensors of steps, in the thread that reads ahead.

    On a CUDA device they are copied from pinned memory on a separate stream, while the training step runs; the
    thread waits for the copy, so a step that is handed out has arrived.

    Args:
        device: where the tensors go; None for host memory.
        pin_memory: whether host memory is pinned; where None, it is for a CUDA device.
        parts: into how many parts the second axis, that of a sequence, is cut.
        part: which of them is taken.

    Raises:
        InvalidTypeError: an argument of the wrong type.
        InvalidArgumentError: a device that torch does not have here, or pinned memory without CUDA.
    """

    def __init__(self, device: Any, pin_memory: bool | None, parts: int = 1, part: int = 0) -> None:
        self._device = _checked_device(device)
        self._on_cuda = self._device is not None and self._device.type == "cuda"
        if pin_memory is not None and not isinstance(pin_memory, bool):
            raise InvalidTypeError(f"ps.torch.loader(pin_memory=...) takes True, False or None, got {pin_memory!r}")
        if pin_memory and not torch.cuda.is_available():
            raise InvalidArgumentError(
                "ps.torch.loader(pin_memory=True) needs CUDA, which torch does not find here: leave it out, and memory "
                "is pinned where there is a CUDA device"
            )
        self._pin = self._on_cuda if pin_memory is None else pin_memory
        self._parts, self._part = parts, part
        self._stream: Any = None

    def __call__(self, leaves: list[StepLeaf], even: bool) -> list[PerReplica]:
        """The leaves of this rank's slice as tensors."""
        values = [leaf.slices[0] for leaf in leaves]
        tensors = [self._sequence_part(tensor_of(one) if isinstance(one, np.ndarray) else one) for one in values]
        if self._pin or self._device is not None:
            with span("copy to the device"):
                tensors = self._copied(tensors)
        return [PerReplica([one]) for one in tensors]

    def _copied(self, tensors: list[Any]) -> list[Any]:
        if self._pin:
            tensors = [one.pin_memory() if isinstance(one, torch.Tensor) else one for one in tensors]
        if self._on_cuda:
            if self._stream is None:
                self._stream = torch.cuda.Stream(self._device)
            with torch.cuda.stream(self._stream):
                tensors = [self._moved(one) for one in tensors]
            self._stream.synchronize()
        elif self._device is not None:
            tensors = [self._moved(one) for one in tensors]
        return tensors

    def _moved(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._moved(one) for one in value]
        return value.to(self._device, non_blocking=self._pin) if isinstance(value, torch.Tensor) else value

    def _sequence_part(self, value: Any) -> Any:
        if self._parts == 1:
            return value
        if isinstance(value, list) and any(isinstance(row, torch.Tensor) and row.ndim for row in value):
            raise ElementError(
                f"context_parallel cuts the second axis into {self._parts} parts of one length, which rows of "
                "different lengths do not have: use padded_batch(padded_shapes=...) instead of ragged_batch"
            )
        if not isinstance(value, torch.Tensor) or value.ndim < 2:
            return value
        length, rest = divmod(value.shape[1], self._parts)
        if rest:
            raise ElementError(
                f"context_parallel cuts the second axis into {self._parts} parts of one length, got a leaf of shape "
                f"{tuple(value.shape)}: pad the sequences by padded_batch(padded_shapes=...) to a multiple of "
                f"{self._parts}"
            )
        return value.narrow(1, self._part * length, length)

    def handed_out(self, step: Any) -> None:
        """Note that the caller's stream uses the tensors of a step, so that their memory is not given away before."""
        if self._on_cuda:
            stream = torch.cuda.current_stream(self._device)
            for leaf in flatten(step)[0]:
                for one in leaf if isinstance(leaf, list) else [leaf]:
                    if isinstance(one, torch.Tensor):
                        one.record_stream(stream)


def _checked_device(device: Any) -> torch.device | None:
    if device is None:
        return None
    try:
        # With the number of the device: "cuda" alone is the current one, which each thread has for itself.
        found = torch.empty(0, device=torch.device(device)).device
    except TypeError:
        raise InvalidTypeError(f"ps.torch.loader(device=...) takes a device of torch, got {device!r}") from None
    except (RuntimeError, AssertionError) as error:
        raise InvalidArgumentError(
            f"ps.torch.loader(device={device!r}): torch cannot use this device here ({str(error).splitlines()[0]})"
        ) from error
    return None if found.type == "cpu" else found
