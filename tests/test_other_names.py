"""Names of libraries other than TensorFlow: what errors say to whoever tries them here."""

import re

import pytest

import penstock as ps
from penstock.data.other_libraries import DATASETS, ITERATORS, KEYWORDS
from penstock.other_libraries import PACKAGE


def numbers() -> ps.Dataset:
    return ps.Dataset.range(4)


KEYWORDS_SAID = {
    "drop_last": (
        lambda: numbers().batch(2, drop_last=True),
        r"batch\(drop_last=...\) is PyTorch's and not taken here: .* drop_remainder=True",
    ),
    "num_workers": (lambda: numbers().map(abs, num_workers=2), r"is PyTorch's .* num_parallel_calls=n"),
    "num_proc": (lambda: numbers().filter(bool, num_proc=2), r"is Hugging Face's .* processes=True"),
    "batched": (lambda: numbers().map(abs, batched=True), r"batch\(1000\).map\(fn\)"),
    "generator": (lambda: numbers().shuffle(generator=None), r"shuffle\(generator=...\) is PyTorch's .* seed=..."),
    "random_state": (lambda: numbers().shuffle(random_state=3), r"is NumPy's .* seed=..."),
    "two at once": (
        lambda: numbers().batch(2, drop_last=True, collate_fn=None),
        r"drop_remainder=True; batch\(collate_fn=...\)",
    ),
}


@pytest.mark.parametrize("name", KEYWORDS_SAID)
def test_a_keyword_of_another_library_is_answered_with_ours(name):
    call, message = KEYWORDS_SAID[name]
    with pytest.raises(ps.InvalidTypeError, match=message):
        call()


ATTRIBUTES_SAID = {
    "DataLoader": (ps, r"module 'penstock' has no attribute 'DataLoader', which is PyTorch's name: .* ps.torch.loader"),
    "MapDataset": (ps, r"which is Grain's name: .* ps.Dataset.from_source"),
    "load_dataset": (ps, r"which is Hugging Face's name: ps.ParquetDataset"),
    "WebDataset": (ps, r"which is WebDataset's name: ps.TarDataset"),
    "experimental": (ps, r"which is TensorFlow's name: there is no experimental"),
    "to_iter_dataset": (
        numbers(),
        r"'Dataset' object has no attribute 'to_iter_dataset', which is Grain's name: nothing",
    ),
    "with_format": (numbers(), r"which is Hugging Face's name: elements are NumPy's; ps.torch.loader"),
    "train_test_split": (numbers(), r"reshuffle_each_iteration=False\), then take\(n\)"),
    "state_dict": (numbers(), r"which is PyTorch's name: an iterator has it"),
    "map_batches": (numbers(), r"which is Ray's name: batch\(batch_size\).map\(fn\)"),
    "get_state": (iter(numbers()), r"which is Grain's name: use iterator.state_dict\(\)"),
}


@pytest.mark.parametrize("name", ATTRIBUTES_SAID)
def test_an_attribute_of_another_library_is_answered_with_ours(name):
    value, message = ATTRIBUTES_SAID[name]
    with pytest.raises(AttributeError, match=message):
        getattr(value, name)


def test_names_of_tf_data_are_said_to_be_in_the_package_itself():
    with pytest.raises(
        AttributeError, match=r"'penstock.data' has no attribute 'AUTOTUNE': public names are in ps itself"
    ):
        _ = ps.data.AUTOTUNE


def test_other_names_that_there_are_not_get_the_usual_error():
    with pytest.raises(AttributeError, match=r"^module 'penstock' has no attribute 'ParquetDatset'$"):
        _ = ps.ParquetDatset
    with pytest.raises(AttributeError, match=r"^'Dataset' object has no attribute 'btach'$"):
        _ = numbers().btach


@pytest.mark.parametrize(
    "table", [KEYWORDS, PACKAGE, DATASETS, ITERATORS], ids=["keywords", "ps", "dataset", "iterator"]
)
def test_what_is_advised_exists(table):
    for name, advice in table.items():
        for used in re.findall(r"\bps\.(\w+)", advice.why):
            assert hasattr(ps, used), name
        for used in re.findall(r"(?:\bps\.Dataset\.|\bdataset\.|^)(\w+)\(", advice.why):
            assert hasattr(ps.Dataset, used) or used == "map" or used in ("len", "list"), name
