"""DATA: every global batch is divided over the replicas of all workers."""

import gc
import threading
from typing import Any

import numpy as np
from scenarios.steps import all_of, partial_steps_of, said, shares_of, steps_of

import penstock as ps

rows = ps.Dataset.range


def twelve_rows(strategy: Any) -> Any:
    return steps_of(strategy, rows(12).batch(4))


def uneven_batches(strategy: Any) -> Any:
    return steps_of(strategy, rows(11).batch(7))


def a_last_batch_of_one_row(strategy: Any) -> Any:
    return steps_of(strategy, rows(5).batch(4))


def fewer_rows_than_replicas(strategy: Any) -> Any:
    return steps_of(strategy, rows(1).batch(3))


def no_rows(strategy: Any) -> Any:
    return steps_of(strategy, rows(0).batch(4))


def filtered(strategy: Any) -> Any:
    return steps_of(strategy, rows(12).filter(lambda row: row % 2 == 0).batch(4))


def mapped_batches(strategy: Any) -> Any:
    return steps_of(strategy, rows(6).batch(4).map(lambda batch: batch * 10))


def repeated_batches(strategy: Any) -> Any:
    return steps_of(strategy, rows(3).batch(2).repeat(2))


def repeated_rows(strategy: Any) -> Any:
    return steps_of(strategy, rows(3).repeat(2).batch(4))


def without_remainder(strategy: Any) -> Any:
    return steps_of(strategy, rows(11).batch(4, drop_remainder=True))


def strings(strategy: Any) -> Any:
    words = np.array(["a", "b", "c", "d", "e"], object)
    return steps_of(strategy, ps.Dataset.from_tensor_slices({"word": words, "number": np.arange(5)}).batch(4))


def generated(strategy: Any) -> Any:
    return steps_of(strategy, ps.Dataset.from_generator(lambda: iter(range(5))).batch(4))


def shuffled_with_a_seed(strategy: Any) -> Any:
    distributed = strategy.distribute_dataset(rows(20).shuffle(20, seed=7).batch(8))
    return [all_of(strategy, distributed) for _ in range(2)]


def _epochs_and_seeds(strategy: Any, dataset: ps.Dataset) -> Any:
    distributed = strategy.distribute_dataset(dataset)
    epochs, seeds = [], []
    for _ in range(2):
        with iter(distributed) as steps:
            epochs.append([shares_of(strategy, step) for step in steps])
            seeds.append(steps.state_dict()["seed"])
    return {"epochs": epochs, "seeds": seeds}


def shuffled_without_a_seed(strategy: Any) -> Any:
    return _epochs_and_seeds(strategy, rows(20).shuffle(20).batch(8))


def filtered_and_shuffled_without_a_seed(strategy: Any) -> Any:
    return _epochs_and_seeds(strategy, rows(20).filter(lambda row: row != 3).shuffle(5).batch(8))


def divided_by_take_and_skip(strategy: Any) -> Any:
    shuffled = rows(20).shuffle(20, reshuffle_each_iteration=False)
    parts = (shuffled.take(8), shuffled.skip(8).shuffle(12))
    return [all_of(strategy, strategy.distribute_dataset(part.batch(4))) for part in parts]


def random_numbers_for_each_row(strategy: Any) -> Any:
    def augmented(row: Any, random: Any) -> Any:
        return row + random.random()

    return steps_of(strategy, rows(10).map(augmented, seed=5).batch(4))


def random_numbers_for_each_filtered_row(strategy: Any) -> Any:
    def augmented(row: Any, random: Any) -> Any:
        return row + random.random()

    return steps_of(strategy, rows(10).filter(lambda row: row > 1).map(augmented, seed=5).batch(4))


# Partial batches.


def ragged(strategy: Any) -> Any:
    return partial_steps_of(strategy, rows(9).batch(4), "ragged")


def pad(strategy: Any) -> Any:
    return partial_steps_of(strategy, rows(9).batch(4), "pad")


def pad_uneven(strategy: Any) -> Any:
    return steps_of(strategy, rows(11).batch(7), partial_batch="pad")


def drop(strategy: Any) -> Any:
    return partial_steps_of(strategy, rows(9).batch(4), "drop")


def ragged_of_unknown_length(strategy: Any) -> Any:
    return partial_steps_of(strategy, rows(10).filter(lambda row: row != 3).batch(4), "ragged")


def pad_of_unknown_length(strategy: Any) -> Any:
    return partial_steps_of(strategy, rows(10).filter(lambda row: row != 3).batch(4), "pad")


def drop_uneven(strategy: Any) -> Any:
    try:
        strategy.distribute_dataset(rows(9).batch(7), ps.InputOptions(partial_batch="drop"))
    except ps.InvalidArgumentError as error:
        return said(error)
    return None


def drop_of_unknown_length(strategy: Any) -> Any:
    return partial_steps_of(strategy, rows(10).filter(lambda row: row != 3).batch(4), "drop")


def all_full(strategy: Any) -> Any:
    return partial_steps_of(strategy, rows(8).batch(4), "ragged")


def without_end(strategy: Any) -> Any:
    distributed = strategy.distribute_dataset(rows(3).repeat().batch(4))
    with iter(distributed) as steps:
        seen = [shares_of(strategy, next(steps)) for _ in range(3)]
    return {"steps": seen, "cardinality": distributed.cardinality(), "spec": repr(distributed.element_spec)}


# Messages between the workers.


def _sent(strategy: Any, distributed: Any) -> int:
    before = strategy._control.sent
    all_of(strategy, distributed)
    return strategy._control.sent - before


def messages(strategy: Any) -> Any:
    off = ps.Options(auto_shard_policy=ps.AutoShardPolicy.OFF)
    datasets = {
        "known": rows(11).batch(4),
        "mapped": rows(11).batch(4).map(lambda batch: batch * 2),
        "shuffled": rows(11).shuffle(5).batch(4).repeat(2),
        "off": rows(11).batch(4).with_options(off),
        "filtered": rows(11).filter(lambda row: row != 3).batch(4),
    }
    sent = {name: _sent(strategy, strategy.distribute_dataset(dataset)) for name, dataset in datasets.items()}

    def dataset_fn(context: ps.InputContext) -> ps.Dataset:
        return rows(7 + 5 * context.input_pipeline_id).batch(2)

    return sent | {"from_function": _sent(strategy, strategy.distribute_datasets_from_function(dataset_fn))}


# Loops that end early.


def _broken_off(strategy: Any, dataset: ps.Dataset, prefetch: int) -> Any:
    distributed = strategy.distribute_dataset(dataset, ps.InputOptions(per_replica_buffer_size=prefetch))
    seen = []
    for _ in range(2):
        for step in distributed:
            seen.append(shares_of(strategy, step))
            break
    return seen + all_of(strategy, distributed)


def broken_off(strategy: Any) -> Any:
    return [_broken_off(strategy, rows(8).batch(4), prefetch) for prefetch in (0, 1, 2)]


def broken_off_at_unknown_length(strategy: Any) -> Any:
    dataset = rows(9).filter(lambda row: row != 4).batch(4)
    return [_broken_off(strategy, dataset, prefetch) for prefetch in (0, 1, 2)]


def two_at_once(strategy: Any) -> Any:
    distributed = strategy.distribute_dataset(rows(9).filter(lambda row: row != 4).batch(4))
    with iter(distributed) as first, iter(distributed) as second:
        return [shares_of(strategy, next(steps)) for steps in (first, second, second, first)]


def closed_while_waiting_for_the_other(strategy: Any) -> Any:
    # Worker 0 reads ahead and asks for a second step, which worker 1 never comes to.
    reads_ahead = strategy._workers.index == 0
    options = ps.InputOptions(per_replica_buffer_size=2 if reads_ahead else 0)
    distributed = strategy.distribute_dataset(rows(9).filter(lambda row: row != 4).batch(4), options)
    control, posted = strategy._control, threading.Semaphore(0)
    post = control.post
    control.post = lambda message, **limit: (post(message, **limit), posted.release())
    steps = iter(distributed)
    seen = [shares_of(strategy, next(steps))]
    for _ in range(3 if reads_ahead else 0):  # that it begins, and two steps
        posted.acquire()
    steps.close()
    del control.post
    return seen


def threads_that_are_left(strategy: Any) -> Any:
    gc.collect()  # iterators of loops that were left
    for thread in threading.enumerate():
        if thread.name == "penstock-distribute":
            thread.join(timeout=60)
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("penstock"))
