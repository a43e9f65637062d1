"""What reading files costs, against hand-written loops over the same files."""

import struct
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

import penstock as ps
from benchmarks.timing import Figure, processor_ratio, processor_seconds, speed_ratio

BATCH = 256
LINES = 1_500_000
RECORD_BYTES = 200 << 20


def measure() -> list[Figure]:
    """The figures of this file."""
    with tempfile.TemporaryDirectory() as directory:
        return [
            lines(Path(directory) / "lines.txt"),
            records(Path(directory) / "large.tfrecord", 1024, 4096, 1.2),
            records(Path(directory) / "small.tfrecord", 100, 101, 0.9),
            parsed(),
            *tables(Path(directory)),
        ]


def exhaust(items: Iterable[object]) -> None:
    """Visit every element."""
    for _ in items:
        pass


def lines(path: Path) -> Figure:
    """Batches of about 100 MB of short lines, against Python's own loop over a file."""
    path.write_text(
        "".join(f"line {number} of a file of short lines of text, of a few words\n" for number in range(LINES))
    )
    dataset = ps.TextLineDataset(path).batch(BATCH)

    def bare() -> None:
        with open(path, encoding="utf-8") as file:
            stripped = (line.rstrip("\n") for line in file)
            while batch := list(islice(stripped, BATCH)):
                np.array(batch, dtype=object)

    return Figure(
        "TextLineDataset(100 MB).batch(256) / loop", speed_ratio(lambda: exhaust(dataset), bare, rounds=5), 1.2
    )


def records(path: Path, smallest: int, largest: int, goal: float) -> Figure:
    """Records one by one, their checksums verified, against reading and verifying each by hand."""
    rng = np.random.default_rng(0)
    content = rng.bytes(RECORD_BYTES // 4 if largest < 1024 else RECORD_BYTES)
    with ps.TFRecordWriter(path) as writer:
        start = 0
        while start < len(content):
            stop = start + int(rng.integers(smallest, largest))
            writer.write(content[start:stop])
            start = stop
    dataset = ps.TFRecordDataset(path)
    question = f"TFRecordDataset, records of {smallest} to {largest - 1} bytes / loop"
    return Figure(question, speed_ratio(lambda: exhaust(dataset), lambda: read_by_hand(path), rounds=5), goal)


def parsed() -> Figure:
    """Records of 16 floats, an integer and a string by processor time; TensorFlow 2.21 parses 510,000 a second."""
    rng = np.random.default_rng(0)
    columns = {"x": rng.random((20_000, 16), np.float32), "y": np.arange(20_000), "s": [str(n) for n in range(20_000)]}
    rows = ps.Dataset.from_tensor_slices(columns).map(lambda row: ps.serialize_example(row))
    batches = list(rows.batch(1_000))
    features = {"x": ps.TensorSpec((16,)), "y": ps.TensorSpec((), np.int64), "s": ps.TensorSpec((), object)}

    def parse() -> None:
        for batch in batches:
            ps.parse_example(batch, features)

    parse()
    speeds = sorted(20_000 / processor_seconds(parse) for _ in range(7))
    return Figure("parse_example, batches of 1,000", speeds[3], 510_000, True, "records/s", (speeds[0], speeds[-1]))


def tables(directory: Path) -> Iterator[Figure]:
    """Twenty columns of numbers, scanned in batches, and random row groups, against Arrow's own readers."""
    rows, size, rng = 200_000, 1024, np.random.default_rng(0)
    columns = {f"c{n}": rng.random(rows) if n % 2 else rng.integers(0, 1000, rows) for n in range(20)}
    table, large, small, text = pa.table(columns), directory / "large", directory / "small", directory / "a.csv"
    pq.write_table(table, large, row_group_size=20_000)
    pq.write_table(table, small, row_group_size=1_000)
    pc.write_csv(table, text)

    def by_arrow(batches: Iterable[Any]) -> None:
        for batch in batches:
            for column in batch.columns:
                column.to_numpy()

    # A dataset keeps what it has decoded last: each round makes its own.
    yield processor_ratio(
        "ParquetDataset, 20 columns, batch(1024) / Arrow",
        lambda: exhaust(ps.ParquetDataset(large).batch(size)),
        lambda: by_arrow(pq.ParquetFile(large).iter_batches(size)),
        0.8,
    )
    groups, file = rng.permutation(200), pq.ParquetFile(small)
    yield processor_ratio(
        "ParquetDataset, row groups of 1,000, shuffle(4,000) / reading the groups",
        lambda: exhaust(ps.ParquetDataset(small).shuffle(4_000).batch(1_000)),
        lambda: by_arrow(file.read_row_group(int(group)) for group in groups),
        0.7,
    )
    yield processor_ratio(
        "CsvDataset, 20 columns, batch(1024) / Arrow",
        lambda: exhaust(ps.CsvDataset(text).batch(size)),
        lambda: by_arrow(pc.read_csv(text).to_batches(size)),
        0.8,
    )


def read_by_hand(path: Path) -> None:
    """Visit every record of a file."""
    with open(path, "rb") as file:
        while header := file.read(12):
            length, checksum = struct.unpack("<QI", header)
            assert masked(header[:8]) == checksum
            data = file.read(length)
            (checksum,) = struct.unpack("<I", file.read(4))
            assert masked(data) == checksum


def masked(data: bytes) -> int:
    """The checksum of these bytes, as a TFRecord file holds it."""
    value = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


if __name__ == "__main__":
    for figure in measure():
        print(figure)
