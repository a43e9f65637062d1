"""`ps.torch.as_iterable_dataset`: a dataset inside PyTorch's own DataLoader, each element once."""

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from penstock.data.dataset import Dataset, iterations_of
from penstock.data.iterator import DatasetIterator, Iterations
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.runtime.sending import dumps, loads
from penstock.structure import flatten
from penstock.torch.ranks import group_is_initialised
from penstock.torch.tensors import check_dtypes, tensor_of

_KEY: Final = "position"


def as_iterable_dataset(dataset: Dataset[Any]) -> "IterableElements":
    """The dataset as a `torch.utils.data.IterableDataset`, for code that wants a DataLoader.

    With `num_workers` each worker process gives every n-th element, so that each element comes once. With
    `batch_size=None` the DataLoader puts them into the order of the dataset. Prefer `ps.torch.loader`, which has a
    state, and slices for ranks: a DataLoader gives every rank all elements, and so this is refused in a job of several.

    Args:
        dataset: a `ps.Dataset`, of rows or of batches.

    Returns:
        An `IterableDataset` of tensors in the dataset's structure; strings stay strings. Where the dataset has no seed,
        its workers agree on one. Shuffles differ from epoch to epoch: with worker processes by the seed that
        DataLoader draws for each, which follows from `torch.manual_seed`. Its iterators have the state that
        `StatefulDataLoader` of torchdata asks for.

    Raises:
        InvalidTypeError: not a dataset.
        ElementError: torch lacks a dtype of its elements.

    Example:
        >>> import penstock as ps
        >>> from torch.utils.data import DataLoader
        >>> batches = ps.Dataset.range(4).batch(2)
        >>> list(DataLoader(ps.torch.as_iterable_dataset(batches), batch_size=None))
        [tensor([0, 1]), tensor([2, 3])]
    """
    if not isinstance(dataset, Dataset):
        raise InvalidTypeError(
            f"ps.torch.as_iterable_dataset(dataset) takes a ps.Dataset, got {type(dataset).__name__}"
        )
    check_dtypes(dataset.node.spec)
    return IterableElements(dataset)


class IterableElements(IterableDataset[Any]):  # type: ignore[misc]  # torch is not installed where types are checked
    """The elements of a dataset as tensors; from `ps.torch.as_iterable_dataset`."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset
        iterations = iterations_of(dataset)
        self._seed = iterations.seed  # drawn here, once for all worker processes
        self._seeded = iterations.seeded
        self._begun = 0

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> "TensorIterator":
        _check_alone()
        info = get_worker_info()
        dataset = self._dataset
        if info is not None:
            # Equal in all workers, and another one in each epoch, for which new processes may have been started.
            epoch = (info.seed - info.id) % 2**31 + self._begun
            iterations = Iterations(self._seed, seeded=self._seeded)
            iterations.resume(epoch - 1, self._seed, seeded=self._seeded)
            dataset = Dataset(dataset.shard(info.num_workers, info.id).node, dataset.options(), iterations)
        self._begun += 1
        return TensorIterator(iter(dataset))

    def __getstate__(self) -> dict[str, Any]:
        """In spawned workers; DataLoader's pickle would refuse functions without a name, such as a lambda."""
        return {**self.__dict__, "_dataset": dumps(self._dataset)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_dataset": loads(state["_dataset"])}


class TensorIterator(Iterator[Any]):
    """The elements of one epoch as tensors. Its state is that of the dataset's iterator, as text."""

    def __init__(self, elements: DatasetIterator[Any]) -> None:
        self._elements = elements

    def __next__(self) -> Any:
        leaves, structure = flatten(next(self._elements))
        return structure.unflatten([_tensor(leaf) for leaf in leaves])

    def state_dict(self) -> dict[str, Any]:
        """The position after the last element."""
        return {_KEY: json.dumps(self._elements.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the element at which a state was taken, by the same number of workers."""
        self._elements.load_state_dict(json.loads(state[_KEY]))


def _tensor(leaf: Any) -> Any:
    return tensor_of(np.asarray(leaf)) if isinstance(leaf, (np.ndarray, np.number, np.bool_)) else leaf


def _check_alone() -> None:
    """Refuse to give all elements to each of several ranks."""
    if group_is_initialised() and torch.distributed.get_world_size() > 1:
        raise InvalidArgumentError(
            f"every one of {torch.distributed.get_world_size()} ranks would get all elements, because a DataLoader "
            "divides no IterableDataset: use ps.torch.loader(dataset), which gives each rank its slice"
        )
