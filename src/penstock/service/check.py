"""Checks that a pipeline gives the same elements through a data service as in process, even if workers are lost."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from penstock.data.dataset import Dataset
from penstock.data.iterator import DatasetIterator
from penstock.errors import InvalidArgumentError
from penstock.options import Options, check_integer
from penstock.service.distribute import distribute
from penstock.service.local import LocalService, local
from penstock.structure import flatten

_SEED: Final = 0
_PROGRESS_SECONDS: Final = 5.0
_WORKERS_TO_KILL: Final = 2
_ONCE_MORE: Final = "in process, once more"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Difference:
    """The first element that differs from that in process.

    Attributes:
        run: the description of the run.
        position: the number of the element.
        expected: the element in process; "the end" after the last one.
        found: the element from the service.
    """

    run: str
    position: int
    expected: str
    found: str

    def __str__(self) -> str:
        what = f"{self.run}: element {self.position} is {self.found}, in process it is {self.expected}"
        if self.run != _ONCE_MORE:
            return what
        return (
            f"{what}. So it is another one whenever it is read: a function depends on the time, the process or its "
            "own random generator; map(fn, seed=...) gives it one that depends on the element only"
        )


def check(
    dataset: Dataset,
    *,
    limit: int = 1000,
    worker_counts: Sequence[int] = (1, 3),
    kills: int = 2,
    say: Say = lambda line: None,
) -> list[Difference]:
    """Read a dataset in process and through data services on this machine, and compare the elements by digests.

    The dataset is read again in process, because a dataset that differs there differs everywhere; then with each number
    of workers, while workers are killed, and by an iterator that is restored from its state after every quarter.
    Randomness without a seed gets one.

    Args:
        limit: how many elements to read.
        worker_counts: of the services.
        kills: how many workers to kill while the elements are read.
        say: called with lines about the progress.

    Returns:
        The first difference of each run; an empty list if all are equal.

    Raises:
        InvalidArgumentError: the dataset is distributed already; a number that is too small.

    Example:
        >>> import penstock as ps
        >>> from penstock.service.check import check
        >>> check(ps.Dataset.range(100).shuffle(10), worker_counts=[1], kills=0)
        []
    """
    check_integer("check", "limit", limit, minimum=1)
    check_integer("check", "kills", kills, minimum=0)
    for number in worker_counts:
        check_integer("check", "worker_counts", number, minimum=1)
    if any(node.name == "distribute" for node in dataset.node.walk_all()):
        raise InvalidArgumentError(
            "check takes the dataset that ps.service.distribute is to be applied to, not after it"
        )
    return _Check(dataset, limit, say).run(worker_counts, kills)


class _Check:
    def __init__(self, dataset: Dataset, limit: int, say: Say) -> None:
        seed = dataset.options().seed
        self._dataset = dataset.with_options(Options(seed=_SEED if seed is None else seed))
        self._limit = limit
        self._say = say
        self._expected: list[bytes] = []
        self._differences: list[Difference] = []

    def run(self, worker_counts: Sequence[int], kills: int) -> list[Difference]:
        with iter(self._fresh_dataset()) as elements:
            self._expected = [_digest(element) for element in self._reporting_progress(elements, "in process")]
        self._say(f"in process: {len(self._expected)} elements")
        with iter(self._fresh_dataset()) as again:
            self._compare(_ONCE_MORE, again)
        for count in worker_counts:
            with local(num_workers=count) as service:
                self._compare_service(f"{count} worker{'s' if count > 1 else ''}", service)
        with local(num_workers=_WORKERS_TO_KILL) as service:
            if kills:
                killed = "one is killed" if kills == 1 else f"{kills} are killed, one after the other"
                self._compare_service(f"{_WORKERS_TO_KILL} workers, of which {killed}", service, kills)
            self._compare_restored(service)
        return self._differences

    def _fresh_dataset(self) -> Dataset:
        """The dataset as before its first epoch."""
        return self._dataset.with_options(Options())

    def _read_through(self, service: LocalService) -> Dataset:
        return distribute("distributed_epoch", service.target, ordered=True)(self._fresh_dataset())

    def _compare_service(self, run: str, service: LocalService, kills: int = 0) -> None:
        at = {(number + 1) * len(self._expected) // (kills + 1) for number in range(kills)}
        with iter(self._read_through(service)) as elements:
            self._compare(run, _killing(elements, service, at))

    def _compare_restored(self, service: LocalService) -> None:
        for quarter in range(4):
            given = quarter * len(self._expected) // 4
            with iter(self._read_through(service)) as first:
                for _ in islice(first, given):
                    pass
                state = json.loads(json.dumps(first.state_dict()))
            with iter(self._read_through(service)) as restored:
                restored.load_state_dict(state)
                self._compare(f"restored after {given} elements", restored, given)

    def _compare(self, run: str, elements: Iterator[Any], position: int = 0) -> None:
        expected = iter(self._expected[position:])
        for element in self._reporting_progress(elements, run, position):
            if _digest(element) != next(expected, None):
                self._differ(run, position, _shown(element))
                return
            position += 1
        if position < len(self._expected):
            self._differ(run, position, "the end")
        else:
            self._say(f"{run}: the same")

    def _differ(self, run: str, position: int, found: str) -> None:
        with iter(self._fresh_dataset()) as elements:
            expected = "the end"
            for element in islice(elements, position, position + 1):
                expected = _shown(element)
        self._differences.append(Difference(run, position, expected, found))
        self._say(f"{run}: DIFFERENT from element {position} on")

    def _reporting_progress(self, elements: Iterator[Any], run: str, position: int = 0) -> Iterator[Any]:
        """The elements up to the limit, reporting progress every few seconds."""
        reported = time.monotonic()
        for element in islice(elements, self._limit - position):
            position += 1
            if time.monotonic() - reported > _PROGRESS_SECONDS:
                reported = time.monotonic()
                self._say(f"{run}: {position} elements …")
            yield element


def _killing(elements: DatasetIterator, service: LocalService, at: set[int]) -> Iterator[Any]:
    for position, element in enumerate(elements):
        if position in at:
            service.kill_worker()
        yield element


def _digest(element: Any) -> bytes:
    """A digest of an element's structure, dtypes, shapes and values."""
    leaves, structure = flatten(element)
    digest = hashlib.blake2b(repr(structure).encode(), digest_size=16)
    for leaf in leaves:
        if isinstance(leaf, Dataset):
            for inner in leaf:
                digest.update(_digest(inner))
            continue
        array = np.asarray(leaf)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes())
    return digest.digest()


def _shown(element: Any) -> str:
    text = " ".join(repr(element).split())
    return text if len(text) <= 200 else f"{text[:200]}…"
