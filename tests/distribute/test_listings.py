"""Workers that have listed other files: all read those of worker 0. They are threads here, with a real channel."""

import datetime
import decimal
import importlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.distribute.control import listings
from penstock.distribute.control.channel import Control
from penstock.distribute.control.hub import Hub
from penstock.distribute.control.listings import WorkersListings
from penstock.distribute.feed.dataset import DistributedDataset
from penstock.distribute.feed.inputs import DividedInput
from penstock.distribute.feed.options import InputOptions
from penstock.distribute.feed.shards import StrategyWorkers
from penstock.distribute.strategy import placed_on_host
from penstock.formats import matching as matching_files
from penstock.formats.media import example_folder
from penstock.formats.remote.shared_listings import shared_by


def on_two_workers(task: Callable[[int, Control], Any]) -> list[Any]:
    """What a function of a worker's number and its end of a channel gives for each of two."""
    hub = Hub("127.0.0.1", 2)
    with ExitStack() as ends, ThreadPoolExecutor(2) as threads:
        controls = [Control(("127.0.0.1", hub.port), hub.key, worker, 2) for worker in range(2)]
        for control in controls:
            ends.callback(control.close)
        found = list(threads.map(task, range(2), controls))
    hub._server._thread.join(timeout=30)
    return found


def on_both(datasets: list[ps.Dataset]) -> list[Any]:
    """The rows of two workers in two epochs, or their errors."""

    def rows(worker: int, control: Control) -> Any:
        inputs = DividedInput(datasets[worker], StrategyWorkers(2, worker, 1))
        try:
            distributed = DistributedDataset(inputs, placed_on_host, InputOptions(), control, "call")
        except ps.PenstockError as error:
            return error
        epochs = []
        for _ in range(2):
            with iter(distributed) as steps:
                epochs.append([int(row) for step in steps for row in step.values[0]])
        return epochs

    return on_two_workers(rows)


@pytest.fixture
def folder(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"{2 * number}\n{2 * number + 1}\n")
    return tmp_path


READERS = {
    "lines, AUTO": lambda files: ps.TextLineDataset(ps.Dataset.list_files(files, shuffle=True)).map(int).batch(2),
    "by number": lambda files: ps.FilesDataset(files, "text").map(int).shuffle().batch(4),
    "by number, FILE": lambda files: (
        ps.FilesDataset(files, "text").map(int).batch(4).with_options(ps.Options(auto_shard_policy="FILE"))
    ),
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("late", [0, 1])
def test_a_file_that_comes_while_workers_list_is_read_by_all_or_none(kind, late, folder):
    """It comes after worker `late` has listed, so that the other one alone has seen it."""
    early = READERS[kind](folder / "*.txt")
    (folder / "4.txt").write_text("8\n9\n")
    both = [READERS[kind](folder / "*.txt"), early][:: 1 if late else -1]
    for epoch in zip(*on_both(both), strict=True):
        assert sorted(epoch[0] + epoch[1]) == list(range(10 if late else 8)) and all(epoch)


def test_other_names_of_the_same_number_are_those_of_worker_0(folder, caplog):
    datasets = [READERS["by number"](folder / "*.txt")]
    (folder / "0.txt").rename(folder / "9.txt")
    datasets.append(READERS["by number"](folder / "*.txt"))
    (folder / "0.txt").write_text((folder / "9.txt").read_text())
    for epoch in zip(*on_both(datasets), strict=True):
        assert sorted(epoch[0] + epoch[1]) == list(range(8))
    (message,) = [record.getMessage() for record in caplog.records if "worker 0" in record.getMessage()]
    assert "listed other files than worker 0, and reads those: 2 names differ" in message
    names = [str(folder / name) for name in ("0.txt", "9.txt")]
    assert json.dumps(names) in message.replace("'", '"')


def test_files_that_a_worker_cannot_read_are_the_same_error_on_all(folder):
    datasets = [READERS["by number"](folder / "*.txt")]
    (folder / "3.txt").unlink()
    datasets.append(READERS["by number"](folder / "*.txt"))
    first, second = on_both(datasets)
    assert str(first) == str(second) and isinstance(first, ps.StorageError)
    assert "worker 1 cannot read the files that worker 0 has listed" in str(first) and "3.txt" in str(first)


def test_off_leaves_each_worker_its_own_files(folder):
    off = ps.Options(auto_shard_policy="OFF")
    patterns = ("[01].txt", "[23].txt")
    datasets = [ps.TextLineDataset(folder / own).map(int).batch(2).with_options(off) for own in patterns]
    assert on_both(datasets) == [[[0, 1, 2, 3]] * 2, [[4, 5, 6, 7]] * 2]


def test_workers_with_names_of_their_own_are_told(folder):
    names = [[str(folder / "0.txt"), str(folder / "1.txt")], [str(folder / "2.txt"), str(folder / "3.txt")]]
    datasets = [ps.TextLineDataset(own).map(int).batch(2) for own in names]
    for error in on_both(datasets):
        assert isinstance(error, ps.WorkerError)
        assert "files ['0.txt', '1.txt'] on worker 0 is files(2 names)" in str(error)
        assert "files ['2.txt', '3.txt'] on worker 1" in str(error)


def test_folders_of_other_classes_are_different_datasets(folder):
    for name in ("a/x.txt", "b/x.txt"):
        (folder / "all" / name).parent.mkdir(parents=True)
        (folder / "all" / name).write_text("1")
    datasets = [ps.Dataset.from_text_folder(folder / "all").map(lambda text, label: label).batch(2)]
    (folder / "all" / "a").rename(folder / "all" / "c")
    datasets.append(ps.Dataset.from_text_folder(folder / "all").map(lambda text, label: label).batch(2))
    for error in on_both(datasets):
        assert isinstance(error, ps.WorkerError)
        assert "classes ('a', 'b') on worker 0 is classes ('b', 'c') on worker 1" in str(error)


@pytest.fixture
def asked(monkeypatch):
    """Who has asked a store for which pattern."""
    asked = []

    def matching(pattern):
        asked.append(pattern)
        if "none" in pattern:
            raise ps.StorageError(f"{pattern!r} cannot be listed")
        return [pattern.replace("*", name) for name in "ab"]

    for user in (matching_files, example_folder):
        monkeypatch.setattr(user, "matching_remote", matching)
    return asked


def test_worker_0_asks_a_store_for_all_workers_of_a_scope(asked):
    def names(worker: int, control: Control) -> Any:
        with shared_by(WorkersListings(control).names):
            both = [list(ps.Dataset.list_files(f"s3://bucket/{pattern}")) for pattern in ("*.txt", "*.csv")]
            own = list(ps.Dataset.list_files(f"s3://bucket/{worker}/*"))
        return both, own

    (first, own), (second, other) = on_two_workers(names)
    assert first == second == [["s3://bucket/a.txt", "s3://bucket/b.txt"], ["s3://bucket/a.csv", "s3://bucket/b.csv"]]
    assert own == ["s3://bucket/0/a", "s3://bucket/0/b"] and other == ["s3://bucket/1/a", "s3://bucket/1/b"]
    assert sorted(asked) == ["s3://bucket/*.csv", "s3://bucket/*.txt", "s3://bucket/0/*", "s3://bucket/1/*"]


def test_what_worker_0_cannot_list_is_an_error_of_all(asked):
    def error(worker: int, control: Control) -> str:
        with shared_by(WorkersListings(control).names), pytest.raises(ps.StorageError) as caught:
            ps.TextLineDataset("s3://bucket/none/*")
        return str(caught.value)

    first, second = on_two_workers(error)
    assert first == "'s3://bucket/none/*' cannot be listed" and asked == ["s3://bucket/none/*"]
    assert second == f"worker 0 could not list the files for all workers: {first}"


def test_a_listing_too_long_for_a_message_is_made_by_each_worker(asked, monkeypatch):
    monkeypatch.setattr(listings, "_MOST_BYTES", 10)

    def names(worker: int, control: Control) -> Any:
        with shared_by(WorkersListings(control).names):
            return list(ps.Dataset.list_files("s3://bucket/*"))

    assert on_two_workers(names) == [["s3://bucket/a", "s3://bucket/b"]] * 2 and len(asked) == 2


def test_a_strategy_shares_listings_in_its_scope(asked):
    def names(worker: int, control: Control) -> Any:
        strategy = ps.HostStrategy(num_workers=2, worker_index=worker)
        strategy._control = control
        with strategy.scope():
            return list(ps.Dataset.list_files("s3://bucket/*"))

    assert on_two_workers(names) == [["s3://bucket/a", "s3://bucket/b"]] * 2 and len(asked) == 1


def test_worker_0_reads_the_log_of_a_table_for_all_workers(tmp_path, monkeypatch):
    deltalake = pytest.importorskip("deltalake", reason="the extra delta is not installed")
    days = [datetime.date(2024, 1, 1), None]
    rows = pa.table(
        {"n": range(4), "day": pa.array(days * 2, pa.date32()), "price": [decimal.Decimal("1.50"), None] * 2}
    )
    deltalake.write_deltalake(str(tmp_path), rows, partition_by=["day", "price"])
    alone = ps.DeltaDataset(tmp_path, columns=["n", "day"], mask_nulls=["day"])
    opened, delta = [], importlib.import_module("penstock.formats.tables.delta")
    opening = delta._opened
    monkeypatch.setattr(delta, "_opened", lambda *given: opened.append(given) or opening(*given))

    def rows_of(worker: int, control: Control) -> Any:
        with shared_by(WorkersListings(control).names):
            dataset = ps.DeltaDataset(tmp_path, columns=["n", "day"], mask_nulls=["day"])
        assert dataset.fingerprint() == alone.fingerprint()
        return list(map(str, dataset))

    assert on_two_workers(rows_of) == [list(map(str, alone))] * 2
    assert opened == [(str(tmp_path), None)]


def test_worker_0_plans_the_files_of_a_snapshot_for_all_workers(tmp_path, monkeypatch):
    sql = pytest.importorskip("pyiceberg.catalog.sql", reason="the extra iceberg is not installed")
    iceberg = importlib.import_module("penstock.formats.tables.iceberg")
    catalog = sql.SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("db")
    table = catalog.create_table("db.people", pa.schema([("n", pa.int64())]))
    for start in (0, 10):
        table.append(pa.table({"n": range(start, start + 3)}))
    planned, planning = [], iceberg._plan_of
    monkeypatch.setattr(iceberg, "_plan_of", lambda *given: planned.append(1) or planning(*given))

    def rows_of(worker: int, control: Control) -> Any:
        with shared_by(WorkersListings(control).names):
            dataset = ps.IcebergDataset(table, filter="n > 1")
        return sorted(int(row["n"]) for row in dataset)

    assert on_two_workers(rows_of) == [[2, 10, 11, 12]] * 2
    assert len(planned) == 1
    catalog.close()
