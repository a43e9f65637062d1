"""Analyzers and mappers give what TensorFlow Transform gives; `write_tft_values.py` has written down what that is."""

import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tft_cases
from tft_cases import VOCABULARIES
from tft_in_penstock import dataset, function

import penstock as ps
from penstock.transform import passes

VALUES = json.loads(Path(__file__).with_name("tft_values.json").read_text())

# tft sums L-moments in float32, and lets parameters depend on them; here they are summed in float64.
ROUNDED_BY_TFT = ("scale_to_gaussian", "tukey_")

PAGE = (Path(__file__).parents[2] / "docs" / "transform.md").read_text()


@pytest.fixture(scope="module", params=[passes.ROWS, 7])
def output(request, tmp_path_factory):
    """What is learned from all rows at once, and from portions of seven."""
    passes.ROWS, before = request.param, passes.ROWS
    try:
        yield ps.transform.analyze(dataset(), function, tmp_path_factory.mktemp("working_dir"))
    finally:
        passes.ROWS = before


@pytest.fixture(scope="module")
def found(output):
    (batch,) = dataset().ragged_batch(100)
    return output.transform_features_layer()(batch)


def differs(name, got, expected):
    """Say where an output is not that of tft, if anywhere."""
    if len(got) != len(expected):
        return f"{name} has {len(got)} rows, expected {len(expected)}"
    rounding = 1e-4 if name.startswith(ROUNDED_BY_TFT) else 2e-6
    for row, (mine, theirs) in enumerate(zip(got.tolist(), expected)):
        mine = list(mine) if isinstance(mine, np.ndarray) else mine
        if isinstance(theirs, list) and theirs and isinstance(theirs[0], str):
            same = mine == theirs
        else:
            same = np.shape(mine) == np.shape(theirs) and np.allclose(
                mine, theirs, rtol=10 * rounding, atol=rounding, equal_nan=True
            )
        if not same:
            return f"{name}, row {row}: {mine!r}, expected {theirs!r}"
    return ""


@pytest.mark.extended
def test_outputs_are_those_of_tft(found):
    """All in one test: learning them takes longer than comparing, and each process of the tests would learn them."""
    others = [differs(name, found[name], expected) for name, expected in sorted(VALUES["outputs"].items())]
    assert [one for one in others if one] == []


def test_files_of_vocabularies_are_those_of_tft(output):
    for name in VOCABULARIES:
        path = output.vocabulary_file_by_name(name)
        if path.endswith(".tfrecord.gz"):
            lines = [record.decode() for record in ps.TFRecordDataset(path, "GZIP")]
        else:
            lines = Path(path).read_text().splitlines()
        assert lines == VALUES["vocabularies"][name], name
        assert output.vocabulary_size_by_name(name) == len(lines), name


def test_a_vocabulary_with_frequencies_is_read_without_them(output):
    assert output.vocabulary_by_name("frequency") == output.vocabulary_by_name("words")
    assert output.vocabulary_by_name("records_frequency") == output.vocabulary_by_name("records")


def test_a_lookup_function_says_how_many_integers_it_gives(output):
    assert output.num_buckets("lookup_fn") == output.vocabulary_size_by_name("backwards") + 1


def test_every_analyzer_and_mapper_of_both_is_among_the_cases():
    source = Path(tft_cases.__file__).read_text()
    common = [name for name in VALUES["parameters"] if hasattr(ps.transform, name)]
    assert [name for name in common if not re.search(rf"[._]{name}\(", source)] == []


@pytest.mark.parametrize("name", sorted(VALUES["parameters"]))
def test_arguments_and_defaults_are_those_of_tft_or_documented(name):
    ours = getattr(ps.transform, name, None)
    if ours is None:
        assert f"`{name}`" in PAGE or f".{name}`" in PAGE, f"neither penstock nor docs/transform.md has {name}"
        return
    parameters = inspect.signature(ours).parameters
    if "arguments" in parameters:
        rest = "approximate_vocabulary" if "approximate" in name else "vocabulary"
        parameters = {**inspect.signature(getattr(ps.transform, rest)).parameters, **parameters}
    for parameter, default in VALUES["parameters"][name].items():
        assert parameter in parameters, parameter
        given = parameters[parameter].default
        mine = None if given is inspect.Parameter.empty else repr(given)
        assert mine == default or (not eval(default) and not given), parameter
