"""Calls of a parallel map overlap in a data worker, within spans and from one to the next: counted, not timed."""

import threading

import numpy as np
import pytest
from together import CALLS, ROWS, Held, Together, generator

import penstock as ps
from penstock.service.wire.policy import ShardingPolicy
from penstock.service.wire.subjects import PassInfo, Span
from penstock.service.wire.worker_messages import Fetch
from penstock.service.worker.cut import cut
from penstock.service.worker.open_pass import OpenPass, PassKey
from penstock.service.worker.spans import UserCalls

PAIR = ps.TensorSpec((2,), np.int64)


PASSES = {
    "rows": lambda f: ps.Dataset.range(ROWS).map(f, num_parallel_calls=CALLS, output_signature=PAIR),
    "rows of batches": lambda f: (
        ps.Dataset.range(4 * ROWS).batch(4).map(f, num_parallel_calls=CALLS, output_signature=PAIR)
    ),
    "groups over a map": lambda f: (
        ps.Dataset.range(ROWS).map(f, num_parallel_calls=CALLS, output_signature=PAIR).unbatch()
    ),
    "a map over groups": lambda f: (
        ps.Dataset.range(2 * ROWS).filter(lambda x: x % 2 == 0).map(f, num_parallel_calls=CALLS, output_signature=PAIR)
    ),
    "a map between groups": lambda f: (
        ps.Dataset.range(ROWS // 2)
        .flat_map(lambda x: ps.Dataset.from_tensors(x).repeat(2))
        .map(f, num_parallel_calls=CALLS, output_signature=PAIR)
        .filter(lambda x: True)
        .unbatch()
    ),
    "a sequence": lambda f: generator(ROWS).map(f, num_parallel_calls=CALLS, output_signature=PAIR),
}


def opened(dataset):
    part = cut(dataset.node)
    assert not part.above
    key = PassKey("d", ShardingPolicy.DYNAMIC, 0, 0, 1, 0, 9)
    return OpenPass(part.worker, dataset.options(), key, 1 << 20, 1 << 20, lambda: 1 << 20, UserCalls())


def request(start, stop):
    span = Span(pass_number=0, start=start, stop=stop)
    return Fetch(
        dataset_id="d", epoch=0, seed=9, policy=ShardingPolicy.DYNAMIC, pass_info=PassInfo(number=0), span=span
    )


def read(reader):
    found = []
    while (piece := reader.next(1)) is not None:
        assert not isinstance(piece.found, Exception), piece.found
        found += [np.asarray(row).tolist() for row in piece.found.rows()]
    reader.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", PASSES)
def test_eight_calls_run_within_a_span(kind):
    dataset = PASSES[kind](Together())
    opening = opened(dataset)
    found = read(opening.reader(request(0, 8 * ROWS)))
    assert found == [np.asarray(row).tolist() for row in PASSES[kind](lambda x: np.full(2, np.min(x)))]
    opening.end()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rows", "a map over groups"])
def test_eight_calls_run_over_two_spans_that_are_read_at_the_same_time(kind):
    together, half = Together(), 4 if kind == "rows" else 8
    opening = opened(PASSES[kind](together))
    results = {}

    def go(start):
        results[start] = read(opening.reader(request(start, start + half)))

    readers = [threading.Thread(target=go, args=(start,)) for start in (0, half)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(results[0]) == len(results[half]) == 4
    opening.end()


def test_a_span_that_nobody_reads_on_makes_no_further_calls():
    held = Held()
    opening = opened(ps.Dataset.range(100).map(held, num_parallel_calls=2))
    reader = opening.reader(request(0, 100))
    assert reader.next(1).found.columns[0].tolist() == [0]
    held.await_calls(3)
    reader.close()
    held.released.set()
    opening.end()
    opening.join(60)
    assert len(held.calls) <= 5
