"""Of options that datasets were given, none is lost where datasets are joined; of two that differ the last counts."""

import logging

import pytest

import penstock as ps
from penstock.options import merged_options

OFF = ps.Options(auto_shard_policy=ps.AutoShardPolicy.OFF)
DATA = ps.Options(auto_shard_policy=ps.AutoShardPolicy.DATA, seed=3)


def numbers(options=None):
    dataset = ps.Dataset.range(4)
    return dataset if options is None else dataset.with_options(options)


COMBINED = {
    "zip": lambda first, second: ps.Dataset.zip({"a": first, "b": (second,)}),
    "concatenate": lambda first, second: first.concatenate(second),
    "choose_from_datasets": lambda first, second: ps.Dataset.choose_from_datasets([first, second], numbers()),
    "the choice": lambda first, second: ps.Dataset.choose_from_datasets([second], first.map(lambda x: 0)),
    "sample_from_datasets": lambda first, second: ps.Dataset.sample_from_datasets([first, second], [1.0, 0.0], seed=1),
}


@pytest.mark.parametrize("name", COMBINED)
def test_options_of_what_is_joined_were_lost(name, caplog):
    join = COMBINED[name]
    assert join(numbers(OFF), numbers()).options() == OFF
    assert join(numbers(), numbers(DATA)).options() == DATA
    assert join(numbers(ps.Options(deterministic=True)), numbers(DATA)).options() == ps.Options(
        deterministic=True, seed=3, auto_shard_policy=ps.AutoShardPolicy.DATA
    )
    assert not caplog.records


@pytest.mark.parametrize("name", COMBINED)
def test_of_two_that_differ_the_last_one_counts_and_the_log_says_so(name, caplog):
    with caplog.at_level(logging.WARNING):
        joined = COMBINED[name](numbers(DATA), numbers(OFF))
    assert joined.options() == merged_options(DATA, OFF)
    (message,) = caplog.messages
    assert "test_options.py:" in message
    assert (
        "auto_shard_policy=<AutoShardPolicy.OFF: -1> is taken, the last one's, and not <AutoShardPolicy.DATA" in message
    )
    caplog.clear()
    assert joined.with_options(DATA).options() == DATA
    assert not caplog.records


def test_off_inside_a_zip_was_sharded_anyway():
    pairs = ps.Dataset.zip(numbers(OFF), numbers()).batch(2)
    steps = list(ps.HostStrategy(num_workers=2, worker_index=1).distribute_dataset(pairs))
    assert [step[0].values[0].tolist() for step in steps] == [[0], [1], [2], [3]]
