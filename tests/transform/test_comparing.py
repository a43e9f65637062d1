"""What `compare` says of new data."""

import numpy as np
import pytest

import penstock as ps
from penstock.errors import StateMismatchError


def preprocess(c):
    return {
        "z": ps.transform.scale_to_z_score(c["x"]),
        "unit": ps.transform.scale_to_0_1(c["x"]),
        "bucket": ps.transform.bucketize(c["x"], 4),
        "word": ps.transform.compute_and_apply_vocabulary(c["word"]),
        "per_key": ps.transform.scale_to_z_score_per_key(c["x"], c["key"]),
    }


def analyzed(directory, x, word, key, function=preprocess):
    rows = {"x": np.array(x), "word": np.array(word, object), "key": np.array(key, object)}
    return ps.transform.analyze(ps.Dataset.from_tensor_slices(rows), function, directory)


OLD = ([0.0, 1.0, 2.0, 3.0, 4.0], ["a", "a", "b", "c", ""], ["k", "k", "l", "l", "l"])


def test_data_that_has_moved_is_marked(tmp_path):
    old = analyzed(tmp_path / "old", *OLD)
    new = analyzed(tmp_path / "new", [2.0, 3.0, 4.0, 9.0, np.nan], ["a", "d", "", "", "e"], ["k", "<m>", "k", "k", "k"])
    comparison = ps.transform.compare(old, tmp_path / "new")
    drifts = {(found.what, found.measure): found.drift for found in comparison.findings}
    deviation = np.std(OLD[0])
    assert drifts[("x", "mean")] == pytest.approx(2.5 / deviation)
    assert drifts[("x", "deviation")] == pytest.approx((np.std([2, 3, 4, 9]) - deviation) / deviation)
    assert drifts[("word", "vocabulary")] == pytest.approx(2 / 3)
    assert drifts[("x, key", "keys")] == 0.5
    assert drifts[("x", "missing")] == pytest.approx(0.2)
    assert drifts[("word", "missing")] == pytest.approx(0.2)
    assert all(found.marked for found in comparison.findings if found.what != "key")
    assert [found.measure for found in comparison.findings][-1] == "missing"
    text = str(comparison)
    assert (
        text.startswith("5 old rows, 5 new rows: ")
        and "! vocabulary of word: drift 0.667, 3 tokens -> 3 tokens" in text
    )
    page = comparison.html()
    assert "<polyline" in page and "&lt;m&gt;" in page and "<m>" not in page
    assert new.missing == {"x": 1, "word": 2, "key": 0}


def test_equal_data_is_not_marked(tmp_path):
    old = analyzed(tmp_path / "old", *OLD)
    comparison = ps.transform.compare(old, old)
    assert comparison.marked == [] and max(found.drift for found in comparison.findings) == 0


def test_another_function_is_refused(tmp_path):
    old = analyzed(tmp_path / "old", *OLD)
    new = analyzed(tmp_path / "new", *OLD, function=lambda c: {"z": ps.transform.scale_to_0_1(c["x"])})
    with pytest.raises(StateMismatchError, match="different functions"):
        ps.transform.compare(old, new)
