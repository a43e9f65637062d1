"""`ps.ray`: penstock's processes placed by Ray, on one machine or a cluster of them.

`PenstockConfig` makes the workers of Ray Train find each other. It needs Ray Train: `pip install 'ray[train]'`.
"""

import importlib
from typing import TYPE_CHECKING, Any

import ray as _ray  # noqa: F401  # whoever uses this module has Ray; the error without it names the extra

from penstock.errors import MissingExtraError

if TYPE_CHECKING:
    from penstock.ray.train import PenstockConfig as PenstockConfig

__all__ = ["PenstockConfig"]


def __getattr__(name: str) -> Any:
    if name != "PenstockConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module("penstock.ray.train").PenstockConfig
    except ImportError as error:
        raise MissingExtraError(
            f"ps.ray.PenstockConfig needs Ray Train, which Ray does not bring by itself: pip install 'ray[train]' "
            f"({error})",
            name="ray.train",
        ) from error
