"""A placeholder in compiled steps for values that devices cannot hold, such as the strings of a batch."""

from dataclasses import dataclass, field
from typing import Any, Never

import numpy as np

from penstock.distribute.jax.device_dtypes import fits_device
from penstock.distribute.values import PerReplica
from penstock.errors import InvalidTypeError


@dataclass(frozen=True, repr=False)
class HostPlaceholder:
    """Takes the place of an array that stays in host memory: it may be passed to a step, and any use of it is an error.

    Attributes:
        dtype: of the array.
        path: where it is in the arguments, if that is known.
    """

    dtype: Any
    path: str = field(default="", compare=False)

    def __repr__(self) -> str:
        where = f" at {self.path}" if self.path else ""
        return (
            f"an array of dtype {self.dtype}{where}, which devices cannot hold and which stays in host memory: turn "
            "strings into numbers in the dataset, or use strategy.local_results outside of the step"
        )

    def __getattr__(self, name: str) -> Never:
        raise InvalidTypeError(f"the function of strategy.run uses {self!r}")


def _refuse(self: HostPlaceholder, *_: Any) -> Never:
    raise InvalidTypeError(f"the function of strategy.run uses {self!r}")


# Python looks these up in the class, without asking `__getattr__`.
_SPECIAL = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul neg pos abs "
    "invert lt le gt ge float int complex index bool array iter len getitem contains"
)
for _name in _SPECIAL.split():
    setattr(HostPlaceholder, f"__{_name}__", _refuse)


def with_host_placeholder(leaf: Any, path: str) -> Any:
    """A leaf of a step's arguments, or a placeholder for one that devices cannot hold."""
    value = leaf.values[0] if isinstance(leaf, PerReplica) and leaf.stacked is None else leaf
    if isinstance(value, (np.ndarray, np.generic)) and not fits_device(value):
        return HostPlaceholder(value.dtype, path)
    return leaf
