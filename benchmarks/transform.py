"""Cost of full-pass analysis, by hand, on two processes and in TensorFlow, and of applying it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import penstock as ps
from benchmarks.timing import Figure, medians_in_turn, processor_ratio, seconds
from penstock.transform.passes import ROWS as AT_A_TIME

ROWS = 4_000_000
WORDS = 5_000
ROWS_IN_TENSORFLOW = 200_000


def measure() -> list[Figure]:
    """The figures of this file."""
    generator = np.random.default_rng(0)
    columns: dict[str, Any] = {f"x{number}": generator.normal(number, 2, ROWS) for number in range(4)}
    tokens = np.array([f"word{number}" for number in range(WORDS)], object)
    columns["word"] = tokens[np.minimum(generator.zipf(1.4, ROWS), WORDS) - 1]
    dataset = ps.Dataset.from_tensor_slices(columns)

    def analyzed() -> object:
        with tempfile.TemporaryDirectory() as directory:
            return ps.transform.analyze(dataset, preprocess, Path(directory) / "transform").rows

    rounds = [
        processor_ratio(f"analyzing {ROWS:.0e} rows / by hand", analyzed, lambda: by_hand(dataset), 0.7, rounds=3)
    ]
    with tempfile.TemporaryDirectory() as directory:
        layer = ps.transform.analyze(dataset.take(AT_A_TIME), preprocess, directory).transform_features_layer()
        block = {name: column[:AT_A_TIME] for name, column in columns.items()}
        rounds.append(
            processor_ratio("applying it to a block / by hand", lambda: layer(block), applied(layer, block), 0.7)
        )
    return [*rounds, on_two_workers(columns), *against_tensorflow(columns)]


def on_two_workers(columns: dict[str, Any]) -> Figure:
    """The rows in files, analyzed by two worker processes and in this one.

    Each analysis reads the files under names that nobody has read. Otherwise row groups that are kept from the analysis
    before would be found again by two processes, which together keep twice as many as one.
    """
    with tempfile.TemporaryDirectory() as directory, ps.service.local(2) as service:
        files = Path(directory) / "rows"
        table = pa.table({name: pa.array(column) for name, column in columns.items()})
        files.mkdir()
        for number in range(8):
            part = table.slice(number * ROWS // 8, ROWS // 8)
            pq.write_table(part, files / f"{number}.parquet", row_group_size=AT_A_TIME)
        runs = iter(range(100))

        def analyze(where: Any) -> float:
            names = Path(directory) / f"run {next(runs)}"
            names.mkdir()
            for file in files.iterdir():
                os.link(file, names / file.name)
            dataset = ps.ParquetDataset(str(names / "*.parquet"))
            return seconds(lambda: ps.transform.analyze(dataset, preprocess, names / "transform", where))

        analyze(service)  # the workers import what they need
        here, there = medians_in_turn([lambda: analyze(None), lambda: analyze(service)])
    return Figure(f"analyzing {ROWS:.0e} rows of Parquet on two workers / in one process", here / there, 1.5)


def against_tensorflow(columns: dict[str, Any]) -> list[Figure]:
    """The first rows, analyzed by TensorFlow Transform on Beam, where an interpreter for it is named."""
    python = os.environ.get("PENSTOCK_BENCH_TENSORFLOW")
    if not python or subprocess.run([python, "-c", "import tensorflow_transform"], capture_output=True).returncode:
        print("no figure: PENSTOCK_BENCH_TENSORFLOW names no Python that has tensorflow_transform", file=sys.stderr)
        return []
    some = {name: column[:ROWS_IN_TENSORFLOW] for name, column in columns.items()}
    dataset = ps.Dataset.from_tensor_slices(some)
    with tempfile.TemporaryDirectory() as directory:
        np.savez(f"{directory}/rows.npz", **some | {"word": some["word"].astype(str)})
        program = Path(__file__).with_name("transform_in_tensorflow.py")
        done = subprocess.run(
            [python, program, f"{directory}/rows.npz"], capture_output=True, text=True, check=True, cwd=directory
        )
        ours = seconds(lambda: ps.transform.analyze(dataset, preprocess, f"{directory}/transform"))
    theirs = float(done.stdout.splitlines()[-1])
    return [Figure(f"analyzing {ROWS_IN_TENSORFLOW:.0e} rows / by TensorFlow Transform on Beam", theirs / ours, 10)]


def preprocess(columns: Any) -> dict[str, Any]:
    """z-scores, buckets and a vocabulary."""
    return {
        "x0": ps.transform.scale_to_z_score(columns["x0"]),
        "x1": ps.transform.scale_to_z_score(columns["x1"]),
        "x2": ps.transform.bucketize(columns["x2"], 10),
        "x3": ps.transform.scale_to_0_1(columns["x3"]),
        "word": ps.transform.compute_and_apply_vocabulary(columns["word"]),
    }


def batches(dataset: ps.Dataset) -> Iterator[dict[str, Any]]:
    """The blocks that both read."""
    with iter(dataset.batch(AT_A_TIME)) as iterator:
        yield from iterator


def by_hand(dataset: ps.Dataset) -> object:
    """Means, variances, extrema, exact quantiles and counts, as one writes them for one process."""
    sums, squares, count = np.zeros(2), np.zeros(2), 0
    least, most = np.inf, -np.inf
    values, tables = [], []
    for batch in batches(dataset):
        for place, name in enumerate(("x0", "x1")):
            sums[place] += batch[name].sum()
            squares[place] += np.square(batch[name]).sum()
        count += len(batch["x0"])
        values.append(batch["x2"])
        least, most = min(least, batch["x3"].min()), max(most, batch["x3"].max())
        found, counts = pc.value_counts(pa.array(batch["word"], pa.large_string())).flatten()
        tables.append(pa.table([found, counts], names=["word", "count"]))
    vocabulary = pa.concat_tables(tables).group_by("word").aggregate([("count", "sum")])
    ordered = vocabulary.sort_by([("count_sum", "descending"), ("word", "descending")])
    boundaries = np.quantile(np.concatenate(values), np.arange(1, 10) / 10)
    return sums / count, squares / count - np.square(sums / count), least, most, boundaries, ordered


def applied(layer: Any, block: dict[str, Any]) -> Callable[[], object]:
    """The same expressions by hand, with what the layer has learned."""
    means = {name: (block[name].mean(), block[name].std()) for name in ("x0", "x1")}
    low, high = block["x3"].min().astype(np.float32), block["x3"].max().astype(np.float32)
    boundaries = np.quantile(block["x2"], np.arange(1, 10) / 10).astype(np.float32)
    found, counts = pc.value_counts(pa.array(block["word"], pa.large_string())).flatten()
    known = found.take(pc.sort_indices(counts))

    def work() -> object:
        z = [(block[name] - mean) / deviation for name, (mean, deviation) in means.items()]
        scaled = (block["x3"].astype(np.float32) - low) / (high - low)
        buckets = np.searchsorted(boundaries.astype(np.float64), block["x2"], side="right")
        words = pc.index_in(pa.array(block["word"], pa.large_string()), value_set=known)
        return z, scaled, buckets, pc.fill_null(words, -1).to_numpy().astype(np.int64)

    return work
