"""What holds of distributed input for all numbers of rows, workers and replicas."""

import math
import tempfile
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.distribute.feed.dataset import agreed_of

WORDS = np.array(["a", "b", "c", "d", "e"], object)
lengths = st.integers(0, 40)
sizes = st.integers(1, 13)
workers = st.integers(1, 4)
replicas = st.integers(1, 3)
seeds = st.one_of(st.none(), st.integers(0, 99))
buffers = st.sampled_from([0, 2])
examples = settings(max_examples=80)


def records(length: int, streamed: bool) -> ps.Dataset:
    """Records that are told by their number, with leaves of several kinds."""
    numbers = np.arange(length)
    dataset = ps.Dataset.from_tensor_slices(
        {"id": numbers, "image": np.zeros((length, 2, 3), np.float32), "word": WORDS[numbers % 5]}
    )
    return dataset.filter(lambda record: True) if streamed else dataset


def cut(rows: list[int], count: int) -> list[list[int]]:
    """The splitting rule, in the words of the design: `count` slices of ceil(rows / count), the rest empty."""
    size = math.ceil(len(rows) / count) if rows else 1
    slices = [rows[start : start + size] for start in range(0, len(rows), size)]
    return slices + [[] for _ in range(count - len(slices))]


def checked_rows(step: Any, count: int) -> list[list[int]]:
    """The numbers of the records of each replica, after a look at everything else that must be true of its share."""
    parts = [[leaf] if count == 0 else list(leaf.values) for leaf in (step["id"], step["image"], step["word"])]
    for ids, images, words in zip(*parts, strict=True):
        assert (ids.dtype, images.dtype, words.dtype) == (np.int64, np.float32, object)
        assert (ids.shape[1:], images.shape, words.shape) == ((), (len(ids), 2, 3), (len(ids),))
        assert words.tolist() == WORDS[ids % 5].tolist()
    assert len(parts[0]) == max(count, 1)
    return [ids.tolist() for ids in parts[0]]


def steps_of(dataset: ps.Dataset, count: int, index: int, local: int, buffer: int = 0) -> list[list[list[int]]]:
    """One worker's steps; also checks the length that is known beforehand."""
    options = ps.InputOptions(per_replica_buffer_size=buffer)
    distributed = ps.HostStrategy(local, count, index).distribute_dataset(dataset, options)
    with iter(distributed) as iterator:
        found = [checked_rows(step, local if count * local > 1 else 0) for step in iterator]
    assert distributed.cardinality() in (len(found), ps.UNKNOWN_CARDINALITY)
    if distributed.cardinality() >= 0:
        assert len(distributed) == len(found)
    return found


def ids_of(dataset: ps.Dataset) -> list[list[int]]:
    """The batches of an undistributed pass."""
    return [batch["id"].tolist() for batch in dataset]


@pytest.mark.slow
@given(
    lengths, sizes, workers, replicas, st.booleans(), st.booleans(), st.integers(1, 3), st.booleans(), seeds, buffers
)
@examples
def test_data_gives_every_row_once_and_in_order(
    length, size, count, local, drop, streamed, epochs, early, seed, buffer
) -> None:
    def make() -> ps.Dataset:
        dataset = records(length, streamed)
        if seed is not None:
            dataset = dataset.shuffle(7, seed=seed)
        if early:
            return dataset.repeat(epochs).batch(size, drop)
        return dataset.batch(size, drop).repeat(epochs)

    batches = ids_of(make())
    assert drop or Counter(row for batch in batches for row in batch) == Counter([*range(length)] * epochs)
    views = [steps_of(make(), count, index, local, buffer) for index in range(count)]
    assert all(len(view) == len(batches) for view in views)  # no step of all workers is without rows
    for steps, batch in zip(zip(*views, strict=True), batches, strict=True):
        assert [rows for step in steps for rows in step] == cut(batch, count * local)


@pytest.mark.extended
@given(lengths, sizes, workers, replicas, st.booleans(), st.booleans(), seeds, buffers)
@examples
def test_off_gives_every_worker_every_row_once(length, size, count, local, drop, streamed, seed, buffer) -> None:
    def make() -> ps.Dataset:
        dataset = records(length, streamed)
        if seed is not None:
            dataset = dataset.shuffle(7, seed=seed)
        return dataset.batch(size, drop).with_options(ps.Options(auto_shard_policy=ps.AutoShardPolicy.OFF))

    expected = own_steps(ids_of(make()), count, local)
    for index in range(count):
        assert steps_of(make(), count, index, local, buffer) == [step for step in expected if any(step)]


def own_steps(batches: list[list[int]], count: int, local: int) -> list[list[list[int]]]:
    """The steps of a worker with batches of its own, those without rows too: for a batch as many as workers."""
    slices = [rows for batch in batches for rows in cut(batch, count * local)]
    return [slices[start : start + local] for start in range(0, len(slices), local)]


@pytest.mark.extended
@given(lengths, sizes, workers, replicas, st.booleans(), st.booleans(), st.booleans(), buffers)
@examples
def test_hint_gives_every_row_once_and_all_workers_as_many_steps(
    length, size, count, local, drop, batched, mapped, buffer
) -> None:
    dataset = records(length, False)
    if mapped:  # what a function returns is known when it was called
        dataset = dataset.map(lambda record: record)
    if batched:
        dataset = dataset.batch(size, drop).shard(ps.SHARD_HINT, ps.SHARD_HINT)
        undistributed = ids_of(records(length, False).batch(size, drop))
        batches = [undistributed[index::count] for index in range(count)]
    else:
        dataset = dataset.shard(ps.SHARD_HINT, ps.SHARD_HINT).batch(size, drop)
        batches = [ids_of(records(length, False).shard(count, index).batch(size, drop)) for index in range(count)]
    dataset = dataset.with_options(ps.Options(auto_shard_policy=ps.AutoShardPolicy.HINT))
    views = [steps_of(dataset, count, index, local, buffer) for index in range(count)]
    expected = [own_steps(own, count, local) for own in batches]
    if batched and count > 1 and length % size and not drop:  # where the short batch is, no worker knows of the others
        assert views == [[step for step in own if any(step)] for own in expected]
        return
    longest = max(map(len, expected))
    filled = [own + [[[]] * local] * (longest - len(own)) for own in expected]
    together = [steps for steps in zip(*filled, strict=True) if any(any(step) for step in steps)]
    assert views == [[steps[index] for steps in together] for index in range(count)]


@pytest.mark.extended
@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), sizes, st.integers(1, 3), replicas, st.booleans())
@settings(max_examples=40)
def test_files_and_ranges_of_files_give_every_row_once(counts, size, count, local, by_range) -> None:
    policy = ps.AutoShardPolicy.FILE_RANGE if by_range else ps.AutoShardPolicy.FILE
    with tempfile.TemporaryDirectory(prefix="pytest") as directory:
        names, start, every = [], 0, []
        for number, lines in enumerate(counts):
            names.append(str(Path(directory) / f"{number}.txt"))
            Path(names[-1]).write_text("".join(f"{line}\n" for line in range(start, start + lines)))
            every.append([*range(start, start + lines)])
            start += lines
        dataset = ps.TextLineDataset(names).map(lambda line: {"id": int(line)}).batch(size)
        dataset = dataset.with_options(ps.Options(auto_shard_policy=policy))
        found = []
        for index in range(count):
            if by_range:
                own = [*range(start * index // count, start * (index + 1) // count)]
            else:
                own = [row for rows in every[index::count] for row in rows]
            strategy = ps.HostStrategy(local, count, index)
            if len(names) < count and not by_range:
                with pytest.raises(ps.InvalidArgumentError, match="fewer than"):
                    strategy.distribute_dataset(dataset)
                continue
            batches = [own[first : first + size] for first in range(0, len(own), size)]
            with iter(strategy.distribute_dataset(dataset)) as steps:
                rows = [[part.tolist() for part in strategy.local_results(step["id"])] for step in steps]
            assert rows == [step for step in own_steps(batches, count, local) if any(step)]
            found.extend(own)
        assert sorted(found) == [*range(start)] or not found


above_batches = st.lists(
    st.sampled_from(
        [
            lambda dataset: dataset.shuffle(3, seed=5),
            lambda dataset: dataset.shuffle(50, seed=6),
            lambda dataset: dataset.take(4),
            lambda dataset: dataset.skip(1),
            lambda dataset: dataset.shard(2, 1),
            lambda dataset: dataset.repeat(2),
            lambda dataset: dataset.prefetch(1),
        ]
    ),
    max_size=3,
)


def noisy(number: Any, generator: np.random.Generator) -> tuple[Any, float]:
    return number, generator.random()


def noisy_of_unequal_length(number: Any, generator: np.random.Generator) -> tuple[Any, np.ndarray]:
    return number, generator.random(int(number) % 4)


batchings = st.sampled_from(
    [
        lambda rows, size, drop: rows.map(noisy, seed=3).batch(size, drop),
        lambda rows, size, drop: rows.map(noisy_of_unequal_length, seed=3).ragged_batch(size, drop_remainder=drop),
        lambda rows, size, drop: rows.map(noisy_of_unequal_length, seed=3).padded_batch(
            size, ((), (4,)), drop_remainder=drop
        ),
    ]
)


def shown(rows: np.ndarray) -> list[Any]:
    return [np.asarray(row).tolist() for row in rows]


@pytest.mark.extended
@given(lengths, sizes, st.integers(2, 4), replicas, st.booleans(), above_batches, batchings)
@examples
def test_a_worker_that_reads_only_its_rows_gets_the_same_slices(
    length, size, count, local, drop, operators, batching
) -> None:
    def make(whole: bool) -> ps.Dataset:
        dataset = batching(ps.Dataset.range(length).shuffle(9), size, drop)
        for operator in operators:
            dataset = operator(dataset)
        return (dataset.map(lambda *batch: batch) if whole else dataset).with_options(ps.Options(seed=8))

    for index in range(count):
        views = []
        for whole in (False, True):
            distributed = ps.HostStrategy(local, count, index).distribute_dataset(make(whole))
            assert ("reads only these" in distributed.explain()) == (not whole)
            with iter(distributed) as steps:
                views.append([[[shown(part) for part in leaf.values] for leaf in step] for step in steps])
        assert views[0] == views[1]


@pytest.mark.extended
@given(st.integers(1, 40), sizes, st.integers(2, 4), replicas, st.booleans(), seeds)
@examples
def test_a_worker_reads_its_own_rows_alone_or_one_where_it_has_none(length, size, count, local, drop, seed) -> None:
    for index in range(count):
        read: list[int] = []
        dataset = ps.Dataset.range(length).map(lambda x, read=read: read.append(int(x)) or x)
        if seed is not None:
            dataset = dataset.shuffle(length, seed=seed)
        distributed = ps.HostStrategy(local, count, index).distribute_dataset(dataset.batch(size, drop))
        with iter(distributed) as iterator:
            steps = [[row for part in step.values for row in part.tolist()] for step in iterator]
        own = Counter(row for step in steps for row in step)
        others = Counter(read) - own
        assert Counter(read) - others == own  # none of its own was read twice
        assert others.total() == sum(not step for step in steps)


@pytest.mark.extended
@given(lengths, sizes, workers, replicas, st.booleans(), st.sampled_from(["DATA", "OFF", "HINT"]), st.booleans())
@example(length=1, size=1, count=2, local=1, drop=False, policy="HINT", known=False)
@example(length=26, size=3, count=2, local=1, drop=False, policy="DATA", known=True)
@examples
def test_replicas_that_get_no_rows_in_a_step_are_known_beforehand(
    length, size, count, local, drop, policy, known
) -> None:
    """For sure where the lengths of all batches follow from the operators; otherwise none comes unannounced."""
    dataset = ps.Dataset.range(length)
    if not known:
        dataset = dataset.filter(lambda x: True)
    if policy == "HINT":
        dataset = dataset.shard(ps.SHARD_HINT, ps.SHARD_HINT)
    dataset = dataset.batch(size, drop).with_options(ps.Options(auto_shard_policy=policy))
    views, said = [], set()
    for index in range(count):
        strategy = ps.HostStrategy(local, count, index)
        distributed = strategy.distribute_dataset(dataset)
        said.add(agreed_of(distributed).may_be_none())
        with iter(distributed) as steps:
            views.append([[len(part) for part in strategy.local_results(step)] for step in steps])
    # A worker whose rows end before those of others has none in their steps; here it is not told of these.
    steps = zip_longest(*views, fillvalue=[0] * local)
    together = [[rows for one in step for rows in one] for step in steps]
    missing = any(not all(step) for step in together)
    assert len(said) == 1
    assert said == {True} or not missing
    if known and length >= size * count:  # and so a full batch is there, by whose length they are counted
        assert said == {missing}


@pytest.mark.extended
@given(lengths, sizes, st.tuples(workers, replicas), st.tuples(workers, replicas), st.booleans(), seeds, st.data())
@examples
def test_a_state_of_global_batches_goes_on_anywhere(length, size, saved_on, resumed_on, streamed, seed, data) -> None:
    def make() -> ps.Dataset:
        dataset = records(length, streamed)
        if seed is not None:
            dataset = dataset.shuffle(7, seed=seed)
        return dataset.batch(size).repeat(2).with_options(ps.Options(seed=4))

    batches = ids_of(make())
    done = data.draw(st.integers(0, len(batches)), label="steps done")
    index = data.draw(st.integers(0, saved_on[0] - 1), label="worker saved on")
    with iter(ps.HostStrategy(saved_on[1], saved_on[0], index).distribute_dataset(make())) as steps:
        for _ in range(done):
            next(steps)
        state = steps.state_dict()
    count, local = resumed_on
    views = []
    for worker in range(count):
        with iter(ps.HostStrategy(local, count, worker).distribute_dataset(make())) as steps:
            steps.load_state_dict(state)
            views.append([checked_rows(step, local if count * local > 1 else 0) for step in steps])
    together = [[row for step in steps for rows in step for row in rows] for steps in zip(*views, strict=True)]
    assert together == batches[done:]
    with iter(make()) as undistributed:
        undistributed.load_state_dict(state)
        assert [batch["id"].tolist() for batch in undistributed] == batches[done:]
