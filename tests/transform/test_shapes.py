"""Columns whose elements have axes, and how they are combined: the same in blocks of any number of rows."""

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import ElementError, PenstockError
from penstock.transform.columns import to_array
from penstock.transform.evaluate import Evaluator
from penstock.transform.symbols import trace

T = ps.transform

SHAPES = {"x": (), "v": (3,), "m": (2, 3), "w": (), "r": (None,), "s": (2,), "t": (None,)}


def lists(*rows):
    column = np.empty(len(rows), object)
    column[:] = rows
    return column


ROWS = {
    "x": np.array([1.0, -2.0, 3.0]),
    "v": np.arange(9.0).reshape(3, 3),
    "m": np.arange(18.0).reshape(3, 2, 3),
    "w": np.array(["a", "b", "c"], object),
    "r": lists(np.array([1.0, 2.0]), np.array([4.0]), np.array([5.0, 7.0, 1.0])),
    "s": np.array([["a", "b"], ["c", "a"], ["b", "b"]], object),
    "t": lists(np.array(["a", "b"], object), np.array(["c"], object), np.array([], object)),
}

FUNCTIONS = {
    "x + v": lambda c: c["x"] + c["v"],
    "x + [1, 2, 3]": lambda c: c["x"] + np.array([1.0, 2.0, 3.0]),
    "v + [1, 2, 3]": lambda c: c["v"] + np.array([1.0, 2.0, 3.0]),
    "v + [[1], [2], [3]]": lambda c: c["v"] + np.array([[1.0], [2.0], [3.0]]),
    "v + [[1, 2, 3]]": lambda c: c["v"] + np.array([[1.0, 2.0, 3.0]]),
    "m + v": lambda c: c["m"] + c["v"],
    "m + v[:, None]": lambda c: c["m"] + c["v"][:, None],
    "r + x": lambda c: c["r"] + c["x"],
    "r + [1, 2, 3]": lambda c: c["r"] + np.array([1.0, 2.0, 3.0]),
    "where r": lambda c: np.where(c["x"] > 0, c["r"], 0.0),
    "where [True, False, True]": lambda c: np.where(np.array([True, False, True]), c["x"], 0.0),
    "digitize r": lambda c: np.digitize(c["r"], [1.5, 4.0, 6.0]),
    "digitize by x": lambda c: np.digitize(c["v"], c["x"]),
    "interp r": lambda c: np.interp(c["r"], [0.0, 3.0, 9.0], [0.0, 1.0, 2.0]),
    "isin r": lambda c: np.isin(c["r"], [1.0, 2.0, 7.0]),
    "sum of x": lambda c: np.sum(c["x"], axis=-1),
    "sum of v": lambda c: np.sum(c["v"], axis=-1),
    "sum of m": lambda c: np.sum(c["m"], axis=-3),
    "sum of r": lambda c: np.sum(c["r"], axis=-1),
    "cumsum of x": lambda c: np.cumsum(c["x"], axis=-1),
    "stack x": lambda c: np.stack([c["x"], c["x"]], axis=-2),
    "stack w": lambda c: np.stack([c["w"], c["w"]], axis=-1),
    "stack s": lambda c: np.stack([c["s"], c["s"]], axis=1),
    "stack a constant": lambda c: np.stack([c["x"], np.zeros(3)], axis=1),
    "expand x": lambda c: np.expand_dims(c["x"], axis=-2),
    "concatenate x": lambda c: np.concatenate([c["x"], c["x"]], axis=-1),
    "concatenate v": lambda c: np.concatenate([c["v"], c["v"]], axis=-1),
    "concatenate s": lambda c: np.concatenate([c["s"], c["s"]], axis=1),
    "concatenate t": lambda c: np.concatenate([c["t"], c["s"]], axis=1),
    "concatenate r": lambda c: np.concatenate([c["v"], c["r"]], axis=-1),
    "concatenate both": lambda c: np.concatenate([c["s"], c["v"]], axis=-1),
    "column_stack w": lambda c: np.column_stack([c["w"], c["w"]]),
    "x @ x": lambda c: c["x"] @ c["x"],
    "v @ v": lambda c: c["v"] @ c["v"],
    "v @ matrix": lambda c: c["v"] @ np.ones((3, 2)),
    "v @ vector": lambda c: c["v"] @ np.ones(3),
    "matrix @ v": lambda c: np.ones((3, 3)) @ c["v"],
    "x[..., 0]": lambda c: c["x"][..., 0],
    "x[:, 0]": lambda c: c["x"][:, 0],
    "v[:, 5]": lambda c: c["v"][:, 5],
    "w == [a, b, a]": lambda c: c["w"] == np.array(["a", "b", "a"]),
    "s == w": lambda c: c["s"] == c["w"],
    "s != a": lambda c: c["s"] != "a",
    "hash s": lambda c: T.hash_strings(c["s"], 100),
    "upper s": lambda c: T.upper(c["s"]),
    "s with x": lambda c: np.where(c["s"] == "a", c["x"], 0.0),
}


def rows_of(function, rows):
    """What a function gives for these rows, as lists; None if penstock refuses it."""
    graph = trace(SHAPES, lambda c: {"y": function(c)})
    try:
        (found,) = Evaluator(graph, {}, [graph.outputs["y"]])(rows)
    except PenstockError:
        return None
    return [row.tolist() if hasattr(row, "tolist") else row for row in to_array(found)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_agrees_by_chance_in_a_block_of_some_rows_is_refused_in_all(name):
    one_by_one = [
        rows_of(FUNCTIONS[name], {column: values[n : n + 1] for column, values in ROWS.items()}) for n in range(3)
    ]
    for rows in (2, 3):
        found = rows_of(FUNCTIONS[name], {column: values[:rows] for column, values in ROWS.items()})
        if found is None:
            assert one_by_one[:rows] == [None] * rows
        else:
            assert found == [row for part in one_by_one[:rows] for row in part]


def test_these_combinations_are_computed():
    refused = {name for name, function in FUNCTIONS.items() if rows_of(function, ROWS) is None}
    assert refused == {
        "x + v",
        "x + [1, 2, 3]",
        "v + [[1], [2], [3]]",
        "m + v",
        "r + [1, 2, 3]",
        "where [True, False, True]",
        "digitize by x",
        "sum of x",
        "sum of m",
        "sum of r",
        "cumsum of x",
        "stack x",
        "stack a constant",
        "expand x",
        "concatenate x",
        "concatenate both",
        "x @ x",
        "v @ v",
        "matrix @ v",
        "x[..., 0]",
        "x[:, 0]",
        "v[:, 5]",
        "w == [a, b, a]",
        "s with x",
    }


def analyzed(function, directory, rows):
    dataset = ps.Dataset.from_list([dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)])
    return T.analyze(dataset, lambda c: {"y": function(c)}, directory), dataset


def learned(function, directory, rows):
    output, dataset = analyzed(function, directory, rows)
    return [row["y"].tolist() for row in dataset.map(output.transform_features_layer())]


@pytest.mark.parametrize(
    "join",
    [lambda c: np.stack([c["w"], c["u"]], axis=1), lambda c: np.column_stack([c["w"], c["u"]])],
    ids=["stack", "column_stack"],
)
def test_two_columns_of_strings_share_a_vocabulary(tmp_path, join):
    rows = {"w": ["hello", "good", "hello"], "u": ["world", "hello", "aaaaa"]}
    output, _ = analyzed(
        lambda c: T.apply_vocabulary(c["u"], T.vocabulary(join(c), vocab_filename="v")), tmp_path, rows
    )
    assert output.vocabulary_by_name("v") == ["hello", "world", "good", "aaaaa"]


def test_lists_of_strings_of_two_columns_share_a_vocabulary(tmp_path):
    words = [np.array(["a", "b"], object), np.array([], object), np.array(["b"], object)]
    tags = [np.array(["b", "c"], object)] * 3

    def function(c):
        return T.apply_vocabulary(c["w"], T.vocabulary(np.concatenate([c["w"], c["u"]], axis=1), vocab_filename="v"))

    output, _ = analyzed(function, tmp_path, {"w": words, "u": tags})
    assert output.vocabulary_by_name("v") == ["b", "c", "a"]


def test_joining_along_the_rows_says_how_to_put_columns_side_by_side():
    for axis in (0, None):
        with pytest.raises(ps.InvalidArgumentError, match=r"np\.stack\(\[\.\.\.\], axis=1\) puts columns side by side"):
            trace(SHAPES, lambda c, axis=axis: {"y": np.concatenate([c["w"], c["w"]], axis=axis)})


KEYS = [np.array(["a", "a"], object), np.array(["a", "b"], object), np.array(["b", "b"], object)]
NUMBERS = np.float32([[4, 8], [1, 5], [-2, 0]])


@pytest.mark.parametrize("lengths", ["equal", "unequal"])
def test_each_number_of_a_list_may_have_a_key_of_its_own(tmp_path, lengths):
    rows = {"x": list(NUMBERS), "k": list(KEYS)}
    if lengths == "unequal":
        rows = {"x": [*rows["x"], np.float32([3])], "k": [*rows["k"], np.array(["a"], object)]}
    found = learned(lambda c: T.scale_to_0_1_per_key(c["x"], c["k"]), tmp_path / "scaled", rows)
    np.testing.assert_allclose(np.array(found[:3]), [[3 / 7, 1], [0, 1], [0, 2 / 7]], rtol=1e-6)
    found = learned(lambda c: T.bucketize_per_key(c["x"], c["k"], 2), tmp_path / "buckets", rows)
    assert found[:3] == [[1, 1], [0, 1], [0, 1]]


def test_a_key_for_each_row_counts_for_all_its_numbers(tmp_path):
    rows = {"x": list(NUMBERS), "k": ["a", "a", "b"]}
    found = learned(lambda c: T.scale_to_0_1_per_key(c["x"], c["k"]), tmp_path / "all", rows)
    np.testing.assert_allclose(np.array(found), [[3 / 7, 1], [0, 4 / 7], [0, 1]], rtol=1e-6)
    found = learned(lambda c: T.scale_to_0_1_per_key(c["x"], c["k"], elementwise=True), tmp_path / "each", rows)
    np.testing.assert_allclose(np.array(found[:2]), [[1, 1], [0, 0]])
    found = learned(lambda c: T.bucketize_per_key(c["x"], c["k"], 2), tmp_path / "buckets", rows)
    assert found == [[0, 1], [0, 1], [0, 1]]


def test_other_keys_than_numbers_are_refused(tmp_path):
    rows = {"x": [1.0, 2.0, 3.0], "k": list(KEYS)}
    for number, function in enumerate((T.scale_to_0_1_per_key, lambda x, k: T.bucketize_per_key(x, k, 2))):
        with pytest.raises(ElementError, match="ragged columns must be of equal lengths"):
            analyzed(lambda c, function=function: function(c["x"], c["k"]), tmp_path / str(number), rows)
    keyed = {"x": list(NUMBERS), "k": list(KEYS)}
    with pytest.raises(ElementError, match="3 rows have 6 keys"):
        analyzed(lambda c: T.scale_to_0_1_per_key(c["x"], c["k"], elementwise=True), tmp_path / "each", keyed)


def test_a_weight_of_a_row_counts_for_all_its_numbers(tmp_path):
    rows = {"x": list(np.float32([[1, 10], [2, 20], [3, 30]])), "w": list(np.float32([1, 3, 1]))}
    found = learned(lambda c: T.bucketize(c["x"], 3, weights=c["w"], elementwise=True), tmp_path / "each", rows)
    assert found == [[0, 0], [2, 2], [2, 2]]
    each = {**rows, "w": [np.full(2, weight) for weight in rows["w"]]}
    for number, some in enumerate((rows, each)):
        found = learned(lambda c: T.bucketize(c["x"], 2, weights=c["w"]), tmp_path / f"all {number}", some)
        assert found == [[0, 1], [0, 1], [0, 1]]
    integers = {"x": list(np.array([[1, 2], [2, 3], [3, 3]])), "w": [5.0, 1.0, 1.0]}
    output, _ = analyzed(
        lambda c: T.apply_vocabulary(c["x"], T.vocabulary(c["x"], weights=c["w"], vocab_filename="v")),
        tmp_path / "tokens",
        integers,
    )
    assert output.vocabulary_by_name("v") == ["2", "1", "3"]


def test_weights_of_another_number_are_refused(tmp_path):
    rows = {"x": list(np.float32([[1, 10], [2, 20], [3, 30]])), "w": list(np.ones((3, 3), np.float32))}
    for number, elementwise in enumerate((True, False)):
        with pytest.raises(ElementError, match=r"a value for each row, or for each of its values, got .*\(3,\)"):
            analyzed(
                lambda c, elementwise=elementwise: T.bucketize(c["x"], 2, weights=c["w"], elementwise=elementwise),
                tmp_path / str(number),
                rows,
            )


TABLES = np.array([[["a", "b", "a"], ["c", "a", "b"]], [["a", "a", "c"], ["d", "c", "b"]]], object)


def test_strings_with_two_axes_keep_them(tmp_path):
    def function(c):
        return {
            "index": T.compute_and_apply_vocabulary(c["s"]),
            "upper": T.upper(c["s"]),
            "hash": T.hash_strings(c["s"], 7),
            "equal": c["s"] == "a",
        }

    dataset = ps.Dataset.from_list([{"s": table} for table in TABLES])
    output = T.analyze(dataset, function, tmp_path)
    layer = output.transform_features_layer()
    assert {name: spec.shape for name, spec in output.transformed_element_spec.items()} == dict.fromkeys(
        ("index", "upper", "hash", "equal"), (2, 3)
    )
    rows = list(dataset.map(layer))
    for name, found in layer({"s": TABLES}).items():
        assert found.shape == (2, 2, 3)
        assert found.tolist() == [row[name].tolist() for row in rows]
        assert found.tolist() == layer({"s": TABLES.tolist()})[name].tolist()
        assert found.tolist() == layer({"s": pa.array(TABLES.tolist())})[name].tolist()
        assert found[0].tolist() == layer({"s": TABLES[0]})[name].tolist()
    assert rows[0]["index"].tolist() == [[0, 2, 0], [1, 0, 2]]
    with pytest.raises(ElementError, match=r"expected rows of shape \(2, 3\)"):
        layer({"s": TABLES[:, :, :2]})


def test_strings_with_two_axes_that_differ_between_rows_are_refused(tmp_path):
    dataset = ps.Dataset.from_generator(
        lambda: iter([{"s": TABLES[0]}, {"s": TABLES[0][:, :2]}]),
        output_signature={"s": ps.TensorSpec((None, None), object)},
    )
    with pytest.raises(ElementError, match="may differ in their first axis only"):
        T.analyze(dataset, lambda c: {"y": T.compute_and_apply_vocabulary(c["s"])}, tmp_path)


def test_a_row_that_is_no_list_among_lists_is_refused(tmp_path):
    rows = {"r": [np.array([1.0, 2.0]), np.array([1.0])]}
    layer = analyzed(lambda c: c["r"] + 1, tmp_path, rows)[0].transform_features_layer()
    assert [row.tolist() for row in layer({"r": [None, [1.0, 2.0]]})["y"]] == [[], [2.0, 3.0]]
    with pytest.raises(ElementError, match="row 1 of the block is 3.0, where others are lists"):
        layer({"r": [[1.0, 2.0], 3.0]})
