"""group_by_reducer gives the results of TensorFlow 2.21."""

from contextlib import suppress

import numpy as np
import pytest

import penstock as ps


def reducer(**changed) -> ps.Reducer:
    functions = {
        "init_func": lambda key: (key, 0),
        "reduce_func": lambda state, x: (state[0], state[1] + x),
        "finalize_func": lambda key, total: np.stack([key, total]),
    }
    return ps.Reducer(**{**functions, **changed})


def test_the_results_come_in_the_order_of_the_keys():
    found = ps.Dataset.range(10).group_by_reducer(lambda x: 4 - x, reducer())
    assert [row.tolist() for row in found] == [[key, 4 - key] for key in range(-5, 5)]


def test_elements_of_several_leaves():
    pairs = ps.Dataset.zip(ps.Dataset.range(4), ps.Dataset.range(4, 8))
    total = ps.Reducer(lambda key: 0, lambda state, element: state + element[1], lambda state: state)
    assert [int(x) for x in pairs.group_by_reducer(lambda a, b: a % 2, total)] == [10, 12]


def test_its_length_is_unknown_and_nothing_comes_of_nothing():
    assert ps.Dataset.range(4).group_by_reducer(lambda x: x % 2, reducer()).cardinality() == ps.UNKNOWN_CARDINALITY
    assert list(ps.Dataset.range(0).group_by_reducer(lambda x: x % 2, reducer())) == []


def test_states_are_values_and_not_the_arrays_of_the_reducer():
    first = np.zeros(2, np.int64)

    def add(state, x):
        state += x
        return state

    in_place = ps.Reducer(lambda key: first, add, lambda state: state)
    dataset = ps.Dataset.range(4).group_by_reducer(lambda x: x % 2, in_place)
    for _ in range(2):
        assert [row.tolist() for row in dataset] == [[2, 2], [4, 4]]


def outcomes(iterator):
    """What comes until the end, an exception by its message."""
    found = []
    while True:
        try:
            found.append(next(iterator).tolist())
        except StopIteration:
            return found
        except ValueError as error:
            found.append(str(error))


def failing_at(number, value):
    def function(x):
        if x == number:
            raise ValueError(f"not {number}")
        return value(x)

    return function


def test_a_failure_costs_its_row_or_its_key_also_after_a_restore():
    def finalize(key, total):
        if key == 1:
            raise ValueError("not key 1")
        return np.stack([key, total])

    failing = reducer(finalize_func=finalize)
    dataset = ps.Dataset.range(9).group_by_reducer(failing_at(4, lambda x: x % 3), failing)
    expected = ["not 4", [0, 9], "not key 1", [2, 15]]
    assert outcomes(iter(dataset)) == expected
    for number in range(len(expected)):
        iterator = iter(dataset)
        for _ in range(number):
            with suppress(ValueError):
                next(iterator)
        resumed = iter(dataset)
        resumed.load_state_dict(iterator.state_dict())
        assert outcomes(resumed) == expected[number:]


def test_what_does_not_fit_is_refused():
    dataset = ps.Dataset.range(4)
    with pytest.raises(ps.InvalidTypeError, match=r"reducer=...\) takes a ps.Reducer"):
        dataset.group_by_reducer(abs, abs)
    with pytest.raises(ps.InvalidTypeError, match=r"Reducer\(init_func=...\) takes a function, got 0"):
        reducer(init_func=0)
    with pytest.raises(ps.InvalidArgumentError, match="never ends"):
        dataset.repeat().group_by_reducer(abs, reducer())
    with pytest.raises(ps.InvalidTypeError, match=r"key_func\) must return an integer, got 'a'"):
        list(dataset.group_by_reducer(lambda x: "a", reducer()))
    changing = reducer(reduce_func=lambda state, x: (state[0], state[1] + 0.5))
    with pytest.raises(ps.ElementError, match="float"):
        list(dataset.group_by_reducer(lambda x: x, changing))
