"""FILE and its relatives: every worker reads files of its own."""

import json
from itertools import chain
from typing import Any

import numpy as np
from scenarios.steps import all_of, partial_steps_of, said, shares_of, steps_of

import penstock as ps

POLICY = ps.AutoShardPolicy


def _numbers(*names: str) -> ps.Dataset:
    return ps.TextLineDataset(list(names)).map(int, output_signature=ps.TensorSpec((), "int64"))


def _with(dataset: ps.Dataset, policy: ps.AutoShardPolicy) -> ps.Dataset:
    return dataset.with_options(ps.Options(auto_shard_policy=policy))


def _refused(strategy: Any, dataset: ps.Dataset) -> Any:
    try:
        strategy.distribute_dataset(dataset)
    except ps.PenstockError as error:
        return {"error": said(error), "afterwards": steps_of(strategy, ps.Dataset.range(4).batch(4))}
    return None


def two_equal_files(strategy: Any) -> Any:
    return steps_of(strategy, _numbers("0-5.txt", "6-11.txt").batch(4))


def two_unequal_files(strategy: Any) -> Any:
    return steps_of(strategy, _numbers("long.txt", "short.txt").batch(4))


def an_empty_file(strategy: Any) -> Any:
    distributed = strategy.distribute_dataset(_numbers("empty.txt", "0-5.txt").batch(4))
    seen = [[[share, str(share.dtype)] for share in shares_of(strategy, step)] for step in distributed]
    return {"steps": [[share for share, _ in step] for step in seen], "dtypes": [kind for _, kind in chain(*seen)]}


def an_empty_file_of_lines(strategy: Any) -> Any:
    return steps_of(strategy, ps.TextLineDataset(["0-5.txt", "empty.txt"]).batch(4))


def only_empty_files(strategy: Any) -> Any:
    return steps_of(strategy, _numbers("empty.txt", "empty.txt").batch(4))


def four_files(strategy: Any) -> Any:
    return steps_of(strategy, _numbers("0-5.txt", "short.txt", "6-11.txt", "one.txt").batch(4))


def too_few_files(strategy: Any) -> Any:
    return [_refused(strategy, _with(_numbers("long.txt").batch(4), policy)) for policy in (POLICY.FILE, POLICY.AUTO)]


def no_files(strategy: Any) -> Any:
    return _refused(strategy, _with(ps.Dataset.range(4).batch(4), POLICY.FILE))


def zipped_with_a_range(strategy: Any) -> Any:
    return steps_of(strategy, ps.Dataset.zip(_numbers("0-5.txt", "6-11.txt"), ps.Dataset.range(12)).batch(4))


def the_first_nine(strategy: Any) -> Any:
    return steps_of(strategy, _numbers("0-5.txt", "6-11.txt").take(9).batch(4))


def data_of_files(strategy: Any) -> Any:
    return steps_of(strategy, _with(_numbers("long.txt").batch(4), POLICY.DATA))


def interleaved(strategy: Any) -> Any:
    names = ps.Dataset.list_files("[06]-*.txt", shuffle=False)
    distributed = strategy.distribute_dataset(names.interleave(ps.TextLineDataset, cycle_length=2).map(int).batch(4))
    return {"steps": all_of(strategy, distributed), "explanation": distributed.explain()}


def shuffled_names(strategy: Any) -> Any:
    distributed = strategy.distribute_dataset(
        ps.TextLineDataset(ps.Dataset.list_files("[06so]*.txt")).map(int).batch(4)
    )
    return [all_of(strategy, distributed) for _ in range(2)]


def shuffled_rows(strategy: Any) -> Any:
    distributed = strategy.distribute_dataset(_numbers("0-5.txt", "short.txt", "6-11.txt").shuffle(20).batch(4))
    return [all_of(strategy, distributed) for _ in range(2)]


def records(strategy: Any) -> Any:
    return steps_of(strategy, ps.TFRecordDataset(["0-5.tfrecord", "6-11.tfrecord"]).map(int).batch(4))


def range_of_one_file(strategy: Any) -> Any:
    return steps_of(strategy, _with(_numbers("long.txt").batch(4), POLICY.FILE_RANGE))


def ranges_of_unequal_files(strategy: Any) -> Any:
    distributed = strategy.distribute_dataset(_with(_numbers("long.txt", "short.txt").batch(4), POLICY.FILE_RANGE))
    return {"steps": all_of(strategy, distributed), "explanation": distributed.explain()}


def everything(strategy: Any) -> Any:
    return steps_of(strategy, _with(ps.Dataset.range(12).batch(4), POLICY.OFF))


def everything_of_five_rows(strategy: Any) -> Any:
    distributed = strategy.distribute_dataset(_with(ps.Dataset.range(5).batch(4), POLICY.OFF))
    return {"steps": all_of(strategy, distributed), "length": len(distributed)}


def everything_of_unknown_length(strategy: Any) -> Any:
    return steps_of(strategy, _with(ps.Dataset.range(6).filter(lambda row: row != 4).batch(4), POLICY.OFF))


def hinted(strategy: Any) -> Any:
    dataset = ps.Dataset.range(11).shard(ps.SHARD_HINT, ps.SHARD_HINT).batch(4)
    distributed = strategy.distribute_dataset(_with(dataset, POLICY.HINT))
    return {"steps": all_of(strategy, distributed), "length": len(distributed)}


def no_hint(strategy: Any) -> Any:
    return _refused(strategy, _with(ps.Dataset.range(4).batch(4), POLICY.HINT))


def a_hint_under_another_policy(strategy: Any) -> Any:
    return _refused(strategy, ps.Dataset.range(12).shard(ps.SHARD_HINT, ps.SHARD_HINT).batch(4))


def repeated(strategy: Any) -> Any:
    return steps_of(strategy, _numbers("0-5.txt", "short.txt").repeat(2).batch(4))


# Partial batches.


def partial(strategy: Any) -> Any:
    dataset = _numbers("long.txt", "short.txt").batch(4)
    return {kind: partial_steps_of(strategy, dataset, kind) for kind in ("ragged", "pad", "drop")}


def partial_of_known_length(strategy: Any) -> Any:
    dataset = _with(ps.Dataset.range(11).shard(ps.SHARD_HINT, ps.SHARD_HINT).batch(4), POLICY.HINT)
    return {kind: partial_steps_of(strategy, dataset, kind) for kind in ("ragged", "pad", "drop")}


def a_worker_without_lines(strategy: Any) -> Any:
    dataset = ps.TextLineDataset(["0-5.txt", "empty.txt"]).map(lambda line: (line, np.ones(2, np.float32))).batch(4)
    return [steps_of(strategy, dataset, partial_batch=kind) for kind in ("ragged", "pad")]


# Positions.


def _resumed_everywhere(strategy: Any, dataset: ps.Dataset) -> Any:
    """At every boundary: whether what follows there is what follows after restoring the state."""
    distributed = strategy.distribute_dataset(dataset)
    with iter(distributed) as steps:
        states, whole = [json.dumps(steps.state_dict())], []
        for step in steps:
            whole.append([share.tolist() for share in shares_of(strategy, step)])
            states.append(json.dumps(steps.state_dict()))
    same = []
    for number, state in enumerate(states):
        with iter(distributed) as resumed:
            resumed.load_state_dict(json.loads(state))
            rest = [[share.tolist() for share in shares_of(strategy, step)] for step in resumed]
        same.append(rest == whole[number:])
    return {"same": same, "states": states}


def resumed_files(strategy: Any) -> Any:
    return _resumed_everywhere(strategy, _numbers("long.txt", "short.txt").batch(4))


def resumed_shuffled_files(strategy: Any) -> Any:
    dataset = _numbers("long.txt", "short.txt", "6-11.txt").shuffle(5)
    return _resumed_everywhere(strategy, dataset.map(lambda row, random: row + random.random(), seed=3).batch(5))


def resumed_with_an_empty_file(strategy: Any) -> Any:
    return _resumed_everywhere(strategy, _numbers("0-5.txt", "empty.txt").batch(4))


def resumed_hint(strategy: Any) -> Any:
    dataset = ps.Dataset.range(11).shard(ps.SHARD_HINT, ps.SHARD_HINT).batch(4)
    return _resumed_everywhere(strategy, _with(dataset, POLICY.HINT))


def _foreign(strategy: Any, change: Any) -> Any:
    with iter(strategy.distribute_dataset(_numbers("long.txt", "short.txt").batch(4))) as steps:
        next(steps)
        try:
            steps.load_state_dict(change(steps.state_dict()))
        except ps.StateMismatchError as error:
            return {"error": str(error), "next": shares_of(strategy, next(steps))}
    return None


def state_of_the_other_worker(strategy: Any) -> Any:
    return _foreign(strategy, lambda state: state | {"worker": [1 - state["worker"][0], 2]})


def state_of_more_workers(strategy: Any) -> Any:
    return _foreign(strategy, lambda state: state | {"worker": [state["worker"][0], 3]})
