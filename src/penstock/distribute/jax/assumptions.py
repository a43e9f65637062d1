"""Assumed specifications that `strategy.compile` was given: a step that differs is refused when it is traced."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from penstock.distribute.values import PerReplica
from penstock.errors import InvalidArgumentError
from penstock.spec import LeafSpec


@dataclass(frozen=True)
class Assumptions:
    """Assumptions about the arguments that a step was compiled for.

    Attributes:
        tree: the structure of (args, kwargs), with a leaf for each `PerReplica`.
        specs: for each leaf its specification if that is assumed, else None.
    """

    tree: Any
    specs: tuple[LeafSpec | None, ...]

    @staticmethod
    def of(given: Any) -> "Assumptions":
        """The assumptions among arguments that hold specifications."""
        leaves, tree = jax.tree.flatten(given, is_leaf=lambda value: isinstance(value, PerReplica))
        specs = [leaf.values[0] if isinstance(leaf, PerReplica) else leaf for leaf in leaves]
        return Assumptions(tree, tuple(s if isinstance(s, LeafSpec) and s.assumed else None for s in specs))

    def broken_by(self, leaves: Sequence[Any]) -> tuple[LeafSpec, Any] | None:
        """The first assumption that does not hold for a replica's leaves, and the leaf; None if all hold."""
        for spec, leaf in zip(self.specs, leaves, strict=True):
            if spec is None:
                continue
            if jnp.shape(leaf) != spec.shape or jnp.result_type(leaf) != jax.dtypes.canonicalize_dtype(spec.dtype):
                return spec, leaf
        return None


def check_assumptions(assumed: Sequence[Assumptions], tree: Any, leaves: Sequence[Any]) -> None:
    """Refuse the leaves of one replica if a step of this structure was compiled for others only.

    Raises:
        InvalidArgumentError: a leaf is not as it was assumed to be.
    """
    broken = [one.broken_by(leaves) for one in assumed if one.tree == tree]
    if not broken or None in broken:
        return
    spec, leaf = next(one for one in broken if one is not None)
    raise InvalidArgumentError(
        f"strategy.compile was given {spec}, whose parts marked by ~ were assumed from one call of a function of "
        f"the dataset, but a step has an array of shape {jnp.shape(leaf)} and dtype {jnp.result_type(leaf)}: say what "
        "the function returns by map(output_signature=...), and make all steps alike"
    )
