"""What is worked out once for a dataset: less work for each iteration, nothing out of date, nothing kept alive."""

import gc
import weakref

import numpy as np
import pytest

import penstock as ps

DIVISOR = 2


def test_iterations_of_a_dataset_share_one_plan() -> None:
    dataset = ps.Dataset.range(4).map(lambda x: x).batch(2)
    first, second = iter(dataset), iter(dataset)
    second.load_state_dict(first.state_dict())
    assert first._planned.plan is second._planned.plan


def test_a_constant_that_a_filter_uses_may_change_between_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ps.Dataset.range(6).filter(lambda x: x % DIVISOR == 0).batch(2)
    state = iter(dataset).state_dict()
    iter(dataset).load_state_dict(state)
    monkeypatch.setitem(globals(), "DIVISOR", 3)
    with pytest.raises(ps.StateMismatchError, match="other code or constants"):
        iter(dataset).load_state_dict(state)


def test_an_array_that_chooses_elements_may_change_between_iterations() -> None:
    chosen = np.array([0, 1])
    choice = ps.Dataset.from_tensor_slices(chosen)
    dataset = ps.Dataset.choose_from_datasets([ps.Dataset.range(2), ps.Dataset.range(2)], choice).batch(2)
    state = iter(dataset).state_dict()
    chosen[:] = 1
    with pytest.raises(ps.StateMismatchError, match="was choose_from_datasets"):
        iter(dataset).load_state_dict(state)


def test_what_was_worked_out_goes_with_the_dataset() -> None:
    dataset = ps.Dataset.from_tensor_slices(np.zeros(4)).filter(bool).batch(2)
    iter(dataset).state_dict()
    nodes = [weakref.ref(node) for node in dataset.node.walk()]
    del dataset
    gc.collect()
    assert [node() for node in nodes] == [None] * 3


def test_a_seed_from_a_state_counts_in_an_iterated_dataset() -> None:
    dataset = ps.Dataset.range(50).shuffle(50, reshuffle_each_iteration=False)
    iterator = iter(dataset)
    state, order = iterator.state_dict(), list(iterator)
    other = ps.Dataset.range(50).shuffle(50, reshuffle_each_iteration=False)
    assert list(other) != order
    resumed = iter(other)
    resumed.load_state_dict(state)
    assert list(resumed) == order
    assert list(other) == order
