"""One pass over the rows of a dataset, in this process or on the workers of a data service."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from penstock.accumulators.accumulator import State
from penstock.accumulators.encoding import Bytes, from_bytes, to_bytes
from penstock.data.dataset import Dataset
from penstock.errors import ElementError, PoisonError
from penstock.runtime.progress import Progress
from penstock.service.distribute import distribute
from penstock.service.security.resolving import Service

ROWS = 1 << 16
"""How many rows are summarised at a time. The same on any number of workers, so that rounding is the same too."""


class Mergeable(Protocol):
    """A summary, as accumulators are."""

    def merge(self, other: Any) -> None: ...

    def state(self) -> State: ...

    def load(self, state: State) -> None: ...


class Summarize(Protocol):
    """Makes summaries, by name; it travels to workers."""

    def empty(self) -> Mapping[str, Any]:
        """Those of no rows."""

    def batch(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those of the rows of a batch."""


# NaN and infinite numbers are data here, of which NumPy's warnings would say nothing new.
quietly = np.errstate(all="ignore")


@quietly
def _summaries(summarize: Summarize, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    return summarize.batch(batch)


@quietly
def _merge(whole: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    for name, part in parts.items():
        whole[name].merge(part)


class _AsBytes:
    """From a batch to its summaries as an array of bytes, on the workers of a service.

    An array lies in memory that is shared with the process that merges; an object of bytes would be copied to it twice.
    """

    def __init__(self, summarize: Summarize) -> None:
        self._summarize = summarize

    def __call__(self, batch: Mapping[str, Any]) -> Bytes:
        states = {name: summary.state() for name, summary in _summaries(self._summarize, batch).items()}
        return to_bytes({"rows": _rows(batch), "states": states})


def one_pass(
    dataset: Dataset, summarize: Summarize, service: Service | None, what: str, rows_at_a_time: int = ROWS
) -> tuple[Mapping[str, Any], int]:
    """The summaries of all rows, each of which counts exactly once, and how many rows there are.

    Args:
        dataset: of dictionaries.
        summarize: makes the summaries.
        service: whose workers read and summarise; None for this process.
        what: is done, for a progress bar.
        rows_at_a_time: how many rows a summary is made of before it is merged.
    """
    known = dataset.cardinality()
    batches = dataset.ragged_batch(rows_at_a_time) if _uneven(dataset) else dataset.batch(rows_at_a_time)
    whole, total = summarize.empty(), 0
    found = _here(batches, summarize) if service is None else _on_workers(batches, summarize, service, rows_at_a_time)
    with Progress(what, known if known >= 0 else None) as progress:
        for rows, parts in found:
            _merge(whole, parts)
            total += rows
            progress.add(rows)
    return whole, total


def _uneven(dataset: Dataset) -> bool:
    """Return whether rows may differ in shape."""
    try:
        return any(spec.shape for spec in dataset.element_spec.values())
    except ElementError:  # there are no rows
        return False


def _here(batches: Dataset, summarize: Summarize) -> Iterator[tuple[int, Mapping[str, Any]]]:
    done = 0
    with iter(batches) as iterator:
        for batch in iterator:
            rows = _rows(batch)
            try:
                yield rows, _summaries(summarize, batch)
            except Exception as error:
                error.add_note(f"among rows {done:,} to {done + rows - 1:,} of the dataset")
                raise
            done += rows


def _on_workers(
    batches: Dataset, summarize: Summarize, service: Service, rows_at_a_time: int
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    made = batches.map(_AsBytes(summarize)).apply(distribute("distributed_epoch", service))
    with iter(made) as iterator:
        try:
            for data in iterator:
                found = from_bytes(data)
                parts = summarize.empty()
                for name, state in found["states"].items():
                    parts[name].load(state)
                yield found["rows"], parts
        except PoisonError as error:
            first = error.position * rows_at_a_time
            raise PoisonError(
                f"among rows {first:,} to {first + rows_at_a_time - 1:,} is one whose function ends the process that "
                "calls it, as a crash in native code or too little memory does: it has cost several data workers. Give "
                "workers more memory, or leave such rows out by dataset.filter(...)",
                error.position,
            ) from error


def _rows(batch: Mapping[str, Any]) -> int:
    return len(next(iter(batch.values())))
