"""Cost of reading tables, records and collections, against the libraries that they belong to, by processor time."""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

import penstock as ps
from benchmarks.timing import Figure, processor_ratio, processor_seconds

BATCH = 256
ROWS = 200_000
COLUMNS = 20
GROUP = 1000
RECORDS = 50_000
ROUNDS = 7


def measure() -> list[Figure]:
    """The figures of this file; those against a library that is not installed are left out."""
    with tempfile.TemporaryDirectory() as directory:
        return [
            *parquet(Path(directory)),
            csv(Path(directory) / "table.csv"),
            *array_records(Path(directory) / "rows.array_record"),
            *hugging_face(),
            *tensorflow(Path(directory) / "examples.tfrecord"),
        ]


def exhaust(items: Iterable[object]) -> None:
    """Visit every element."""
    for _ in items:
        pass


def numbers() -> pa.Table:
    """Columns of doubles."""
    rng = np.random.default_rng(0)
    return pa.table({f"c{column}": rng.random(ROWS) for column in range(COLUMNS)})


def parquet(directory: Path) -> list[Figure]:
    """All rows in order, and a batch of rows at random from small groups."""
    table = numbers()
    pq.write_table(table, directory / "large.parquet", row_group_size=50_000)
    pq.write_table(table, directory / "small.parquet", row_group_size=GROUP)
    groups = np.random.default_rng(1).choice(ROWS // GROUP, 64)

    # Datasets keep what they have decoded, so each epoch here is the first of a new one.
    def scan() -> None:
        exhaust(ps.ParquetDataset(directory / "large.parquet").batch(BATCH))

    def few() -> None:
        exhaust(ps.ParquetDataset(directory / "small.parquet").shuffle(seed=1).take(64).batch(64))

    def batches_by_hand() -> None:
        file = pq.ParquetFile(directory / "large.parquet")
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, use_threads=False)
            columns = {name: table[name].to_numpy() for name in table.column_names}
            for start in range(0, table.num_rows, BATCH):
                {name: column[start : start + BATCH] for name, column in columns.items()}

    def batches_of_arrow() -> None:
        for batch in pq.ParquetFile(directory / "large.parquet").iter_batches(BATCH, use_threads=False):
            {name: column.to_numpy() for name, column in zip(batch.schema.names, batch.columns, strict=True)}

    def by_hand() -> None:
        grouped = pq.ParquetFile(directory / "small.parquet")
        table = grouped.read_row_groups(sorted(set(groups.tolist())), use_threads=False)
        for name in table.column_names:
            table[name].to_numpy()[::GROUP].copy()

    return [
        processor_ratio("Parquet, 20 columns, in batches / row groups cut by hand", scan, batches_by_hand, 0.7, ROUNDS),
        processor_ratio("the same / Arrow's iter_batches", scan, batches_of_arrow, 1, ROUNDS),
        processor_ratio("Parquet, 64 random rows / their row groups read by hand", few, by_hand, 0.7, ROUNDS),
    ]


def csv(path: Path) -> Figure:
    """All rows of 77 MB in order, whose places are known from an earlier run; types are found anew each time."""
    pc.write_csv(numbers(), path)
    reading = pc.ReadOptions(use_threads=False)

    def by_arrow() -> None:
        exhaust(pc.open_csv(path, read_options=reading))

    def ours() -> None:
        exhaust(ps.CsvDataset(path).batch(BATCH))

    return processor_ratio("CSV in batches / Arrow's own reader", ours, by_arrow, 0.7, ROUNDS)


def array_records(path: Path) -> list[Figure]:
    """A global shuffle, row by row, against Grain without threads, which cost it more than they gain here."""
    if find_spec("grain") is None or find_spec("array_record") is None:
        print("no figure against Grain: grain or array_record is not installed", file=sys.stderr)
        return []
    grain, records = import_module("grain"), import_module("array_record.python.array_record_module")
    writer = records.ArrayRecordWriter(str(path), "group_size:1")
    rng = np.random.default_rng(0)
    for _ in range(RECORDS // 5):
        writer.write(rng.bytes(200))
    writer.close()

    def ours() -> None:
        exhaust(ps.ArrayRecordDataset(path).shuffle(seed=1))

    def theirs() -> None:
        source = grain.sources.ArrayRecordDataSource(str(path))
        alone = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        exhaust(grain.MapDataset.source(source).shuffle(seed=1).to_iter_dataset(alone))

    question = "ArrayRecord, shuffled as a whole / Grain"
    return [processor_ratio(question, ours, theirs, 2, ROUNDS)]


def hugging_face() -> list[Figure]:
    """Shuffled batches of a data set in memory, against its own loader."""
    if find_spec("datasets") is None:
        print("no figure against Hugging Face: datasets is not installed", file=sys.stderr)
        return []
    rng = np.random.default_rng(0)
    rows = {"x": rng.random((RECORDS, 16), np.float32), "y": np.arange(RECORDS)}
    source: Any = import_module("datasets").Dataset.from_dict(rows)
    ours = ps.Dataset.from_source(source).shuffle(seed=1).batch(BATCH)

    def theirs() -> None:
        exhaust(source.with_format("numpy").shuffle(seed=1).iter(batch_size=BATCH))

    question = 'Hugging Face data set, shuffled batches / its own with_format("numpy")'
    return [processor_ratio(question, lambda: exhaust(ours), theirs, 5, ROUNDS)]


def tensorflow(path: Path) -> list[Figure]:
    """Batches of records that TensorFlow has written, and the same parsed."""
    python = os.environ.get("PENSTOCK_BENCH_TENSORFLOW")
    if python is None:
        print("no figure against TensorFlow: PENSTOCK_BENCH_TENSORFLOW names no Python that has it", file=sys.stderr)
        return []
    features = {
        "x": ps.TensorSpec((16,), np.float32),
        "i": ps.TensorSpec((), np.int64),
        "s": ps.TensorSpec((), object),
    }
    command = [python, "-m", "benchmarks.formats_in_tensorflow", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        records = ps.TFRecordDataset(path).batch(BATCH)
        parsed = records.map(lambda batch: ps.parse_example(batch, features))

        def ratio(question: str, ours: Callable[[], object], way: str, goal: float) -> Figure:
            def theirs() -> float:
                print(way, file=child.stdin, flush=True)
                return float(child.stdout.readline())  # type: ignore[union-attr]  # as asserted above

            ours()
            theirs()
            ratios = sorted(theirs() / processor_seconds(ours) for _ in range(ROUNDS))
            return Figure(question, statistics.median(ratios), goal, spread=(ratios[0], ratios[-1]))

        figures = [
            ratio("TFRecords in batches / TensorFlow", lambda: exhaust(records), "read", 2),
            ratio("the same parsed, 16 floats, an integer, a string / TensorFlow", lambda: exhaust(parsed), "parse", 1),
        ]
        child.stdin.close()
    return figures
