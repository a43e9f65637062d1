"""Lists, ordered dictionaries and other containers: the same on every strategy."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

import penstock as ps

Pair = namedtuple("Pair", "a b")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Point:
    x: Any
    y: Any


@pytest.mark.parametrize(
    "value",
    [
        [1.0, 2.0],
        OrderedDict(b=1.0, a=2.0),
        Pair(1.0, 2.0),
        Point(1.0, 2.0),
        (None, 1.0),
        {"b": 1.0, "a": [2.0, (3.0,)]},
        [],
        ps.PerReplica([1.0, 2.0]),
    ],
    ids=str,
)
def test_results_keep_their_containers(strategy_of, value) -> None:
    strategy = strategy_of(2)
    given = strategy.local_results(value)
    result = strategy.run(lambda value: value, args=(value,))
    assert strategy.local_results(result) == given
    assert [type(part) for part in strategy.local_results(result)] == [type(part) for part in given] or given == (1, 2)
    totals = strategy.reduce("SUM", result)
    assert type(totals) is type(strategy.reduce("SUM", value))


def by_rows(many, few):
    return lambda rows: many if rows.shape[0] > 1 else few


@pytest.mark.parametrize(
    ("many", "few"),
    [
        ([1.0, 2.0], [1.0]),
        ([1.0], (1.0,)),
        (OrderedDict(a=1.0, b=2.0), OrderedDict(b=1.0, a=2.0)),
        (OrderedDict(a=1.0), {"a": 1.0}),
        ({"a": 1.0}, {"b": 1.0}),
        (None, 1.0),
        ([1.0], 1.0),
    ],
)
def test_unequal_structures_are_refused(strategy_of, many, few) -> None:
    shares = ps.PerReplica([np.ones(2), np.ones(1)])
    with pytest.raises(ps.InvalidTypeError, match="must give one structure on every replica, got .* on replica 0 and"):
        strategy_of(2).run(by_rows(many, few), args=(shares,))


def test_the_order_of_keys_does_not_matter(strategy_of) -> None:
    shares = ps.PerReplica([np.ones(2), np.ones(1)])
    result = strategy_of(2).run(by_rows({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}), args=(shares,))
    assert {name: [float(part) for part in value.values] for name, value in result.items()} == {
        "a": [1, 1],
        "b": [2, 2],
    }


def test_keys_of_several_kinds_keep_their_order() -> None:
    strategy = ps.HostStrategy(2)  # JAX sorts the keys of a dictionary, and refuses those that have no order
    result = strategy.run(lambda: {"b": 1.0, 1: 2.0})
    assert list(result) == ["b", 1]
    assert strategy.local_results(result) == ({"b": 1.0, 1: 2.0}, {"b": 1.0, 1: 2.0})
