"""Random layers, Keras's and ours, in `map`: an element gets the same numbers, however it is reached."""

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
import cloudpickle
import keras
import numpy as np
import pytest

import penstock as ps
from penstock.preprocessing import CenterCrop, RandomCrop, RandomFlip, random

IMAGES = np.random.default_rng(0).integers(0, 255, (6, 9, 7, 3)).astype(np.uint8)


def mapped(function: Any, **arguments: Any) -> Any:
    return ps.Dataset.from_tensor_slices(IMAGES).map(function, seed=3, **arguments)


def taken(dataset: Any) -> Any:
    return np.stack([np.asarray(image) for image in dataset])


@pytest.mark.extended
@pytest.mark.parametrize(
    "make",
    [
        lambda: random(keras.layers.RandomTranslation(0.3, 0.3)),
        lambda: random(keras.layers.RandomBrightness(0.5)),
        lambda: random(keras.Sequential([keras.layers.RandomFlip(), keras.layers.RandomContrast(0.5)])),
        lambda: random(keras.Sequential([keras.layers.Rescaling(1.0), keras.layers.Dropout(0.5)])),
        lambda: RandomFlip(),
        lambda: RandomCrop(4, 5),
    ],
    ids=["translation", "brightness", "sequential", "dropout", "flip", "crop"],
)
def test_random_images_are_equal_in_parallel_and_in_other_processes(make: Any) -> None:
    function = make()
    expected = taken(mapped(function))
    assert np.array_equal(taken(mapped(function, num_parallel_calls=3)), expected)
    assert np.array_equal(taken(mapped(lambda image, generator: function(image, generator))), expected)
    sent = mapped(cloudpickle.loads(cloudpickle.dumps(function)))
    iterator = iter(sent)
    for _ in range(2):
        next(iterator)
    restored = iter(sent)
    restored.load_state_dict(iterator.state_dict())
    assert np.array_equal(taken(restored), expected[2:])
    assert any(not np.array_equal(expected[0] - expected[0].mean(), row - row.mean()) for row in expected[1:])


@pytest.mark.parametrize("layer", [RandomFlip(), RandomFlip("horizontal"), RandomCrop(2, 3)], ids=repr)
@pytest.mark.parametrize("shape", [(3, 4, 2), (3, 3, 4, 2)], ids=["images", "batches"])
def test_many_small_images_are_changed_as_each_of_them_alone(layer: Any, shape: tuple[int, ...]) -> None:
    images = np.arange(300 * np.prod(shape), dtype=np.int32).reshape(300, *shape)
    dataset = ps.Dataset.from_tensor_slices(images)
    expected = taken(dataset.map(lambda image, generator: layer(image, generator), seed=3))
    assert np.array_equal(taken(dataset.map(layer, seed=3)), expected)
    assert np.array_equal(np.concatenate(taken(dataset.map(layer, seed=3).batch(150))), expected)
    assert np.array_equal(taken(dataset.map(layer, seed=3).skip(70)), expected[70:])


def test_the_hidden_state_of_a_layer_of_keras_stays_as_it_is() -> None:
    layer = keras.layers.RandomFlip(seed=1)
    function = random(layer)
    before = np.array(layer.variables[0].value)
    taken(mapped(function))  # the first call builds the layer
    after = np.array(layer.variables[0].value)
    taken(mapped(function))
    assert np.array_equal(layer.variables[0].value, after) and before.shape == (2,)


@pytest.mark.slow
def test_a_random_layer_of_keras_is_refused_without_random() -> None:
    nested = keras.Sequential([keras.layers.Rescaling(1.0), keras.layers.RandomFlip()])
    for layer in (keras.layers.RandomFlip(), nested):
        with pytest.raises(ps.InvalidTypeError, match=r"use ps.preprocessing.random\(layer\) and map\(..., seed="):
            mapped(layer)
    calls: Any = lambda image: nested(image[None], training=True)  # noqa: E731
    with pytest.raises(ps.InvalidTypeError, match="the function called Keras's Sequential, whose random numbers"):
        next(iter(ps.Dataset.from_tensor_slices(IMAGES).map(calls)))
    with pytest.raises(ps.InvalidTypeError, match="the function called Keras's Sequential"):
        next(iter(ps.Dataset.from_tensor_slices(IMAGES).map(calls).ignore_errors()))  # no row is to blame for it


@pytest.mark.slow
def test_layers_that_draw_nothing_may_be_called() -> None:
    dropout, flip = keras.layers.Dropout(0.5), keras.layers.RandomFlip()
    images = ps.Dataset.from_tensor_slices(IMAGES.astype(np.float32))
    for function in (dropout, lambda image: dropout(flip(image, training=False)), keras.layers.Rescaling(1.0)):
        assert np.array_equal(np.asarray(next(iter(images.map(function)))), IMAGES[0])


def test_random_takes_random_layers_of_keras_only() -> None:
    for wrong in (keras.layers.Rescaling(1.0), RandomFlip(), len):
        with pytest.raises(ps.InvalidTypeError, match="takes a layer of Keras that draws random numbers"):
            random(wrong)
    with pytest.raises(ps.InvalidTypeError, match="AugMix draws from Python's own"):
        random(keras.layers.AugMix())
    with pytest.raises(ps.InvalidArgumentError, match=r"give map\(..., seed="):
        ps.Dataset.from_tensor_slices(IMAGES).map(random(keras.layers.RandomFlip()))


@pytest.mark.parametrize("mode", ["horizontal", "vertical", "horizontal_and_vertical"])
def test_flips_give_every_way_of_flipping_about_as_often(mode: str) -> None:
    image = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    ways = {
        "horizontal": [image, image[:, ::-1]],
        "vertical": [image, image[::-1]],
        "horizontal_and_vertical": [image, image[:, ::-1], image[::-1], image[::-1, ::-1]],
    }[mode]
    flipped = taken(ps.Dataset.from_tensors(image).repeat(400).map(RandomFlip(mode), seed=1))
    counts = [sum(np.array_equal(way, found) for found in flipped) for way in ways]
    assert sum(counts) == 400 and min(counts) > 400 / len(ways) * 0.75


def test_crops_come_from_everywhere() -> None:
    image = np.arange(20).reshape(4, 5, 1)
    crops = taken(ps.Dataset.from_tensors(image).repeat(300).map(RandomCrop(3, 3), seed=1))
    expected = {image[top : top + 3, left : left + 3].tobytes() for top in range(2) for left in range(3)}
    assert {crop.tobytes() for crop in crops} == expected


@pytest.mark.parametrize("layer", [RandomFlip(), RandomCrop(4, 5), CenterCrop(4, 5)], ids=repr)
def test_images_may_have_their_channels_first_or_be_batches(layer: Any) -> None:
    arguments = {} if isinstance(layer, CenterCrop) else {"seed": 2}
    first = type(layer)(**{**layer.get_config(), "data_format": "channels_first"})
    expected = taken(ps.Dataset.from_tensor_slices(IMAGES).map(layer, **arguments))
    other = taken(ps.Dataset.from_tensor_slices(IMAGES.transpose(0, 3, 1, 2)).map(first, **arguments))
    assert np.array_equal(other.transpose(0, 2, 3, 1), expected) and expected.dtype == np.uint8
    batches = ps.Dataset.from_tensor_slices(IMAGES).batch(4)
    assert [batch.shape for batch in batches.map(layer, **arguments)] == [
        (4, *expected.shape[1:]),
        (2, *expected.shape[1:]),
    ]


def test_images_of_unequal_sizes_are_cropped_to_one() -> None:
    sizes = ps.Dataset.from_generator(lambda: iter([IMAGES[0], IMAGES[1, :5], IMAGES[2, 1:]]))
    assert taken(sizes.map(CenterCrop(4, 4))).shape == taken(sizes.map(RandomCrop(4, 4), seed=1)).shape == (3, 4, 4, 3)
    with pytest.raises(
        ps.InvalidArgumentError, match=r"RandomCrop\(6, 4\) takes images of at least that size, got 5 x 7"
    ):
        taken(sizes.map(RandomCrop(6, 4), seed=1))


@pytest.mark.slow
def test_the_middle_is_that_of_keras() -> None:
    for height, width in [(4, 5), (5, 4), (9, 7)]:
        theirs = np.asarray(keras.layers.CenterCrop(height, width)(IMAGES))
        assert np.array_equal(CenterCrop(height, width)(IMAGES), theirs)
        assert np.array_equal(CenterCrop(height, width).to_keras()(IMAGES), theirs)


@pytest.mark.parametrize("wrong", [np.zeros((4, 4)), np.zeros((2, 2, 4, 4, 3)), np.array("x")])
def test_what_is_no_image_is_refused(wrong: Any) -> None:
    with pytest.raises(ps.InvalidTypeError, match=r"takes an image \(height, width, channels\) or a batch"):
        RandomFlip()(wrong, np.random.default_rng())
    with pytest.raises(ps.InvalidTypeError, match="CenterCrop takes an image"):
        CenterCrop(2, 2)(wrong)
