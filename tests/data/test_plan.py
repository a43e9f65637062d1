"""The rewrites, what `explain` says of them, and that they change no element."""

import functools
import pickle
from itertools import islice

import cloudpickle
import numpy as np
import pytest

import penstock as ps
from penstock.data.plan import make_plan
from penstock.service.wire.definitions import from_bytes, to_bytes
from penstock.testing import assert_same_elements


def names(dataset):
    return [node.name for node in make_plan(dataset.node).root.walk()]


def test_a_prefetch_rises_to_the_top_of_what_is_read_by_index():
    dataset = ps.Dataset.range(100).map(abs).prefetch(10).shuffle(100, seed=1).batch(4)
    assert names(dataset) == ["range", "map", "shuffle", "batch", "prefetch"]
    assert make_plan(dataset.node).root.buffer_size == 3  # 10 elements are 3 batches
    assert_same_elements(dataset, ps.Dataset.range(100).map(abs).shuffle(100, seed=1).batch(4))


def test_a_prefetch_over_a_stream_stays_where_it_is():
    dataset = ps.Dataset.range(100).filter(bool).prefetch(10).batch(4)
    assert names(dataset) == ["range", "filter", "prefetch", "batch"]
    below = ps.Dataset.range(100).prefetch(10).filter(bool).batch(4)
    assert names(below) == ["range", "prefetch", "filter", "batch"]


def test_a_prefetch_of_nothing_is_gone():
    assert names(ps.Dataset.range(9).prefetch(0).batch(2)) == ["range", "batch"]


@pytest.mark.parametrize("seed", [None, 3])
def test_a_shuffle_over_a_stream_sinks_below_a_map(seed):
    stream = ps.Dataset.range(50).filter(lambda x: True)
    above = stream.map(lambda x: np.full(1000, x)).map(lambda x: x[0]).shuffle(10, seed=seed)
    below = stream.shuffle(10, seed=seed).map(lambda x: np.full(1000, x)).map(lambda x: x[0])
    assert names(above) == names(below) == ["range", "filter", "shuffle", "map", "map"]
    options = ps.Options(seed=5)
    assert_same_elements(above.with_options(options), below.with_options(options))


def test_a_shuffle_does_not_sink_below_a_random_function():
    stream = ps.Dataset.range(50).filter(lambda x: True)
    assert names(stream.map(lambda x, rng: x, seed=1).shuffle(5)) == ["range", "filter", "map", "shuffle"]


def test_adding_a_prefetch_changes_no_order():
    options = ps.Options(seed=5)
    plain = ps.Dataset.range(50).shuffle(50).map(abs).shuffle(7).batch(3).with_options(options)
    ahead = ps.Dataset.range(50).prefetch(1).shuffle(50).map(abs).prefetch(2).shuffle(7).batch(3).with_options(options)
    assert_same_elements(ahead, plain)


def test_explain_says_what_runs_how():
    images = np.zeros((1000, 8, 8), np.float32)
    dataset = (
        ps.Dataset.from_tensor_slices(images)
        .map(np.negative, num_parallel_calls=4)
        .prefetch(8)
        .shuffle(1000, seed=1)
        .batch(4)
        .filter(np.any)
        .map(np.abs)
        .shuffle(10, seed=2)
        .unbatch()
        .unique()
        .prefetch()
    )
    assert dataset.explain() + "\n" == EXPLAINED


EXPLAINED = """\
prefetch(buffer_size=AUTOTUNE)                                  thread, unknown          holds two blocks
  unique()                                                      stream, unknown          remembers every element
    unbatch()                                                   stream, unknown          copies rows
      map(function=absolute)                                    stream, unknown          element_spec assumed
        shuffle(buffer_size=10, seed=2)                         stream, unknown          holds up to 18 rows
          filter(predicate=any)                                 stream, unknown
            prefetch(buffer_size=2)                             thread, 250              holds up to 2 elements
              batch(batch_size=4)                               index, 250
                shuffle(buffer_size=1000, seed=1)               index, 1,000             moves indices only, holds 8 kB
                  map(function=negative, num_parallel_calls=4)  index, 4 at once, 1,000  element_spec assumed
                    from_tensor_slices(float32[1000, 8, 8])     index, 1,000             holds 256 kB
* shuffle(buffer_size=10, seed=2) moved below map(function=absolute)
* prefetch moved above shuffle(buffer_size=1000, seed=1): the steps below it are read by index
* prefetch moved above batch(batch_size=4): the steps below it are read by index
"""


@pytest.mark.extended
def test_a_chain_of_thousands_of_concatenate_and_take_is_built_and_read():
    members = [ps.Dataset.range(number, number + 1).filter(lambda x: True) for number in range(1200)]
    whole = functools.reduce(lambda joined, member: joined.concatenate(member), members)
    for count in (5000, 800, -1, 900):
        whole = whole.take(count)
    assert [int(x) for x in whole] == list(range(800))
    iterator = iter(whole)
    assert [int(x) for x in islice(iterator, 600)][-1] == 599
    resumed = iter(whole)
    resumed.load_state_dict(iterator.state_dict())
    assert next(resumed) == 600
    assert len(whole.explain().splitlines()) == 1 + 4 + 2 * 1200
    assert whole.element_spec == members[0].element_spec


def test_the_positions_of_many_datasets_in_a_row_are_found_at_once():
    whole = functools.reduce(
        lambda joined, number: joined.concatenate(ps.Dataset.range(number)), range(60), ps.Dataset.range(0)
    )
    expected = [x for number in range(60) for x in range(number)]
    assert whole.node.indexable
    assert [int(x) for x in whole] == expected
    assert [int(x) for x in whole.shuffle(seed=1)] != expected
    assert sorted(int(x) for x in whole.shuffle(seed=1)) == sorted(expected)
    assert [int(whole[position]) for position in (0, 17, 1769)] == [expected[position] for position in (0, 17, 1769)]


@pytest.mark.parametrize("add", [lambda d: d.filter(abs), lambda d: d.window(1).flat_map(list), lambda d: d.cache()])
def test_chains_of_hundreds_of_operators_are_sent_to_other_processes(add):
    dataset = functools.reduce(lambda d, _: add(d), range(300), ps.Dataset.range(3))
    received = pickle.loads(cloudpickle.dumps(dataset))
    assert received.explain() == dataset.explain()
    assert received.fingerprint() == dataset.fingerprint()
    node, options = from_bytes(to_bytes(dataset.node, dataset.options()))
    assert ps.Dataset(node, options).explain() == dataset.explain()
