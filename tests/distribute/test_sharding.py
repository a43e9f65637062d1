"""Which worker reads what: the policies, with the views of all workers side by side."""

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.formats.records.text_lines import TextLines

Policy = ps.AutoShardPolicy


def on(worker: int, workers: int = 2, replicas: int = 1) -> ps.HostStrategy:
    return ps.HostStrategy(replicas, workers, worker)


def view(distributed: ps.types.DistributedDataset) -> list[Any]:
    """The steps of one worker: each as the rows of each replica, or as rows alone where there is one replica."""
    with iter(distributed) as steps:
        found = [[rows.tolist() for rows in step.values] for step in steps]
    return [step[0] if len(step) == 1 else step for step in found]


def views(dataset: ps.Dataset, workers: int = 2, replicas: int = 1) -> list[list[Any]]:
    return [view(on(worker, workers, replicas).distribute_dataset(dataset)) for worker in range(workers)]


def under(policy: ps.AutoShardPolicy, dataset: ps.Dataset) -> ps.Dataset:
    return dataset.with_options(ps.Options(auto_shard_policy=policy))


def rows_of(view: list[Any]) -> list[int]:
    return [row for step in view for row in step]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two files of six lines: the numbers from 0 to 5 and from 6 to 11."""
    return write(tmp_path, [range(6), range(6, 12)])


def write(directory: Path, contents: list[range]) -> list[str]:
    for number, content in enumerate(contents):
        (directory / f"{number}.txt").write_text("".join(f"{line}\n" for line in content))
    return [str(directory / f"{number}.txt") for number in range(len(contents))]


def lines(names: Any) -> ps.Dataset:
    return ps.TextLineDataset(names).map(int)


# The design's examples


@pytest.mark.parametrize("policy", [Policy.AUTO, Policy.DATA])
def test_data_gives_each_worker_its_slices_of_every_batch(policy) -> None:
    assert views(under(policy, ps.Dataset.range(12).batch(4))) == [
        [[0, 1], [4, 5], [8, 9]],
        [[2, 3], [6, 7], [10, 11]],
    ]


def test_data_gives_a_workers_replicas_neighbouring_slices() -> None:
    assert views(ps.Dataset.range(11).batch(8), workers=2, replicas=2) == [
        [[[0, 1], [2, 3]], [[8], [9]]],
        [[[4, 5], [6, 7]], [[10], []]],
    ]


def test_data_gives_a_worker_without_rows_empty_batches() -> None:
    assert views(ps.Dataset.range(4).batch(4), workers=3) == [[[0, 1]], [[2, 3]], [[]]]
    assert views(ps.Dataset.range(3).batch(1), workers=2) == [[[0], [1], [2]], [[], [], []]]


@pytest.mark.parametrize("policy", [Policy.AUTO, Policy.FILE])
def test_file_gives_each_worker_whole_files_and_batches_of_its_own(files, policy) -> None:
    assert views(under(policy, lines(files).batch(4))) == [
        [[0, 1], [2, 3], [4], [5]],
        [[6, 7], [8, 9], [10], [11]],
    ]


def test_file_deals_out_the_files_in_their_order(tmp_path) -> None:
    files = write(tmp_path, [range(2), range(2, 4), range(4, 6), range(6, 8), range(8, 10)])
    assert [rows_of(own) for own in views(lines(files).batch(4))] == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7]]
    assert [rows_of(own) for own in views(lines(files).batch(3), 3)] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5]]


def test_data_reads_files_too_where_it_is_asked_for(files) -> None:
    assert views(under(Policy.DATA, lines(files[:1]).batch(4))) == [[[0, 1], [4]], [[2, 3], [5]]]


def test_off_gives_every_worker_everything() -> None:
    everything = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert views(under(Policy.OFF, ps.Dataset.range(12).batch(4))) == [everything, everything]


def test_off_deals_all_slices_to_the_workers_own_replicas() -> None:
    both = [[[0], [1]], [[2], [3]], [[4], [5]], [[], []]]
    # The fourth step of each pair of steps has no rows on any worker, and so is no step.
    assert views(under(Policy.OFF, ps.Dataset.range(6).batch(4)), 2, 2) == [both[:3], both[:3]]


def test_hint_shards_where_it_stands_and_nowhere_else() -> None:
    numbers = ps.Dataset.range(12)
    hinted = numbers.shard(ps.SHARD_HINT, ps.SHARD_HINT)
    assert views(under(Policy.HINT, hinted.batch(4))) == [[[0, 2], [4, 6], [8], [10]], [[1, 3], [5, 7], [9], [11]]]
    batches = numbers.batch(4).shard(ps.SHARD_HINT, ps.SHARD_HINT)
    assert views(under(Policy.HINT, batches)) == [[[0, 1], [2, 3], [8, 9], [10, 11]], [[4, 5], [6, 7], [], []]]


def test_every_hint_is_a_shard() -> None:
    first = ps.Dataset.range(4).shard(ps.SHARD_HINT, ps.SHARD_HINT)
    second = ps.Dataset.range(10, 14).shard(ps.SHARD_HINT, ps.SHARD_HINT)
    both = under(Policy.HINT, first.concatenate(second).batch(2))
    assert [rows_of(own) for own in views(both)] == [[0, 2, 10, 12], [1, 3, 11, 13]]


def test_a_file_range_may_begin_and_end_within_a_file(tmp_path) -> None:
    files = write(tmp_path, [range(7), range(7, 8), range(8, 10)])
    assert [rows_of(own) for own in views(under(Policy.FILE_RANGE, lines(files).batch(4)))] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
    ]
    assert [rows_of(own) for own in views(under(Policy.FILE_RANGE, lines(files).batch(3)), 3)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8, 9],
    ]


def test_file_ranges_serve_more_workers_than_there_are_records(tmp_path) -> None:
    files = write(tmp_path, [range(1), range(0), range(1, 2)])
    assert [rows_of(own) for own in views(under(Policy.FILE_RANGE, lines(files).batch(1)), 4)] == [[], [0], [], [1]]


# What is file-based


@ps.files.reads_file
def numbers_in(name: str) -> ps.Dataset:
    return ps.Dataset.from_generator(lambda: map(int, Path(name).read_text().split()))


BY_FILE = {
    "map": lambda names: lines(names).map(lambda x: x).batch(4),
    "batch": lambda names: lines(names).batch(2).unbatch().batch(4),
    "shuffle": lambda names: lines(names).shuffle(3).batch(4),
    "repeat": lambda names: lines(names).repeat(1).batch(4),
    "prefetch": lambda names: lines(names).prefetch(1).batch(4).prefetch(2),
    "cache": lambda names: lines(names).cache().batch(4),
    "filter": lambda names: lines(names).filter(lambda x: True).batch(4),
    "unbatch": lambda names: lines(names).map(lambda x: [x]).unbatch().batch(4),
    "padded_batch": lambda names: lines(names).padded_batch(4),
    "ragged_batch": lambda names: lines(names).ragged_batch(4),
    "rebatch": lambda names: lines(names).batch(2).rebatch(4),
    "window": lambda names: lines(names).window(4).flat_map(lambda window: window.batch(4)),
    "flat_map above": lambda names: lines(names).flat_map(lambda x: ps.Dataset.from_tensors(x)).batch(4),
    "group_by_window": lambda names: lines(names).group_by_window(lambda x: 0, lambda _, rows: rows.batch(4), 4),
    "bucket": lambda names: lines(names).bucket_by_sequence_length(lambda x: 1, [2], [4, 4]),
    "concatenate": lambda names: lines(names).concatenate(lines(names)).batch(4),
    "interleave": lambda names: ps.Dataset.from_tensor_slices(names).interleave(lines, cycle_length=2).batch(4),
    "parallel interleave": lambda names: (
        ps.Dataset.from_tensor_slices(names).interleave(lines, 2, num_parallel_calls=2).batch(4)
    ),
    "flat_map": lambda names: ps.Dataset.from_tensor_slices(names).flat_map(lines).batch(4),
    "nested flat_map": lambda names: (
        ps.Dataset.from_tensor_slices(names)
        .flat_map(lambda name: ps.Dataset.from_tensors(name).flat_map(ps.TextLineDataset).map(int))
        .batch(4)
    ),
    "interleave of numbers": lambda names: ps.Dataset.range(2).interleave(lambda i: lines(names[i]), 2).batch(4),
    "interleave of a function that reads a file": lambda names: (
        ps.Dataset.list_files(names).interleave(numbers_in, cycle_length=2).batch(4)
    ),
    "names that are mapped": lambda names: lines(ps.Dataset.from_tensor_slices(names).map(str)).batch(4),
    "names that are taken": lambda names: lines(ps.Dataset.from_tensor_slices(names * 2).take(2)).batch(4),
    "names in a random order": lambda names: lines(ps.Dataset.list_files(names, shuffle=True)).batch(4),
    "names again and again": lambda names: lines(ps.Dataset.from_tensor_slices(names).repeat(1)).batch(4),
}


def itself() -> ps.Reducer:
    """Gives the key of each group."""
    return ps.Reducer(lambda key: key, lambda key, x: key, lambda key: key)


NOT_BY_FILE = {
    "take": (lambda names: lines(names).take(12).batch(4), "take(count=12)"),
    "skip": (lambda names: lines(names).skip(0).batch(4), "skip(count=0)"),
    "shard": (lambda names: lines(names).shard(1, 0).batch(4), "shard(num_shards=1, index=0)"),
    "enumerate": (lambda names: lines(names).enumerate().map(lambda i, x: x).batch(4), "enumerate()"),
    "take_while": (lambda names: lines(names).take_while(lambda x: True).batch(4), "take_while("),
    "scan": (lambda names: lines(names).scan(0, lambda state, x: (state, x)).batch(4), "scan("),
    "assert_cardinality": (
        lambda names: lines(names).assert_cardinality(12).batch(4),
        "assert_cardinality(expected=12)",
    ),
    "group_by_reducer": (lambda names: lines(names).group_by_reducer(int, itself()).batch(4), "group_by_reducer("),
    "batches counted": (lambda names: lines(names).batch(4).assert_cardinality(3), "assert_cardinality(expected=3)"),
    "unique": (lambda names: lines(names).unique().batch(4), "unique()"),
    "zip": (lambda names: ps.Dataset.zip(lines(names), lines(names)).map(lambda x, y: x).batch(4), "zip("),
    "choose_from_datasets": (
        lambda names: ps.Dataset.choose_from_datasets([lines(names)], ps.Dataset.range(1).repeat()).batch(4),
        "choose_from_datasets(",
    ),
    "sample_from_datasets": (
        lambda names: ps.Dataset.sample_from_datasets([lines(names)], seed=1).batch(4),
        "sample_from_datasets(",
    ),
    "batches taken": (lambda names: lines(names).batch(4).take(3), "take(count=3)"),
    "a source without files": (
        lambda names: lines(names[:1]).concatenate(ps.Dataset.range(6, 12)).batch(4),
        "range(",
    ),
    "a source without files first": (
        lambda names: ps.Dataset.range(6).concatenate(lines(names[1:])).batch(4),
        "range(",
    ),
    "files read by a map": (
        lambda names: (
            ps.Dataset.from_tensor_slices(names)
            .map(lambda name: np.array([int(line) for line in Path(name).read_text().split()]))
            .unbatch()
            .batch(4)
        ),
        "from_tensor_slices(",
    ),
}


@pytest.mark.parametrize("kind", BY_FILE)
def test_readers_are_found_below_what_works_on_one_workers_files(files, kind) -> None:
    dataset = BY_FILE[kind](files)
    assert on(0).distribute_dataset(dataset).explain().splitlines()[1] == "FILE: every source reads files"
    times = 2 if kind == "concatenate" else 1
    assert [sorted(rows_of(own)) for own in views(dataset)] == [
        sorted([*range(6)] * times),
        sorted([*range(6, 12)] * times),
    ]


def test_a_map_that_reads_files_is_divided_by_file_where_that_is_asked_for(tmp_path) -> None:
    names = write(tmp_path, [range(number, number + 1) for number in range(5)])

    def read(name: str) -> int:
        return int(Path(name).read_text())

    with pytest.raises(ps.InvalidArgumentError, match=r"list_files\(.* reads no files; .* with ps.files.reads_file$"):
        on(0).distribute_dataset(under(Policy.FILE, ps.Dataset.list_files(names).map(read).batch(2)))
    numbers = ps.Dataset.list_files(names).shuffle(seed=1).map(ps.files.reads_file(read)).batch(2)
    assert on(0).distribute_dataset(numbers).explain().splitlines()[1].startswith("DATA: rows of its files")
    assert [sorted(rows_of(own)) for own in views(under(Policy.FILE, numbers))] == [[0, 2, 4], [1, 3]]


def test_a_mark_leaves_a_function_what_it_is() -> None:
    class Reader:
        @ps.files.reads_file
        def read(self, name: str) -> ps.Dataset:
            return ps.Dataset.from_tensors(name)

    iterator = iter(ps.Dataset.range(3).flat_map(lambda x: ps.Dataset.range(x)))
    next(iterator)
    marked = iter(ps.Dataset.range(3).flat_map(ps.files.reads_file(lambda x: ps.Dataset.range(x))))
    marked.load_state_dict(iterator.state_dict())
    assert int(next(marked)) == 0
    assert list(ps.Dataset.from_list(["a"]).flat_map(Reader().read)) == ["a"]
    given: Any = 3
    with pytest.raises(ps.InvalidTypeError, match="reads_file takes a function of the name of a file, got 3"):
        ps.files.reads_file(given)


@pytest.mark.parametrize("kind", NOT_BY_FILE)
def test_what_is_about_all_data_is_sharded_by_data_and_no_row_twice(files, kind) -> None:
    make, culprit = NOT_BY_FILE[kind]
    dataset = make(files)
    reason = on(0).distribute_dataset(dataset).explain().splitlines()[1]
    assert reason.startswith(f"DATA: {culprit}")
    assert reason.endswith(("is about the data of all workers together", "reads no files"))
    assert views(dataset) == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]
    for policy in (Policy.FILE, Policy.FILE_RANGE):
        refusal = rf"AutoShardPolicy\.{policy.name} does not fit: {re.escape(culprit)}.*; use AutoShardPolicy\.DATA"
        with pytest.raises(ps.InvalidArgumentError, match=refusal):
            on(0).distribute_dataset(under(policy, dataset))


def test_a_cache_in_a_directory_is_for_all_workers(files, tmp_path) -> None:
    dataset = lines(files).cache(str(tmp_path / "cache")).batch(4)
    distributed = on(0).distribute_dataset(dataset)
    assert re.match(r"DATA: cache\(.* is about the data of all workers together", distributed.explain().splitlines()[1])
    assert views(dataset) == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]]


def test_saved_rows_are_no_files_to_deal_out(tmp_path) -> None:
    ps.Dataset.range(4).save(str(tmp_path / "saved"))
    assert views(ps.Dataset.load(str(tmp_path / "saved")).batch(4)) == [[[0, 1]], [[2, 3]]]


def test_names_in_an_unseeded_order_are_the_same_files_on_each_worker(tmp_path) -> None:
    files = write(tmp_path, [range(2 * i, 2 * i + 2) for i in range(8)])
    dataset = lines(ps.Dataset.list_files(files, shuffle=True)).batch(2)
    distributed = [on(worker).distribute_dataset(dataset) for worker in range(2)]
    for _ in range(3):
        assert sorted(rows_of(view(distributed[0]))) == [0, 1, 4, 5, 8, 9, 12, 13]
        assert sorted(rows_of(view(distributed[1]))) == [2, 3, 6, 7, 10, 11, 14, 15]


def test_names_that_are_repeated_without_end_are_dealt_out_below(files) -> None:
    dataset = lines(ps.Dataset.from_tensor_slices(files).repeat()).batch(2)
    for worker, first in enumerate((0, 6)):
        with iter(on(worker).distribute_dataset(dataset)) as steps:
            found = [step.values[0].tolist() for _, step in zip(range(8), steps, strict=False)]
        assert rows_of(found) == [first + i for i in (0, 1, 2, 3, 4, 5, 0, 1)]


def test_a_distributed_pass_leaves_the_users_own_cache_alone(files) -> None:
    dataset = lines(files).cache().batch(4)
    assert [rows_of(own) for own in views(dataset)] == [[*range(6)], [*range(6, 12)]]
    assert rows_of([batch.tolist() for batch in dataset]) == [*range(12)]
    assert [rows_of(own) for own in views(dataset)] == [[*range(6)], [*range(6, 12)]]


def test_a_cache_of_a_distributed_dataset_is_kept_between_its_passes(files) -> None:
    read = []
    dataset = lines(files).map(lambda x: read.append(int(x)) or x).cache().batch(4)
    distributed = on(1).distribute_dataset(dataset)
    assert view(distributed) == view(distributed)
    assert read == [*range(6, 12)]


def test_two_datasets_distributed_from_one_do_not_mix_their_caches() -> None:
    dataset = ps.Dataset.range(12).cache().shard(ps.SHARD_HINT, ps.SHARD_HINT).cache().batch(4)
    dataset = under(Policy.HINT, dataset)
    for _ in range(2):
        assert [rows_of(own) for own in views(dataset)] == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]


# Errors


@pytest.mark.parametrize("policy", [Policy.AUTO, Policy.FILE])
@pytest.mark.parametrize("worker", [0, 1, 2])
def test_fewer_files_than_workers_are_refused_on_every_worker(files, policy, worker) -> None:
    with pytest.raises(
        ps.InvalidArgumentError,
        match=r"TextLineDataset\(.*reads 2 files, fewer than the 3 workers: use AutoShardPolicy\.DATA, "
        r"AutoShardPolicy\.FILE_RANGE, or more and smaller files",
    ):
        on(worker, 3).distribute_dataset(under(policy, lines(files).batch(4)))
    with pytest.raises(ps.InvalidArgumentError, match="reads 1 file, fewer than the 3 workers"):
        on(worker, 3).distribute_dataset(under(policy, lines(files[:1]).batch(4)))


@pytest.mark.parametrize("worker", [0, 1])
def test_file_without_files_is_refused_on_every_worker(worker) -> None:
    for policy in (Policy.FILE, Policy.FILE_RANGE):
        with pytest.raises(ps.InvalidArgumentError, match=rf"AutoShardPolicy\.{policy.name}.*range\(.*reads no files"):
            on(worker).distribute_dataset(under(policy, ps.Dataset.range(12).batch(4)))


def test_records_are_counted_only_in_files_given_by_name(files) -> None:
    dataset = ps.Dataset.from_tensor_slices(files).flat_map(lines).batch(4)
    with pytest.raises(ps.InvalidArgumentError, match=r"FILE_RANGE counts the records of a reader.*got flat_map\("):
        on(0).distribute_dataset(under(Policy.FILE_RANGE, dataset))
    ranges = lines(ps.Dataset.from_tensor_slices((files, [0, 0], [2, 2]))).batch(4)
    with pytest.raises(ps.InvalidArgumentError, match="a reader that is given its files by name"):
        on(0).distribute_dataset(under(Policy.FILE_RANGE, ranges))


@pytest.mark.parametrize("worker", [0, 1])
def test_hint_without_a_hint_is_refused_on_every_worker(worker) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=r"put \.shard\(ps\.SHARD_HINT, ps\.SHARD_HINT\) into"):
        on(worker).distribute_dataset(under(Policy.HINT, ps.Dataset.range(12).batch(4)))


@pytest.mark.parametrize("policy", [None, Policy.AUTO, Policy.DATA, Policy.OFF, Policy.FILE, Policy.FILE_RANGE])
def test_a_hint_works_under_hint_only(policy) -> None:
    dataset = ps.Dataset.range(12).shard(ps.SHARD_HINT, ps.SHARD_HINT).batch(4)
    if policy is not None:
        dataset = under(policy, dataset)
    with pytest.raises(ps.InvalidArgumentError, match=r"shard\(SHARD_HINT, SHARD_HINT\) at .*\.HINT only: set it by"):
        on(0).distribute_dataset(dataset)


def test_a_hint_above_another_is_refused() -> None:
    dataset = ps.Dataset.range(12).shard(ps.SHARD_HINT, ps.SHARD_HINT).map(lambda x: x)
    with pytest.raises(ps.InvalidArgumentError, match=r"comes after another shard\(SHARD_HINT, SHARD_HINT\)"):
        on(0).distribute_dataset(under(Policy.HINT, dataset.shard(ps.SHARD_HINT, ps.SHARD_HINT).batch(4)))


def test_a_hinted_dataset_tells_what_its_functions_give() -> None:
    dataset = ps.Dataset.range(3).map(lambda x: np.float32(x)).shard(ps.SHARD_HINT, ps.SHARD_HINT).batch(4)
    distributed = on(0).distribute_dataset(under(Policy.HINT, dataset))
    assert distributed.element_spec.values == (ps.TensorSpec((None,), np.float32),)


def test_a_hint_cannot_be_read_undistributed() -> None:
    dataset = under(Policy.HINT, ps.Dataset.range(12).shard(ps.SHARD_HINT, ps.SHARD_HINT).batch(4))
    with pytest.raises(ps.InvalidArgumentError, match=r"can be read only when it was distributed"):
        next(iter(dataset))


@pytest.mark.parametrize("worker", [0, 1])
def test_an_unseeded_shuffle_above_a_shard_is_refused_without_agreement(worker) -> None:
    shuffled = ps.Dataset.range(12).shuffle(12)
    for dataset in (shuffled.batch(4), shuffled.filter(lambda x: True).batch(4), shuffled.batch(4).map(lambda x: x)):
        with pytest.raises(ps.InvalidArgumentError, match=r"shuffle\(buffer_size=12\) at .* has no seed, so every"):
            on(worker).distribute_dataset(dataset)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_seed_makes_the_workers_shares_fit_in_every_epoch(streamed) -> None:
    numbers = ps.Dataset.range(12).filter(lambda x: True) if streamed else ps.Dataset.range(12)
    orders = []
    for seeded in (
        numbers.shuffle(12, seed=3).batch(4),
        numbers.shuffle(12).batch(4).with_options(ps.Options(seed=3)),
    ):
        distributed = [on(worker).distribute_dataset(seeded) for worker in range(2)]
        for _ in range(2):
            own = [view(one) for one in distributed]
            together = [row for steps in zip(*own, strict=True) for step in steps for row in step]
            assert sorted(together) == [*range(12)]
            orders.append(together)
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize("streamed", [False, True])
def test_reading_the_plain_dataset_on_one_worker_keeps_workers_in_step(streamed) -> None:
    def shuffled() -> ps.Dataset:
        numbers = ps.Dataset.range(12).filter(lambda x: True) if streamed else ps.Dataset.range(12)
        return numbers.shuffle(12, seed=3).batch(4)

    looked_at = shuffled()
    next(iter(looked_at))
    first, second = view(on(0).distribute_dataset(looked_at)), view(on(1).distribute_dataset(shuffled()))
    assert sorted(rows_of(first) + rows_of(second)) == [*range(12)]


def test_a_single_worker_needs_no_seed() -> None:
    with iter(ps.HostStrategy(2).distribute_dataset(ps.Dataset.range(8).shuffle(8).batch(8))) as steps:
        assert sorted(row for part in next(steps).values for row in part) == [*range(8)]


# What it says of itself


@pytest.mark.parametrize("workers", [1, 2])
def test_the_log_says_which_policy_and_why(files, caplog, workers) -> None:
    strategy = on(0, workers)
    with caplog.at_level(logging.INFO, "penstock"):
        strategy.distribute_dataset(lines(files).batch(4))
        strategy.distribute_dataset(under(Policy.DATA, lines(files).batch(4)))
        strategy.distribute_dataset(under(Policy.OFF, lines(files).batch(4)))
        strategy.distribute_dataset(lines(files).take(3).batch(4))
    said = [re.sub(r" at \S+", "", record.getMessage()) for record in caplog.records]
    assert said == (
        [
            "distribute_dataset (call 1) shards by FILE: every source reads files",
            "distribute_dataset (call 2) shards by DATA: it was asked for",
            "distribute_dataset (call 3) shards by OFF: every worker reads everything",
            "distribute_dataset (call 4) shards by DATA: take(count=3) is about the data of all workers together",
        ]
        if workers > 1
        else []
    )


def explained(dataset: ps.Dataset, workers: int, replicas: int) -> list[str]:
    texts = {on(worker, workers, replicas).distribute_dataset(dataset).explain() for worker in range(workers)}
    (text,) = texts  # every worker knows what all read
    return re.sub(r" at \S+", "", text).splitlines()


def test_explain_tells_the_files_and_their_records(tmp_path) -> None:
    files = write(tmp_path, [range(6), range(6, 12), range(0)])
    assert explained(lines(files).batch(4), 2, 1) == [
        "steps: unknown until it was read",
        "FILE: every source reads files",
        "worker 0 of 2, replica 0:",
        f"  {files[0]}: 6 records",
        f"  {files[2]}: 0 records",
        "worker 1 of 2, replica 1:",
        f"  {files[1]}: 6 records",
    ]


def test_explain_tells_the_names_that_a_function_makes_readers_of(files) -> None:
    dataset = ps.Dataset.from_tensor_slices(files).interleave(lines, 2).batch(4)
    assert explained(dataset, 2, 2) == [
        "steps: unknown until it was read",
        "FILE: every source reads files",
        "worker 0 of 2, replicas 0 to 1:",
        f"  {files[0]}",
        "worker 1 of 2, replicas 2 to 3:",
        f"  {files[1]}",
    ]


def test_explain_tells_the_ranges_of_files(tmp_path) -> None:
    files = write(tmp_path, [range(7), range(2)])
    assert explained(under(Policy.FILE_RANGE, lines(files).batch(4)), 2, 1)[1:] == [
        "FILE_RANGE: every source reads files",
        "worker 0 of 2, replica 0:",
        f"  {files[0]}: records 0 to 3",
        "worker 1 of 2, replica 1:",
        f"  {files[0]}: records 4 to 6",
        f"  {files[1]}: records 0 to 1",
    ]
    assert explained(under(Policy.FILE_RANGE, lines(write(tmp_path, [range(1)])).batch(4)), 2, 1)[3] == "  nothing"


def test_explain_tells_the_rows_of_a_batch() -> None:
    assert explained(ps.Dataset.range(3000).batch(1001), 2, 2) == [
        "steps: 3",
        "DATA: range(start=0, stop=3000, step=1) reads no files",
        "worker 0 of 2, replicas 0 to 1:",
        "  rows 0 to 501 of each global batch of 1,001 (reads only these)",
        "worker 1 of 2, replicas 2 to 3:",
        "  rows 502 to 1,000 of each global batch of 1,001 (reads only these)",
    ]
    assert explained(ps.Dataset.range(4).filter(lambda x: True).batch(2), 3, 1) == [
        "steps: unknown until it was read",
        "DATA: range(start=0, stop=4, step=1) reads no files",
        "worker 0 of 3, replica 0:",
        "  rows 0 to 0 of each global batch of 2 (reads all)",
        "worker 1 of 3, replica 1:",
        "  rows 1 to 1 of each global batch of 2 (reads all)",
        "worker 2 of 3, replica 2:",
        "  no rows of each global batch of 2 (reads all)",
        "batches of 2 rows leave 1 of 3 replicas without rows in every step: 3 divides batches of 3 rows",
    ]
    assert explained(ps.Dataset.from_tensors(np.arange(8)).repeat(), 1, 2) == [
        "steps: without end",
        "DATA: from_tensors(int64[1, 8]) reads no files",
        "worker 0 of 1, replicas 0 to 1:",
        "  rows 0 to 7 of each global batch of 8 (reads all of them)",
    ]
    of_two_sizes = ps.Dataset.range(8).batch(2).concatenate(ps.Dataset.range(3).batch(3)).repeat()
    assert explained(of_two_sizes, 1, 2)[-1] == "  its slices of each global batch (reads all of them)"


def test_explain_tells_of_batches_of_ones_own() -> None:
    assert explained(under(Policy.OFF, ps.Dataset.range(12).batch(4)), 2, 1) == [
        "steps: 6",
        "OFF: every worker reads everything",
        "worker 0 of 2, replica 0:",
        "  3 batches of its own",
        "worker 1 of 2, replica 1:",
        "  3 batches of its own",
    ]
    hinted = ps.Dataset.range(12).filter(lambda x: True).shard(ps.SHARD_HINT, ps.SHARD_HINT).batch(4)
    assert explained(under(Policy.HINT, hinted), 1, 1) == [
        "steps: unknown until it was read",
        "HINT: shard(SHARD_HINT, SHARD_HINT) says where",
        "worker 0 of 1, replica 0:",
        "  batches of its own",
    ]


def test_explain_of_a_functions_datasets_says_what_is_known() -> None:
    distributed = on(1, 3, 2).distribute_datasets_from_function(lambda context: ps.Dataset.range(12).batch(2))
    text = distributed.explain().splitlines()
    assert text[1:] == ["worker 1 of 3 reads what the given function says"]


def test_explain_reads_no_rows_and_opens_each_file_once(files, monkeypatch) -> None:
    opened, mapped = [], []
    open_one = TextLines.open

    def noted(self: TextLines, name: str, *rest: Any) -> Any:
        opened.append(name)  # to count its lines
        return open_one(self, name, *rest)

    monkeypatch.setattr(TextLines, "open", noted)
    dataset = ps.TextLineDataset(files).map(lambda line: mapped.append(line) or int(line)).batch(4)
    on(0).distribute_dataset(dataset).explain()
    assert (sorted(opened), mapped) == (files, [])


def test_distributing_files_opens_none_and_calls_a_function_of_names_once(files, monkeypatch) -> None:
    def untouched(self: TextLines, name: str, *rest: Any) -> Any:
        raise AssertionError(f"{name} was opened")

    monkeypatch.setattr(TextLines, "count", untouched)
    monkeypatch.setattr(TextLines, "open", untouched)
    made = []

    def reader(name: str) -> ps.Dataset:
        made.append(name)
        return lines(name)

    on(0).distribute_dataset(lines(files).batch(4)).cardinality()
    on(1).distribute_dataset(ps.Dataset.from_tensor_slices(files).interleave(reader, 2).batch(4)).explain()
    assert set(made) == {files[0], files[1]}


def rows_of_workers(dataset: ps.Dataset) -> list[int]:
    """The rows that two workers without a connection get, step by step."""
    parts = [list(ps.HostStrategy(1, 2, worker).distribute_dataset(dataset)) for worker in range(2)]
    return [int(row) for step in zip(*parts, strict=True) for part in step for row in part.values[0]]


def test_a_seeded_flat_map_is_not_refused_as_unseeded(tmp_path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("".join(f"{number * 10 + line}\n" for line in range(5)))
    files = ps.Dataset.list_files(str(tmp_path / "*.txt"), shuffle=True, seed=7)
    data = ps.Options(auto_shard_policy=ps.AutoShardPolicy.DATA)
    lines = files.flat_map(ps.TextLineDataset).map(int).batch(4).with_options(data)
    expected = [number * 10 + line for number in range(4) for line in range(5)]
    assert sorted(rows_of_workers(lines)) == expected
    shuffled = files.flat_map(lambda name: ps.TextLineDataset(name).shuffle(5)).map(int).batch(4).with_options(data)
    assert sorted(rows_of_workers(shuffled)) == expected
    with pytest.raises(ps.InvalidArgumentError, match="shuffle.* has no seed"):
        rows_of_workers(files.flat_map(ps.TextLineDataset).shuffle(5).batch(4).with_options(data))


def test_a_hint_above_an_unseeded_shuffle_is_refused() -> None:
    """Every worker would take its share of another order: some rows twice, and others never."""
    hinted = ps.Options(auto_shard_policy=ps.AutoShardPolicy.HINT)

    def at_hint(dataset: ps.Dataset) -> ps.Dataset:
        return dataset.shard(ps.SHARD_HINT, ps.SHARD_HINT).batch(2).with_options(hinted)

    with pytest.raises(ps.InvalidArgumentError, match=r"shuffle\(buffer_size=10\) at .* has no seed, so every worker"):
        rows_of_workers(at_hint(ps.Dataset.range(10).shuffle(10)))
    assert sorted(rows_of_workers(at_hint(ps.Dataset.range(12).shuffle(12, seed=1)))) == list(range(12))
    # Above the hint each worker may have an order of its own.
    divided = ps.Dataset.range(12).shard(ps.SHARD_HINT, ps.SHARD_HINT)
    assert sorted(rows_of_workers(divided.shuffle(12).batch(2).with_options(hinted))) == list(range(12))


@pytest.mark.parametrize("policy", [Policy.FILE, Policy.FILE_RANGE, Policy.HINT])
def test_workers_with_files_of_their_own_drew_the_same_augmentation(tmp_path: Path, policy: ps.AutoShardPolicy) -> None:
    for number in range(4):
        (tmp_path / str(number)).write_text(f"{number}\n" * 3)
    rows = ps.TextLineDataset([str(tmp_path / str(number)) for number in range(4)])
    if policy is Policy.HINT:
        rows = rows.shard(ps.SHARD_HINT, ps.SHARD_HINT)

    dataset = under(policy, rows.map(lambda line, g: g.integers(1 << 30), seed=1).batch(4))
    first, second = map(rows_of, views(dataset))
    assert len(set(first) | set(second)) == len(first) + len(second) == 12
    assert list(map(rows_of, views(dataset))) == [first, second]
