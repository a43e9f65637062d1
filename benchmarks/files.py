"""Cost of reading files, against hand-written loops over the same files."""

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
            records(Path(directory) / "large.tfrecord", 1024, 4096),
            records(Path(directory) / "small.tfrecord", 100, 101),
            *small_files(Path(directory)),
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


def records(path: Path, smallest: int, largest: int) -> Figure:
    """Records one by one, their checksums verified, against a loop over the file's bytes in memory that does the same.

    By processor time: reading in pieces costs the loop by hand more, so the limit is a file that is read at once.
    """
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
    return processor_ratio(question, lambda: exhaust(dataset), lambda: exhaust(records_by_hand(path)), 1, rounds=5)


def small_files(directory: Path, count: int = 500) -> Iterator[Figure]:
    """Files of five lines or records, against opening each, reading it as a whole and taking it apart."""
    texts, tables = [], []
    for number in range(count):
        texts.append(directory / f"{number}.txt")
        texts[-1].write_text("".join(f"line {line} of file {number}\n" for line in range(5)))
        tables.append(directory / f"{number}.tfrecord")
        with ps.TFRecordWriter(tables[-1]) as writer:
            for line in range(5):
                writer.write(b"record %d of file %d" % (line, number))

    def lines_by_hand() -> None:
        for path in texts:
            with open(path, encoding="utf-8") as file:
                file.read().splitlines()

    def all_records_by_hand() -> None:
        for path in tables:
            exhaust(records_by_hand(path))

    lines, records = ps.TextLineDataset(texts), ps.TFRecordDataset(tables)
    yield processor_ratio("small text files / open, read, split", lambda: exhaust(lines), lines_by_hand, 0.5)
    yield processor_ratio("small TFRecords / open, read, verify", lambda: exhaust(records), all_records_by_hand, 0.5)


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
    return Figure("parse_example, batches of 1,000", speeds[3], 500_000, True, "records/s", (speeds[0], speeds[-1]))


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
        0.7,
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
        0.7,
    )


def records_by_hand(path: Path) -> Iterator[bytes]:
    """Every record of a file, verified."""
    content, start = path.read_bytes(), 0
    while start < len(content):
        length, checksum = struct.unpack_from("<QI", content, start)
        assert masked(content[start : start + 8]) == checksum
        stop = start + 12 + length
        data = content[start + 12 : stop]
        (checksum,) = struct.unpack_from("<I", content, stop)
        assert masked(data) == checksum
        yield data
        start = stop + 4


def masked(data: bytes) -> int:
    """The checksum of these bytes, as a TFRecord file holds it."""
    value = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


if __name__ == "__main__":
    for figure in measure():
        print(figure)
