"""The page that `penstock status` shows: plain text from a `Status`."""

from collections.abc import Iterator, Sequence

from penstock.printing import one_line
from penstock.service.wire.dispatcher_messages import EpochStatus, Status, WorkerStatus
from penstock.service.wire.policy import ShardingPolicy

_WAITS = 0.5
"""A reader or worker that waits for more than this part of its time counts as waiting."""
_LONGEST_CELL = 80


def page(address: str, status: Status) -> str:
    """The whole page, without an end of line at its end."""
    lines = [summary(address, status), *_workers(status), *_epochs(status)]
    return "\n".join(map(one_line, lines))


def summary(address: str, status: Status) -> str:
    """Return which service it is, since when it runs, and how large it is."""
    head = f"dispatcher {address}, penstock {status.version}, up {_duration(status.seconds_up)}"
    state = ", stopping" if status.stopping else ""
    return f"{head}: {_count(len(alive_of(status)), 'data worker')}, {_count(status.datasets, 'dataset')}{state}"


def alive_of(status: Status) -> list[WorkerStatus]:
    """Return the data workers that take requests."""
    return [worker for worker in status.workers if worker.alive]


def _workers(status: Status) -> Iterator[str]:
    if not status.workers:
        yield "no data workers: start some with `penstock worker --dispatcher ...`"
        return
    yield ""
    yield from _table(worker_rows(status))


def sorted_workers(status: Status) -> list[WorkerStatus]:
    """Return all data workers in the order of their numbers, those that have ended last."""
    return sorted(status.workers, key=lambda worker: (not worker.alive, worker.info.place))


def worker_rows(status: Status) -> list[list[str]]:
    """Return a row for each data worker, below their heads."""
    rows = [["WORKER", "ADDRESS", "HEARD", "ELEMENTS/S", "MB/S", "BUSY", "WINDOW HITS"]]
    for worker in sorted_workers(status):
        asked = worker.window_hits + worker.window_misses
        rows.append(
            [
                str(worker.info.place),
                worker.info.endpoint.address,
                f"{worker.seconds_since_heard:.1f} s ago" if worker.alive else "left" if worker.left else "lost",
                f"{worker.elements_per_second:,.0f}",
                f"{worker.bytes_per_second / 1e6:,.1f}",
                f"{worker.busy_fraction:.0%}",
                f"{worker.window_hits / asked:.0%}" if asked else "",
            ]
        )
    return rows


def _epochs(status: Status) -> Iterator[str]:
    if not status.epochs:
        yield "no jobs"
    for epoch in status.epochs:
        yield ""
        yield epoch_title(epoch)
        if epoch.consumers:
            yield from _table(reader_rows(epoch))
            yield from verdict(epoch, alive_of(status))


def epoch_title(epoch: EpochStatus) -> str:
    """Return which job and epoch it is, and how far it is."""
    job = f"job {epoch.job!r}" if epoch.job else "job of one reader"
    policy = ShardingPolicy(epoch.policy).name
    return f"{job}, epoch {epoch.epoch}, dataset {epoch.dataset_id}, {policy}: {_progress(epoch)}"


def _progress(epoch: EpochStatus) -> str:
    if epoch.finished:
        return "finished"
    if not epoch.job:
        return "all of it is with the reader"
    total = {-1: "endless", -2: "unknown length"}.get(epoch.positions, f"{epoch.positions:,} positions")
    share = f" ({epoch.consumed / epoch.positions:.0%})" if epoch.positions > 0 else ""
    return f"{total}, {epoch.consumed:,} consumed{share}, {epoch.leased:,} with readers"


def reader_rows(epoch: EpochStatus) -> list[list[str]]:
    """Return a row for each reader, below their heads."""
    rows = [["READER", "HEARD", "ELEMENTS/S", "WAITS", "HOLDS", "ROUND", "SKIPPED"]]
    for reader in epoch.consumers:
        name = reader.process or reader.consumer
        name = f"{name} ({reader.trainer})" if reader.trainer else name
        rows.append(
            [
                name,
                f"{reader.seconds_since_heard:.1f} s ago",
                f"{reader.elements_per_second:,.0f}",
                f"{reader.waiting_fraction:.0%}",
                f"{reader.leased_positions:,}",
                str(reader.round) if reader.round >= 0 else "",
                f"{reader.skipped:,}" if reader.skipped else "",
            ]
        )
    return rows


def verdict(epoch: EpochStatus, workers: Sequence[WorkerStatus]) -> Iterator[str]:
    """Return in words which side waits for the other."""
    if not workers:
        yield "readers wait: there is no data worker"
        return
    waiting = sum(reader.waiting_fraction for reader in epoch.consumers) / len(epoch.consumers)
    busy = sum(worker.busy_fraction for worker in workers) / len(workers)
    if waiting >= _WAITS:
        yield f"readers wait for the data workers, {waiting:.0%} of their time" + (
            ": more workers would help" if busy >= _WAITS else ""
        )
    elif any(reader.elements_per_second for reader in epoch.consumers):
        yield "the data workers keep up with the readers"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with the columns below each other; a column that is empty but for its head is omitted."""
    shown = [[one_line(cell, _LONGEST_CELL) for cell in row] for row in rows]
    columns = [column for column in zip(*shown, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
