"""What layers learn from: single numbers, short last batches; and what they do not: no data, and data without end."""

import itertools
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.preprocessing import (
    Discretization,
    FeatureSpace,
    IntegerLookup,
    Normalization,
    StringLookup,
    TextVectorization,
)

NUMBERS = ps.Dataset.range(10)
PAIRS = ps.Dataset.from_tensor_slices(np.stack([np.arange(10.0), 2 * np.arange(10.0)], axis=1))


@pytest.mark.parametrize("dataset", [NUMBERS, NUMBERS.batch(4), NUMBERS.batch(5), NUMBERS.batch(4).batch(2)])
def test_single_numbers_have_one_mean_however_they_are_batched(dataset: Any) -> None:
    layer = Normalization(axis=None).adapt(dataset)
    assert layer.mean == 4.5 and layer.variance == 8.25


@pytest.mark.parametrize("dataset", [PAIRS, PAIRS.batch(4), PAIRS.batch(4).batch(2), PAIRS.batch(4).shuffle(3, seed=1)])
def test_places_have_a_mean_each_however_they_are_batched(dataset: Any) -> None:
    layer = Normalization().adapt(dataset)
    assert layer.mean is not None and layer.variance is not None
    assert layer.mean.tolist() == [4.5, 9.0] and layer.variance.tolist() == [8.25, 33.0]


def test_images_of_different_sizes_have_a_mean_for_each_channel() -> None:
    images = [np.full((2, size, 4, 3), size, np.uint8) for size in (3, 5)]
    layer = Normalization().adapt(ps.Dataset.from_generator(lambda: iter(images)))
    assert layer.mean is not None and layer.mean.tolist() == [4.25, 4.25, 4.25]


@pytest.mark.parametrize(
    ("axis", "dataset", "message"),
    [
        (-1, NUMBERS, r"Normalization\(axis=-1\).* are single numbers: use axis=None"),
        (0, NUMBERS, r"Normalization\(axis=0\).* are single numbers: use axis=None"),
        (-1, NUMBERS.batch(4), "are batches of single numbers: use axis=None"),
        (0, PAIRS, "axis 0 counts the samples of a batch"),
        (-2, PAIRS.batch(4), "axis 0 counts the samples of a batch"),
        (2, PAIRS, "the data has 2 axes"),
        (
            -1,
            ps.Dataset.from_generator(lambda: iter([np.zeros((1, 2)), np.zeros((1, 3))])),
            r"the elements differ along axis, got \(2,\) and then \(3,\)",
        ),
        (-1, PAIRS.take(0), "there is no data"),
        (None, NUMBERS.take(0), "there is no data"),
    ],
)
def test_what_has_no_mean_along_an_axis_is_refused(axis: Any, dataset: Any, message: str) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=message):
        Normalization(axis=axis).adapt(dataset)


def learners() -> dict[str, tuple[Any, Any]]:
    """For each layer that learns, one to adapt and a dataset of its elements."""
    words, numbers = ps.Dataset.from_tensor_slices(["b c", "a", "a"]), ps.Dataset.from_tensor_slices([3.0, 1.0, 1.0])
    return {
        "StringLookup": (StringLookup(), words),
        "IntegerLookup": (IntegerLookup(), ps.Dataset.from_tensor_slices([3, 1, 1])),
        "TextVectorization": (TextVectorization(output_mode="tf_idf"), words),
        "Discretization": (Discretization(num_bins=2), numbers),
        "Normalization": (Normalization(axis=None), numbers),
    }


@pytest.mark.parametrize("name", learners())
def test_all_layers_learn_the_same_from_elements_and_short_last_batches(name: str) -> None:
    configs = []
    for arrange in (lambda d: d, lambda d: d.batch(2), lambda d: d.filter(lambda x: True).batch(2)):
        layer, dataset = learners()[name]
        configs.append(layer.adapt(arrange(dataset)).get_config())
    assert configs[0] == configs[1] == configs[2]


@pytest.mark.parametrize("name", learners())
def test_nothing_and_no_end_are_refused_at_the_call(name: str) -> None:
    layer, dataset = learners()[name]
    for empty in (dataset.take(0), dataset.filter(lambda x: False), []):
        with pytest.raises(ps.InvalidArgumentError, match=rf"{name}\.adapt\(data\): there (is|are) no"):
            layer.adapt(empty)
    endless = dataset.repeat()
    for data in (endless, endless.filter(lambda x: True), endless.filter(lambda x: True).map(lambda x: x).batch(2)):
        with pytest.raises(ps.InvalidArgumentError, match=r"never ends, take\(n\)"):
            layer.adapt(data)
    layer.adapt(endless.filter(lambda x: True).take(3))
    layer, dataset = learners()[name]
    count = itertools.count()
    layer.adapt(dataset.repeat().take_while(lambda x: next(count) < 3))


@pytest.mark.parametrize("batched", [False, True])
def test_a_feature_space_learns_all_features_in_one_pass(batched: bool) -> None:
    passes = []

    def element(number: int) -> dict[str, Any]:
        passes.append(int(number))
        return {"size": float(number), "word": f"w{number % 3}", "age": int(number)}

    space = FeatureSpace({"size": "float_normalized", "word": "string_categorical", "age": "float_discretized"})
    rows = ps.Dataset.range(1, 6).map(element)
    rows.element_spec  # noqa: B018  # it takes the first element
    passes.clear()
    space.adapt(rows.batch(2) if batched else rows)
    assert sorted(set(passes)) == [1, 2, 3, 4, 5] and passes.count(5) == 1
    assert float(space.features["size"].preprocessor.mean[0]) == 3.0
    assert space.features["word"].preprocessor.get_vocabulary() == ["[UNK]", "w2", "w1", "w0"]


def test_a_feature_space_says_which_feature_cannot_learn() -> None:
    space = FeatureSpace({"word": "string_categorical", "size": "float"})
    with pytest.raises(ps.InvalidArgumentError, match="there are no tokens") as caught:
        space.adapt(ps.Dataset.from_tensor_slices({"word": ["a"], "size": [1.0]}).take(0))
    assert "feature 'word'" in caught.value.__notes__[-1]
    with pytest.raises(ps.InvalidArgumentError, match="no vocabulary yet") as caught:
        space({"word": "a", "size": 1.0})
    assert "feature 'word'" in caught.value.__notes__[-1]
    with pytest.raises(ps.InvalidArgumentError, match=r"feature 'size' is not there, got \['word'\]"):
        space({"word": "a"})
    with pytest.raises(ps.InvalidTypeError, match=r"takes a ps.Dataset or a dictionary"):
        space.adapt([1, 2])
    labelled = ps.Dataset.from_tensor_slices(({"word": ["a"], "size": [1.0]}, [1]))
    with pytest.raises(
        ps.InvalidTypeError, match=r"elements that are dictionaries, .* map\(lambda features, label: fea"
    ):
        space.adapt(labelled)
    for call in (lambda: space([1, 2]), lambda: next(iter(labelled.map(space)))):
        with pytest.raises(
            ps.InvalidTypeError, match=r"takes a dictionary of features, .* \(space\(features\), label\)"
        ):
            call()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FeatureSpace({}), "takes a dictionary of features"),
        (lambda: FeatureSpace({"a": "floats"}), "takes one of 'float'"),
        (lambda: FeatureSpace({"a": "integer_hashed"}, crosses=[("a", "b")]), r"features that are not there: \['b'\]"),
        (lambda: FeatureSpace({"a": "integer_hashed"}, crosses=[("a",)]), "at least two names"),
        (
            lambda: FeatureSpace({"a": FeatureSpace.integer_hashed(3, output_mode="int")}),
            r"has no place for the integers of \['a'\]",
        ),
        (lambda: FeatureSpace({"a": "float"}, output_mode="vector"), "one of 'concat', 'dict'"),
        (lambda: FeatureSpace.feature("float64", None, "float"), "one of 'float32'"),
    ],
)
def test_feature_spaces_that_cannot_work_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=message):
        make()
