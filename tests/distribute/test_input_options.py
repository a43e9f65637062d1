"""`InputOptions`: how far is read ahead, where steps lie, and what becomes of partial batches."""

import re
import threading
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps


def shown(step: Any) -> Any:
    """The values of each replica as lists."""
    return [np.asarray(part).tolist() for part in step.values]


def steps_of(distributed: ps.types.DistributedDataset) -> list[Any]:
    """Every step as a tuple of what its leaves show."""
    with iter(distributed) as steps:
        return [tuple(map(shown, step)) if isinstance(step, tuple) else shown(step) for step in steps]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"per_replica_buffer_size": -1},
            ps.InvalidArgumentError,
            r"\(per_replica_buffer_size=...\) must be at least 0",
        ),
        ({"per_replica_buffer_size": 1.5}, ps.InvalidTypeError, r"per_replica_buffer_size=...\) takes an integer"),
        ({"per_replica_buffer_size": True}, ps.InvalidTypeError, "takes an integer, got True"),
        ({"per_replica_buffer_size": None}, ps.InvalidTypeError, "takes an integer, got None"),
        ({"fetch_to_device": 1}, ps.InvalidTypeError, r"fetch_to_device=...\) takes True or False, got 1"),
        (
            {"replication_mode": "PER_HOST"},
            ps.InvalidArgumentError,
            'one of "PER_WORKER", "PER_REPLICA", got .PER_HOST',
        ),
        ({"replication_mode": 1}, ps.InvalidTypeError, 'one of "PER_WORKER", "PER_REPLICA", got 1'),
        ({"partial_batch": "fill"}, ps.InvalidArgumentError, 'one of "RAGGED", "PAD", "DROP", got .fill'),
        ({"partial_batch": None}, ps.InvalidTypeError, 'one of "RAGGED", "PAD", "DROP", got None'),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        ps.InputOptions(**arguments)


def test_positions_are_refused_and_names_in_any_case_taken() -> None:
    with pytest.raises(TypeError):
        ps.InputOptions(2)
    assert ps.InputOptions(partial_batch="PAD", replication_mode="per_replica") == ps.InputOptions(
        partial_batch=ps.types.PartialBatch.PAD, replication_mode=ps.types.InputReplicationMode.PER_REPLICA
    )
    assert ps.InputOptions(per_replica_buffer_size=np.int64(3)).per_replica_buffer_size == 3


# Reading ahead


class CountedRows:
    """A generator's rows, and how many of them were taken."""

    def __init__(self) -> None:
        self.taken = 0
        self._changed = threading.Condition()

    def __call__(self) -> Any:
        for number in range(10_000):
            with self._changed:
                self.taken += 1
                self._changed.notify_all()
            yield number

    def wait_for(self, rows: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.taken >= rows, timeout=30)


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_exactly_the_steps_asked_for_are_read_ahead(strategy_of, ahead) -> None:
    rows = CountedRows()
    options = ps.InputOptions(per_replica_buffer_size=ahead)
    distributed = strategy_of(2).distribute_dataset(ps.Dataset.from_generator(rows).batch(4), options)
    with iter(distributed) as steps:
        assert rows.taken == 0
        for step in range(1, 9):
            next(steps)
            rows.wait_for(4 * (step + ahead))
            assert rows.taken == 4 * (step + ahead)
    assert rows.taken == 4 * (8 + ahead)


@pytest.mark.parametrize("mode", ["PER_WORKER", "PER_REPLICA"])
@pytest.mark.parametrize("ahead", [0, 2])
def test_exactly_the_steps_asked_for_are_read_ahead_of_a_functions_datasets(strategy_of, mode, ahead) -> None:
    rows = CountedRows()
    options = ps.InputOptions(per_replica_buffer_size=ahead, replication_mode=mode)
    distributed = strategy_of(2).distribute_datasets_from_function(
        lambda context: ps.Dataset.from_generator(rows).batch(3), options
    )
    with iter(distributed) as steps:
        for _ in range(4):
            next(steps)
        rows.wait_for(6 * (4 + ahead))
    assert rows.taken == 6 * (4 + ahead)


# Where steps lie


@pytest.mark.extended
def test_steps_that_are_not_fetched_are_numpy_and_run_gives_the_same(four) -> None:
    dataset = ps.Dataset.from_tensor_slices({"x": np.arange(10, dtype=np.float32), "y": np.ones((10, 2))}).batch(8)
    results = []
    for fetch in (True, False):
        found = []
        with iter(four.distribute_dataset(dataset, ps.InputOptions(fetch_to_device=fetch))) as steps:
            for step in steps:
                kinds = {type(part) for leaf in step.values() for part in leaf.values}
                assert kinds == {np.ndarray} if not fetch else all(issubclass(kind, jax.Array) for kind in kinds)

                def total(batch: Any) -> Any:
                    own = batch["x"].sum() + batch["y"].sum()
                    return ps.get_replica_context().all_reduce("SUM", own), batch["x"] * 2

                sums, doubled = four.run(total, args=(step,))
                found.append((shown(sums), shown(doubled), [part.dtype for part in doubled.values]))
        results.append(found)
    assert results[0] == results[1]
    assert results[0][1][:2] == ([21.0] * 4, [[16.0], [18.0], [], []])


# Pipelines of the replicas


def test_per_replica_pipelines_are_for_functions_only(strategy_of) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=r'"PER_REPLICA"\) makes a pipeline for each.*_from_function'):
        strategy_of(2).distribute_dataset(ps.Dataset.range(4).batch(2), ps.InputOptions(replication_mode="PER_REPLICA"))
    mesh = jax.make_mesh((2,), ("data",))
    options = ps.InputOptions(replication_mode="PER_REPLICA")
    with pytest.raises(ps.InvalidArgumentError, match=r"and ps\.jax\.loader has one to divide"):
        ps.jax.loader(ps.Dataset.range(4).batch(2), mesh, jax.P("data"), input_options=options)


def test_one_call_per_replica_does_not_change_later_calls(strategy_of) -> None:
    strategy = strategy_of(2)
    contexts: list[ps.InputContext] = []

    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        contexts.append(context)
        return ps.Dataset.range(4).shard(context.num_input_pipelines, context.input_pipeline_id).batch(1)

    per_replica = ps.InputOptions(replication_mode="PER_REPLICA")
    for _ in range(2):
        assert steps_of(strategy.distribute_datasets_from_function(dataset_fn, per_replica)) == [[[0], [1]], [[2], [3]]]
        assert steps_of(strategy.distribute_datasets_from_function(dataset_fn)) == [[[0], [1]], [[2], [3]]]
    assert contexts == [ps.InputContext(2, 0, 2), ps.InputContext(2, 1, 2), ps.InputContext(1, 0, 2)] * 2


def test_pipelines_of_replicas_are_counted_over_all_workers() -> None:
    contexts: list[ps.InputContext] = []
    ps.HostStrategy(2, 3, 1).distribute_datasets_from_function(
        lambda context: contexts.append(context) or ps.Dataset.range(4).batch(1),
        ps.InputOptions(replication_mode="PER_REPLICA"),
    )
    assert contexts == [ps.InputContext(6, 2, 6), ps.InputContext(6, 3, 6)]


# Partial batches

T, F = True, False
PAD = ps.InputOptions(partial_batch="pad")
DROP = ps.InputOptions(partial_batch="drop")


@pytest.mark.parametrize(
    ("rows", "size", "replicas", "expected"),
    [
        (5, 4, 2, [([[0, 1], [2, 3]], [[T, T], [T, T]]), ([[4, 0], [0, 0]], [[T, F], [F, F]])]),
        (4, 4, 3, [([[0, 1], [2, 3], [0, 0]], [[T, T], [T, T], [F, F]])]),
        (2, 8, 4, [([[0, 0], [1, 0], [0, 0], [0, 0]], [[T, F], [T, F], [F, F], [F, F]])]),
        (1, 1, 2, [([[0], [0]], [[T], [F]])]),
        (0, 4, 2, []),
    ],
)
def test_pad_fills_every_replica_and_tells_the_rows(strategy_of, rows, size, replicas, expected) -> None:
    assert steps_of(strategy_of(replicas).distribute_dataset(ps.Dataset.range(rows).batch(size), PAD)) == expected


def test_pad_keeps_dtypes_structure_and_trailing_shapes(strategy_of) -> None:
    record = {
        "integers": np.arange(1, 6, dtype=np.int8),
        "floats": (np.ones((5, 2, 3), np.float32), np.full(5, np.nan, np.float32)),
        "flags": np.ones(5, bool),
        "words": np.array(["a", "b", "c", "d", "e"], object),
        "bytes": np.array([b"a", b"b", b"c", b"d", b"e"], object),
    }
    strategy = strategy_of(2)
    with iter(strategy.distribute_dataset(ps.Dataset.from_tensor_slices(record).batch(4), PAD)) as steps:
        _, (batch, mask) = steps
    first, second = strategy.local_results(batch)
    assert [part.tolist() for part in map(np.asarray, mask.values)] == [[T, F], [F, F]]
    assert np.asarray(mask.values[0]).dtype == bool
    assert np.asarray(first["integers"]).tolist() == [5, 0]
    assert np.asarray(first["floats"][0]).tolist() == [np.ones((2, 3)).tolist(), np.zeros((2, 3)).tolist()]
    assert np.asarray(second["floats"][1]).tolist() == [0, 0]  # no row at all, and no NaN
    assert np.asarray(first["flags"]).tolist() == [T, F]
    assert (first["words"].tolist(), second["words"].tolist()) == (["e", ""], ["", ""])
    assert (first["bytes"].tolist(), second["bytes"].tolist()) == ([b"e", b""], [b"", b""])
    for share in (first, second):
        assert [share[name].dtype for name in ("integers", "flags", "words")] == [np.int8, bool, object]
        assert share["floats"][0].dtype == np.float32


def test_pad_without_one_batch_size_fills_up_each_step_alone(strategy_of) -> None:
    sizes = ps.Dataset.from_tensor_slices([3, 2, 6, 2])
    dataset = sizes.flat_map(lambda n: ps.Dataset.range(n).batch(n))
    assert steps_of(strategy_of(2).distribute_dataset(dataset, PAD)) == [
        ([[0, 1], [2, 0]], [[T, T], [T, F]]),
        ([[0], [1]], [[T], [T]]),
        ([[0, 1, 2], [3, 4, 5]], [[T, T, T], [T, T, T]]),
        ([[0], [1]], [[T], [T]]),
    ]


LENGTHS = [3, 1, 7, 2, 8, 1, 1, 6, 2, 9, 5, 3, 1, 2, 4, 4, 8, 1]


def sequences() -> ps.Dataset:
    return ps.Dataset.from_list([np.full(length, number) for number, length in enumerate(LENGTHS)])


def batches_of(sizes: list[int], **arguments: Any) -> ps.Dataset:
    return ps.Dataset.from_generator(lambda: (np.full(size, size) for size in sizes), **arguments)


VARYING = {
    "buckets": lambda: sequences().bucket_by_sequence_length(len, [3, 7], [5, 4, 2]),
    "windows": lambda: ps.Dataset.range(19).group_by_window(
        lambda row: row % 2, lambda key, rows: rows.batch(8), window_size_func=lambda key: 5 - 2 * key
    ),
    "a generator's": lambda: batches_of([4, 2, 7, 6, 1, 4]),
    "of two sizes": lambda: ps.Dataset.range(16).batch(4).concatenate(ps.Dataset.range(7).batch(6)),
    "rebatch of two sizes": lambda: ps.Dataset.range(19).batch(4).rebatch([6, 3]),
    "what a function leaves": lambda: ps.Dataset.range(24).batch(6).map(lambda rows: rows[rows % 5 > 1]),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", VARYING)
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_drop_leaves_out_what_does_not_divide_and_no_smaller_batches(kind: str, replicas: int) -> None:
    strategy = ps.HostStrategy(replicas)
    steps = [
        [part.tolist() for part in strategy.local_results(step)]
        for step in strategy.distribute_dataset(VARYING[kind](), DROP)
    ]
    kept = [batch[: len(batch) // replicas * replicas].tolist() for batch in VARYING[kind]()]
    assert [[row for part in step for row in part] for step in steps] == [batch for batch in kept if batch]
    assert all(len({len(part) for part in step}) == 1 for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize("kind", VARYING)
@pytest.mark.parametrize("options", [DROP, PAD], ids=["drop", "pad"])
def test_partial_steps_do_not_depend_on_where_a_run_was_resumed(kind: str, options: ps.InputOptions) -> None:
    distributed = ps.HostStrategy(2).distribute_dataset(VARYING[kind](), options)
    whole = steps_of(distributed)
    steps = iter(distributed)
    for taken in range(len(whole) + 1):
        resumed = iter(ps.HostStrategy(2).distribute_dataset(VARYING[kind](), options))
        resumed.load_state_dict(steps.state_dict())
        assert [tuple(map(shown, step)) if options is PAD else shown(step) for step in resumed] == whole[taken:]
        next(steps, None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ps.Dataset.range(10).batch(8).rebatch(4),
        lambda: ps.Dataset.range(10).batch(4, drop_remainder=True).concatenate(ps.Dataset.range(2).batch(4)),
        lambda: ps.Dataset.range(10).padded_batch(4).cache().prefetch(1),
        lambda: ps.Dataset.sample_from_datasets(
            [ps.Dataset.range(4).batch(4), ps.Dataset.range(6).batch(4)], [0.5, 0.5], seed=1
        ),
    ],
)
def test_one_size_is_known_above_whatever_gives_batches_of_it(make) -> None:
    dropped = steps_of(ps.HostStrategy(2).distribute_dataset(make(), DROP))
    assert [len(part) for step in dropped for part in step] == [2] * 4
    padded = steps_of(ps.HostStrategy(2).distribute_dataset(make(), PAD))
    assert [len(part) for step, _ in padded for part in step] == [2] * 6


def test_a_size_that_a_signature_gives_is_a_known_one() -> None:
    dataset = batches_of([5, 5], output_signature=ps.TensorSpec((5,), np.int64))
    with pytest.raises(ps.InvalidArgumentError, match="2 replicas do not divide batches of 5 rows evenly"):
        ps.HostStrategy(2).distribute_dataset(dataset, DROP)


def test_drop_takes_as_many_rows_of_every_pipeline_of_a_function(strategy_of) -> None:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        return batches_of([3, 4] if context.input_pipeline_id else [4, 2, 5])

    options = ps.InputOptions(partial_batch="drop", replication_mode="PER_REPLICA")
    steps = steps_of(strategy_of(2).distribute_datasets_from_function(dataset_fn, options))
    assert steps == [[[4] * 3, [3] * 3], [[2] * 2, [4] * 2]]


def test_pad_refuses_a_functions_batches_of_differing_widths(strategy_of) -> None:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        rows = ps.Dataset.from_generator(lambda: (np.zeros(width) for width in (1, 2, 5, 3)))
        return rows.padded_batch(2)

    distributed = strategy_of(2).distribute_datasets_from_function(dataset_fn, PAD)
    assert steps_of(
        strategy_of(2).distribute_datasets_from_function(
            lambda context: ps.Dataset.from_generator(lambda: (np.zeros(3) for _ in range(3))).padded_batch(2), PAD
        )
    ) == [([[[0, 0, 0]] * 2] * 2, [[T, T], [T, F]])]
    with iter(distributed) as steps:
        # Both replicas have two rows, so nothing is to be filled up: what differs may differ.
        assert [np.shape(part) for part in next(steps)[0].values] == [(2, 2), (2, 5)]

    def uneven(context: ps.InputContext) -> ps.Dataset:
        rows = ps.Dataset.from_generator(lambda: (np.zeros(width) for width in (1, 2, 5)))
        return rows.padded_batch(2)

    with (
        iter(strategy_of(2).distribute_datasets_from_function(uneven, PAD)) as steps,
        pytest.raises(
            ps.ElementError, match=r'"pad" fills up rows, but .* other axes: \[\(2,\), \(5,\)\]; use padded_batch'
        ),
    ):
        next(steps)


def test_pad_gives_a_single_replica_bare_values(strategy_of) -> None:
    with iter(strategy_of(1).distribute_dataset(ps.Dataset.range(5).batch(3), PAD)) as steps:
        _, (batch, mask) = steps
    assert (np.asarray(batch).tolist(), np.asarray(mask).tolist()) == ([3, 4, 0], [T, T, F])


def test_pad_keeps_every_step_in_one_program(four) -> None:
    traced = []

    def total(batch: Any, mask: Any) -> Any:
        traced.append(batch.shape)
        return ps.get_replica_context().all_reduce("SUM", (batch * mask).sum())

    with iter(four.distribute_dataset(ps.Dataset.range(19).batch(8), PAD)) as steps:
        totals = [int(four.run(total, args=step).values[0]) for step in steps]
    assert (totals, traced) == ([28, 92, 51], [(2,)])


def test_drop_leaves_out_what_is_not_full(strategy_of) -> None:
    assert steps_of(strategy_of(2).distribute_dataset(ps.Dataset.range(10).batch(4), DROP)) == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
    ]
    distributed = strategy_of(2).distribute_dataset(ps.Dataset.range(3).batch(4), DROP)
    assert (steps_of(distributed), len(distributed)) == ([], 0)


def test_drop_does_not_know_its_steps_where_the_short_batch_may_be_anywhere(strategy_of) -> None:
    dataset = ps.Dataset.range(10).batch(4).shuffle(3, seed=1)
    distributed = strategy_of(2).distribute_dataset(dataset, DROP)
    assert distributed.cardinality() == ps.UNKNOWN_CARDINALITY
    assert len(steps_of(distributed)) == 2


def test_drop_leaves_out_partial_batches_at_the_end_of_every_epoch(strategy_of) -> None:
    dataset = ps.Dataset.range(6).batch(4).repeat(2)
    assert steps_of(strategy_of(2).distribute_dataset(dataset, DROP)) == [[[0, 1], [2, 3]]] * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda numbers: numbers.batch(5),
        lambda numbers: numbers.batch(5).map(lambda rows: rows),
        lambda numbers: numbers.batch(5).prefetch(1).repeat(),
        lambda numbers: numbers.padded_batch(5).cache(),
    ],
)
def test_drop_that_would_leave_out_everything_is_refused(strategy_of, make) -> None:
    refusal = re.escape('"drop") would skip every step: 2 replicas do not divide batches of 5 rows evenly')
    with pytest.raises(ps.InvalidArgumentError, match=refusal):
        strategy_of(2).distribute_dataset(make(ps.Dataset.range(20)), DROP)


def test_drop_takes_no_batch_size_from_below_what_makes_other_batches(strategy_of) -> None:
    inner = ps.Dataset.range(16).batch(16).flat_map(lambda rows: ps.Dataset.from_tensor_slices(rows).batch(4))
    rebatched = ps.Dataset.range(16).batch(8).rebatch(4)
    expected = [[[row, row + 1], [row + 2, row + 3]] for row in range(0, 16, 4)]
    for dataset in (inner, rebatched):
        assert steps_of(strategy_of(2).distribute_dataset(dataset, DROP)) == expected
        assert [step[0] for step in steps_of(strategy_of(2).distribute_dataset(dataset, PAD))] == expected
    assert len(steps_of(strategy_of(2).distribute_dataset(ps.Dataset.range(12).batch(3).rebatch(4), DROP))) == 3


def test_drop_leaves_out_the_steps_that_a_function_leaves_partial(strategy_of) -> None:
    distributed = strategy_of(2).distribute_datasets_from_function(lambda context: ps.Dataset.range(7).batch(2), DROP)
    assert (steps_of(distributed), len(distributed)) == ([[[0, 1], [2, 3]]], 1)


# The specification

pipelines = st.sampled_from(
    [
        lambda rows, size: rows.batch(size),
        lambda rows, size: rows.batch(size, drop_remainder=True),
        lambda rows, size: rows.batch(size).repeat(2),
        lambda rows, size: rows.repeat(2).batch(size),
        lambda rows, size: rows.batch(size, drop_remainder=True).shuffle(3, seed=1),
        lambda rows, size: rows.filter(lambda row: True).batch(size),
        lambda rows, size: rows.filter(lambda row: True).batch(size, drop_remainder=True),
        lambda rows, size: rows.batch(size).map(lambda batch: batch),
        lambda rows, size: rows.batch(size).map(lambda batch: np.concatenate([batch, batch])),
        lambda rows, size: rows.batch(size, drop_remainder=True).map(lambda batch: batch[: len(batch) // 2 + 1]),
        lambda rows, size: rows.batch(size).concatenate(rows.batch(2)),
        lambda rows, size: rows.batch(3 * size).unbatch().batch(size),
        lambda rows, size: rows.batch(3).rebatch(size),
        lambda rows, size: rows.batch(7).flat_map(lambda batch: ps.Dataset.from_tensor_slices(batch).batch(size)),
        lambda rows, size: rows.padded_batch(size),
    ]
)


def leaf_specs(spec: Any, mode: str) -> list[list[ps.TensorSpec]]:
    """Per leaf the specifications of the replicas."""
    leaves = list(spec) if mode == "pad" else [spec]
    return [[leaf] if isinstance(leaf, ps.TensorSpec) else list(leaf.values) for leaf in leaves]


@pytest.mark.slow
@given(
    st.integers(1, 24),
    st.integers(1, 8),
    st.integers(1, 2),
    st.integers(1, 3),
    pipelines,
    st.sampled_from(["ragged", "pad", "drop"]),
    st.sampled_from(["DATA", "OFF", "HINT", "function"]),
)
def test_the_specification_promises_what_every_step_keeps(rows, size, workers, replicas, make, mode, source) -> None:
    def numbers() -> ps.Dataset:
        return ps.Dataset.from_tensor_slices(np.zeros((rows, 3), np.float32))

    options = ps.InputOptions(partial_batch=mode)
    promised = None
    for worker in range(workers):
        strategy = ps.HostStrategy(replicas, workers, worker)
        try:
            if source == "function":
                distributed = strategy.distribute_datasets_from_function(lambda context: make(numbers(), size), options)
            else:
                dataset = numbers().shard(ps.SHARD_HINT, ps.SHARD_HINT) if source == "HINT" else numbers()
                policy = ps.Options(auto_shard_policy=ps.AutoShardPolicy[source], seed=1)
                distributed = strategy.distribute_dataset(make(dataset, size).with_options(policy), options)
        except ps.InvalidArgumentError as error:
            if mode == "drop" and "would skip every step" in str(error):
                return
            raise
        try:
            spec = distributed.element_spec
        except ps.ElementError as error:  # a function's results are known from an element, and there is none
            if "has no elements to find" in str(error):
                return
            raise
        specs = leaf_specs(spec, mode)
        assert promised in (None, specs)  # all workers promise the same
        promised = specs
        with iter(distributed) as steps:
            assert leaf_specs(steps.element_spec, mode) == specs
            for step in steps:
                for leaf, expected in zip(list(step) if mode == "pad" else [step], specs, strict=True):
                    for part, one in zip([leaf] if workers * replicas == 1 else leaf.values, expected, strict=True):
                        assert (part.dtype, part.shape[1:]) == (one.dtype, one.shape[1:])
                        assert one.shape[0] in (None, part.shape[0]) or 0 in one.assumed_axes


def test_the_spec_of_an_only_step_is_open_if_a_replica_gets_none() -> None:
    distributed = ps.HostStrategy(2).distribute_datasets_from_function(lambda context: ps.Dataset.range(4).batch(4))
    assert steps_of(distributed) == [[[0, 1, 2, 3], []]]
    assert distributed.element_spec.values[0].shape == (None,)


@pytest.mark.parametrize(
    ("make", "mode", "expected"),
    [
        (lambda rows: rows.take(8).batch(4), "ragged", 2),
        (lambda rows: rows.take(8).batch(4), "drop", 2),
        (lambda rows: rows.take(8).batch(4), "pad", 2),
        (lambda rows: rows.batch(4), "ragged", None),
        (lambda rows: rows.batch(4), "drop", 2),
        (lambda rows: rows.batch(4), "pad", 2),
        (lambda rows: rows.batch(3), "pad", 2),
        (lambda rows: rows.take(6).batch(3), "ragged", None),
        (lambda rows: rows.batch(4, drop_remainder=True).map(lambda batch: batch), "ragged", 2),
        (lambda rows: rows.batch(4, drop_remainder=True).map(lambda batch: batch), "pad", 2),
        (lambda rows: rows.batch(4, drop_remainder=True).map(lambda batch: batch), "drop", None),
        (lambda rows: rows.batch(4).map(lambda batch: batch), "pad", None),
        (lambda rows: rows.batch(4).rebatch(2), "pad", 1),
        (lambda rows: rows.batch(4).rebatch([2, 4]), "pad", None),
    ],
)
def test_the_specification_is_static_where_every_step_is_full(make, mode, expected) -> None:
    dataset = make(ps.Dataset.range(9))
    distributed = ps.HostStrategy(2).distribute_dataset(dataset, ps.InputOptions(partial_batch=mode))
    batch, *mask = leaf_specs(distributed.element_spec, mode)
    assert batch == [ps.TensorSpec((expected,), np.int64)] * 2
    assert mask == ([[ps.TensorSpec((expected,), np.bool_)] * 2] if mode == "pad" else [])


def test_the_specification_of_own_data_is_not_that_of_all_data() -> None:
    """A function doubles batches of two rows, but each worker's own batch has one."""
    dataset = ps.Dataset.range(2).shard(ps.SHARD_HINT, ps.SHARD_HINT).batch(2)
    dataset = dataset.map(lambda rows: np.concatenate([rows, rows]))
    dataset = dataset.with_options(ps.Options(auto_shard_policy=ps.AutoShardPolicy.HINT))
    distributed = ps.HostStrategy(1, 2).distribute_dataset(dataset, PAD)
    assert leaf_specs(distributed.element_spec, "pad")[0] == [ps.TensorSpec((None,), np.int64)]
    assert steps_of(distributed) == [([[0]], [[T]]), ([[0]], [[T]])]


def test_how_many_steps_are_full_is_not_known_of_a_filter() -> None:
    dataset = ps.Dataset.range(10).filter(lambda x: True).batch(4)
    distributed = ps.HostStrategy(2).distribute_dataset(dataset, ps.InputOptions(partial_batch="drop"))
    assert distributed.cardinality() == ps.UNKNOWN_CARDINALITY


def test_steps_of_ones_own_batches_without_end_have_no_number() -> None:
    dataset = ps.Dataset.range(8).batch(2).repeat().with_options(ps.Options(auto_shard_policy=ps.AutoShardPolicy.OFF))
    distributed = ps.HostStrategy(1, 2).distribute_dataset(dataset)
    assert distributed.cardinality() == ps.INFINITE_CARDINALITY


def test_rows_that_are_arrays_are_filled_up_with_empty_ones() -> None:
    dataset = ps.Dataset.range(3).map(lambda x: np.full(x + 1, x)).ragged_batch(2)
    options = ps.InputOptions(partial_batch="pad")
    steps = list(ps.HostStrategy(2).distribute_dataset(dataset, options))
    assert [[[row.tolist() for row in rows] for rows in values.values] for values, _ in steps] == [
        [[[0]], [[1, 1]]],
        [[[2, 2, 2]], [[]]],
    ]
    assert [[rows.tolist() for rows in mask.values] for _, mask in steps] == [[[True], [True]], [[True], [False]]]


def test_a_prefetch_above_batch_leaves_the_rows_of_every_padded_step_known() -> None:
    batches = ps.Dataset.range(10).batch(4).prefetch(1)
    distributed = ps.HostStrategy(2).distribute_dataset(batches, PAD)
    rows, mask = distributed.element_spec
    assert [spec.shape for spec in (*rows.values, *mask.values)] == [(2,)] * 4
    assert steps_of(distributed)[-1] == ([[8, 0], [9, 0]], [[True, False], [True, False]])


@pytest.mark.parametrize("worker", [0, 1])
def test_steps_beside_a_worker_whose_repeated_files_are_empty_never_end(tmp_path, worker: int) -> None:
    for name, rows in (("a", 8), ("b", 0)):
        pq.write_table(pa.table({"x": pa.array(range(rows), pa.int64())}), tmp_path / f"{name}.parquet")
    options = ps.Options(auto_shard_policy=ps.AutoShardPolicy.FILE)
    dataset = ps.ParquetDataset(str(tmp_path / "*.parquet")).map(lambda row: row["x"]).batch(4).repeat()
    strategy = ps.HostStrategy(1, num_workers=2, worker_index=worker)
    distributed = strategy.distribute_dataset(dataset.with_options(options))
    assert distributed.cardinality() == ps.INFINITE_CARDINALITY
    with iter(distributed) as steps:
        found = [shown(next(steps)) for _ in range(5)]
    own = [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]], [[0, 1]]]
    assert found == (own if worker == 0 else [[[]]] * 5)


MADE = {
    "a counter": lambda call: ps.Dataset.counter().map(call),
    "batches": lambda call: ps.Dataset.range(400).map(call).batch(2),
    "what passes a filter": lambda call: ps.Dataset.counter().filter(lambda x: x % 3 == 0).map(call),
    "a generator": lambda call: ps.Dataset.from_generator(lambda: iter(range(400))).map(call),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
@pytest.mark.parametrize("own", [False, True])
def test_without_a_buffer_no_step_is_made_before_it_is_asked_for(make, own):
    made = []
    dataset = make(lambda x: made.append(int(x)) or np.full(2, x))
    strategy, options = ps.HostStrategy(), ps.InputOptions(per_replica_buffer_size=0)
    if own:
        steps = strategy.distribute_datasets_from_function(lambda context: dataset, options)
    else:
        steps = strategy.distribute_dataset(dataset, options)
    made.clear()  # what a specification took
    rows = 2 if "batch" in dataset.explain() else 1
    iterator = iter(steps)
    for step in range(1, 40):
        next(iterator)
        assert len(made) == rows * step
    state = iterator.state_dict()
    resumed = iter(steps)
    resumed.load_state_dict(state)
    for _ in range(39):
        made.clear()
        next(resumed)
        assert len(made) == rows
