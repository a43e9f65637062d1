"""Saving datasets: in shards, resumed where it was killed, and as snapshots; and loading them.

It is imported when a dataset is saved or loaded: few programs do that, and it needs much of the standard library.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.data.saving import load as load
    from penstock.data.saving import save as save
    from penstock.data.saving import snapshots as snapshots

_WHEN_USED = {"load", "save", "snapshots"}


def __getattr__(name: str) -> Any:
    if name in _WHEN_USED:
        return importlib.import_module(f"penstock.data.saving.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
