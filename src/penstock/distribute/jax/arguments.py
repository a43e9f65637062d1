"""Arguments of compiled programs: which values a program takes, and in which form."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np

from penstock.distribute.control.messages import ArrayShape
from penstock.distribute.jax.device_dtypes import fits_device, is_key
from penstock.distribute.jax.program import Mode, is_per_replica, mode_of
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.spec import LeafSpec, TensorSpec, as_leaf

ARRAYS = (jax.Array, np.ndarray, np.generic)

struct: Callable[..., jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct
"""The shape and dtype of an array without its values."""


@dataclass(frozen=True)
class Signature:
    """The arguments of `run` without their values.

    Attributes:
        tree: their structure, with a leaf for each `PerReplica`.
        stacked: for each leaf whether it is a `PerReplica`, which is then in the stacked form.
        ready: whether all leaves are, so that a program takes them without conversion.
    """

    tree: Any
    stacked: tuple[bool, ...]
    ready: bool

    @staticmethod
    def of(given: Any) -> "Signature":
        tops, tree = jax.tree.flatten(given, is_leaf=is_per_replica)
        stacked = tuple(map(is_per_replica, tops))
        return Signature(tree, stacked, all(stacked))

    def modes(self, leaves: list[Any]) -> tuple[Mode, ...]:
        """Return how each leaf enters a program."""
        if self.ready:
            return cast(tuple[Mode, ...], ("array",) * len(leaves))
        return tuple(["array" if own else mode_of(leaf) for own, leaf in zip(self.stacked, leaves, strict=True)])


def specified(spec: LeafSpec, shape: tuple[int | None, ...], sharding: Any) -> jax.ShapeDtypeStruct:
    """An array of a specification's dtype and of this shape, to compile for.

    Raises:
        InvalidArgumentError: a length is open.
        InvalidTypeError: rows of unequal length, which no program takes.
    """
    if not isinstance(spec, TensorSpec):
        raise InvalidTypeError(
            f"strategy.compile got {spec}, but a program takes arrays: make rows of one length by padded_batch"
        )
    if None in shape:
        raise InvalidArgumentError(
            f"strategy.compile got {spec}, whose shape is not fixed: every step must have one, by "
            'batch(..., drop_remainder=True), or by ps.InputOptions(partial_batch="pad")'
        )
    return struct(shape, jax.dtypes.canonicalize_dtype(spec.dtype), sharding=sharding)


def as_array(value: Any) -> Any:
    """A value that a strategy is given, as penstock holds it: an array or a NumPy scalar; other objects as they are."""
    return value if is_key(value) else as_leaf(value)


def shape_of(value: Any) -> ArrayShape | None:
    """Shape and dtype of a number or an array; None if devices cannot hold it."""
    if not isinstance(value, (*ARRAYS, int, float)):
        return None
    leaf = as_array(value)
    return ArrayShape(leaf.shape, str(leaf.dtype)) if fits_device(leaf) else None


def check_not_donated(args: Any, kwargs: Any = ()) -> None:
    """Refuse arrays that were donated to a program before.

    On several CPU devices JAX crashes when a program is given such an array.

    Raises:
        InvalidArgumentError: there is one.
    """
    if not any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves((args, kwargs))):
        return
    for holder, value in (("args", args), ("kwargs", kwargs)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(value, is_leaf=is_per_replica):
            if any(isinstance(array, jax.Array) and array.is_deleted() for array in jax.tree.leaves(leaf)):
                raise InvalidArgumentError(
                    f"strategy.run got arrays in {holder}{jax.tree_util.keystr(path)} that are no more: their memory "
                    "was given to a program by donate_argnums or donate_state before; use what that call returned"
                )
