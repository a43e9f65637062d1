"""How many files the datasets of a process keep open, in processes that may open few."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forked import Forked

FILES, ROWS = 40, 8
LIMIT = 128

MANY_DATASETS = """
import json, os, resource, sys
import penstock as ps

directory, limit, suffix, format = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
datasets = [ps.FilesDataset(f"{directory}/*.{suffix}", format) for _ in range(3)]
for dataset in datasets:
    sums = [int(batch.sum()) for batch in dataset.shuffle(seed=1).map(VALUE).batch(8)]
used = len(os.listdir("/dev/fd"))
del dataset, datasets
print(json.dumps([sum(sums), used - len(os.listdir("/dev/fd"))]))
"""

FOUR_THREADS = """
import json, resource, sys, threading
import penstock as ps

directory, limit = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
dataset = ps.ParquetDataset(f"{directory}/*.parquet")
found = [None] * 4

def read(number):
    try:
        found[number] = sum(int(batch["x"].sum()) for batch in dataset.shuffle(seed=number).repeat(2).batch(32))
    except Exception as error:
        found[number] = repr(error)

threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("files")
    for number in range(FILES):
        rows = np.arange(number * ROWS, (number + 1) * ROWS)
        pq.write_table(pa.table({"x": rows}), path / f"{number:02}.parquet", row_group_size=1)
        np.save(path / f"{number:02}.npy", rows)
        (path / f"{number:02}.txt").write_text("".join(f"{row}\n" for row in rows))
    return path


def run(program: str, *arguments: Any) -> Any:
    process = Forked("-c", program, *map(str, arguments), pipes=("stdout",))
    output, _ = process.communicate()
    assert process.returncode == 0
    return json.loads(output)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("suffix", "format", "value"),
    [("parquet", "parquet", 'lambda row: row["x"]'), ("npy", "npy", "lambda row: row"), ("txt", "text", "int")],
)
def test_many_datasets_over_many_files_open_a_quarter_of_what_a_process_may(directory, suffix, format, value) -> None:
    program = MANY_DATASETS.replace("VALUE", value)
    assert run(program, directory, LIMIT, suffix, format) == [sum(range(FILES * ROWS)), LIMIT // 4]


@pytest.mark.extended
def test_threads_read_more_parquet_files_than_are_kept_open(directory) -> None:
    """A file was closed, and its descriptor given to another one, while another thread read it."""
    assert run(FOUR_THREADS, directory, LIMIT) == [2 * sum(range(FILES * ROWS))] * 4
