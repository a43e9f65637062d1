"""Tensors of NumPy's arrays: which memory they share, and what becomes of dtypes that torch lacks."""

import ml_dtypes
import numpy as np
import pytest
import torch

import penstock as ps
from penstock.torch.tensors import tensor_of


@pytest.mark.parametrize("dtype", ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
def test_dtypes_that_both_have_share_their_memory(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = tensor_of(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.numpy().dtype == array.dtype
    assert tensor.tolist() == array.tolist()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_of_ml_dtypes_share_their_memory(name: str) -> None:
    array = np.array([0.5, -2.0, 1.0]).astype(getattr(ml_dtypes, name))
    tensor = tensor_of(array)
    assert tensor.dtype is getattr(torch, name)
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.float().tolist() == [0.5, -2.0, 1.0]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_tensors_of_dtypes_that_numpy_lacks_are_taken_and_come_back(name: str) -> None:
    dtype = getattr(torch, name)
    tensors = torch.tensor([[0.5], [-2.0], [1.0], [float("inf")]]).to(dtype)
    for dataset in (
        ps.Dataset.from_tensor_slices(tensors),
        ps.Dataset.from_source(torch.utils.data.TensorDataset(tensors)).map(lambda row: row),
        ps.Dataset.range(4).map(lambda row: tensors[row]),
    ):
        assert [str(batch.dtype) for batch in dataset.batch(2)] == [name, name]
        with ps.torch.loader(dataset.batch(4)) as loader:
            (batch,) = loader
        assert batch.dtype is dtype and torch.allclose(batch.float(), tensors.float(), equal_nan=True)


def test_a_tensor_that_numpy_does_not_take_says_why() -> None:
    weights = torch.ones(2, requires_grad=True)
    with pytest.raises(ps.ElementError, match=r"no torch\.Tensor of dtype torch\.float32: .*detach"):
        list(ps.Dataset.range(2).map(lambda row: weights * 2))


def test_what_belongs_to_the_dataset_is_copied() -> None:
    images = np.ones((4, 2))
    for batch in ps.torch.loader(ps.Dataset.from_tensor_slices(images).batch(2)):
        batch.zero_()
    assert images.tolist() == np.ones((4, 2)).tolist()


def test_no_copy_is_made_of_a_batch_that_belongs_to_the_step() -> None:
    for batch in ps.Dataset.from_tensor_slices(np.ones((6, 2))).shuffle(6, seed=1).batch(2):
        assert tensor_of(batch).data_ptr() == batch.ctypes.data


def test_arrays_that_torch_cannot_step_through_are_copied() -> None:
    assert tensor_of(np.arange(4)[::-1]).tolist() == [3, 2, 1, 0]
    assert tensor_of(np.arange(4).astype(">i4")).tolist() == [0, 1, 2, 3]
    assert tensor_of(np.zeros(3, [("a", "i1"), ("b", "i4")])["b"]).tolist() == [0, 0, 0]
    assert tensor_of(np.array(5)).tolist() == 5


def test_strings_and_ragged_rows_are_lists() -> None:
    assert tensor_of(np.array(["a", "bc"])) == ["a", "bc"]
    assert tensor_of(np.array([b"a", None], dtype=object)) == [b"a", None]
    rows = ps.Dataset.range(1, 4).map(lambda n: np.arange(n)).ragged_batch(3)
    (batch,) = ps.torch.loader(rows)
    assert [row.tolist() for row in batch] == [[0], [0, 1], [0, 1, 2]]
    assert torch.nested.nested_tensor(batch, layout=torch.jagged).offsets().tolist() == [0, 1, 3, 6]


def test_a_dtype_that_torch_lacks_is_refused_when_the_loader_is_made() -> None:
    times = ps.Dataset.from_tensor_slices({"time": np.zeros(2, "M8[s]"), "y": np.zeros(2)})
    with pytest.raises(ps.ElementError, match=r"torch has no dtype datetime64\[s\], which .* at \['time'\]: map the"):
        ps.torch.loader(times.batch(2))
    longs = ps.Dataset.range(2).batch(2).map(lambda rows: rows.astype(np.longdouble))
    with pytest.raises(ps.ElementError, match="torch has no dtype (longdouble|float128): map the dataset"):
        next(iter(ps.torch.loader(longs)))
