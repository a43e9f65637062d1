"""TextVectorization and Hashing: what Keras's documentation shows, and what a table of results cannot show."""

import json
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.preprocessing import Hashing, TextVectorization
from penstock.preprocessing.hashes import fingerprint64, siphash, spans


@pytest.mark.parametrize(
    ("arguments", "inputs", "expected"),
    [
        ({}, ["A", "B", "C", "D", "E"], [1, 0, 1, 1, 2]),
        ({"mask_value": ""}, ["A", "B", "", "C", "D"], [1, 1, 0, 2, 2]),
        ({"salt": [133, 137]}, ["A", "B", "C", "D", "E"], [1, 2, 1, 0, 2]),
        ({"salt": 133}, ["A", "B", "C", "D", "E"], [0, 0, 2, 1, 0]),
    ],
)
def test_hashing_as_keras_documents_it(arguments: dict[str, Any], inputs: list[str], expected: list[int]) -> None:
    result = Hashing(num_bins=3, **arguments)([[value] for value in inputs])
    assert result.tolist() == [[number] for number in expected] and result.dtype == np.int64


def test_siphash_of_its_authors_example() -> None:
    key = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
    words = siphash(*spans(pa.array([bytes(range(15))], pa.large_binary())), key)
    assert int(words[0]) == 0xA129CA6149BE45E5


@pytest.mark.slow
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_a_hash_does_not_depend_on_its_neighbours(values: list[bytes]) -> None:
    together = pa.array([b"x", *values], pa.large_binary())[1:]
    for function in (fingerprint64, lambda *where: siphash(*where, (1, 2))):
        alone = [function(*spans(pa.array([value], pa.large_binary())))[0] for value in values]
        assert function(*spans(together)).tolist() == alone


def test_hashing_refuses_what_cannot_work() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="at least 1"):
        Hashing(0)
    with pytest.raises(ps.InvalidTypeError, match="an integer or two"):
        Hashing(3, salt=[1, 2, 3])
    with pytest.raises(ps.InvalidArgumentError, match=r"below 2\*\*64"):
        Hashing(3, salt=1 << 64)
    with pytest.raises(ps.InvalidTypeError, match="takes strings or bytes"):
        Hashing(3)([None])
    with pytest.raises(ps.InvalidTypeError, match="needs TensorFlow"):
        Hashing(3).to_keras()


def test_functions_of_the_user_standardize_and_split() -> None:
    layer = TextVectorization(
        standardize=lambda texts: np.char.replace(texts, "-", " "),
        split=lambda texts: [text.split(",") for text in texts],
        vocabulary=["a b", "c"],
    )
    assert layer(["a-b,c", "c"]).tolist() == [[2, 3], [3, 0]]
    assert cloudpickle.loads(cloudpickle.dumps(layer))(["c"]).tolist() == [[3]]
    with pytest.raises(ps.InvalidTypeError, match="one string for each of 2"):
        TextVectorization(standardize=lambda texts: texts[:1], vocabulary=["a"])(["a", "b"])
    with pytest.raises(ps.InvalidTypeError, match="a list of strings for each text"):
        TextVectorization(split=lambda texts: [[["a"]], [["b"]]], vocabulary=["a"])(["a", "b"])
    with pytest.raises(ps.InvalidTypeError, match="one list for each of 2"):
        TextVectorization(split=lambda texts: [["a"]], vocabulary=["a"])(["a", "b"])


def test_one_long_text_costs_functions_only_its_own_memory() -> None:
    sizes = []

    def noted(texts: Any) -> Any:
        sizes.append(texts.nbytes)
        return texts

    layer = TextVectorization(
        standardize=noted, split=lambda texts: [[text] for text in noted(texts)], vocabulary=["a"]
    )
    assert layer(["a"] * 2000 + ["x" * 200_000]).shape == (2001, 1)
    assert len(sizes) == 2 and max(sizes) < 100_000


def test_functions_get_the_strings_that_bytes_of_an_encoding_are() -> None:
    seen: list[str] = []
    layer = TextVectorization(
        split=lambda texts: [seen.extend(text) or list(text) for text in texts], encoding="latin-1", vocabulary=["\xe9"]
    )
    assert layer([b"\xe9a", "\xe9"]).tolist() == [[2, 1], [2, 0]]
    assert seen == ["\xe9", "a", "\xe9"]
    with pytest.raises(ps.InvalidTypeError, match="some texts are not utf-8: give their encoding"):
        TextVectorization(split=lambda texts: [[text] for text in texts], vocabulary=["a"])([b"\xe9"])


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_characters_of_texts_in_any_encoding(encoding: str) -> None:
    layer = TextVectorization(standardize=None, split="character", encoding=encoding).adapt([b"a\xe9", b"\xe9"])
    assert layer([b"\xe9a", b"a"]).tolist() == [[2, 3], [3, 0]]
    again = TextVectorization.from_config(json.loads(json.dumps(layer.get_config())))
    assert again([b"\xe9a", b"a"]).tolist() == [[2, 3], [3, 0]]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"output_sequence_length": 4},
        {"output_mode": "count"},
        {"split": "character", "ngrams": 2},
        {"split": None},
        {"standardize": lambda texts: np.char.lower(texts)},
        {"split": lambda texts: [text.split() for text in texts]},
    ],
    ids=lambda arguments: ", ".join(arguments) or "defaults",
)
@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_a_block_of_texts_gives_what_its_rows_give(arguments: dict[str, Any], shape: tuple[int, ...]) -> None:
    texts = np.array(["The fox!", "", "a b the", "fox fox fox", "the", "é the"], object)
    layer = TextVectorization(vocabulary=["the", "fox", "é"], **arguments)
    dataset = ps.Dataset.from_tensor_slices(texts.reshape(shape))
    for found, row in zip(dataset.map(layer), texts.reshape(shape), strict=True):
        expected = layer(row)
        assert np.array_equal(found, expected) and np.asarray(found).dtype == expected.dtype


def test_texts_are_padded_to_the_longest_of_a_batch() -> None:
    dataset = (
        ps.Dataset.from_tensor_slices(["a b", "a", "b", "b"]).batch(2).map(TextVectorization(vocabulary=["a", "b"]))
    )
    assert [batch.tolist() for batch in dataset] == [[[2, 3], [2, 0]], [[3], [3]]]


def test_a_vocabulary_is_learned_from_a_dataset_or_a_list_alike() -> None:
    texts = ["The fox", "the dog the", "dog"]
    layers = [
        TextVectorization(output_mode="tf_idf").adapt(data)
        for data in (texts, ps.Dataset.from_tensor_slices(texts), ps.Dataset.from_tensor_slices(texts).batch(2))
    ]
    assert layers[0].get_vocabulary() == ["[UNK]", "the", "dog", "fox"]
    assert all(layer.get_config() == layers[0].get_config() for layer in layers)


@pytest.mark.parametrize(
    "arguments", [{}, {"ngrams": 2}, {"split": "character"}, {"output_mode": "count"}, {"split": None}]
)
def test_no_texts_and_no_words_are_texts_too(arguments: dict[str, Any]) -> None:
    layer = TextVectorization(vocabulary=["a"], **arguments)
    assert layer([]).size == 0
    assert layer(["", ""]).sum() == 0


def test_vocabulary_arguments_reach_the_lookup() -> None:
    layer = TextVectorization(max_tokens=10)
    layer.set_vocabulary(["", "[UNK]", "a"])
    assert layer.get_vocabulary() == ["", "[UNK]", "a"] and layer.vocabulary_size() == 3
    assert layer.get_vocabulary(include_special_tokens=False) == ["a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"standardize": "upper"}, "one of 'lower_and_strip_punctuation'"),
        ({"split": "words"}, "one of 'whitespace'"),
        ({"output_mode": "one_hot"}, "one of 'int'"),
        ({"output_sequence_length": 0}, "at least 1"),
        ({"output_mode": "count", "output_sequence_length": 3}, "needs output_mode='int'"),
        ({"ngrams": 0}, "at least 1"),
        ({"ngrams": (1, 0)}, "at least 1"),
        ({"vocabulary": ["a", "a"]}, "repeated"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=message):
        TextVectorization(**arguments)


def test_misuse_says_what_to_do() -> None:
    with pytest.raises(ps.InvalidArgumentError, match="its last axis must be 1"):
        TextVectorization(vocabulary=["a"])([["a", "b"]])
    with pytest.raises(ps.InvalidArgumentError, match="no vocabulary yet"):
        TextVectorization()(["a"])
    with pytest.raises(ps.InvalidArgumentError, match="was given a vocabulary"):
        TextVectorization(vocabulary=["a"]).adapt(["a"])
    with pytest.raises(ps.InvalidTypeError, match="XLA has no strings"):
        TextVectorization(vocabulary=["a"]).to_keras()
