"""`ps.ray`: penstock's processes placed by Ray, on one machine or a cluster of them.

`service` starts a data service of actors. `ParameterServers` says how actors run under a
`ps.ParameterServerStrategy`. `PenstockConfig` makes the workers of Ray Train find each other;
it needs Ray Train: `pip install 'ray[train]'`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingExtraError
from penstock.extras import load
from penstock.ray.service import service as service

if TYPE_CHECKING:
    from penstock.ray.parameter_servers import ParameterServers as ParameterServers
    from penstock.ray.train import PenstockConfig as PenstockConfig

__all__ = ["ParameterServers", "PenstockConfig", "service"]


def __getattr__(name: str) -> Any:
    if name == "ParameterServers":
        return load("penstock.ray.parameter_servers", "jax", "ps.ray.ParameterServers", name)
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
