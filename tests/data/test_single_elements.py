"""One element can be asked for at a time: of a dataset, and of an iterator with TensorFlow's methods."""

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_same_elements


def test_the_element_of_a_dataset_of_one():
    assert ps.Dataset.range(4).batch(4).get_single_element().tolist() == [0, 1, 2, 3]
    assert ps.Dataset.range(9).filter(lambda x: x == 7).get_single_element() == 7


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (ps.Dataset.range(0), "has 0 elements, not one"),
        (ps.Dataset.range(2), "has 2 elements, not one"),
        (ps.Dataset.range(2).repeat(), "has no end, not one"),
        (ps.Dataset.range(2).filter(lambda x: x > 5), "filter.* has no element"),
        (ps.Dataset.range(9).filter(lambda x: x > 5), "filter.* has more than one element"),
    ],
)
def test_no_single_element_of_none_or_several(dataset, message):
    with pytest.raises(ps.InvalidArgumentError, match=message):
        dataset.get_single_element()


def test_a_single_element_is_not_searched_for_a_second_one():
    calls = []
    dataset = ps.Dataset.range(3).map(lambda x: calls.append(int(x)) or x)
    assert dataset.take(1).get_single_element() == 0
    assert calls == [0]


def test_at_gives_the_elements_of_the_first_epoch():
    dataset = ps.Dataset.range(20).shuffle(20).map(lambda x: (x, x * x)).batch(3).prefetch(2)
    by_index = [dataset.at(index) for index in range(len(dataset))]
    assert_same_elements(list(dataset), by_index)
    assert dataset.at(1)[0].tolist() == by_index[1][0].tolist()  # of the first epoch, however many there were


def test_at_reads_one_element():
    calls = []
    assert ps.Dataset.range(1000).map(lambda x: calls.append(int(x)) or x).repeat().at(1999) == 999
    assert calls == [999]


def test_at_refuses_what_is_not_there():
    with pytest.raises(ps.InvalidArgumentError, match=r"below the 5 elements of range.*, got 5"):
        ps.Dataset.range(5).at(5)
    with pytest.raises(ps.InvalidArgumentError, match="at least 0, got -1"):
        ps.Dataset.range(5).at(-1)
    with pytest.raises(ps.InvalidArgumentError, match=r"filter.* is read in order: use .skip\(1\).take\(1\)"):
        ps.Dataset.range(5).filter(bool).map(abs).at(1)


@pytest.mark.parametrize("index", ["x", [0, 1], np.array([0, 1]), True, None])
def test_an_index_that_is_no_number_names_ways_to_columns_and_rows(index):
    dataset = ps.Dataset.from_tensor_slices({"x": np.arange(6)})
    with pytest.raises(
        ps.InvalidTypeError, match=r"^dataset\[...\] takes a number or a slice, got .* gives a column, "
    ):
        dataset[index]
    assert [int(row["x"]) for row in ps.Dataset.from_tensor_slices([4, 1]).map(dataset.__getitem__)] == [4, 1]


def test_as_numpy_iterator_is_the_iterator():
    iterator = ps.Dataset.range(3).as_numpy_iterator()
    assert next(iterator) == 0
    assert [int(x) for x in iterator] == [1, 2]


def test_get_next_raises_out_of_range_at_the_end_and_again():
    iterator = iter(ps.Dataset.range(2))
    assert [iterator.get_next(), iterator.get_next()] == [0, 1]
    for _ in range(2):
        with pytest.raises(ps.OutOfRangeError, match="no further element"):
            iterator.get_next()


def test_an_optional_says_whether_there_is_an_element():
    iterator = iter(ps.Dataset.from_list([None, None]))
    assert [iterator.get_next_as_optional().has_value() for _ in range(4)] == [True, True, False, False]
    with pytest.raises(ps.InvalidArgumentError, match="the data has ended"):
        iterator.get_next_as_optional().get_value()


def test_the_state_counts_what_get_next_gave():
    dataset = ps.Dataset.range(4)
    iterator = iter(dataset)
    iterator.get_next(), iterator.get_next_as_optional()
    resumed = iter(dataset)
    resumed.load_state_dict(iterator.state_dict())
    assert resumed.get_next() == 2


def test_an_iterator_has_the_specification_of_its_dataset():
    dataset = ps.Dataset.range(5).map(lambda x: (x, np.zeros(3, np.float32))).batch(2)
    assert iter(dataset).element_spec == dataset.element_spec


def test_a_list_gives_its_elements():
    elements = [{"x": [1, 2], "y": "a"}, {"x": [3], "y": "bc"}]
    found = list(ps.Dataset.from_list(elements))
    assert [(element["x"].tolist(), element["y"]) for element in found] == [([1, 2], "a"), ([3], "bc")]
    assert len(ps.Dataset.from_list([(1, 2.0), (3, 4.0)])) == 2


@pytest.mark.parametrize(
    ("elements", "error", "message"),
    [
        ([], ps.InvalidArgumentError, r"at least one element, got none: use ps.Dataset.range\(0\)"),
        ({1, 2}, ps.InvalidTypeError, "takes a list of elements, got set"),
        ([[1], [], ["a"]], ps.ElementError, "element 2 is object, where element 0 is int64"),
        ([1, 2.5], ps.ElementError, "from_list: element 1 is float32, where element 0 is int64"),
        ([1, 2, (2, 3)], ps.ElementError, r"from_list: element 2 is \(int64, int64\), where element 0 is int64"),
        ([{"a": 1}, {"a": "x"}], ps.ElementError, "element 1 is {'a': object}, where element 0 is {'a': int64}"),
        ([1, 2, None], ps.ElementError, "element 2 is None, where element 0 is int64: all elements need one structure"),
        ([[1], [2, [3]]], ps.ElementError, "from_list: element 1: "),
    ],
)
def test_a_list_of_unlike_elements_is_refused(elements, error, message):
    with pytest.raises(error, match=message):
        ps.Dataset.from_list(elements)
