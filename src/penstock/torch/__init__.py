"""`ps.torch`: datasets as tensors, for the ranks of a PyTorch job."""

from penstock.torch.loader import Loader as Loader
from penstock.torch.loader import loader as loader

__all__ = ["Loader", "loader"]
