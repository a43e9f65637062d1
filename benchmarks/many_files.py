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

_OF_LINES: dict[str, Callable[[int], str]] = {
    "text": lambda number: f"line {number}\n",
    "csv": lambda number: f"{number},{number / 4},word{number % 100}\n",
    "jsonl": lambda number: f'{{"i": {number}, "x": {number / 4}, "word": "word{number % 100}"}}\n',
}
_READERS: dict[str, Callable[[Path], ps.Dataset[Any]]] = {
    "tfrecord": lambda path: ps.FilesDataset(path / "*.tfrecord", "tfrecord"),
    "text": lambda path: ps.FilesDataset(path / "*", "text"),
    "csv": lambda path: ps.CsvDataset(path / "*"),
    "jsonl": lambda path: ps.JsonLinesDataset(path / "*"),
    "parquet": lambda path: ps.ParquetDataset(path / "*.parquet"),
    "penstock": ps.Dataset.load,
}


def measure(rows: int = 100_000, counts: Sequence[int] = (10, 1_000, 10_000), rounds: int = 3) -> list[Figure]:
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
    if format not in _OF_LINES:
        numbers = np.arange(rows)
        columns = {
            "i": numbers,
            "x": (numbers / 4).astype(np.float32),
            "word": np.array([f"word{number % 100}" for number in numbers]),
        }
        ps.Dataset.from_tensor_slices(columns).save(path, format, count)
        return
    path.mkdir()
    head = "i,x,word\n" if format == "csv" else ""
    for file, part in enumerate(np.array_split(np.arange(rows), count)):
        (path / f"{file:06}.{format}").write_text(head + "".join(map(_OF_LINES[format], part.tolist())))


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]] or [100_000]
    for figure in measure(given[0], given[1:] or (10, 1_000, 10_000)):
        print(figure)
