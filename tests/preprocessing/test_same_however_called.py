"""A layer gives the same for an element, in `map` over elements or over batches, and when it is called directly."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.preprocessing import (
    CategoryEncoding,
    Discretization,
    FeatureSpace,
    HashedCrossing,
    Hashing,
    IntegerLookup,
    Normalization,
    Rescaling,
    StringLookup,
    TextVectorization,
)

WORDS = ["a", "b", "fox", "the", "é", "", "zz"]
MODES = ("int", "one_hot", "multi_hot", "count")
SHAPES = [(), (1,), (3,), (2, 1), (2, 3), (0,)]


def lower(texts: Any) -> Any:
    return np.strings.lower(texts)


def split(texts: Any) -> Any:
    return [text.split("a") for text in texts]


def maybe(draw: st.DrawFn, **arguments: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Some of these arguments."""
    return {name: draw(values) for name, values in arguments.items() if draw(st.booleans())}


def strings(draw: st.DrawFn, shape: tuple[int, ...], of: list[str]) -> Any:
    flat = [draw(st.sampled_from(of)) for _ in range(int(np.prod(shape)))]
    return np.array(flat, object).reshape(shape)


def numbers(draw: st.DrawFn, shape: tuple[int, ...], low: int, high: int, dtype: Any) -> Any:
    flat = [draw(st.integers(low, high)) for _ in range(int(np.prod(shape)))]
    return np.array(flat, dtype).reshape(shape)


@st.composite
def string_lookups(draw: st.DrawFn, rows: int, shape: tuple[int, ...]) -> Any:
    mode = draw(st.sampled_from((*MODES, "tf_idf")))
    arguments = maybe(draw, mask_token=st.just(""), num_oov_indices=st.integers(1, 3))
    if draw(st.booleans()):
        arguments |= {"max_tokens": 12, "pad_to_max_tokens": True}
    weights = {"idf_weights": [0.5, 1.0, 2.0]} if mode == "tf_idf" else {}
    return StringLookup(vocabulary=["a", "b", "fox"], output_mode=mode, **arguments, **weights), strings(
        draw, (rows, *shape), WORDS
    )


@st.composite
def integer_layers(draw: st.DrawFn, rows: int, shape: tuple[int, ...]) -> Any:
    mode = draw(st.sampled_from(MODES))
    inputs = numbers(draw, (rows, *shape), 0, 9, draw(st.sampled_from(["int64", "int32", "uint8"])))
    layers = [
        lambda: IntegerLookup(vocabulary=[5, 7, 1], output_mode=mode, **maybe(draw, mask_token=st.just(0))),
        lambda: IntegerLookup(vocabulary=[5, 7, 1], invert=True),
        lambda: StringLookup(vocabulary=["a", "b"], invert=True),
        lambda: Hashing(4, output_mode=mode, **maybe(draw, mask_value=st.just(3), salt=st.just(7))),
        lambda: CategoryEncoding(8, "one_hot" if mode == "int" else mode),
    ]
    return draw(st.sampled_from(layers))(), inputs


@st.composite
def number_layers(draw: st.DrawFn, rows: int, shape: tuple[int, ...]) -> Any:
    dtype = draw(st.sampled_from(["float32", "float64", "int64", "uint8"]))
    inputs = numbers(draw, (rows, *shape), 0 if dtype == "uint8" else -3, 9, dtype)
    scale = draw(st.sampled_from([2.0, [1.0], [1.0, 2.0, 3.0], [[1.0, 2.0, 3.0], [0.0, 1.0, 2.0]]]))
    axis = -1 if shape and shape[-1] else None
    places = shape[-1] if axis else ()
    layers = [
        lambda: Rescaling(scale, offset=draw(st.sampled_from([0.5, [[1.0], [2.0]]]))),
        lambda: Discretization([0.0, 1.5, 4.0], output_mode=draw(st.sampled_from(MODES))),
        lambda: Normalization(axis, np.full(places, 2.0), np.full(places, 4.0), invert=draw(st.booleans())),
    ]
    layer = draw(st.sampled_from(layers))()
    if isinstance(layer, Rescaling) and shape[-1:] == (0,):
        layer = Rescaling(2.0)
    return layer, inputs


@st.composite
def text_layers(draw: st.DrawFn, rows: int, shape: tuple[int, ...]) -> Any:
    mode = draw(st.sampled_from(("int", "multi_hot", "count", "tf_idf")))
    arguments = maybe(
        draw,
        standardize=st.sampled_from([None, "lower", "strip_punctuation", lower]),
        split=st.sampled_from([None, "whitespace", "character", split]),
        ngrams=st.sampled_from([1, 2, (2,), (3, 1)]),
        encoding=st.sampled_from(["utf-8", "latin-1"]),
    )
    if mode == "int":
        arguments |= maybe(draw, output_sequence_length=st.integers(1, 4))
    if mode == "tf_idf":
        arguments["idf_weights"] = [0.5, 1.0, 2.0]
    if arguments.get("split", "") is not None:
        shape = draw(st.sampled_from([(), (1,), (2, 1)]))
    layer = TextVectorization(vocabulary=["a", "fox", "é"], output_mode=mode, **arguments)
    return layer, strings(draw, (rows, *shape), ["a fox", "The é, a!", "", "  ", "fox", "a a a a b"])


@st.composite
def layers_and_inputs(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from([string_lookups, integer_layers, number_layers, text_layers]))
    return draw(kind(draw(st.integers(1, 5)), draw(st.sampled_from(SHAPES))))


def assert_equal(ours: Any, expected: Any) -> None:
    ours, expected = np.asarray(ours), np.asarray(expected)
    assert ours.shape == expected.shape and ours.dtype == expected.dtype
    assert np.array_equal(ours, expected)


@pytest.mark.extended
@settings(max_examples=80)
@given(layers_and_inputs(), st.integers(1, 4))
def test_every_way_of_calling_a_layer_gives_the_same(layer_and_inputs: Any, batch_size: int) -> None:
    layer, inputs = layer_and_inputs
    dataset = ps.Dataset.from_tensor_slices(inputs)
    alone = [layer(row) for row in inputs]
    mapped = list(dataset.map(layer))
    assert len(mapped) == len(alone)
    for found, expected in zip(mapped, alone, strict=True):
        assert_equal(found, expected)
    for found, expected in zip(dataset.map(layer, num_parallel_calls=2), alone, strict=True):
        assert_equal(found, expected)
    config = layer.get_config()
    if not callable(config.get("split")) and not callable(config.get("standardize")):
        config = json.loads(json.dumps(config))
    assert_equal(type(layer).from_config(config)(inputs[0]), alone[0])
    if isinstance(layer, Rescaling) and max(np.ndim(layer.scale), np.ndim(layer.offset)) >= inputs.ndim:
        return  # the scale has more axes than an element, and would be broadcast against the batch
    for found, start in zip(dataset.batch(batch_size).map(layer), range(0, len(inputs), batch_size), strict=True):
        assert_equal(found, layer(inputs[start : start + batch_size]))
    # A batch of arrays gives its rows, one below the other, but for an axis of length 1 that "one_hot" leaves out of
    # batches. One of single values is a sample itself in some modes, and texts are padded to the longest of a call.
    if inputs.ndim > 1 and not isinstance(layer, TextVectorization):
        rows = np.stack(alone)
        assert_equal(layer(inputs).reshape(rows.shape), rows)


@pytest.mark.parametrize("arguments", [{"output_mode": "count"}, {"output_sequence_length": 3}, {}])
def test_a_split_of_yours_in_map_keeps_the_output_mode(arguments: dict[str, Any]) -> None:
    layer = TextVectorization(split=split, standardize=lower, vocabulary=["b", "c"], **arguments)
    dataset = ps.Dataset.from_tensor_slices(["bAc", "c", "cacac"])
    for found, text in zip(dataset.map(layer), ["bAc", "c", "cacac"], strict=True):
        assert_equal(found, layer(text))


def test_a_scale_for_each_channel_is_broadcast_for_each_row() -> None:
    scaled = list(ps.Dataset.from_tensor_slices(np.arange(5.0)).map(Rescaling([1.0, 2.0])))
    assert [row.tolist() for row in scaled] == [[x, 2 * x] for x in range(5)]


def test_weights_of_counts_are_taken_by_blocks_too() -> None:
    layer = CategoryEncoding(4, "count")
    values, weights = np.array([[0, 1], [2, 2], [3, 0]]), np.array([[0.5, 1.0], [1.0, 0.25], [2.0, 2.0]], np.float32)
    dataset = ps.Dataset.from_tensor_slices((values, weights))
    for mapped in (dataset.map(layer), dataset.map(lambda a, b: layer(a, b))):
        assert_equal(np.stack(list(mapped)), layer(values, weights))


@pytest.mark.parametrize("mode", ["int", "one_hot"])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (3, 2)])
def test_crosses_of_a_block_are_those_of_its_rows(mode: str, shape: tuple[int, ...]) -> None:
    words, sizes = np.array(["a", "b", "a", "é", "", "a"], object).reshape(shape), np.arange(6).reshape(shape)
    layer = HashedCrossing(5, mode)
    dataset = ps.Dataset.from_tensor_slices((words, sizes))
    alone = np.stack([layer((word, size)) for word, size in zip(words, sizes, strict=True)])
    assert_equal(np.stack(list(dataset.map(layer))), alone)
    assert_equal(np.stack(list(dataset.map(lambda word, size: layer([word, size])))), alone)
    assert_equal(next(iter(dataset.batch(6).map(layer))), layer((words, sizes)))


@pytest.mark.parametrize("mode", ["concat", "dict"])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (3, 2), (1, 3, 2)])
def test_a_feature_space_of_a_block_is_that_of_its_rows(mode: str, shape: tuple[int, ...]) -> None:
    data = {
        "word": np.array(["a", "b", "a", "é", "", "a"], object).reshape(shape),
        "size": np.arange(6.0, dtype=np.float32).reshape(shape),
        "text": np.array(["a b", "b", "", "c c c", "a", "b"], object).reshape(shape),
    }
    texts = TextVectorization(vocabulary=["a", "b"], output_mode="int" if mode == "dict" else "count")
    space = FeatureSpace(
        {
            "word": "string_categorical",
            "size": FeatureSpace.float_discretized(bin_boundaries=[1.0, 3.0]),
            "text": FeatureSpace.feature("string", texts, "int" if mode == "dict" else "float"),
        },
        output_mode=mode,
        crosses=[("word", "size")],
    )
    if shape[-1] == 2:  # a text layer takes one text for each sample
        del data["text"], space.features["text"]
    space.adapt(data)
    dataset = ps.Dataset.from_tensor_slices(data)
    for found, row in zip(dataset.map(space), dataset, strict=True):
        expected = space(row)
        pairs = [(found[name], expected[name]) for name in expected] if mode == "dict" else [(found, expected)]
        for a, b in pairs:
            assert_equal(a, b)
