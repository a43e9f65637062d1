"""Which rows an element or a step was made of: worked out from its number, and the same as what was read."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.cli import main
from penstock.data.origins import Row


def files(tmp_path: Path) -> ps.Dataset:
    """Three files of ten rows, whose numbers say which row of which file they are."""
    for number in range(3):
        values = list(range(10 * number, 10 * number + 10))
        pq.write_table(pa.table({"x": values}), tmp_path / f"{number}.parquet")
    return ps.ParquetDataset(str(tmp_path / "*.parquet")).map(lambda row: row["x"])


def numbers(rows: list[Row]) -> list[int]:
    """The values of rows of those files."""
    return [10 * int(Path(row.file or "").stem) + row.row for row in rows]


def test_rows_of_every_step_are_those_that_were_read(tmp_path: Path) -> None:
    dataset = files(tmp_path).shuffle(seed=3).repeat(2).batch(4).prefetch(2)
    with iter(dataset) as iterator:
        assert iterator.rows() == []
        for step, batch in enumerate(iterator):
            assert numbers(iterator.rows()) == batch.tolist()
            assert dataset.rows(step) == iterator.rows()
    assert step == 14


def test_rows_follow_a_restored_state_and_its_epoch(tmp_path: Path) -> None:
    dataset = files(tmp_path).shuffle().batch(4)
    iter(dataset).close()
    with iter(dataset) as iterator:
        next(iterator)
        state = iterator.state_dict()
    resumed = iter(files(tmp_path).shuffle().batch(4))
    resumed.load_state_dict(state)
    assert resumed.rows() == dataset.rows(0, epoch=1)
    assert next(resumed).tolist() == numbers(resumed.rows()) == numbers(dataset.rows(1, epoch=1))


def test_rows_of_several_sources_keep_the_order_of_the_elements() -> None:
    letters, more = ps.Dataset.from_list(["a", "b", "c"]), ps.Dataset.from_list(["d", "e"])
    both = letters.concatenate(more).shuffle(seed=1).batch(2).batch(2)
    sources = {letters.node.where(): ["a", "b", "c"], more.node.where(): ["d", "e"]}
    found = [sources[row.source][row.row] for row in both.rows(0)]
    assert found == both.at(0).reshape(-1).tolist()
    pairs = ps.Dataset.zip(letters, more).batch(2)
    assert [row.row for row in pairs.rows(0)] == [0, 0, 1, 1]


def test_rows_of_windows_and_caches() -> None:
    windows = ps.Dataset.range(7).cache().window(3, shift=2, stride=2)
    assert [[row.row for row in windows.rows(step)] for step in range(4)] == [[0, 2, 4], [2, 4, 6], [4, 6], [6]]


def test_rows_beyond_a_stream_are_numbers_in_it() -> None:
    odd = ps.Dataset.range(50).filter(lambda x: x % 2)
    assert odd.batch(4).map(np.sum).rows(2) == [Row(odd.node.where(), None, row) for row in range(8, 12)]


def test_rows_beyond_the_end_are_refused() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="below the 3 elements of batch.*got 3"):
        ps.Dataset.range(9).batch(3).rows(3)


def test_all_workers_tell_the_rows_of_the_whole_step(tmp_path: Path) -> None:
    batches = files(tmp_path).shuffle(seed=1).batch(5)
    for worker in range(2):
        strategy = ps.HostStrategy(replicas_per_worker=2, num_workers=2, worker_index=worker)
        with iter(strategy.distribute_dataset(batches)) as iterator:
            for step in range(3):
                slices = next(iterator).values
                assert iterator.rows() == batches.rows(step)
                mine = [x for part in slices for x in part.tolist()]
                assert mine == numbers(iterator.rows())[4 * worker : 4 * worker + 4]


def test_a_worker_with_files_of_its_own_tells_its_batch(tmp_path: Path) -> None:
    by_file = files(tmp_path).batch(4).with_options(ps.Options(auto_shard_policy="FILE", seed=0))
    told = []
    for worker in range(2):
        strategy = ps.HostStrategy(num_workers=2, worker_index=worker)
        with iter(strategy.distribute_dataset(by_file)) as iterator:
            told.append([numbers(iterator.rows()) for _ in iterator])
    first, last = [0, 1, 2, 3], [20, 21, 22, 23]
    own = [first, [4, 5, 6, 7], [8, 9, *last[:2]], [22, 23, 24, 25], [26, 27, 28, 29]]
    assert told[0] == [batch for batch in own for _ in range(2)]
    assert told[1] == [[10, 11, 12, 13]] * 2 + [[14, 15, 16, 17]] * 2 + [[18, 19]] * 2 + [[]] * 4


def test_rows_of_datasets_that_a_function_made() -> None:
    strategy = ps.HostStrategy(replicas_per_worker=2)
    steps = strategy.distribute_datasets_from_function(lambda context: ps.Dataset.range(8).batch(2))
    with iter(steps) as iterator:
        next(iterator), next(iterator)
        assert [row.row for row in iterator.rows()] == [4, 5, 6, 7]


def test_the_command_prints_the_rows_of_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("import penstock as ps\ndataset = ps.Dataset.range(9).shuffle(seed=1).batch(2)\n")
    assert main(["rows", f"{script}:dataset", "--step", "1"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["row"] for row in rows] == ps.Dataset.range(9).shuffle(seed=1).batch(2).at(1).tolist()


def test_the_command_refuses_an_order_without_a_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("import penstock as ps\ndataset = ps.Dataset.range(9).shuffle().batch(2)\n")
    assert main(["rows", f"{script}:dataset", "--step", "1"]) == 2
    assert "has no seed, so its order here is not that of the training" in capsys.readouterr().err
