"""The results of Keras's own layers on TensorFlow, which the file beside this one holds.

There is one difference on purpose: vectors of lookups are float32 here, as Keras's documentation has them; its code
gives int64. Cases where results differ on purpose, as docs/preprocessing.md says, are not there.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps

VALUES = json.loads(Path(__file__).with_name("keras_values.json").read_text())
CASES = VALUES["cases"]


def name_of(case: dict[str, Any]) -> str:
    return f"{case['layer']}-{'-'.join(f'{name}={value}' for name, value in case['config'].items())}"[:80]


def adapted(case: dict[str, Any]) -> Any:
    config = {name: tuple(v) if name == "ngrams" and isinstance(v, list) else v for name, v in case["config"].items()}
    layer = getattr(ps.preprocessing, case["layer"])(**config)
    if "adapt" in case:
        data = case["adapt"]
        if case.get("dataset"):
            data = ps.Dataset.from_tensor_slices(data)
            data = data.batch(case["batch"]) if "batch" in case else data
        layer.adapt(data)
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
    config = layer.get_config()
    written = json.loads(json.dumps(config))
    assert written == config
    again = type(layer).from_config(written)
    assert again.get_config() == config
    assert np.array_equal(again(case["inputs"]), layer(case["inputs"]))


def same_features(result: Any, expected: Any) -> None:
    if not isinstance(expected, dict):
        result, expected = {"": result}, {"": expected}
    assert result.keys() == expected.keys()
    for name, values in expected.items():
        assert np.shape(result[name]) == np.shape(values)
        np.testing.assert_allclose(result[name], values, atol=2e-6)


@pytest.mark.parametrize("case", VALUES["feature_spaces"], ids=lambda case: case["output_mode"])
@pytest.mark.parametrize("of_keras", [False, True])
def test_feature_spaces_equal_those_of_keras_on_tensorflow(case: dict[str, Any], of_keras: bool) -> None:
    names = ("features", "output_mode", "crosses", "crossing_dim", "hashing_dim", "num_discretization_bins")
    space_class = ps.preprocessing.FeatureSpace
    one = {name: values[0] for name, values in case["inputs"].items()}
    samples = ps.Dataset.from_tensor_slices(case["adapt"])
    for data in (case["adapt"], samples, samples.batch(3)):
        config = case["keras_config"]
        space = space_class.from_config(config) if of_keras else space_class(**{name: case[name] for name in names})
        adapted = space.adapt(data).get_config()
        again = space_class.from_config(json.loads(json.dumps(adapted)))
        assert again.get_config() == adapted
        same_features(again(case["inputs"]), case["output"])
        same_features(again(one), case["one"])


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("config", VALUES["configurations"], ids=lambda config: config["class_name"])
def test_configurations_of_keras_are_understood(config: dict[str, Any], wrapped: bool) -> None:
    layer_class = getattr(ps.preprocessing, config["class_name"])
    layer = layer_class.from_config(config if wrapped else config["config"])
    for name, value in layer.get_config().items():
        theirs = config["config"].get(name)
        if not isinstance(theirs, (dict, list)) and name != "cache_dir" and name in config["config"]:
            assert value == theirs
    assert layer_class.from_config(layer.get_config()).get_config() == layer.get_config()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparse": True}, "no argument sparse=True"),
        ({"oov_method": "farmhash"}, "no argument oov_method='farmhash'"),
        ({"dtype": "float16"}, "no dtype='float16'; use map to cast"),
        ({"colour": "red"}, "no argument colour='red'"),
    ],
)
def test_what_keras_can_and_we_cannot_is_refused_in_configurations(changes: dict[str, Any], message: str) -> None:
    config = next(config for config in VALUES["configurations"] if config["class_name"] == "StringLookup")
    with pytest.raises(ps.InvalidArgumentError, match=f"StringLookup.from_config: .*{message}"):
        ps.preprocessing.StringLookup.from_config({**config["config"], **changes})
    with pytest.raises(ps.InvalidArgumentError, match="Hashing.from_config got the configuration of 'StringLookup'"):
        ps.preprocessing.Hashing.from_config(config)
