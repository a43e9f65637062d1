"""Flax NNX modules in a checkpoint, with their optimizers, metrics and random numbers: restored in place."""

import sys
from collections.abc import Mapping
from typing import Any

import jax

from penstock.training.checkpoint.index import Item
from penstock.training.checkpoint.names import of_keys
from penstock.training.checkpoint.saveables import Saveable, SaveableArray


def _nnx() -> Any:
    """Flax NNX, if it is imported; otherwise no object can be of its classes."""
    return sys.modules.get("flax.nnx")


def is_flax(value: Any) -> bool:
    """Return whether an object is a Flax NNX module, optimizer, metric or random number generator."""
    nnx = _nnx()
    return nnx is not None and isinstance(value, nnx.Pytree)


class SaveableFlax(Saveable):
    """A module, as the arrays of its state."""

    def __init__(self, path: str, target: Any) -> None:
        self.path = path
        self._target = target

    def items(self) -> list[Item]:
        return [self._item(self._values()[0])]

    def snapshot(self, value: Any) -> tuple[list[Item], dict[str, Any]]:
        values, leaves, _ = self._values()
        parts = [part.snapshot(leaf)[1] for part, leaf in zip(values, leaves, strict=True)]
        return [self._item(values)], {name: array for arrays in parts for name, array in arrays.items()}

    def restored(self, stored: Mapping[str, Item], arrays: Mapping[str, Any]) -> Any:
        values, _, tree = self._values()
        state = _nnx().state(self._target)
        new = jax.tree.unflatten(tree, [part.restored(stored, arrays) for part in values])
        _nnx().replace_by_pure_dict(state, new)
        _nnx().update(self._target, state)
        return self._target

    def shardings(self) -> dict[str, Any]:
        return {name: sharding for part in self._values()[0] for name, sharding in part.shardings().items()}

    def _values(self) -> tuple[list[SaveableArray], list[Any], Any]:
        state = _nnx().to_pure_dict(_nnx().state(self._target))
        leaves, tree = jax.tree_util.tree_flatten_with_path(state)
        return (
            [SaveableArray(of_keys(self.path, keys), leaf) for keys, leaf in leaves],
            [leaf for _, leaf in leaves],
            tree,
        )

    def _item(self, values: list[SaveableArray]) -> Item:
        return Item(
            self.path, "Flax module", [entry for part in values for item in part.items() for entry in item.entries]
        )
