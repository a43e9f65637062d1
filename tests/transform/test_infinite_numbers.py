"""NaN and infinite numbers in the data: what is learned of them, and that NumPy does not warn of them."""

import numpy as np

import penstock as ps

INF, NAN = np.inf, np.nan
ROWS = {"x": np.array([1.0, 2.0, INF, 4.0, 5.0, 3.0], np.float32), "key": np.array([*"ababab"], object)}


def transformed(function, directory, **columns):
    rows = {**ROWS, **{name: np.array(values, np.float32) for name, values in columns.items()}}
    output = ps.transform.analyze(ps.Dataset.from_tensor_slices(rows), function, directory)
    return {name: values.tolist() for name, values in output.transform_features_layer()(rows).items()}


def test_an_infinite_maximum_leaves_zeros_and_nan_for_itself_as_in_tft(tmp_path):
    found = transformed(lambda c: {"y": ps.transform.scale_to_0_1(c["x"])}, tmp_path)
    np.testing.assert_array_equal(found["y"], [0.0, 0.0, NAN, 0.0, 0.0, 0.0])


def test_means_and_shapes_of_distributions_are_those_of_the_finite_numbers(tmp_path):
    def function(c):
        x = c["x"]
        return {"z": ps.transform.scale_to_z_score(x), "g": ps.transform.scale_to_gaussian(x)}

    found = transformed(function, tmp_path)
    z = [-np.sqrt(2), -np.sqrt(0.5), INF, np.sqrt(0.5), np.sqrt(2), 0.0]
    np.testing.assert_allclose(found["z"], z, rtol=1e-6)
    np.testing.assert_allclose(found["g"], z, rtol=1e-6)


def test_infinities_of_both_signs_and_nan_are_learned_without_warnings(tmp_path):
    def function(c):
        x, key = c["y"], c["key"]
        here = np.zeros_like(x)
        return {
            "range": here + ps.transform.max(x) - ps.transform.min(x),
            "sum": here + ps.transform.sum(x),
            "var": here + ps.transform.var(x),
            "bucket": ps.transform.bucketize(x, 3),
            "bucket_of_key": ps.transform.bucketize_per_key(x, key, 2),
            "z_of_key": ps.transform.scale_to_z_score_per_key(x, key),
            "unit_of_key": ps.transform.scale_to_0_1_per_key(x, key),
            "histogram": here[:, None] + ps.transform.histogram(x, [0.0, 2.0, 4.0])[0],
            "times": x * 0,
        }

    found = transformed(function, tmp_path, y=[-INF, 1.0, 2.0, INF, NAN, 3.0])
    assert found["bucket"] == [0, 1, 1, 2, 2, 2]
    assert found["bucket_of_key"] == [0, 0, 1, 1, 1, 1]
    assert found["histogram"][0] == [3.0, 3.0]
    np.testing.assert_allclose(found["var"], np.var([1, 2, 3]), rtol=1e-6)
    np.testing.assert_array_equal(found["sum"], [NAN] * 6)
    np.testing.assert_array_equal(found["range"], [NAN] * 6)
    np.testing.assert_allclose(found["z_of_key"], [-INF, -1.0, 0.0, INF, NAN, 1.0], rtol=1e-6)
    np.testing.assert_allclose(found["unit_of_key"], [0.0, 0.0, 1 / (1 + np.exp(-2)), NAN, NAN, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(found["times"], [NAN, 0.0, 0.0, NAN, NAN, 0.0])


def test_numbers_beyond_float32_or_its_squares_are_learned_silently(tmp_path):
    rows = {"x": np.array([1e200, -1e200, 1e308, 1e308])}

    def function(c):
        x = c["x"]
        return {
            "unit": ps.transform.scale_to_0_1(x),
            "z": ps.transform.scale_to_z_score(x),
            "sum": x * 0 + ps.transform.sum(x),
            "bucket": ps.transform.bucketize(x, 2),
        }

    output = ps.transform.analyze(ps.Dataset.from_tensor_slices(rows), function, tmp_path)
    found = output.transform_features_layer()(rows)
    assert found["sum"].tolist() == [INF] * 4
    assert output.summary().splitlines()[0] == "transform: 1 columns, 4 results, learned from 4 rows"


def test_a_comparison_of_infinite_numbers_says_that_they_have_moved(tmp_path):
    def function(c):
        return {"y": ps.transform.scale_to_0_1(c["x"]), "b": ps.transform.bucketize(c["x"], 2)}

    outputs = []
    for name, values in (("old", [1.0, 2.0, 3.0]), ("new", [1.0, INF, NAN])):
        rows = ps.Dataset.from_tensor_slices({"x": np.array(values)})
        outputs.append(ps.transform.analyze(rows, function, tmp_path / name))
    comparison = ps.transform.compare(*outputs)
    assert {"range", "missing"} <= {finding.measure for finding in comparison.marked}
    assert "<svg" in comparison.html()
