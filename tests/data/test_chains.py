"""Chains of operators: the work grows as the chain does, and a thousand of each are built, read and resumed."""

import functools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock as ps

LENGTH = 50  # chains of half as many are read in another way
ROWS = 8

FORWARD: dict[str, Callable[[Any], Any]] = {
    "assert_cardinality": lambda d: d.assert_cardinality(ROWS),
    "batch": lambda d: d.batch(2).unbatch(),
    "bucket_by_sequence_length": lambda d: d.bucket_by_sequence_length(lambda x: 1, [5], [2, 2]).unbatch(),
    "cache": lambda d: d.cache(),
    "choose_from_datasets": lambda d: ps.Dataset.choose_from_datasets([d], ps.Dataset.range(1).repeat(ROWS)),
    "concatenate": lambda d: d.concatenate(ps.Dataset.range(0)),
    "enumerate": lambda d: d.enumerate().map(lambda number, x: x),
    "filter": lambda d: d.filter(lambda x: True),
    "group_by_reducer": lambda d: d.group_by_reducer(abs, ps.Reducer(abs, lambda state, x: x, abs)),
    "group_by_window": lambda d: d.group_by_window(lambda x: 0, lambda key, window: window, 4),
    "ignore_errors": lambda d: d.ignore_errors(),
    "map": lambda d: d.map(lambda x: x),
    "map in threads": lambda d: d.map(lambda x: x, num_parallel_calls=2),
    "padded_batch": lambda d: d.padded_batch(2).unbatch(),
    "prefetch": lambda d: d.prefetch(2),
    "ragged_batch": lambda d: d.ragged_batch(2).unbatch(),
    "rebatch": lambda d: d.batch(2).rebatch(4).unbatch(),
    "rejection_resample": lambda d: d.rejection_resample(lambda x: 0, [1.0], [1.0], seed=1).map(lambda kind, x: x),
    "repeat": lambda d: d.repeat(1),
    "sample_from_datasets": lambda d: ps.Dataset.sample_from_datasets([d], seed=1),
    "scan": lambda d: d.scan(0, lambda state, x: (state, x)),
    "shard": lambda d: d.shard(1, 0),
    "shuffle": lambda d: d.shuffle(1, seed=1),
    "skip": lambda d: d.skip(0),
    "take": lambda d: d.take(ROWS),
    "take_while": lambda d: d.take_while(lambda x: True),
    "unique": lambda d: d.unique(),
    "zip": lambda d: ps.Dataset.zip(d, ps.Dataset.range(ROWS)).map(lambda x, other: x),
}
AGAIN: dict[str, Callable[[Any], Any]] = {
    "flat_map": lambda d: d.flat_map(ps.Dataset.from_tensors),
    "interleave": lambda d: d.interleave(ps.Dataset.from_tensors, cycle_length=2),
    "window": lambda d: d.window(2, shift=2).flat_map(lambda window: window),
}
"""What opens datasets of its own: a state has the state of the input before each of them too."""
BASES = {"index": ps.Dataset.range(ROWS), "stream": ps.Dataset.range(ROWS).filter(lambda x: True)}


def read(base: Any, operator: Callable[[Any], Any], length: int, *, resumed: bool = True) -> list[int]:
    """The elements of a chain of operators, of which all but the first are read by an iterator that goes on."""
    dataset = functools.reduce(lambda chain, _: operator(chain), range(length), base)
    assert dataset.element_spec.shape == () and dataset.explain()
    iterator = iter(dataset)
    first = [int(next(iterator))]
    if resumed:
        state = json.loads(json.dumps(iterator.state_dict()))
        iterator.close()
        iterator = iter(dataset)
        iterator.load_state_dict(state)
    return first + [int(x) for x in iterator]


def calls(of: Callable[[], Any]) -> int:
    """How many calls of functions are made, in all threads."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        of()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return count


def in_turn() -> Iterator[Any]:
    """Each operator over one base in turn; over the other one in the extended tests."""
    for number, name in enumerate((*FORWARD, *AGAIN)):
        for place, base in enumerate(BASES):
            if name != "map in threads" and (name, base) != ("prefetch", "stream"):  # which wait, and call functions
                other = (number + place) % 2 and name != "prefetch"
                yield pytest.param(name, base, marks=pytest.mark.extended if other else pytest.mark.slow)


@pytest.mark.extended
@pytest.mark.parametrize(("name", "base"), list(in_turn()))
def test_twice_as_many_operators_take_twice_the_work(name: str, base: str) -> None:
    operator = FORWARD.get(name) or AGAIN[name]
    once, twice = (
        calls(lambda: read(BASES[base], operator, length, resumed=name in FORWARD))  # noqa: B023  # it is called here
        for length in (LENGTH, 2 * LENGTH)
    )
    assert twice < 2.6 * once


@pytest.mark.parametrize("name", AGAIN)
def test_states_of_nested_datasets_do_not_double_with_each(name: str) -> None:
    dataset = functools.reduce(lambda chain, _: AGAIN[name](chain), range(16), BASES["stream"])
    iterator = iter(dataset)
    first = [int(next(iterator)) for _ in range(3)]
    state = json.dumps(iterator.state_dict()["position"])
    assert len(state) < 60_000
    assert sorted(first + [int(x) for x in resumed(dataset, iterator)]) == list(range(ROWS))
    assert len(json.dumps(resumed(dataset, iterator).state_dict()["position"])) < 60_000


def resumed(dataset: Any, iterator: Any) -> Any:
    """An iterator that goes on from the state of another one."""
    other = iter(dataset)
    other.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
    return other


@pytest.mark.extended
@pytest.mark.parametrize("name", [*FORWARD, *AGAIN])
def test_a_thousand_operators_are_built_read_and_resumed(name: str) -> None:
    operator = FORWARD.get(name) or AGAIN[name]
    assert sorted(read(BASES["stream"], operator, 1000, resumed=name in FORWARD)) == list(range(ROWS))
