"""Per-worker datasets: each worker reads an iterator of its own, from the position of its last finished function."""

from collections.abc import Callable
from typing import Any, Self

from penstock.data.dataset import Dataset
from penstock.distribute.contexts import InputContext
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.parameter_server.closures import loads


class PerWorkerDataset:
    """A dataset that every worker makes for itself; from `coordinator.create_per_worker_dataset`."""

    def __init__(self, open_iterator: Callable[[], int]) -> None:
        self._open_iterator = open_iterator

    def __iter__(self) -> "PerWorkerIterator":
        return PerWorkerIterator(self._open_iterator())


_opened: dict[int, Any] = {}
"""The iterators of this worker's process, by their numbers."""
_read: set[int] = set()


class PerWorkerIterator:
    """Stands for the iterator of the worker that runs the function to which it is passed.

    `next` gives NumPy elements there. When the function has ended, its worker's position is kept with its updates: a
    worker that is started again reads on from there, and what a lost function has read is read again.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._number not in _opened:
            raise InvalidArgumentError(
                "an iterator over a per-worker dataset is read on the workers: give it to a function that "
                "ps.ClusterCoordinator.schedule runs"
            )
        _read.add(self._number)
        return next(_opened[self._number])


def open_iterator(number: int, dataset: bytes, position: bytes, context: InputContext) -> None:
    """Open an iterator on this worker.

    Raises:
        InvalidTypeError: the function has returned something else than a dataset.
    """
    made = loads(dataset)
    if not isinstance(made, Dataset):
        made = made(context)
    if not isinstance(made, Dataset):
        raise InvalidTypeError(f"dataset_fn: expected a ps.Dataset, got {type(made).__name__}")
    iterator = iter(made)
    if position:
        iterator.load_state_dict(loads(position))
    _opened[number] = iterator


def positions() -> dict[int, Any]:
    """The states of the iterators that were read since the last call."""
    states = {number: _opened[number].state_dict() for number in sorted(_read)}
    _read.clear()
    return states
