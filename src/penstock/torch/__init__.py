"""`ps.torch`: datasets as tensors, for the ranks of a PyTorch job."""

from penstock.torch.iterable import IterableElements as IterableElements
from penstock.torch.iterable import as_iterable_dataset as as_iterable_dataset
from penstock.torch.loader import Loader as Loader
from penstock.torch.loader import loader as loader

__all__ = ["IterableElements", "Loader", "as_iterable_dataset", "loader"]
