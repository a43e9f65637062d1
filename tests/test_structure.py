"""Structures are taken apart and put together again without a change, and specifications describe them."""

import dataclasses
import json
import pickle
from collections import OrderedDict, UserDict, namedtuple
from contextlib import suppress
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import InvalidTypeError
from penstock.formats.plain_data import structure_of_data, structure_to_data
from penstock.spec import as_leaf, covers, describe_mismatch, merged, spec_of
from penstock.structure import flatten, map_structure

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Sample:
    image: object
    label: object


leaves = st.integers() | st.text()
nested = st.recursive(
    leaves | st.none(),
    lambda inner: (
        st.tuples(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(st.text(), inner).map(OrderedDict)
        | st.builds(Point, inner, inner)
        | st.builds(Sample, inner, inner)
    ),
)


@given(nested)
def test_unflatten_undoes_flatten(value):
    found, structure = flatten(value)
    assert structure.unflatten(found) == value
    assert structure.leaf_count == len(found) == len(structure.paths())
    assert structure.flatten_like(value) == found
    assert flatten(map_structure(lambda leaf: leaf, value))[1] == structure


def test_dictionaries_are_visited_in_sorted_order():
    assert flatten({"b": 1, "a": 2})[0] == flatten(OrderedDict(a=2, b=1))[0] == [2, 1]
    assert flatten({"b": 1, "a": 2})[1] == flatten({"a": 0, "b": 0})[1]


@given(nested)
def test_dictionaries_keep_the_order_of_their_keys_here_and_when_sent(value):
    found, structure = flatten(value)
    assert repr(structure.unflatten(found)) == repr(value)
    assert repr(pickle.loads(pickle.dumps(structure)).unflatten(found)) == repr(value)
    assert repr(structure.nested([flatten({"z": 0, "a": 0})[1]] * len(found))) == repr(
        flatten(map_structure(lambda leaf: {"z": 0, "a": 0}, value))[1]
    )
    with suppress(InvalidTypeError):  # classes of this test have no name
        sent = structure_of_data(json.loads(json.dumps(structure_to_data(structure))))
        assert repr(sent.unflatten(found)) == repr(value)


@pytest.mark.parametrize("made", [OrderedDict, dict, UserDict, MappingProxyType])
def test_any_mapping_is_a_dictionary_and_an_ordered_one_stays_so(made):
    value = made({"b": 1, "a": made({"z": 2, "c": 3})})
    found, structure = flatten(value)
    kind = OrderedDict if made is OrderedDict else dict
    assert repr(structure.unflatten(found)) == repr(kind({"b": 1, "a": kind({"z": 2, "c": 3})}))
    assert structure == flatten({"a": {"c": 0, "z": 0}, "b": 0})[1]


def test_paths_name_every_leaf():
    _, structure = flatten({"a": (1, Point(2, 3)), "b": Sample(4, None)})
    assert structure.paths() == ["['a'][0]", "['a'][1].x", "['a'][1].y", "['b'].image"]
    assert str(structure) == "{'a': (*, Point(x=*, y=*)), 'b': Sample(image=*, label=None)}"


def test_another_structure_is_an_error_that_shows_both():
    _, structure = flatten((1, {"a": 2}))
    with pytest.raises(ps.ElementError, match=r"expected an element of structure \(\*, \{'a': \*\}\), got \(\*,\)"):
        structure.flatten_like((1,))


def test_keys_that_cannot_be_sorted_are_refused():
    with pytest.raises(TypeError, match="use strings"):
        flatten({1: 2, "a": 3})


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (3, np.int64, ()),
        (True, np.bool_, ()),
        (0.5, np.float32, ()),
        (np.float64(0.5), np.float64, ()),
        ([1.0, 2.0], np.float32, (2,)),
        ([[1], [2]], np.int64, (2, 1)),
        ([np.float64(1)], np.float64, (1,)),
        (["a"], object, (1,)),
        (np.array(["a"]), np.dtype("<U1"), (1,)),
        ("text", object, ()),
        (b"bytes", object, ()),
    ],
)
def test_python_values_become_leaves(value, dtype, shape):
    assert spec_of(as_leaf(value)) == ps.TensorSpec(shape, dtype)


def test_lists_of_unequal_rows_are_refused():
    with pytest.raises(ps.ElementError, match="rows of equal shape"):
        as_leaf([[1], [1, 2]])


def test_specifications_cover_what_they_leave_open():
    images = ps.TensorSpec((None, 28), np.uint8)
    assert covers(images, ps.TensorSpec((3, 28), np.uint8))
    assert not covers(images, ps.TensorSpec((3, 27), np.uint8))
    assert merged(images, ps.TensorSpec((3, 27), np.uint8)) == ps.TensorSpec((None, None), np.uint8)
    with pytest.raises(ps.ElementError, match="nothing in common"):
        merged(images, ps.TensorSpec((3,), np.uint8))
    assert describe_mismatch({"a": images}, {"a": ps.TensorSpec((3,), np.uint8)}) == (
        "expected TensorSpec(shape=(None, 28), dtype=uint8) at ['a'], got TensorSpec(shape=(3,), dtype=uint8)"
    )
