"""Several layers learn in one pass, and what they learn alone."""

import numpy as np
import pytest

import penstock as ps
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.preprocessing import Discretization, IntegerLookup, Normalization, StringLookup, TextVectorization

GENERATOR = np.random.default_rng(4)
COLUMNS = {
    "vector": GENERATOR.normal(3, 2, (300, 4)),
    "number": GENERATOR.normal(size=300).astype(np.float32),
    "word": np.array([f"w{number}" for number in GENERATOR.integers(0, 20, 300)], object),
    "id": GENERATOR.integers(0, 9, 300),
    "text": np.array([f"a b{number % 5} c{number % 3}" for number in range(300)], object),
}


def layers():
    return {
        "vector": Normalization(),
        "number": Discretization(num_bins=4),
        "word": StringLookup(max_tokens=10),
        "id": IntegerLookup(),
        "text": TextVectorization(output_mode="tf_idf"),
    }


def learned(adapted):
    return {name: layer.get_config() for name, layer in adapted.items()}


def test_layers_learn_together_what_they_learn_alone():
    dataset = ps.Dataset.from_tensor_slices(COLUMNS)
    together, alone = layers(), layers()
    ps.preprocessing.adapt_all(together, dataset)
    for name, layer in alone.items():
        layer.adapt(COLUMNS[name])
    assert learned(together) == learned(alone)


@pytest.mark.slow
def test_workers_of_a_service_learn_the_same():
    dataset = ps.Dataset.from_tensor_slices(COLUMNS)
    here, there = layers(), layers()
    ps.preprocessing.adapt_all(here, dataset)
    with ps.service.local(num_workers=1) as service:
        ps.preprocessing.adapt_all(there, dataset, service=service.target)
    assert learned(here) == learned(there)


@pytest.mark.parametrize(
    ("wrong", "dataset", "error", "message"),
    [
        ({"q": StringLookup()}, COLUMNS, InvalidArgumentError, "no column 'q', the dataset has"),
        ({"id": ps.preprocessing.Rescaling(2.0)}, COLUMNS, InvalidTypeError, "no layer that learns"),
        ({"id": IntegerLookup()}, {"id": np.zeros(0, np.int64)}, InvalidArgumentError, "no tokens to learn from"),
        ({"word": StringLookup(vocabulary=["a"])}, COLUMNS, InvalidArgumentError, "was given a vocabulary"),
        ({"number": Normalization()}, COLUMNS, InvalidArgumentError, "single numbers: use axis=None"),
    ],
)
def test_what_cannot_be_learned_is_refused(wrong, dataset, error, message):
    with pytest.raises(error, match=message):
        ps.preprocessing.adapt_all(wrong, ps.Dataset.from_tensor_slices(dataset))


def test_adapt_all_wants_rows_that_end():
    with pytest.raises(InvalidTypeError, match="a dataset of dictionaries"):
        ps.preprocessing.adapt_all({}, ps.Dataset.range(3))
    with pytest.raises(InvalidArgumentError, match="never ends"):
        ps.preprocessing.adapt_all(layers(), ps.Dataset.from_tensor_slices(COLUMNS).repeat())
