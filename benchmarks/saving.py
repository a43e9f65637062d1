"""Cost of writing files, against the library that writes the same files of the same rows."""

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from benchmarks.timing import Figure, processor_ratio, speed_ratio

ROWS = 500_000
SAMPLES = 5_000


def measure() -> list[Figure]:
    """The figures of this file."""
    with tempfile.TemporaryDirectory() as directory:
        return [parquet(Path(directory)), npy(Path(directory)), tfrecord(Path(directory)), tar(Path(directory))]


def saving(dataset: ps.Dataset, directory: Path, format: str) -> Callable[[], None]:
    """Saves the dataset in one file, so that one thread writes, as the libraries do."""

    def save() -> None:
        dataset.save(directory / format, format=format, shards=1)
        shutil.rmtree(directory / format)

    return save


def on_disk(path: Path) -> None:
    """Let a file be on the disk, as ours is, and go."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)
    path.unlink()


def columns(rows: int) -> dict[str, np.ndarray]:
    """Ten columns of numbers."""
    rng = np.random.default_rng(0)
    return {f"x{number}": rng.standard_normal(rows, np.float32) for number in range(10)}


def parquet(directory: Path) -> Figure:
    """Ten columns of numbers in row groups of 2,000."""
    arrays = columns(ROWS)
    table = pa.table(arrays)

    def bare() -> None:
        pq.write_table(table, directory / "bare.parquet", row_group_size=2000)
        on_disk(directory / "bare.parquet")

    ours = saving(ps.Dataset.from_tensor_slices(arrays), directory, "parquet")
    return Figure("save(format='parquet') / pyarrow.parquet.write_table", speed_ratio(ours, bare, rounds=3), 0.7)


def npy(directory: Path) -> Figure:
    """Rows of 64 numbers, from an array in a file to an array in a file."""
    source = directory / "source.npy"
    np.save(source, np.random.default_rng(0).standard_normal((ROWS, 64), np.float32))

    def bare() -> None:
        np.save(directory / "bare.npy", np.load(source))
        on_disk(directory / "bare.npy")

    ours = saving(ps.FilesDataset(source, "npy"), directory, "npy")
    question = "npy to save(format='npy') / numpy.load to numpy.save"  # the disk decides how long either waits for it
    return processor_ratio(question, ours, bare, 0.5, rounds=5)


def tfrecord(directory: Path) -> Figure:
    """Examples of 16 floats, an integer and a string, against records that are there already, one by one."""
    features = {
        "x": np.random.default_rng(0).standard_normal((ROWS // 5, 16), np.float32),
        "label": np.arange(ROWS // 5),
        "name": np.array([f"row {number}" for number in range(ROWS // 5)], object),
    }
    dataset = ps.Dataset.from_tensor_slices(features)
    records = [ps.serialize_example(row) for row in dataset.take(1)] * (ROWS // 5)

    def bare() -> None:
        with ps.TFRecordWriter(directory / "bare.tfrecord") as writer:
            for record in records:
                writer.write(record)
        on_disk(directory / "bare.tfrecord")

    ratio = speed_ratio(saving(dataset, directory, "tfrecord"), bare, rounds=3)
    return Figure("save(format='tfrecord') of Examples / TFRecordWriter of bytes", ratio, 0.7)


def tar(directory: Path) -> Figure:
    """Samples of 10 kB and a label."""
    content = np.random.default_rng(0).bytes(10_000)
    samples = {"bin": np.array([content] * SAMPLES, object), "cls": np.arange(SAMPLES)}

    def bare() -> None:
        with tarfile.open(directory / "bare.tar", "w") as archive:
            for number in range(SAMPLES):
                for ending, data in (("bin", content), ("cls", b"%d" % number)):
                    member = tarfile.TarInfo(f"{number:09d}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
        on_disk(directory / "bare.tar")

    ours = saving(ps.Dataset.from_tensor_slices(samples), directory, "tar")
    return Figure("save(format='tar') / tarfile", speed_ratio(ours, bare, rounds=3), 1.0)
