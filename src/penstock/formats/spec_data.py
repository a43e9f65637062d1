"""Specifications as plain data, which fits into JSON and MessagePack: [shape, dtype, ragged rank]."""

from typing import Any

import numpy as np

from penstock.spec import LeafSpec, leaf_spec


def spec_to_data(spec: LeafSpec) -> list[Any]:
    """A specification of a leaf as plain data."""
    return [spec.shape, dtype_name(spec.dtype), spec.ragged_rank]


def spec_of_data(data: list[Any]) -> LeafSpec:
    """The specification that `spec_to_data` wrote."""
    shape, dtype, ragged_rank = data
    return leaf_spec(tuple(shape), np.dtype(dtype), ragged_rank)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name by which NumPy finds a dtype again."""
    # Extension dtypes such as bfloat16 have a name that NumPy knows, and a `str` that says nothing.
    return dtype.name if dtype.kind == "V" and dtype.names is None else dtype.str
