"""`ps.torch`: datasets as tensors, for the ranks of a PyTorch job."""

import importlib
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingExtraError
from penstock.torch.iterable import IterableElements as IterableElements
from penstock.torch.iterable import as_iterable_dataset as as_iterable_dataset
from penstock.torch.loader import Loader as Loader
from penstock.torch.loader import loader as loader

if TYPE_CHECKING:
    from penstock.torch.lightning import LightningReport as LightningReport

__all__ = ["IterableElements", "LightningReport", "Loader", "as_iterable_dataset", "loader"]


def __getattr__(name: str) -> Any:
    if name != "LightningReport":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module("penstock.torch.lightning").LightningReport
    except ImportError as error:
        raise MissingExtraError(
            f"ps.torch.LightningReport is a callback of Lightning's Trainer: pip install lightning ({error})",
            name="lightning",
        ) from error
