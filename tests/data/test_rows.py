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


def test_rows_of_a_mixture_are_those_of_its_sources(tmp_path: Path) -> None:
    found = files(tmp_path)
    dataset = ps.Dataset.mix({"most": found.shuffle(seed=1), "few": found}, [3, 1], stop="repeat").take(60).batch(4)
    for step, batch in enumerate(dataset):
        assert numbers(dataset.rows(step)) == batch.tolist()


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


def test_rows_that_are_dropped_are_missing_and_no_others(tmp_path: Path) -> None:
    dataset = files(tmp_path).shuffle(seed=3)
    bad = [*dataset.rows(4), *dataset.rows(20)]
    left = dataset.skip_rows(bad, steps=[0, 29])
    for _ in range(2):
        every, order = iter(dataset), list(iter(left))
        named = {numbers([row])[0] for row in bad}
        assert order == [x for place, x in enumerate(every) if int(x) not in named and place not in (0, 29)]
    assert [numbers(left.rows(step))[0] for step in range(26)] == list(
        iter(files(tmp_path).shuffle(seed=3).skip_rows(bad, steps=[0, 29]))
    )
    assert left.rows(26) == []


def test_rows_that_are_masked_leave_all_else_bit_equal(tmp_path: Path) -> None:
    plain = files(tmp_path).shuffle(seed=3)
    bad = [*plain.rows(4), *plain.rows(20)]
    masked = plain.skip_rows(bad, how="mask").batch(4).prefetch(1)
    with iter(plain.batch(4)) as iterator:
        next(iterator)
        state = iterator.state_dict()
        rest = list(iterator)
    resumed = iter(masked)
    resumed.load_state_dict(state)
    found = list(resumed)
    assert [batch.tolist() for batch, _ in found] == [batch.tolist() for batch in rest]
    assert [(4 * step + 4 + row) for step, (_, keep) in enumerate(found) for row in np.flatnonzero(~keep)] == [4, 20]


def test_a_batch_or_a_step_is_dropped_by_any_of_its_rows() -> None:
    rows = ps.Dataset.range(12)
    batches = rows.batch(3)
    bad = batches.rows(2)[1:2]
    assert [batch.tolist()[0] for batch in batches.skip_rows(bad)] == [0, 3, 9]
    assert [keep.tolist() for _, keep in rows.batch(3).skip_rows(bad, how="mask")] == [True, True, False, True]


def test_rows_to_be_dropped_may_change_when_a_state_is_restored() -> None:
    source = ps.Dataset.range(20).shuffle(seed=1)
    before = source.skip_rows().batch(4).prefetch(ps.AUTOTUNE)
    with iter(before) as iterator:
        next(iterator), next(iterator)
        state = iterator.state_dict()
    named = [*source.rows(5), *source.rows(10)]
    resumed = iter(source.skip_rows(named).batch(4).prefetch(1))
    resumed.load_state_dict(state)
    order = list(iter(ps.Dataset.range(20).shuffle(seed=1)))[8:]
    assert [x for batch in resumed for x in batch.tolist()] == [x for x in order if x != named[1].row]
    with pytest.raises(ps.StateMismatchError, match="skip_rows"):
        iter(source.batch(4)).load_state_dict(state)


def test_rows_of_a_stream_are_skipped_by_their_numbers_in_it() -> None:
    odd = ps.Dataset.range(20).filter(lambda x: x % 2)
    named = [*odd.rows(1), *odd.rows(3)]
    assert list(odd.skip_rows(named)) == [1, 5, 9, 11, 13, 15, 17, 19]
    assert [int(x) for x, keep in odd.skip_rows(named, how="mask") if not keep] == [3, 7]


def test_rows_that_can_not_come_are_refused_and_say_why(tmp_path: Path) -> None:
    dataset = files(tmp_path)
    named = dataset.rows(3)
    with pytest.raises(ps.InvalidArgumentError, match=r"row 3 of .*0.parquet.*which rows come through filter\("):
        dataset.filter(lambda x: True).skip_rows(named)
    with pytest.raises(ps.InvalidArgumentError, match="takes rows as rows.step. gives them.*got 3; steps="):
        dataset.skip_rows([3])
    with pytest.raises(ps.InvalidArgumentError, match='must be "drop" or "mask", got "?.hide'):
        dataset.skip_rows(named, how="hide")
    skipping = dataset.skip_rows(named).batch(4).with_options(ps.Options(on_error="skip"))
    assert next(iter(skipping)).tolist() == [0, 1, 2, 4]


@pytest.mark.parametrize("how", ["drop", "mask"])
def test_workers_skip_the_same_rows(how: str) -> None:
    source = ps.Dataset.range(20).shuffle(seed=1)
    dataset = source.skip_rows(source.rows(1), how=how).batch(4)
    parts = []
    for worker in range(2):
        strategy = ps.HostStrategy(num_workers=2, worker_index=worker)
        with iter(strategy.distribute_dataset(dataset)) as iterator:
            steps = [step.values[0] if how == "drop" else (step[0].values[0], step[1].values[0]) for step in iterator]
            parts.append([(step if how == "drop" else step[0][step[1]]).tolist() for step in steps])
    order = [x for x in list(iter(ps.Dataset.range(20).shuffle(seed=1))) if x != source.rows(1)[0].row]
    assert [x for both in zip(*parts, strict=True) for part in both for x in part] == order


def test_rows_of_packed_documents_are_all_that_are_in_the_row() -> None:
    documents = ps.Dataset.from_list([[5, 6, 7], [8], [9, 9], [4, 4, 4]]).with_lengths()
    packed = documents.pack(4)
    found = [[row.row for row in packed.rows(step)] for step in range(len(packed))]
    assert sorted(map(tuple, found)) == [(0, 1), (2,), (3,)]
    assert sorted(row.row for row in packed.batch(3).rows(0)) == [0, 1, 2, 3]


def test_rows_of_two_sources_with_one_name_are_not_skipped_together() -> None:
    mixed = ps.Dataset.mix({name: ps.Dataset.range(5) for name in ("web", "code")}, stop="all")
    with pytest.raises(ps.InvalidArgumentError, match=r"row 0 of range.*, and 2 sources have this name: make each"):
        mixed.skip_rows(mixed.rows(0))
    web = ps.Dataset.range(5)
    code = ps.Dataset.range(5)
    apart = ps.Dataset.mix({"web": web, "code": code}, stop="all")
    assert sorted(map(int, apart.skip_rows(apart.rows(0)))) == [0, 1, 1, 2, 2, 3, 3, 4, 4]
