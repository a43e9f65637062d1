"""Datasets: blocks, nodes, operators, plans, and the fluent `Dataset` on top of them."""

from typing import Any

from penstock.data.dataset import Dataset as Dataset
from penstock.data.iterator import DatasetIterator as DatasetIterator


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}: public names are in ps itself, as ps.AUTOTUNE is"
    )
