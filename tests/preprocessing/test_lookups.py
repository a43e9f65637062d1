"""StringLookup and IntegerLookup: what they take, what they learn, and what they refuse."""

import json
import subprocess
import sys
import threading
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.preprocessing import IntegerLookup, StringLookup, keys
from penstock.testing import check_conformance

LETTERS = ["a", "b", "c", "d", "f"]

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=80)
vocabularies = st.lists(texts.filter(lambda text: text != "[UNK]"), min_size=1, max_size=30, unique=True)


@pytest.mark.slow
@given(vocabularies, st.lists(texts, max_size=150))
def test_a_lookup_is_what_a_dictionary_gives(vocabulary: list[str], tokens: list[str]) -> None:
    table = {token: number for number, token in enumerate(vocabulary, start=1)}
    assert StringLookup(vocabulary=vocabulary)(tokens).tolist() == [table.get(token, 0) for token in tokens]


@pytest.mark.slow
@given(vocabularies)
def test_inverting_gives_known_tokens_back(vocabulary: list[str]) -> None:
    forwards = StringLookup(vocabulary=vocabulary, mask_token="", num_oov_indices=2)
    backwards = StringLookup(vocabulary=vocabulary, mask_token="", num_oov_indices=2, invert=True)
    assert backwards(forwards(vocabulary)).tolist() == vocabulary


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, unique=True), st.lists(st.integers(-20, 20)))
def test_integers_too(vocabulary: list[int], tokens: list[int]) -> None:
    table = {token: number for number, token in enumerate(vocabulary, start=1)}
    asked = tokens + vocabulary
    assert IntegerLookup(vocabulary=vocabulary)(np.array(asked)).tolist() == [table.get(token, 0) for token in asked]


@pytest.mark.parametrize("count", [1, 50, 5000])
@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        np.array,
        lambda tokens: np.array(tokens, object),
        lambda tokens: np.array(tokens, np.bytes_),
        lambda tokens: np.array([token.encode() for token in tokens], object),
        lambda tokens: np.array(tokens, np.dtypes.StringDType()),
        pa.array,
        lambda tokens: pa.chunked_array([tokens, []]),
        lambda tokens: pa.array(tokens).dictionary_encode(),
    ],
    ids=["list", "tuple", "U", "objects", "S", "bytes", "StringDType", "arrow", "chunked", "dictionary"],
)
def test_strings_come_in_any_form_and_number(form: Any, count: int) -> None:
    tokens = (["a", "zz", "f", "c"] * count)[:count]
    expected = ([1, 0, 5, 3] * count)[:count]
    result = StringLookup(vocabulary=LETTERS)(form(tokens))
    assert result.tolist() == expected and result.dtype == np.int64


def test_shapes_stay_and_a_scalar_gives_a_scalar() -> None:
    layer = StringLookup(vocabulary=LETTERS)
    assert layer("c") == 3 and isinstance(layer("c"), np.int64) and layer(b"c") == 3
    assert layer(np.array([[["a"], ["b"]]])).shape == (1, 2, 1)
    assert layer([]).shape == (0,)
    assert StringLookup(vocabulary=LETTERS, invert=True)(3) == "c"


def test_a_layer_made_under_a_strategy_maps_a_dataset_as_the_guide_shows() -> None:
    with ps.HostStrategy(replicas_per_worker=4).scope():
        layer = StringLookup(vocabulary=LETTERS)
    dataset = ps.Dataset.from_tensor_slices(["a", "c", "e"]).repeat().batch(1).map(layer).take(12)
    assert [batch.tolist() for batch in dataset] == [[n] for n in [1, 3, 0, 1, 3, 0, 1, 3, 0, 1, 3, 0]]


def test_several_unknown_indices_take_other_unknown_tokens_apart() -> None:
    layer = StringLookup(vocabulary=["a"], num_oov_indices=1000, mask_token="")
    found = layer([f"unknown{number}" for number in range(100)])
    assert len(set(found.tolist())) > 80 and found.min() >= 1 and found.max() <= 1000


def test_without_an_index_for_unknown_tokens_they_are_refused_by_name() -> None:
    with pytest.raises(ps.InvalidArgumentError, match=r"got \['q'\]: set num_oov_indices=1"):
        StringLookup(vocabulary=LETTERS, num_oov_indices=0)(["a", "q"])
    with pytest.raises(ps.InvalidArgumentError, match=r"got \[7\]"):
        IntegerLookup(vocabulary=[1, 2], num_oov_indices=0)([1, 7])


@pytest.mark.parametrize(
    "make",
    [
        lambda data: data,
        lambda data: np.array(data),
        lambda data: ps.Dataset.from_tensor_slices(data),
        lambda data: ps.Dataset.from_tensor_slices(data).batch(3),
        lambda data: ps.Dataset.from_tensor_slices(data).batch(7).batch(2),
        lambda data: ps.Dataset.from_generator(lambda: iter([np.array(data[:3], object), np.array(data[3:], object)])),
    ],
    ids=["list", "array", "elements", "batches", "batches of batches", "ragged"],
)
def test_adapt_learns_the_same_from_any_form_of_data(make: Any) -> None:
    layer = StringLookup().adapt(make(["b", "c", "a", "c", "d", "b", "c"]))
    assert layer.get_vocabulary() == ["[UNK]", "c", "b", "d", "a"]


def test_counting_is_the_same_when_counts_are_summed_up_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"w{number * number % 97}" for number in range(3000)]
    dataset = ps.Dataset.from_tensor_slices(np.array(words, object).reshape(-1, 10))
    expected = StringLookup(output_mode="tf_idf").adapt(dataset)
    monkeypatch.setattr("penstock.accumulators.counts._PENDING", 50)
    layer = StringLookup(output_mode="tf_idf").adapt(dataset)
    assert layer.get_config() == expected.get_config()


@pytest.mark.slow
def test_a_mapped_layer_is_the_same_before_and_after_batch_and_in_threads() -> None:
    tokens = np.array([f"t{number % 700}" for number in range(3000)], object)
    layer = StringLookup(vocabulary=[f"t{number}" for number in range(500)], output_mode="one_hot")
    dataset = ps.Dataset.from_tensor_slices(tokens)
    expected = np.concatenate(list(dataset.batch(100).map(layer)))
    for mapped in (dataset.map(layer), dataset.map(layer, num_parallel_calls=4), dataset.map(lambda x: layer(x))):
        assert np.array_equal(np.stack(list(mapped)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "shift-jis"])
@settings(max_examples=40)
@given(st.lists(st.binary(max_size=5).filter(lambda token: token != b"[UNK]"), min_size=1, unique=True))
def test_vocabularies_of_any_bytes_are_written_as_json_and_read_again(encoding: str, tokens: list[bytes]) -> None:
    layer = StringLookup(encoding=encoding).adapt(tokens)
    again = StringLookup.from_config(json.loads(json.dumps(layer.get_config())))
    assert again.get_config() == layer.get_config()
    assert again(tokens).tolist() == layer(tokens).tolist() == layer(layer.get_vocabulary())[layer(tokens)].tolist()


def test_strings_and_their_bytes_are_the_same_token() -> None:
    layer = StringLookup(vocabulary=[b"\xe9", "\xe8"], mask_token=b"\xe4", encoding="latin-1")
    for tokens in (["\xe9", "\xe8", "\xe4"], [b"\xe9", b"\xe8", b"\xe4"], pa.array(["\xe9", "\xe8", "\xe4"])):
        assert layer(tokens).tolist() == [2, 3, 0]
    assert layer.get_vocabulary() == ["\xe4", "[UNK]", "\xe9", "\xe8"]
    with pytest.raises(ps.InvalidTypeError, match="encoding='latin-1' cannot write"):
        layer(["\u65e5"])
    with pytest.raises(ps.InvalidTypeError, match="cannot write"):
        StringLookup(vocabulary=["a"])(["\ud800"])


def test_arguments_of_numpy_are_written_as_json() -> None:
    layers = [
        IntegerLookup(vocabulary=np.array([5, 7]), mask_token=np.int64(0), oov_token=np.int32(-1)),
        StringLookup(vocabulary=np.array(["a"]), mask_token=b""),
        ps.preprocessing.Rescaling(np.float32(2), np.array([1.0, 2.0])),
        ps.preprocessing.Normalization(np.int64(-1), np.array([1.0]), np.array([2.0])),
        ps.preprocessing.Hashing(np.int64(4), mask_value=b"a", salt=np.int64(3)),
        ps.preprocessing.Discretization(np.array([1.0, 2.0]), epsilon=np.float64(0.1)),
        ps.preprocessing.TextVectorization(ngrams=(1, 2), vocabulary=["a"]),
    ]
    for layer in layers:
        written = json.loads(json.dumps(layer.get_config()))
        assert type(layer).from_config(written).get_config() == written == layer.get_config()


def test_an_error_in_a_block_comes_at_its_element() -> None:
    layer = StringLookup(vocabulary=["a"], num_oov_indices=0)
    iterator = iter(ps.Dataset.from_tensor_slices(["a", "a", "a", "q", "a"]).map(layer))
    assert [int(next(iterator)) for _ in range(3)] == [0, 0, 0]
    with pytest.raises(ps.InvalidArgumentError) as caught:
        next(iterator)
    assert any("element 3" in note for note in caught.value.__notes__)
    assert int(next(iterator)) == 0


@pytest.mark.parametrize("mode", ["int", "one_hot", "multi_hot", "count"])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (3, 2), (2, 3, 1)])
def test_a_block_gives_what_its_rows_give(mode: str, shape: tuple[int, ...]) -> None:
    layer = StringLookup(vocabulary=LETTERS, mask_token="zz", output_mode=mode)
    column = np.array(["a", "b", "zz", "f", "a", "c"], object).reshape(shape)
    assert np.array_equal(layer._map_block(column), np.stack([layer(row) for row in column]))


@pytest.mark.parametrize("mode", ["int", "one_hot"])
def test_a_mapped_layer_keeps_the_promises_of_every_dataset(mode: str) -> None:
    layer = StringLookup(vocabulary=LETTERS, output_mode=mode)
    tokens = ps.Dataset.from_tensor_slices(["a", "c", "e", "f", "b", "zz", "d"])
    check_conformance(lambda: tokens.map(layer))
    check_conformance(lambda: tokens.filter(lambda token: token != "b").map(layer).batch(2))


def test_a_layer_is_a_value_that_travels_to_other_processes() -> None:
    layer = StringLookup(vocabulary=LETTERS, output_mode="tf_idf", idf_weights=[1, 2, 3, 4, 5])
    layer(["a"])
    copy = cloudpickle.loads(cloudpickle.dumps(layer))
    assert np.array_equal(copy(["a", "q"]), layer(["a", "q"])) and copy.get_config() == layer.get_config()


def test_threads_may_share_a_layer() -> None:
    layer = StringLookup(vocabulary=[f"t{number}" for number in range(2000)])
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(layer([f"t{number}" for number in range(100)])))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result.tolist() == list(range(1, 101)) for result in results) and len(results) == 8


def test_few_and_many_values_are_found_alike() -> None:
    known = keys.MemoryKeys(pa.array([f"t{number}".encode() for number in range(1000)], pa.large_binary()))
    values = pa.array([f"t{number}".encode() for number in range(500, 1500)], pa.large_binary())
    assert known.find(values).tolist() == [
        n for start in range(0, 1000, 20) for n in known.find(values[start : start + 20])
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary": []}, "at least one token"),
        ({"vocabulary": ["a", "b", "a"]}, r"repeated: \['a'\]"),
        ({"vocabulary": ["a", ""], "mask_token": ""}, "mask_token '' is token 1"),
        ({"vocabulary": ["a", "[UNK]"], "invert": True}, r"oov_token '\[UNK\]' is token 1"),
        ({"vocabulary": LETTERS, "max_tokens": 5}, "has 6 tokens, max_tokens is 5"),
        ({"vocabulary": LETTERS, "output_mode": "tf_idf"}, "needs idf_weights"),
        ({"vocabulary": LETTERS, "idf_weights": [1.0]}, "no use for idf_weights"),
        ({"vocabulary": LETTERS, "idf_weights": [1.0], "output_mode": "tf_idf"}, "a weight for each of 5 tokens"),
        ({"idf_weights": [1.0], "output_mode": "tf_idf"}, "give vocabulary too"),
        ({"vocabulary": "missing.txt"}, "no such file"),
        ({"max_tokens": 1}, "at least 2"),
        ({"num_oov_indices": -1}, "at least 0"),
        ({"output_mode": "binary"}, "one of 'int'"),
        ({"invert": True, "output_mode": "count"}, "leave output_mode out"),
        ({"pad_to_max_tokens": True}, "needs max_tokens"),
        ({"oov_token": None}, "must not be None"),
        ({"encoding": "utf-99"}, "no such encoding"),
    ],
)
def test_arguments_that_cannot_work_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ps.InvalidArgumentError, match=message):
        StringLookup(**arguments)


@pytest.mark.parametrize(
    "inputs", [[1, 2], np.array([1.5]), [["a"], ["b", "c"]], ["a", None], pa.array(["a", None]), pa.array([1]), {"a"}]
)
def test_what_is_no_string_is_refused(inputs: Any) -> None:
    with pytest.raises(ps.InvalidTypeError, match="StringLookup takes"):
        StringLookup(vocabulary=LETTERS)(inputs)


@pytest.mark.parametrize("inputs", [["a"], [1.5], [[1], [2, 3]], [None], np.array([1 << 63], np.uint64)])
def test_what_is_no_integer_is_refused(inputs: Any) -> None:
    with pytest.raises(ps.InvalidTypeError, match="IntegerLookup takes"):
        IntegerLookup(vocabulary=[1])(inputs)


def test_misuse_says_what_to_do() -> None:
    with pytest.raises(ps.InvalidArgumentError, match=r"no vocabulary yet: give vocabulary=\.\.\. or call adapt"):
        StringLookup()(["a"])
    with pytest.raises(ps.InvalidArgumentError, match="was given a vocabulary"):
        StringLookup(vocabulary=LETTERS).adapt(["a"])
    with pytest.raises(ps.InvalidArgumentError, match=r"never ends, take\(n\)"):
        StringLookup().adapt(ps.Dataset.from_tensor_slices(["a"]).repeat())
    with pytest.raises(ps.InvalidTypeError, match="map the dataset to the feature first"):
        StringLookup().adapt(ps.Dataset.from_tensor_slices((["a"], [1])))
    with pytest.raises(ps.InvalidTypeError, match=r"takes a ps\.Dataset, an array or a list"):
        StringLookup().adapt(iter(["a"]))
    with pytest.raises(ps.InvalidTypeError, match=r"XLA has no strings; use the layer before the model"):
        StringLookup(vocabulary=LETTERS).to_keras()
    with pytest.raises(ps.InvalidTypeError, match="takes a string"):
        StringLookup(mask_token=0)  # type: ignore[arg-type]
    with pytest.raises(ps.InvalidTypeError, match="takes an integer"):
        IntegerLookup(oov_token="x")  # type: ignore[arg-type]
    with pytest.raises(ps.InvalidTypeError, match="takes integers"):
        StringLookup(vocabulary=LETTERS, invert=True)([1.5])


@pytest.mark.extended
def test_layers_load_neither_jax_nor_keras_nor_tensorflow() -> None:
    heavy = "{'jax', 'keras', 'tensorflow'}"
    program = f"import sys, penstock as ps; ps.preprocessing.StringLookup; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_other_encodings_are_read_on_the_way_out() -> None:
    layer = StringLookup(vocabulary=["é".encode("latin-1")], encoding="latin-1")
    assert layer.get_vocabulary() == ["[UNK]", "é"] and layer(["é".encode("latin-1")]).tolist() == [1]
