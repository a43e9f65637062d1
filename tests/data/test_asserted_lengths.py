"""assert_cardinality: where it is an error, and what has a length by it. TensorFlow 2.21 was run beside it."""

import pytest

import penstock as ps


def streamed(count):
    return ps.Dataset.range(count).filter(lambda x: True)


def collect(given, iterator):
    for element in iterator:
        given.append(int(element))  # what came before an error stays


def elements_and_error(dataset):
    given, iterator = [], iter(dataset)
    with pytest.raises(ps.ElementError) as caught:
        collect(given, iterator)
    assert next(iterator, None) is None  # nothing comes after the error, nor the error again
    return given, str(caught.value)


def test_as_many_as_were_promised():
    dataset = streamed(3).assert_cardinality(3)
    assert (len(dataset), [int(x) for x in dataset]) == (3, [0, 1, 2])
    assert list(streamed(0).assert_cardinality(0)) == []


@pytest.mark.parametrize(
    ("count", "expected", "given", "message"),
    [
        (3, 4, [0, 1, 2], "expected 4 elements, got only 3"),
        (3, 2, [0, 1], "expected 2 elements, got more"),
        (2, 0, [], "expected 0 elements, got more"),
        (3, ps.INFINITE_CARDINALITY, [0, 1, 2], "expected elements without end, got only 3"),
    ],
)
def test_the_elements_before_the_error_are_given(count, expected, given, message):
    found, error = elements_and_error(streamed(count).assert_cardinality(expected))
    assert found == given
    assert message in error
    assert "test_asserted_lengths.py:" in error


def test_an_element_too_many_is_met_only_where_it_is_asked_for():
    assert [int(x) for x in streamed(3).assert_cardinality(2).take(2)] == [0, 1]


def test_the_error_comes_again_where_a_state_stands_before_it():
    dataset = streamed(3).assert_cardinality(2)
    iterator = iter(dataset)
    next(iterator), next(iterator)
    resumed = iter(dataset)
    resumed.load_state_dict(iterator.state_dict())
    with pytest.raises(ps.ElementError, match="got more"):
        next(resumed)


def test_a_failed_element_is_one_of_them():
    def fails_at_1(x):
        if x == 1:
            raise ValueError("no 1 here")
        return x

    mapped = streamed(3).map(fails_at_1)
    iterator = iter(mapped.assert_cardinality(3))
    assert next(iterator) == 0
    with pytest.raises(ValueError, match="no 1 here"):
        next(iterator)
    assert list(iterator) == [2]
    iterator = iter(mapped.assert_cardinality(1))
    assert next(iterator) == 0
    with pytest.raises(ValueError, match="no 1 here"):
        next(iterator)
    with pytest.raises(ps.ElementError, match="expected 1 elements, got more"):
        next(iterator)


@pytest.mark.parametrize(
    ("dataset", "expected", "message"),
    [
        (ps.Dataset.range(5), 4, r"expected elements of 4, range.* has 5"),
        (ps.Dataset.range(5), ps.INFINITE_CARDINALITY, "without end, range.* has 5"),
        (ps.Dataset.range(5).repeat(), 5, "repeat.* never ends"),
        (ps.Dataset.range(5), ps.UNKNOWN_CARDINALITY, "at least -1, got -2"),
    ],
)
def test_a_length_that_is_known_to_differ_is_refused_at_the_call(dataset, expected, message):
    with pytest.raises(ps.InvalidArgumentError, match=message):
        dataset.assert_cardinality(expected)


def test_over_an_index_it_costs_nothing():
    dataset = ps.Dataset.range(100).assert_cardinality(100).shuffle(100, seed=1).batch(10)
    assert "stream" not in dataset.explain()


def test_steps_are_known_beforehand_and_never_divided_by_file():
    batches = streamed(10).assert_cardinality(10).batch(4)
    steps = ps.HostStrategy(2).distribute_dataset(batches)
    assert len(steps) == 3
    assert [[part.tolist() for part in step.values] for step in steps][-1] == [[8], [9]]
