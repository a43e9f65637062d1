"""The results of Keras's own layers on TensorFlow, which the file beside this one holds.

There is one difference on purpose: vectors of lookups are float32 here, as Keras's documentation has them; its code
gives int64.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

CASES = json.loads(Path(__file__).with_name("keras_values.json").read_text())["cases"]


def name_of(case: dict[str, Any]) -> str:
    return f"{case['layer']}-{'-'.join(f'{name}={value}' for name, value in case['config'].items())}"[:80]


def adapted(case: dict[str, Any]) -> Any:
    config = {name: tuple(v) if name == "ngrams" and isinstance(v, list) else v for name, v in case["config"].items()}
    layer = getattr(ps.preprocessing, case["layer"])(**config)
    if "adapt" in case:
        data = case["adapt"]
        layer.adapt(ps.Dataset.from_tensor_slices(data) if case.get("dataset") else data)
    return layer


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_results_equal_those_of_keras_on_tensorflow(case: dict[str, Any]) -> None:
    layer = adapted(case)
    result = layer(case["inputs"])
    expected = np.array(case["output"], object if case["dtype"] == "object" else None)
    assert np.shape(result) == expected.shape
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(result, expected, atol=2e-6)
    else:
        assert np.array_equal(result, expected)
    is_vector = case["layer"].endswith("Lookup") and case["config"].get("output_mode", "int") != "int"
    text_vector = case["layer"] == "TextVectorization" and case["config"].get("output_mode", "int") != "int"
    assert np.asarray(result).dtype == ("float32" if is_vector or text_vector else case["dtype"])
    if "vocabulary" in case:
        assert layer.get_vocabulary() == case["vocabulary"]
        assert layer.vocabulary_size() == case["vocabulary_size"]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_layer_made_of_its_config_gives_the_same(case: dict[str, Any]) -> None:
    layer = adapted(case)
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert np.array_equal(again(case["inputs"]), layer(case["inputs"]))
