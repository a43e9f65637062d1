"""Sorted runs of rows in Arrow files, and their merge: many rows at a time, however many the files hold."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Order = Sequence[tuple[str, str]]
"""Columns to sort by, each with "ascending" or "descending", as Arrow takes them."""

ROWS = 1 << 16
"""How many rows of each run are in memory at a time."""


def write_run(path: Path, table: pa.Table, order: Order) -> None:
    """Sort a table, and write it to a file."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.sort_by(list(order)), max_chunksize=ROWS)


def read_run(path: Path) -> Iterator[pa.Table]:
    """The rows of a file in parts, in their order."""
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])


def merged_runs(paths: Sequence[Path], order: Order) -> Iterator[pa.Table]:
    """The rows of all runs in parts that follow each other in this order, equal rows of different runs in one part.

    No run may have two rows that are equal in this order.
    """
    runs = [read_run(path) for path in paths]
    waiting: list[Any] = [next(run, None) for run in runs]
    following: list[Any] = [next(run, None) for run in runs]
    while any(part is not None for part in waiting):
        # Rows after the first of these ends may also be in parts that are not read yet.
        ends = [part.slice(len(part) - 1) for part, more in zip(waiting, following, strict=True) if more is not None]
        end = pa.concat_tables(ends).sort_by(list(order)).slice(0, 1).to_pylist()[0] if ends else None
        ready = []
        for number, part in enumerate(waiting):
            if part is None:
                continue
            count = len(part) if end is None else pc.sum(_up_to(part, order, end)).as_py()
            ready.append(part.slice(0, count))
            waiting[number] = part.slice(count)
            if count == len(part):
                waiting[number], following[number] = following[number], next(runs[number], None)
        yield pa.concat_tables(ready)


def _up_to(table: pa.Table, order: Order, end: dict[str, Any]) -> Any:
    """Return which rows are not behind this one."""
    (column, direction), *rest = order
    limit = pa.scalar(end[column], table.schema.field(column).type)
    before = (pc.less if direction == "ascending" else pc.greater)(table[column], limit)
    equal = pc.equal(table[column], limit)
    return pc.or_(before, pc.and_(equal, _up_to(table, rest, end)) if rest else equal)
