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
    alive = [worker for worker in status.workers if worker.alive]
    head = f"dispatcher {address}, penstock {status.version}, up {_duration(status.seconds_up)}"
    state = ", stopping" if status.stopping else ""
    counts = f"{_count(len(alive), 'data worker')}, {_count(status.datasets, 'dataset')}"
    lines = [f"{head}: {counts}{state}", *_workers(status.workers), *_epochs(status.epochs, alive)]
    return "\n".join(map(one_line, lines))


def _workers(workers: Sequence[WorkerStatus]) -> Iterator[str]:
    if not workers:
        yield "no data workers: start some with `penstock worker --dispatcher ...`"
        return
    yield ""
    rows = [["WORKER", "ADDRESS", "HEARD", "ELEMENTS/S", "MB/S", "BUSY", "WINDOW HITS"]]
    for worker in sorted(workers, key=lambda worker: (not worker.alive, worker.info.place)):
        asked = worker.window_hits + worker.window_misses
        rows.append(
            [
                str(worker.info.place),
                worker.info.endpoint.address,
                f"{worker.seconds_since_heard:.1f} s ago" if worker.alive else "left" if worker.left else "lost",
                f"{worker.rows_per_second:,.0f}",
                f"{worker.bytes_per_second / 1e6:,.1f}",
                f"{worker.busy_fraction:.0%}",
                f"{worker.window_hits / asked:.0%}" if asked else "",
            ]
        )
    yield from _table(rows)


def _epochs(epochs: Sequence[EpochStatus], workers: Sequence[WorkerStatus]) -> Iterator[str]:
    if not epochs:
        yield "no jobs"
    for epoch in epochs:
        yield ""
        job = f"job {epoch.job!r}" if epoch.job else "job of one reader"
        policy = ShardingPolicy(epoch.policy).name
        yield f"{job}, epoch {epoch.epoch}, dataset {epoch.dataset_id}, {policy}: {_progress(epoch)}"
        if epoch.consumers:
            yield from _readers(epoch)
            yield from _verdict(epoch, workers)


def _progress(epoch: EpochStatus) -> str:
    if epoch.finished:
        return "finished"
    if not epoch.job:
        return "all of it is with the reader"
    total = {-1: "endless", -2: "unknown length"}.get(epoch.positions, f"{epoch.positions:,} positions")
    share = f" ({epoch.consumed / epoch.positions:.0%})" if epoch.positions > 0 else ""
    return f"{total}, {epoch.consumed:,} consumed{share}, {epoch.leased:,} with readers"


def _readers(epoch: EpochStatus) -> Iterator[str]:
    rows = [["READER", "HEARD", "ELEMENTS/S", "WAITS", "HOLDS", "ROUND", "SKIPPED"]]
    for reader in epoch.consumers:
        name = reader.process or reader.consumer
        name = f"{name} ({reader.trainer})" if reader.trainer else name
        rows.append(
            [
                name,
                f"{reader.seconds_since_heard:.1f} s ago",
                f"{reader.rows_per_second:,.0f}",
                f"{reader.waiting_fraction:.0%}",
                f"{reader.leased_positions:,}",
                str(reader.round) if reader.round >= 0 else "",
                f"{reader.skipped:,}" if reader.skipped else "",
            ]
        )
    yield from _table(rows)


def _verdict(epoch: EpochStatus, workers: Sequence[WorkerStatus]) -> Iterator[str]:
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
    elif any(reader.rows_per_second for reader in epoch.consumers):
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
