"""Per-worker datasets: each worker reads its own iterator, from the position of its last finished function."""

import inspect
import weakref
from collections.abc import Callable
from typing import Any, Self

from penstock.data.dataset import Dataset
from penstock.distribute.contexts import InputContext
from penstock.errors import InvalidArgumentError, InvalidTypeError, OutOfRangeError
from penstock.parameter_server.closures import dumps, loads


class PerWorkerDataset:
    """A dataset that every worker makes for itself; from `coordinator.create_per_worker_dataset`.

    Attributes:
        dataset: the one to read.

    Example:
        >>> import penstock as ps
        >>> with ps.ParameterServerStrategy(num_workers=1) as strategy:
        ...     coordinator = ps.ClusterCoordinator(strategy)
        ...     dataset = coordinator.create_per_worker_dataset(lambda context: ps.Dataset.range(6).batch(3))
        ...     iterator = iter(dataset)
        ...     print(coordinator.schedule(lambda own: next(own).tolist(), args=(iterator,)).fetch())
        [0, 1, 2]
    """

    def __init__(self, dataset: Any, open_iterator: Callable[[], int], forget_iterator: Callable[[int], None]) -> None:
        self.dataset = dataset
        self._open_iterator = open_iterator
        self._forget_iterator = forget_iterator

    def __iter__(self) -> "PerWorkerIterator":
        number = self._open_iterator()
        iterator = PerWorkerIterator(number)
        weakref.finalize(iterator, self._forget_iterator, number).atexit = False
        return iterator


def first_context(num_workers: int) -> InputContext:
    """Return what the first worker's function gets."""
    return InputContext(num_workers, 0, num_workers)


def check_dataset(call: str, dataset: Any) -> None:
    """Refuse what gives no dataset for a worker.

    Raises:
        InvalidTypeError: neither a dataset nor a function.
    """
    if not (isinstance(dataset, Dataset) or callable(dataset)):
        raise InvalidTypeError(f"{call}: expected a ps.Dataset or a function, got {type(dataset).__name__}")


def dataset_of_worker(made: Any, context: InputContext) -> Dataset[Any]:
    """The dataset that a worker reads, of what `create_per_worker_dataset` takes.

    Raises:
        InvalidTypeError: a function has returned something else than a dataset.
    """
    while not isinstance(made, Dataset):
        if not callable(made):
            raise InvalidTypeError(f"dataset_fn: expected a ps.Dataset, got {type(made).__name__}")
        made = made(*[context] if inspect.signature(made).parameters else ())
    return made


_opened: dict[int, Any] = {}
"""The iterators of this worker's process, by their numbers."""
_unopened: dict[int, tuple[bytes, bytes, InputContext]] = {}
"""What `open_iterator` got for those that could not be opened yet."""
_read: set[int] = set()


class PerWorkerIterator:
    """Stands for the iterator of the worker that runs the function to which it is passed.

    `next` gives NumPy elements there. When the function has ended, its worker's position is kept with its updates: a
    worker that is started again reads on from there, and what a lost function has read is read again. The workers close
    theirs when the program has forgotten this one, and the functions have run that it was given to.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._number in _unopened:  # each function that reads it tries again, and only those fail that do
            open_iterator(self._number, *_unopened[self._number])
        if self._number not in _opened:
            raise InvalidArgumentError(
                "an iterator over a per-worker dataset is read on the workers: give it to a function that "
                "ps.ClusterCoordinator.schedule runs"
            )
        _read.add(self._number)
        return next(_opened[self._number])

    def get_next(self) -> Any:
        """The next element, as `next` gives it.

        Raises:
            OutOfRangeError: the worker's data has ended.
        """
        try:
            return next(self)
        except StopIteration:
            raise OutOfRangeError("the worker's dataset has no further element") from None


def open_iterator(number: int, dataset: bytes, position: bytes, context: InputContext) -> bytes:
    """Open an iterator on this worker, and return its state.

    Raises:
        InvalidTypeError: the function has returned something else than a dataset.
        Exception: what the function raised; reading the iterator calls it again.
    """
    _unopened[number] = dataset, position, context
    iterator = iter(dataset_of_worker(loads(dataset), context))
    if position:
        iterator.load_state_dict(loads(position))
    state = _state(iterator)
    _opened[number] = iterator
    del _unopened[number]
    return state


def close_iterator(number: int) -> None:
    """Close an iterator of this worker, if it could be opened."""
    _unopened.pop(number, None)
    iterator = _opened.pop(number, None)
    if iterator is not None:
        iterator.close()


def positions() -> tuple[tuple[int, bytes], ...]:
    """The states of the iterators that were read since the last call."""
    read = sorted(_read)
    _read.clear()
    return tuple((number, _state(_opened[number])) for number in read)


def _state(iterator: Any) -> bytes:
    return dumps("the position of an iterator", iterator.state_dict())
