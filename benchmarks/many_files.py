"""Cost of a shuffled row as the same rows are in more and more files, by processor time: `… [rows [files …]]`."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps
from benchmarks.rows import exhaust
from benchmarks.timing import Figure, medians_in_turn, processor_seconds
from penstock.formats.checked_json import read_checked_json, write_checked_json
from penstock.formats.writing.manifest import MANIFEST

_OF_LINES: dict[str, Callable[[int], str]] = {
    "text": lambda number: f"line {number}\n",
    "csv": lambda number: f"{number},{number / 4},word{number % 100}\n",
    "jsonl": lambda number: f'{{"i": {number}, "x": {number / 4}, "word": "word{number % 100}"}}\n',
}
_READERS: dict[str, Callable[[Path], ps.Dataset[Any]]] = {
    "tfrecord": lambda path: ps.FilesDataset(path / "*.tfrecord", "tfrecord"),
    "text": lambda path: ps.FilesDataset(path / "*.text", "text"),
    "csv": lambda path: ps.CsvDataset(path / "*.csv"),
    "jsonl": lambda path: ps.JsonLinesDataset(path / "*.jsonl"),
    "parquet": lambda path: ps.ParquetDataset(path / "*.parquet"),
    "penstock": ps.Dataset.load,
}


def measure(rows: int = 1_000_000, counts: Sequence[int] = (10, 10_000), rounds: int = 1) -> list[Figure]:
    """The figures of this file: of each format, how often the processor time of few files many files cost."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ["PENSTOCK_CACHE"] = f"{directory}/cache"  # indexes are made in the first round, which is not counted
        return [figure for format in _READERS for figure in _growth(Path(directory), format, rows, counts, rounds)]


def _growth(directory: Path, format: str, rows: int, counts: Sequence[int], rounds: int) -> Iterator[Figure]:
    """Making the dataset and one shuffled epoch of it."""
    ways = []
    for count in counts:
        path = directory / f"{format}-{count}"
        _write(path, format, rows, count)
        ways.append(partial(processor_seconds, partial(_epoch, path, format)))
    few, *many = medians_in_turn(ways, rounds)
    for count, seconds in zip(counts[1:], many, strict=True):
        question = f"{format}, {rows:,} rows shuffled, of {count:,} files / of {counts[0]}"
        yield Figure(question, seconds / few, 3, at_least=False)


def _epoch(path: Path, format: str) -> None:
    exhaust(_READERS[format](path).shuffle(seed=1).batch(256))


def _write(path: Path, format: str, rows: int, count: int) -> None:
    """Write one file, of which the others are links: what a row costs does not depend on what it says."""
    numbers = np.arange(rows // count)
    if format in _OF_LINES:
        path.mkdir()
        head = "i,x,word\n" if format == "csv" else ""
        (path / f"part-00000.{format}").write_text(head + "".join(map(_OF_LINES[format], numbers.tolist())))
    else:
        columns = {
            "i": numbers,
            "x": (numbers / 4).astype(np.float32),
            "word": np.array([f"word{number % 100}" for number in numbers]),
        }
        ps.Dataset.from_tensor_slices(columns).save(path, format, 1)
    for first in list(path.rglob("part-00000*")):
        for number in range(1, count):
            os.link(first, first.with_name(first.name.replace("00000", f"{number:05}", 1)))
    if (about := read_checked_json(path / MANIFEST, 2)) is not None:
        ((name, facts),) = about["files"].items()
        about["files"] = {name.replace("00000", f"{number:05}", 1): facts for number in range(count)}
        write_checked_json(path / MANIFEST, about)


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]] or [1_000_000]
    for figure in measure(given[0], given[1:] or (10, 10_000)):
        print(figure)
