"""`distribute_datasets_from_function`, and what else the guide on distributed input shows."""

import collections
import dataclasses
from typing import Any

import numpy as np
import pytest

import penstock as ps


def shown(value: Any) -> Any:
    return [np.asarray(part).tolist() for part in value.values]


def steps_of(distributed: ps.types.DistributedDataset) -> list[Any]:
    with iter(distributed) as steps:
        return [shown(step) for step in steps]


# The context


def test_a_context_says_which_pipeline_of_how_many() -> None:
    context = ps.InputContext(num_input_pipelines=3, input_pipeline_id=1, num_replicas_in_sync=6)
    assert (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync) == (3, 1, 6)
    assert str(context) == "ps.InputContext(input pipeline id 1, total: 3)"
    assert context.get_per_replica_batch_size(24) == 4
    assert context.get_per_replica_batch_size(np.int64(6)) == 1
    assert ps.InputContext() == ps.InputContext(1, 0, 1)


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (25, ps.InvalidArgumentError, "a global batch of 25 rows, which 6 replicas do not divide evenly: choose"),
        (5, ps.InvalidArgumentError, "a global batch of 5 rows, which 6 replicas"),
        (0, ps.InvalidArgumentError, r"\(global_batch_size=...\) must be at least 1, got 0"),
        (-6, ps.InvalidArgumentError, "must be at least 1, got -6"),
        (12.0, ps.InvalidTypeError, r"\(global_batch_size=...\) takes an integer, got 12.0"),
        (True, ps.InvalidTypeError, "takes an integer, got True"),
    ],
)
def test_a_batch_that_the_replicas_do_not_divide_is_refused(size, error, message) -> None:
    with pytest.raises(error, match=message):
        ps.InputContext(3, 1, 6).get_per_replica_batch_size(size)
    with pytest.raises(ValueError if error is ps.InvalidArgumentError else TypeError, match="global"):
        ps.InputContext(3, 1, 6).get_per_replica_batch_size(size)


def test_each_worker_calls_the_function_once_and_at_once() -> None:
    contexts: list[ps.InputContext] = []

    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        contexts.append(context)
        return ps.Dataset.range(4).batch(1)

    for worker in range(3):
        distributed = ps.HostStrategy(2, 3, worker).distribute_datasets_from_function(dataset_fn)
        assert contexts == [ps.InputContext(3, worker, 6)]
        for _ in range(2):
            steps_of(distributed)
        distributed.explain()
        assert len(contexts) == 1
        contexts.clear()


# What it gives


def test_nothing_is_added_to_the_functions_dataset(strategy_of) -> None:
    taken = []

    def numbers() -> Any:
        for number in range(100):
            taken.append(number)
            yield number

    options = ps.InputOptions(per_replica_buffer_size=0)
    distributed = strategy_of(2).distribute_datasets_from_function(
        lambda context: ps.Dataset.from_generator(numbers).batch(3), options
    )
    with iter(distributed) as steps:
        # Neither cut again, nor shared out, nor read ahead.
        assert [shown(next(steps)) for _ in range(2)] == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]
        assert len(taken) == 12


def test_a_worker_has_what_its_function_says() -> None:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        numbers = ps.Dataset.range(12).shard(context.num_input_pipelines, context.input_pipeline_id)
        return numbers.batch(context.get_per_replica_batch_size(4))

    views = [
        steps_of(ps.HostStrategy(1, 2, worker).distribute_datasets_from_function(dataset_fn)) for worker in range(2)
    ]
    assert views == [[[[0, 2]], [[4, 6]], [[8, 10]]], [[[1, 3]], [[5, 7]], [[9, 11]]]]


def test_a_policy_means_nothing_to_a_functions_dataset() -> None:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        off = ps.Options(auto_shard_policy=ps.AutoShardPolicy.FILE)
        return ps.Dataset.range(4).batch(2).with_options(off)

    assert steps_of(ps.HostStrategy(1, 2, 1).distribute_datasets_from_function(dataset_fn)) == [[[0, 1]], [[2, 3]]]


def test_replicas_without_data_in_the_last_step_get_empty_batches(strategy_of) -> None:
    distributed = strategy_of(4).distribute_datasets_from_function(lambda context: ps.Dataset.range(11).batch(2))
    assert steps_of(distributed) == [[[0, 1], [2, 3], [4, 5], [6, 7]], [[8, 9], [10], [], []]]
    assert len(distributed) == 2


def test_the_guides_doubly_batched_example(strategy_of) -> None:
    """64 rows in batches of 16, of which 4 make one element: replica 0 gets it, the others batches without rows."""

    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        size = context.get_per_replica_batch_size(16)
        dataset = ps.Dataset.from_tensors(([1.0], [1.0])).repeat(64).batch(16)
        dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        return dataset.batch(size).prefetch(2)

    with iter(strategy_of(4).distribute_datasets_from_function(dataset_fn)) as steps:
        ((features, _),) = steps
    assert [part.shape for part in features.values] == [(4, 16, 1), (0, 16, 1), (0, 16, 1), (0, 16, 1)]


class Pair(collections.namedtuple("Pair", ["x", "y"])):
    __slots__ = ()


@dataclasses.dataclass
class Record:
    x: Any
    y: Any


ROWS = np.arange(4)
STRUCTURES = {
    "array": ROWS,
    "tuple": (ROWS, ROWS),
    "dictionary": {"b": ROWS, "a": ROWS},
    "named tuple": Pair(ROWS, ROWS),
    "dataclass": Record(ROWS, ROWS),
    "nested": {"x": (ROWS, Pair(ROWS, {"z": ROWS})), "y": Record(ROWS, (ROWS,))},
    "nothing": (ROWS, None),
}


def same_shape(found: Any, wanted: Any) -> None:
    """`found` is built as `wanted`, with a PerReplica in place of each array."""
    if wanted is None:
        assert found is None
    elif isinstance(wanted, np.ndarray):
        assert [np.asarray(part).tolist() for part in found.values] == [[0, 1], [2, 3]]
    else:
        assert type(found) is type(wanted)
        if isinstance(wanted, dict):
            assert list(found) == sorted(wanted) or list(found) == list(wanted)
            parts = [(found[name], wanted[name]) for name in wanted]
        elif isinstance(wanted, tuple):
            parts = list(zip(found, wanted, strict=True))
        else:
            parts = [(getattr(found, name), getattr(wanted, name)) for name in ("x", "y")]
        for one, other in parts:
            same_shape(one, other)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("entry", ["divided", "from a function"])
def test_elements_keep_their_structure(strategy_of, structure, entry) -> None:
    strategy, dataset = strategy_of(2), ps.Dataset.from_tensor_slices(STRUCTURES[structure])
    if entry == "divided":
        distributed = strategy.distribute_dataset(dataset.batch(4))
    else:
        distributed = strategy.distribute_datasets_from_function(lambda context: dataset.batch(2))
    with iter(distributed) as steps:
        (step,) = steps
    same_shape(step, STRUCTURES[structure])


# Errors


def test_what_is_no_function_is_refused(strategy_of) -> None:
    with pytest.raises(ps.InvalidTypeError, match=r"takes a function that gives a dataset for a ps\.InputContext, got"):
        strategy_of(2).distribute_datasets_from_function(ps.Dataset.range(4).batch(2))


@pytest.mark.parametrize("value", [None, [1, 2], np.zeros(3)])
def test_a_function_that_gives_no_dataset_is_refused(strategy_of, value) -> None:
    with pytest.raises(ps.InvalidTypeError, match=rf"must return a ps\.Dataset, got {type(value).__name__}"):
        strategy_of(2).distribute_datasets_from_function(lambda context: value)


def test_a_functions_own_error_comes_as_itself(strategy_of) -> None:
    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        strategy_of(2).distribute_datasets_from_function(dataset_fn)


def test_scalars_of_a_dataset_that_ends_are_refused(strategy_of) -> None:
    scalars = ps.Dataset.from_tensor_slices({"x": np.zeros((4, 2)), "y": np.arange(4)})
    with pytest.raises(ps.ElementError, match=r"hold a scalar at \['y'\]: add \.batch"):
        strategy_of(2).distribute_datasets_from_function(lambda context: scalars)


def test_scalars_that_only_a_function_knows_are_refused_when_they_come(strategy_of) -> None:
    distributed = strategy_of(2).distribute_datasets_from_function(lambda context: ps.Dataset.range(4).map(int))
    with iter(distributed) as steps, pytest.raises(ps.ElementError, match=r"hold a scalar: add \.batch"):
        next(steps)


def test_leaves_of_unequal_length_are_refused(strategy_of) -> None:
    distributed = strategy_of(2).distribute_datasets_from_function(
        lambda context: ps.Dataset.from_tensors((np.zeros(3), np.zeros(4))).repeat()
    )
    with (
        iter(distributed) as steps,
        pytest.raises(ps.ElementError, match=r"same number of rows, got \[0\]: 3, \[1\]: 4"),
    ):
        next(steps)


def test_a_distributed_dataset_is_not_made_inside_run(strategy_of) -> None:
    strategy = strategy_of(2)

    def inside() -> None:
        strategy.distribute_datasets_from_function(lambda context: ps.Dataset.range(4).batch(2))

    with pytest.raises(ps.InvalidArgumentError, match=r"inside strategy\.run"):
        strategy.run(inside)


# The guide's other examples


def train_step(inputs: Any) -> Any:
    features, labels = inputs
    return labels - 0.3 * features


@pytest.mark.slow
@pytest.mark.parametrize("form", ["for", "next", "get_next"])
def test_the_guides_training_loop(strategy_of, form) -> None:
    strategy = strategy_of(4)
    dataset = ps.Dataset.from_tensors(([1.0], [1.0])).repeat(100).batch(16)
    distributed = strategy.distribute_dataset(dataset)
    losses = []
    with iter(distributed) as steps:
        if form == "for":
            losses = [strategy.run(train_step, args=(step,)) for step in steps]
        else:
            for _ in range(len(distributed)):
                step = next(steps) if form == "next" else steps.get_next()
                losses.append(strategy.run(train_step, args=(step,)))
    assert [[part.shape for part in loss.values] for loss in losses] == [[(4, 1)] * 4] * 6 + [[(1, 1)] * 4]
    for loss in losses:
        for part in loss.values:
            np.testing.assert_allclose(part, 0.7, rtol=1e-6)
            assert part.dtype == np.float32


def test_the_guides_epochs_begin_anew_with_each_iterator(strategy_of) -> None:
    distributed = strategy_of(2).distribute_dataset(ps.Dataset.range(100).batch(4))
    for _ in range(3):
        with iter(distributed) as steps:
            assert [shown(next(steps)) for _ in range(2)] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_the_guides_generator_of_vectors(strategy_of) -> None:
    """A vector of four is a batch of four: each replica gets one number of it."""

    def vectors() -> Any:
        while True:
            yield np.arange(4)

    strategy = strategy_of(4)
    dataset = ps.Dataset.from_generator(vectors, output_signature=ps.TensorSpec((4,), np.int64))
    distributed = strategy.distribute_dataset(dataset)
    with iter(distributed) as steps:
        for _ in range(4):
            assert shown(strategy.run(lambda x: x, args=(next(steps),))) == [[0], [1], [2], [3]]
    assert distributed.element_spec.values[0] == ps.TensorSpec((1,), np.int64)


def test_a_generator_without_end_has_no_length_that_is_known(strategy_of) -> None:
    distributed = strategy_of(2).distribute_dataset(ps.Dataset.from_generator(lambda: iter([1])).batch(2))
    with pytest.raises(ps.InvalidTypeError, match="no length: that is known only when it was read"):
        len(distributed)
    forever = strategy_of(2).distribute_dataset(ps.Dataset.range(4).batch(2).repeat())
    with pytest.raises(TypeError, match="no length: it never ends"):
        len(forever)


def test_the_guides_preprocessing_layer(strategy_of) -> None:
    strategy = strategy_of(4)
    with strategy.scope():
        layer = ps.preprocessing.StringLookup(vocabulary=["a", "b", "c", "d", "f"])

    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        words = ps.Dataset.from_tensor_slices(["a", "c", "e"]).repeat()
        words = words.batch(context.get_per_replica_batch_size(4))
        return words.shard(context.num_input_pipelines, context.input_pipeline_id).map(lambda batch: layer(batch))

    with iter(strategy.distribute_datasets_from_function(dataset_fn)) as steps:
        printed = [shown(next(steps)) for _ in range(3)]
    assert printed == [[[1], [3], [0], [1]], [[3], [0], [1], [3]], [[0], [1], [3], [0]]]
