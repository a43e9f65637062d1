"""What training needs beside the data: checkpoints. JAX and Orbax are imported only when one is asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.training.checkpoint_files import latest_checkpoint as latest_checkpoint

if TYPE_CHECKING:
    from penstock.training.checkpoint import Checkpoint as Checkpoint


def __getattr__(name: str) -> Any:
    if name == "Checkpoint":
        return import_module("penstock.training.checkpoint").Checkpoint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
