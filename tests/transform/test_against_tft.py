"""Analyzers and mappers give what TensorFlow Transform gives; `write_tft_values.py` has written down what that is."""

import json
from pathlib import Path

import numpy as np
import pytest
from tft_cases import VOCABULARIES, preprocess, rows

import penstock as ps

VALUES = json.loads(Path(__file__).with_name("tft_values.json").read_text())

INTEGERS = {"i", "label"}

RAGGED = {
    "tokens": object,
    "numbers": np.float32,
    "labels": np.int64,
    "gap_values": np.float32,
    "gap_indices": np.int64,
}

# tft sums L-moments in float32, and lets parameters depend on them; here they are summed in float64.
ROUNDED_BY_TFT = {"scale_to_gaussian", "tukey_location", "tukey_scale", "tukey_left", "tukey_right"}


def dataset():
    columns = {}
    for name in rows()[0]:
        values = [row[name] for row in rows()]
        if name in RAGGED:
            columns[name] = values
        elif isinstance(values[0], str):
            columns[name] = np.array(values, object)
        else:
            columns[name] = np.array(values, np.int64 if name in INTEGERS else np.float32)

    def row(index):
        found = {name: column[index] for name, column in columns.items() if name not in RAGGED}
        return found | {name: np.array(columns[name][index], kind) for name, kind in RAGGED.items()}

    return ps.Dataset.range(len(rows())).map(row)


def backwards(tokens, path):
    known = Path(path).read_text().splitlines()
    places = {token: place for place, token in enumerate(reversed(known))}
    return np.array([places.get(token, len(known)) for token in tokens], np.int64), len(known) + 1


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    def function(columns):
        return preprocess(
            ps.transform,
            columns,
            lambda x, value: x[:, None] * 0 + value.astype("float32"),
            np.matmul,
            "float32",
            experimental=ps.transform,
            backwards=backwards,
            dense=lambda change: ps.transform.sparse_tensor_to_dense_with_shape(
                change(columns["gap_values"]), [None, 7], -9.0, indices=columns["gap_indices"]
            ),
        )

    return ps.transform.analyze(dataset(), function, tmp_path_factory.mktemp("working_dir"))


@pytest.fixture(scope="module")
def found(output):
    (batch,) = dataset().ragged_batch(100)
    return output.transform_features_layer()(batch)


@pytest.mark.parametrize("name", sorted(VALUES["outputs"]))
def test_outputs_are_those_of_tft(found, name):
    expected, got = VALUES["outputs"][name], found[name]
    assert len(got) == len(expected)
    for row, (mine, theirs) in enumerate(zip(got.tolist(), expected)):
        mine = list(mine) if isinstance(mine, np.ndarray) else mine
        if isinstance(theirs, list) and theirs and isinstance(theirs[0], str):
            assert mine == theirs, row
        else:
            rounding = 1e-4 if name in ROUNDED_BY_TFT else 2e-6
            np.testing.assert_allclose(mine, theirs, rtol=10 * rounding, atol=rounding, err_msg=f"row {row}")


@pytest.mark.parametrize("name", VOCABULARIES)
def test_files_of_vocabularies_are_those_of_tft(output, name):
    lines = Path(output.vocabulary_file_by_name(name)).read_text().splitlines()
    assert lines == VALUES["vocabularies"][name]
    assert output.vocabulary_size_by_name(name) == len(lines)


def test_a_vocabulary_with_frequencies_is_read_without_them(output):
    assert output.vocabulary_by_name("frequency") == output.vocabulary_by_name("words")


def test_a_lookup_function_says_how_many_integers_it_gives(output):
    assert output.num_buckets("lookup_fn") == output.vocabulary_size_by_name("backwards") + 1
