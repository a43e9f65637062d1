"""What a preprocessing function may do with columns, and what is said when it does something else."""

import json

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.errors import ElementError, InvalidArgumentError, InvalidTypeError, StateMismatchError, StorageError
from penstock.transform import passes as analysis
from penstock.transform.symbols import trace

SHAPES = {"x": (), "v": (3,), "w": (), "r": (None,)}
ROWS = {
    "x": np.array([1.0, -2.0, 3.0]),
    "v": np.arange(9.0).reshape(3, 3),
    "w": np.array(["a", "b", ""], object),
    "r": np.array([np.array([1, 2]), np.array([], np.int64), np.array([5])], object),
}


def analyze(function, directory, rows=ROWS):
    columns = list(rows)
    dataset = ps.Dataset.range(len(rows["x"])).map(lambda n: {name: rows[name][n] for name in columns})
    return ps.transform.analyze(dataset, function, directory)


def applied(function, directory):
    return analyze(function, directory).transform_features_layer()(ROWS)


def test_numpys_functions_and_operators_are_noted_and_computed(tmp_path):
    def function(c):
        x, v = c["x"], c["v"]
        return {
            "arithmetic": 2 * x**2 - abs(x) / 4 + 1,
            "where": np.where(x > 0, np.log1p(np.abs(x)), -1.0),
            "clip": np.clip(x, -1, 2),
            "stack": np.stack([x, x + 1], axis=-1),
            "sum": np.sum(v, axis=-1),
            "matmul": v @ np.eye(3)[:, :2],
            "index": v[:, 1] + v[..., -1],
            "wide": x[:, None] * v,
            "cast": x.astype("int32"),
            "isin": np.isin(c["w"], ["a", "zz"]),
            "filled": np.where(c["w"] == "", "none", c["w"]),
            "same": (c["w"] != "a").astype("float32"),
            "ragged": np.sqrt(c["r"]) * x,
            "digitize": np.digitize(x, [0.0, 2.0]),
            "interp": np.interp(x, [-2.0, 3.0], [0.0, 1.0]),
        }

    found = applied(function, tmp_path)
    x, v = ROWS["x"], ROWS["v"]
    np.testing.assert_array_equal(found["arithmetic"], 2 * x**2 - abs(x) / 4 + 1)
    np.testing.assert_array_equal(found["where"], np.where(x > 0, np.log1p(np.abs(x)), -1.0))
    np.testing.assert_array_equal(found["clip"], np.clip(x, -1, 2))
    np.testing.assert_array_equal(found["stack"], np.stack([x, x + 1], axis=-1))
    np.testing.assert_array_equal(found["sum"], v.sum(axis=-1))
    np.testing.assert_array_equal(found["matmul"], v[:, :2])
    np.testing.assert_array_equal(found["index"], v[:, 1] + v[:, 2])
    np.testing.assert_array_equal(found["wide"], x[:, None] * v)
    assert found["cast"].tolist() == [1, -2, 3] and found["cast"].dtype == np.int32
    assert found["isin"].tolist() == [True, False, False]
    assert found["filled"].tolist() == ["a", "b", "none"]
    assert found["same"].tolist() == [0, 1, 1]
    assert [row.tolist() for row in found["ragged"]] == [[1.0, np.sqrt(2)], [], [np.sqrt(5) * 3]]
    assert found["digitize"].tolist() == [1, 0, 2]
    np.testing.assert_allclose(found["interp"], [0.6, 0.0, 1.0])


def two_vocabularies(columns):
    one = ps.transform.vocabulary(columns["w"], vocab_filename="words")
    other = ps.transform.vocabulary(columns["w"], vocab_filename="words", top_k=2)
    return {"y": ps.transform.apply_vocabulary(columns["w"], one) + ps.transform.apply_vocabulary(columns["w"], other)}


def branches(columns):
    if columns["x"] > 0:
        return {"x": columns["x"]}
    return {}


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (branches, InvalidTypeError, r"test_tracing.py:\d+: a column has no single truth value.*np.where"),
        (two_vocabularies, InvalidArgumentError, r"'words' names another vocabulary already, of .*test_tracing.py:\d+"),
        (
            lambda c: {"y": ps.transform.compute_and_apply_vocabulary(c["w"], key_fn=str.lower)},
            InvalidArgumentError,
            r"test_tracing.py:\d+: vocabulary takes key_fn together with coverage_top_k or coverage_freq",
        ),
        (
            lambda c: {"y": ps.transform.compute_and_apply_vocabulary(c["w"], coverage_top_k=2)},
            InvalidArgumentError,
            "vocabulary takes key_fn together with .* got key_fn=None, coverage_top_k=2",
        ),
        (
            lambda c: {"y": ps.transform.compute_and_apply_vocabulary(c["w"], key_fn=lambda t: t, coverage_top_k=2)},
            InvalidArgumentError,
            r"vocabulary\(key_fn=...\) takes a function that can be imported by its name",
        ),
        (lambda c: {"y": c["z"]}, InvalidArgumentError, r"test_tracing.py:\d+: there is no column 'z'.*'x', 'v'"),
        (lambda c: {"y": float(c["x"])}, InvalidTypeError, "values of a column are not known.*ps.transform.call"),
        (lambda c: {"y": c["x"].sum()}, InvalidTypeError, "a column has no .sum"),
        (lambda c: {"y": np.sort(c["x"])}, InvalidTypeError, "np.sort cannot be used on a column.*closed set"),
        (lambda c: {"y": np.add.reduce(c["x"])}, InvalidTypeError, "np.add.reduce cannot be used"),
        (lambda c: {"y": np.mean(c["x"])}, InvalidArgumentError, "axis of its elements.*ps.transform.mean"),
        (lambda c: {"y": np.sum(c["v"], axis=0)}, InvalidArgumentError, "axis=0.*analyzer"),
        (lambda c: {"y": c["x"][0]}, InvalidArgumentError, "whose first is ':'.*dataset.filter"),
        (lambda c: {"y": c["x"] + object()}, InvalidTypeError, "expected a column, a number"),
        (lambda c: {"y": 3.0}, InvalidTypeError, r"test_tracing.py:\d+: preprocessing_fn must return columns by name"),
        (lambda c: [c["x"]], InvalidTypeError, r"test_tracing.py:\d+: .* must return a dictionary of columns"),
        (lambda c: {"y": ps.transform.mean(c["x"])}, InvalidTypeError, "has no rows.*learned from all"),
        (lambda c: {"y": ps.transform.scale_to_0_1(3)}, InvalidTypeError, "takes columns of a preprocessing function"),
        (lambda c: {"y": ps.transform.scale_by_min_max(c["x"], 1, 0)}, InvalidArgumentError, "output_min below"),
        (lambda c: {"y": ps.transform.bucketize(c["x"], 0)}, InvalidArgumentError, "num_buckets"),
        (lambda c: {"y": ps.transform.call(lambda x: x, c["x"])}, InvalidArgumentError, "imported by its name"),
        (lambda c: {"y": ps.transform.apply_vocabulary(c["w"], "/no/file")}, InvalidArgumentError, "no such file"),
        (lambda c: {"y": ps.transform.ngrams(c["r"], (0, 1), " ")}, InvalidArgumentError, "ngram_range"),
    ],
)
def test_what_cannot_be_noted_is_refused_with_the_line_of_the_user(function, error, message):
    with pytest.raises(error, match=message):
        trace(SHAPES, function)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda c: {"y": c["w"] + 1}, InvalidTypeError, "add takes numbers, got strings"),
        (lambda c: {"y": ps.transform.scale_to_z_score(c["w"])}, InvalidTypeError, "from numbers, got strings"),
        (lambda c: {"y": ps.transform.hash_strings(c["x"], 3)}, InvalidTypeError, "takes strings"),
        (lambda c: {"y": ps.transform.ngrams(c["w"], (1, 2), " ")}, InvalidTypeError, "rows of tokens.*split"),
        (lambda c: {"y": ps.transform.compute_and_apply_vocabulary(c["x"])}, InvalidTypeError, "strings or integers"),
    ],
)
def test_an_operation_on_the_wrong_column_names_the_line_that_asked_for_it(function, error, message, tmp_path):
    with pytest.raises(error, match=message) as caught:
        analyze(function, tmp_path)
    assert any("test_tracing.py:" in note for note in caught.value.__notes__)


def test_a_function_of_a_module_is_saved_by_its_name(tmp_path):
    output = analyze(lambda c: {"y": ps.transform.call(np.flip, c["x"])}, tmp_path)
    assert output.transform_features_layer()(ROWS)["y"].tolist() == [3.0, -2.0, 1.0]
    saved = json.loads((tmp_path / "transform.json").read_text())
    assert "numpy:flip" in json.dumps(saved["graph"])


def test_nested_analyzers_take_as_many_passes_as_they_are_deep():
    def function(c):
        z = ps.transform.scale_to_z_score(c["x"])
        return {
            "a": ps.transform.bucketize(z, 3),
            "b": ps.transform.scale_to_0_1(c["x"]),
            "c": z - ps.transform.mean(z),
        }

    passes = trace(SHAPES, function).passes()
    assert [len(analyzers) for analyzers in passes] == [2, 2]


def test_passes_that_are_done_are_not_repeated(tmp_path, monkeypatch):
    def function(c):
        return {"y": ps.transform.bucketize(ps.transform.scale_to_0_1(c["x"]), 2)}

    learn, passes = analysis.one_pass, []

    def interrupted(*arguments):
        passes.append(arguments[3])
        if len(passes) == 2:
            raise KeyboardInterrupt
        return learn(*arguments)

    monkeypatch.setattr(analysis, "one_pass", interrupted)
    with pytest.raises(KeyboardInterrupt):
        analyze(function, tmp_path)
    with pytest.raises(InvalidArgumentError, match="holds no transform"):
        ps.transform.TransformOutput(tmp_path)
    first = analyze(function, tmp_path)
    assert [what.rpartition(", ")[2] for what in passes] == ["pass 1 of 2", "pass 2 of 2", "pass 2 of 2"]
    assert analyze(function, tmp_path).learned.keys() == first.learned.keys() and len(passes) == 3
    assert not (tmp_path / "passes.json").exists()


def test_a_directory_of_another_function_or_other_data_is_refused(tmp_path):
    analyze(lambda c: {"y": ps.transform.scale_to_0_1(c["x"])}, tmp_path)
    with pytest.raises(StateMismatchError, match="another function: give an empty directory"):
        analyze(lambda c: {"y": ps.transform.scale_to_z_score(c["x"])}, tmp_path)
    other = {**ROWS, "x": np.array([1.0, 2.0, 9.0])}
    with pytest.raises(StateMismatchError, match="another dataset"):
        analyze(lambda c: {"y": ps.transform.scale_to_0_1(c["x"])}, tmp_path, other)


def test_arrays_in_memory_are_known_again_by_what_is_learned_from_them(tmp_path):
    def function(c):
        return {"y": ps.transform.compute_and_apply_vocabulary(c["w"]), "z": ps.transform.scale_to_0_1(c["x"])}

    def learned(x):
        rows = {"x": np.array(x), "w": ROWS["w"]}
        return ps.transform.analyze(ps.Dataset.from_tensor_slices(rows), function, tmp_path)

    first = learned([1.0, -2.0, 3.0])
    assert learned([1.0, -2.0, 3.0]).summary() == first.summary()
    with pytest.raises(StateMismatchError, match="another dataset: give an empty directory"):
        learned([1.0, -2.0, 9.0])
    assert ps.transform.TransformOutput(tmp_path).summary() == first.summary()


def test_an_interrupted_analysis_of_arrays_learns_nothing_from_others(tmp_path, monkeypatch):
    def function(c):
        return {"y": ps.transform.bucketize(ps.transform.scale_to_0_1(c["x"]), 2)}

    def analyzed(x, directory):
        return ps.transform.analyze(ps.Dataset.from_tensor_slices({"x": np.array(x)}), function, directory)

    learn = analysis.one_pass

    def interrupted(*arguments):
        if arguments[3].endswith("pass 2 of 2"):
            raise KeyboardInterrupt
        return learn(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(analysis, "one_pass", interrupted)
        with pytest.raises(KeyboardInterrupt):
            analyzed([1.0, 2.0, 3.0], tmp_path / "one")
    found, expected = analyzed([4.0, 5.0, 9.0], tmp_path / "one"), analyzed([4.0, 5.0, 9.0], tmp_path / "two")
    assert found.learned.keys() == expected.learned.keys()
    for number, values in found.learned.items():
        np.testing.assert_array_equal(values, expected.learned[number])


def test_a_transform_says_what_it_holds(tmp_path):
    output = analyze(lambda c: {"y": ps.transform.scale_to_0_1(c["x"])}, tmp_path)
    assert repr(output) == f"TransformOutput({str(tmp_path)!r}: 'x', 'v', 'w', 'r' -> 'y'; learned from 3 rows)"


def test_a_directory_of_another_version_is_refused(tmp_path):
    analyze(lambda c: {"y": ps.transform.scale_to_0_1(c["x"])}, tmp_path)
    path = tmp_path / "transform.json"
    saved = json.loads(path.read_text())
    saved["graph"]["version"] = 99
    path.write_text(json.dumps(saved))
    with pytest.raises(StateMismatchError, match="version 99.*analyze the data again"):
        ps.transform.TransformOutput(tmp_path)
    with pytest.raises(InvalidArgumentError, match="holds no transform"):
        ps.transform.TransformOutput(tmp_path / "nothing")


def test_loading_a_transform_imports_no_module(tmp_path, monkeypatch):
    analyze(lambda c: {"y": ps.transform.call(np.negative, c["x"])}, tmp_path)
    path = tmp_path / "transform.json"
    path.write_text(path.read_text().replace("numpy:negative", "left_behind:function"))
    (tmp_path / "left_behind.py").write_text("raise AssertionError('it ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidArgumentError, match="calls left_behind:function: import left_behind before"):
        ps.transform.TransformOutput(tmp_path).transform_features_layer()({"x": [1.0]})


def test_a_vocabulary_that_was_changed_is_refused(tmp_path):
    output = analyze(lambda c: {"y": ps.transform.compute_and_apply_vocabulary(c["w"], vocab_filename="v")}, tmp_path)
    with open(output.vocabulary_file_by_name("v"), "a") as file:
        file.write("more\n")
    with pytest.raises(StorageError, match="has changed since it was learned"):
        ps.transform.TransformOutput(tmp_path)


def test_a_vocabulary_of_the_users_is_kept_in_the_working_directory(tmp_path):
    given = tmp_path / "words.txt"
    given.write_text("b\na\n")
    output = analyze(lambda c: {"y": ps.transform.apply_vocabulary(c["w"], str(given))}, tmp_path / "made")
    given.unlink()
    (tmp_path / "made").rename(tmp_path / "moved")
    moved = ps.transform.TransformOutput(tmp_path / "moved")
    assert moved.transform_features_layer()(ROWS)["y"].tolist() == [1, 0, -1]
    assert moved.num_buckets("y") == 2
    assert moved.graph.fingerprint() == output.graph.fingerprint()
    next((tmp_path / "moved" / "assets").glob("given-*-words.txt")).write_text("a\nb\n")
    with pytest.raises(StorageError, match="words.txt has changed since it was learned"):
        moved.transform_features_layer()


def test_a_changed_vocabulary_of_the_user_is_named_at_the_next_analysis(tmp_path):
    given = tmp_path / "words.txt"
    given.write_text("b\na\n")

    def function(c):
        return {"y": ps.transform.apply_vocabulary(c["w"], str(given))}

    analyze(function, tmp_path / "made")
    given.write_text("b\na\nc\n")
    with pytest.raises(StateMismatchError, match=r"another state of the vocabulary file '.*words.txt': give an empty"):
        analyze(function, tmp_path / "made")


@pytest.mark.parametrize("content", [b"b\na", b"b\r\na\r\n", b"b\na\n"], ids=["no last end", "CRLF", "LF"])
def test_a_vocabulary_of_the_users_may_end_its_lines_in_any_way(tmp_path, content):
    given = tmp_path / "words.txt"
    given.write_bytes(content)
    output = analyze(lambda c: {"y": ps.transform.apply_vocabulary(c["w"], str(given))}, tmp_path / "made")
    assert output.transform_features_layer()(ROWS)["y"].tolist() == [1, 0, -1]
    assert output.num_buckets("y") == 2


@pytest.mark.parametrize(("content", "message"), [(b"b\n\na\n", "line 2 is empty"), (b"b\na\nb\n", "repeated: .b'b'")])
def test_a_users_vocabulary_with_ambiguous_indices_is_refused(tmp_path, content, message):
    given = tmp_path / "words.txt"
    given.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=message):
        trace(SHAPES, lambda c: {"y": ps.transform.apply_vocabulary(c["w"], given)})


@pytest.mark.parametrize(
    ("reserved", "error", "message"),
    [
        (["a\nb"], InvalidArgumentError, r"a line of a text cannot hold 'a\\nb': use file_format='tfrecord_gzip'"),
        (["a\r"], InvalidArgumentError, "cannot hold"),
        ([""], InvalidArgumentError, "cannot hold ''"),
        (["z", "y", "z"], InvalidArgumentError, "takes each token once, got 'z' twice"),
        ([b"z"], InvalidTypeError, r"takes strings, got b'z'"),
        ("zy", InvalidTypeError, "takes a list of strings, got 'zy'"),
        (3, InvalidTypeError, "takes a list of strings, got 3"),
    ],
)
def test_a_reserved_token_that_would_shift_all_indices_is_refused(reserved, error, message):
    with pytest.raises(error, match=rf"test_tracing.py:\d+: vocabulary\(reserved_tokens=...\).*{message}"):
        trace(SHAPES, lambda c: {"y": ps.transform.compute_and_apply_vocabulary(c["w"], reserved_tokens=reserved)})


def test_records_hold_any_reserved_token(tmp_path):
    reserved = ["", "x\ny", "\r"]

    def function(c):
        return {
            "y": ps.transform.compute_and_apply_vocabulary(
                c["w"], reserved_tokens=reserved, file_format="tfrecord_gzip", vocab_filename="v"
            )
        }

    output = analyze(function, tmp_path)
    assert output.vocabulary_by_name("v") == [*reserved, "b", "a"]
    assert output.transform_features_layer()(ROWS)["y"].tolist() == [4, 3, 0]


def of_spaces(tokens, directory, **arguments):
    rows = ps.Dataset.from_list([{"x": np.array(row, object)} for row in tokens])
    arguments |= {"vocab_filename": "v", "store_frequency": True}
    return ps.transform.analyze(
        rows, lambda c: {"y": ps.transform.compute_and_apply_vocabulary(c["x"], **arguments)}, directory
    )


def test_a_token_of_one_space_has_a_word_in_a_file_of_frequencies(tmp_path):
    tokens = [["hello", " "], ["world"], ["hello", "goodbye", " "], ["  "]]
    output = of_spaces(tokens, tmp_path / "text")
    with open(output.vocabulary_file_by_name("v"), "rb") as file:
        assert file.read() == b"2 hello\n2 __SPACE__\n1 world\n1 goodbye\n1   \n"
    assert output.vocabulary_by_name("v") == ["hello", " ", "world", "goodbye", "  "]
    assert output.transform_features_layer()({"x": [[" ", "hello"]]})["y"][0].tolist() == [1, 0]
    records = of_spaces([*tokens, ["__SPACE__"]], tmp_path / "records", file_format="tfrecord_gzip")
    assert records.vocabulary_by_name("v") == [*output.vocabulary_by_name("v")[:4], "__SPACE__", "  "]


def test_a_token_that_a_file_of_frequencies_reads_as_a_space_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="'__SPACE__' stands for a token of one space.*tfrecord_gzip"):
        of_spaces([["__SPACE__"]], tmp_path)


def test_results_whose_own_column_is_missing_are_left_out(tmp_path):
    def function(c):
        scaled = ps.transform.scale_to_0_1(c["x"])
        return {"x": scaled, "label": c["n"] - 1, "both": scaled * c["n"]}

    rows = {"x": ROWS["x"], "n": np.array([1, 2, 3])}
    layer = analyze(function, tmp_path, rows).transform_features_layer()
    assert set(layer(rows)) == {"x", "label", "both"}
    assert {name: found.tolist() for name, found in layer({"x": [3.0, -2.0]}).items()} == {"x": [1.0, 0.0]}
    assert layer({"n": 4}) == {"label": 3}
    served = ps.Dataset.from_tensor_slices({"x": rows["x"], "id": [7, 8, 9]}).map(layer)
    assert [row["x"] for row in served] == layer(rows)["x"].tolist()
    with pytest.raises(InvalidArgumentError, match="column 'x' is missing: the transform takes 'x', 'n', got 'id'"):
        layer({"id": [7]})


def without_a_size(tokens, path):
    return np.zeros(len(tokens), np.int64)


def too_few(tokens, path):
    return np.zeros(1, np.int64), 4


def lookup_by(function):
    return lambda c: {
        "y": ps.transform.apply_vocabulary(
            c["w"], ps.transform.vocabulary(c["w"], vocab_filename="v"), lookup_fn=function
        )
    }


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (without_a_size, "lookup_fn=.*:without_a_size returns integers and how many there are, got array"),
        (too_few, r"lookup_fn=.*:too_few got 3 tokens and returned int64 of shape \(1,\)"),
    ],
)
def test_a_lookup_function_that_returns_something_else_is_refused(tmp_path, function, message):
    with pytest.raises(InvalidTypeError, match=message):
        analyze(lookup_by(function), tmp_path)


def test_a_key_function_that_fails_is_named_with_the_token(tmp_path):
    def function(c):
        return {"y": ps.transform.compute_and_apply_vocabulary(c["w"], key_fn=json.loads, coverage_top_k=1)}

    with pytest.raises(ValueError, match="Expecting value") as caught:
        analyze(function, tmp_path)
    assert caught.value.__notes__ == ["in key_fn=json:loads of the preprocessing function, for the token 'b'"]


def test_numbers_and_indices_of_different_rows_are_refused(tmp_path):
    rows = {**ROWS, "places": np.array([np.array([0]), np.array([], np.int64), np.array([3])], object)}

    def function(c):
        return {"y": ps.transform.sparse_tensor_to_dense_with_shape(c["r"], [None, 4], indices=c["places"])}

    with pytest.raises(ElementError, match="row 0 of the block has 2 numbers and 1 indices"):
        analyze(function, tmp_path, rows)


def test_labels_and_weights_of_other_rows_are_refused(tmp_path):
    def labelled(labels, **arguments):
        return lambda c: {"y": ps.transform.compute_and_apply_vocabulary(c["w"], labels=c[labels], **arguments)}

    rows = {**ROWS, "pairs": np.zeros((3, 2), np.int64)}
    with pytest.raises(InvalidTypeError, match="takes integers, got float64"):
        analyze(labelled("x"), tmp_path / "floats", rows)
    with pytest.raises(InvalidTypeError, match=r"takes an integer for each row, got shape \(2,\)"):
        analyze(labelled("pairs"), tmp_path / "pairs", rows)
    with pytest.raises(ElementError, match="expected a weight for each of 3 rows, got 9"):
        analyze(lambda c: labelled("n", weights=c["v"])(c), tmp_path / "weights", {**rows, "n": np.arange(3)})


def test_data_from_which_nothing_can_be_learned_is_refused(tmp_path):
    def function(c):
        return {"y": ps.transform.scale_to_0_1(c["x"])}

    empty = ps.Dataset.from_tensor_slices({"x": np.zeros(0)})
    with pytest.raises(InvalidArgumentError, match="has no rows"):
        ps.transform.analyze(empty, function, tmp_path)
    with pytest.raises(InvalidArgumentError, match="never ends"):
        ps.transform.analyze(ps.Dataset.from_tensor_slices({"x": [1.0]}).repeat(), function, tmp_path)
    with pytest.raises(InvalidTypeError, match="takes a dataset of rows"):
        ps.transform.analyze(ps.Dataset.range(3), function, tmp_path)
    missing = ps.Dataset.from_tensor_slices({"x": np.array(["a", None], object)})
    with pytest.raises(ElementError, match="row 1 of the block is missing"):
        ps.transform.analyze(missing, lambda c: {"y": ps.transform.hash_strings(c["x"], 3)}, tmp_path)


def test_columns_of_nothing_but_nan_are_learned_as_tft_learns_them(tmp_path):
    rows = {**ROWS, "x": np.full(3, np.nan)}
    output = analyze(
        lambda c: {"z": ps.transform.scale_to_z_score(c["x"]), "b": ps.transform.bucketize(c["x"], 3)}, tmp_path, rows
    )
    found = output.transform_features_layer()({"x": [1.0, np.inf]})
    assert found["z"].tolist() == [1.0, np.inf]
    assert found["b"].tolist() == [2, 2]


def test_the_layer_takes_rows_batches_and_arrow(tmp_path):
    def function(c):
        return {
            "w": ps.transform.compute_and_apply_vocabulary(c["w"], vocab_filename="w"),
            "r": c["r"] * 2,
            "v": np.sum(c["v"], axis=-1),
        }

    output = analyze(function, tmp_path)
    layer = output.transform_features_layer()
    row = layer({"w": "b", "r": np.array([1, 2]), "v": [1.0, 2.0, 3.0]})
    assert (row["w"], row["r"].tolist(), row["v"]) == (0, [2, 4], 6.0)
    batch = layer({"w": pa.array(["a", "q"]), "r": pa.array([[1], []], pa.list_(pa.int64())), "v": np.ones((2, 3))})
    assert (batch["w"].tolist(), [r.tolist() for r in batch["r"]]) == ([1, -1], [[2], []])
    rows = ps.Dataset.range(3).map(lambda n: {name: ROWS[name][n] for name in ("w", "r", "v")})
    assert [int(element["w"]) for element in rows.map(layer)] == [1, 0, -1]
    assert [element["w"].tolist() for element in rows.ragged_batch(2).map(layer)] == [[1, 0], [-1]]
    assert output.num_buckets("w") == 2
    assert output.transformed_element_spec["r"] == ps.TensorSpec((None,), np.int64)
    assert list(layer({"w": ["a"], "r": [[1]]})) == ["w", "r"]
    with pytest.raises(InvalidArgumentError, match="neither a bucket nor an index"):
        output.num_buckets("v")
    with pytest.raises(InvalidArgumentError, match="no vocabulary 'q', the transform has 'w'"):
        output.vocabulary_by_name("q")


def changing(first, then):
    """Rows whose column is another after a hundred of them."""
    return ps.Dataset.range(200).map(lambda n: {"x": first if n < 100 else then})


@pytest.mark.parametrize(
    ("first", "then"),
    [(1, 2.5), (1.5, "a"), ("a", 5), (np.float32(1), np.float64(1)), (np.array([1, 2]), np.array([1.5, 2.5]))],
)
def test_dtypes_that_differ_between_rows_name_the_row_and_the_line(tmp_path, first, then):
    with pytest.raises(ElementError, match=r"after it had returned .*return one kind of element") as caught:
        ps.transform.analyze(changing(first, then), counted, tmp_path)
    assert any("test_tracing.py:" in note and "element 100" in note for note in caught.value.__notes__)


def test_lengths_that_differ_later_are_refused_with_what_to_do(tmp_path):
    with pytest.raises(
        ElementError, match=r"'x': expected rows of shape \(2,\).*got rows of lengths \[2, 3\].*TensorSpec"
    ) as caught:
        ps.transform.analyze(changing(np.zeros(2), np.zeros(3)), applied_to_x, tmp_path)
    assert "among rows 0 to 199 of the dataset" in caught.value.__notes__
    declared = ps.Dataset.range(200).map(
        lambda n: {"x": np.zeros(2 if n < 100 else 3)}, output_signature={"x": ps.TensorSpec((None,), np.float64)}
    )
    assert ps.transform.analyze(declared, applied_to_x, tmp_path).rows == 200


def counted(columns):
    return {"y": ps.transform.word_count(columns["x"]) / ps.transform.size(columns["x"])}


def applied_to_x(columns):
    return {"y": ps.transform.scale_to_z_score(columns["x"])}


def test_rows_may_be_empty_at_first(tmp_path):
    rows = changing(np.zeros(0), np.ones(2))
    assert ps.transform.analyze(rows, applied_to_x, tmp_path).transform_features_layer()({"x": [[5.0]]})["y"][0] == [
        4.0
    ]


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    for number, function in enumerate(
        (
            lambda c: {"y": ps.transform.bucketize(c["x"], 2, weights=c["w"])},
            lambda c: {"y": ps.transform.bucketize_per_key(c["x"], c["w"], 2, weights=c["w"])},
            lambda c: {"y": ps.transform.compute_and_apply_vocabulary(c["w"], weights=c["w"])},
        )
    ):
        with pytest.raises(InvalidTypeError, match=r"\(weights=...\) takes numbers, got strings") as caught:
            analyze(function, tmp_path / str(number))
        assert any("test_tracing.py:" in note for note in caught.value.__notes__)


def test_integers_pass_through_no_floats(tmp_path):
    x = np.array([2**62 + 1, 2**62 + 3, -(2**62) - 1])

    def function(c):
        x = c["x"]
        keys, _ = ps.transform.count_per_key(x)
        return {
            "above": x - ps.transform.min(x),
            "below": ps.transform.max(x) - x,
            "sum": x * 0 + ps.transform.sum(x),
            "known": np.isin(x, keys),
            "index": ps.transform.compute_and_apply_vocabulary(x),
            "same": x,
        }

    rows = ps.Dataset.from_tensor_slices({"x": x})
    ps.transform.analyze(rows, function, tmp_path)
    found = ps.transform.TransformOutput(tmp_path).transform_features_layer()({"x": x})
    assert found["above"].tolist() == (x - x.min()).tolist()
    assert found["below"].tolist() == (x.max() - x).tolist()
    assert found["sum"].tolist() == [int(x[0]) + int(x[1]) + int(x[2])] * 3
    assert found["known"].tolist() == [True] * 3
    assert sorted(found["index"].tolist()) == [0, 1, 2]
    assert found["same"].tolist() == x.tolist()
