"""Values that are missing: None, nulls, NaN, and rows without entries."""

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import ElementError, InvalidTypeError

ROWS = {
    "word": np.array(["b", None, "b", "a"], object),
    "count": np.array([3, None, 2**60 + 1, 3], object),
    "x": np.array([1.0, np.nan, 3.0, 5.0]),
    "maybe": np.array([1.5, None, 0.5, None], object),
}


def filled(c):
    fill = ps.transform.fill_missing
    return {
        "word": ps.transform.compute_and_apply_vocabulary(fill(c["word"], "none"), vocab_filename="words"),
        "count": fill(c["count"], -1),
        "x": fill(c["x"], 0),
        "maybe": fill(c["maybe"], 2),
    }


def analyzed(function, directory, rows=ROWS):
    return ps.transform.analyze(ps.Dataset.from_tensor_slices(rows), function, directory)


def test_missing_values_are_filled_in_training_and_serving(tmp_path):
    output = analyzed(filled, tmp_path)
    layer = output.transform_features_layer()
    found = layer(ROWS)
    assert found["word"].tolist() == [0, 1, 0, 2]
    assert found["count"].tolist() == [3, -1, 2**60 + 1, 3] and found["count"].dtype == np.int64
    assert found["x"].tolist() == [1.0, 0.0, 3.0, 5.0]
    assert found["maybe"].tolist() == [1.5, 2.0, 0.5, 2.0]
    assert output.missing == {"word": 1}
    arrow = {
        "word": pa.chunked_array([["a", None]]),
        "count": pa.array([None, 2**60 + 1]),
        "x": pa.array([None, 2.0]),
        "maybe": pa.array([None, 1.0]),
    }
    served = {name: values.tolist() for name, values in layer(arrow).items()}
    assert served == {"word": [2, 1], "count": [-1, 2**60 + 1], "x": [0.0, 2.0], "maybe": [2.0, 1.0]}
    row = layer({"word": None, "count": None, "x": 4.0, "maybe": None})
    assert {name: value.item() for name, value in row.items()} == {"word": 1, "count": -1, "x": 4.0, "maybe": 2}


def test_rows_of_one_entry_at_most_become_the_entry(tmp_path):
    rows = {"w": [["b"], [], ["a"]], "n": [[1], [2], []]}

    def row(index):
        return {"w": np.array(rows["w"][index], object), "n": np.array(rows["n"][index], np.int64)}

    def function(c):
        return {"w": ps.transform.fill_missing(c["w"], "?"), "n": ps.transform.fill_missing(c["n"], 9)}

    layer = ps.transform.analyze(ps.Dataset.range(3).map(row), function, tmp_path).transform_features_layer()
    found = layer({"w": [["b"], None, ["a"]], "n": rows["n"]})
    assert (found["w"].tolist(), found["n"].tolist()) == (["b", "?", "a"], [1, 2, 9])
    with pytest.raises(ElementError, match="'n': fill_missing takes rows with one entry at most"):
        layer({"w": rows["w"], "n": [[1, 2], [], []]})


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("word", 3, "cannot put 3 among strings"),
        ("count", "none", "cannot put 'none' among"),
        ("count", 0.5, "cannot put 0.5 among int64"),
        ("x", "none", "cannot put 'none' among float64"),
    ],
)
def test_a_value_of_another_kind_is_refused(tmp_path, column, value, message):
    with pytest.raises(InvalidTypeError, match=message) as caught:
        analyzed(lambda c: {"y": ps.transform.fill_missing(c[column], value)}, tmp_path)
    assert any("test_missing_values.py:" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("value", [None, np.nan, ["a"]])
def test_what_is_no_value_is_refused(tmp_path, value):
    with pytest.raises(InvalidTypeError, match=r"test_missing_values.py:\d+: fill_missing takes a string or a finite"):
        analyzed(lambda c: {"y": ps.transform.fill_missing(c["x"], value)}, tmp_path)
    with pytest.raises(InvalidTypeError, match="fill_missing takes a column of the dataset"):
        analyzed(lambda c: {"y": ps.transform.fill_missing(c["x"] + 1, 0)}, tmp_path)


@pytest.mark.parametrize("given", [["a", None], pa.array(["a", None])])
def test_missing_values_without_a_filler_are_an_error_with_the_remedy(tmp_path, given):
    rows = {"word": np.array(["a", "b"], object)}
    layer = analyzed(
        lambda c: {"y": ps.transform.hash_strings(c["word"], 3)}, tmp_path, rows
    ).transform_features_layer()
    with pytest.raises(ElementError, match=r"'word': .*missing.*ps.transform.fill_missing\(column, value\)"):
        layer({"word": given})
    passed_on = analyzed(
        lambda c: {"a": c["word"], "b": ps.transform.fill_missing(c["word"], "")}, tmp_path / "other", rows
    )
    with pytest.raises(ElementError, match="'word': .*missing"):
        passed_on.transform_features_layer()({"word": given})


def test_empty_rows_keep_the_dtype_of_the_others(tmp_path):
    def row(n):
        return {"r": np.arange(n, dtype=np.int64)}

    def function(c):
        return {"y": ps.transform.compute_and_apply_vocabulary(c["r"])}

    layer = ps.transform.analyze(ps.Dataset.range(3).map(row), function, tmp_path).transform_features_layer()
    assert [found.tolist() for found in layer({"r": [[1], [], [0]]})["y"]] == [[1], [], [0]]


def test_whole_numbers_were_refused_in_a_filled_column_of_floats(tmp_path):
    """JSON writes 50.0 as 50. An array says of what kind its column is."""
    rows = {"x": np.array([20.0, np.nan, 40.0])}
    layer = analyzed(lambda c: {"y": ps.transform.fill_missing(c["x"], 0.5)}, tmp_path, rows).transform_features_layer()
    for given, filled in (([50, None], [50, 0.5]), ([50, 51], [50, 51]), ([50.5, 2**60], [50.5, 2.0**60])):
        found = layer({"x": given})["y"]
        assert found.dtype == np.float64
        assert found.tolist() == filled
    for given in ([True, None], np.array([50, None], object)):
        with pytest.raises(InvalidTypeError, match=r"'x': fill_missing cannot put 0.5 among"):
            layer({"x": given})


@pytest.mark.parametrize("value", [0.5, 2.0])
@pytest.mark.parametrize(
    "given",
    [
        np.array([3, 4]),
        np.array([3, None], object),
        np.array([True, False]),
        np.array([True, None], object),
        pa.array([3, 4]),
        pa.array([3, None]),
        pa.array([3, None], pa.int8()),
        pa.chunked_array([[3], [None]]),
        pa.array([True, None]),
        pa.array([True, False]),
    ],
)
def test_a_float_among_integers_depended_on_nulls_in_its_block(tmp_path, given, value):
    """Arrow made 0 of 0.5, and integers of which none was missing were let through."""
    rows = {"x": np.array([20.0, np.nan, 40.0])}
    layer = analyzed(
        lambda c: {"y": ps.transform.fill_missing(c["x"], value)}, tmp_path, rows
    ).transform_features_layer()
    with pytest.raises(InvalidTypeError, match=rf"'x': fill_missing cannot put {value} among "):
        layer({"x": given})


def test_a_column_of_integers_refuses_a_float_at_its_first_row(tmp_path):
    rows = {"n": np.arange(5000)}
    with pytest.raises(
        InvalidTypeError, match=r"'n': fill_missing cannot put 0.0 among int64: give a value of the same"
    ):
        analyzed(lambda c: {"y": ps.transform.scale_to_0_1(ps.transform.fill_missing(c["n"], 0.0))}, tmp_path, rows)


@pytest.mark.parametrize(("value", "given"), [(300, [1, 2]), (300, [1, None]), (-1, [1, 2]), (-1, [1, None])])
def test_a_number_beyond_arrows_column_is_refused_with_any_nulls(tmp_path, value, given):
    rows = {"n": np.array([1, None], object)}
    layer = analyzed(
        lambda c: {"y": ps.transform.fill_missing(c["n"], value)}, tmp_path, rows
    ).transform_features_layer()
    with pytest.raises(InvalidTypeError, match=rf"'n': fill_missing cannot put {value} among uint8"):
        layer({"n": pa.array(given, pa.uint8())})


def test_a_float_for_rows_of_one_integer_at_most_became_an_integer(tmp_path):
    def row(n):
        return {"x": np.full(n % 2, n, np.float64)}

    def function(c):
        return {"y": ps.transform.fill_missing(c["x"], 0.5)}

    layer = ps.transform.analyze(ps.Dataset.range(4).map(row), function, tmp_path).transform_features_layer()
    assert layer({"x": [[50], []]})["y"].tolist() == [50.0, 0.5]
    for given in (pa.array([[50], []]), np.array([np.array([50]), np.array([], int)], object)):
        with pytest.raises(InvalidTypeError, match="'x': fill_missing cannot put 0.5 among int64"):
            layer({"x": given})
