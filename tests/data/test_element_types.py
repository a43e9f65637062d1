"""What type checkers know of a dataset's elements: mypy reads this file in `make check`, and it runs as a test too."""

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import penstock as ps

Numbers = npt.NDArray[np.float32]


def pair(x: np.int64) -> tuple[Numbers, np.int64]:
    return np.full(2, x, np.float32), x


def rows() -> Iterator[np.int64]:
    yield np.int64(7)


def test_map_gives_what_its_function_returns() -> None:
    dataset = assert_type(ps.Dataset.range(3).map(pair), ps.Dataset[tuple[Numbers, np.int64]])
    for image, label in dataset:
        assert_type(image, Numbers)
        assert_type(label, np.int64)
        assert type(label) is np.int64
    assert_type(next(iter(dataset)), tuple[Numbers, np.int64])
    assert_type(dataset.at(0), tuple[Numbers, np.int64])


def test_methods_that_only_choose_elements_keep_their_type() -> None:
    dataset = ps.Dataset.range(8).filter(lambda x: x > 1).shuffle(8, seed=1).take(4).repeat().skip(1).prefetch(1)
    assert_type(dataset, ps.Dataset[np.int64])
    assert_type(dataset.cache().with_options(ps.Options(seed=1)).concatenate(dataset), ps.Dataset[np.int64])
    assert_type(iter(dataset), ps.types.DatasetIterator[np.int64])
    assert type(next(iter(dataset))) is np.int64


def test_batches_are_of_any_type() -> None:
    assert_type(ps.Dataset.range(4).batch(2), ps.Dataset[Any])
    assert_type(ps.Dataset.range(4).batch(2).unbatch().filter(bool), ps.Dataset[Any])


def test_positions_and_inner_datasets_are_followed() -> None:
    numbered = assert_type(
        ps.Dataset.range(2).map(pair).enumerate(), ps.Dataset[tuple[np.int64, tuple[Numbers, np.int64]]]
    )
    assert type(next(iter(numbered))[0]) is np.int64
    assert_type(ps.Dataset.range(4).flat_map(ps.Dataset.range), ps.Dataset[np.int64])
    assert_type(ps.Dataset.list_files(__file__).interleave(ps.TextLineDataset), ps.Dataset[str])
    assert_type(ps.Dataset.from_generator(rows), ps.Dataset[np.int64])
    assert list(ps.Dataset.from_generator(rows)) == [7]


def test_a_dataset_without_parameters_is_one_of_anything() -> None:
    def first(dataset: ps.Dataset) -> Any:  # strict checkers ask for no parameter
        return dataset.at(0)

    assert first(ps.Dataset.range(3)) == 0
    assert_type(ps.Dataset.from_tensors(1), ps.Dataset[Any])


def test_a_dataset_of_something_narrower_is_taken() -> None:
    def total(dataset: ps.Dataset[np.integer[Any]]) -> int:
        return sum(int(x) for x in dataset)

    assert total(ps.Dataset.range(4)) == 6
