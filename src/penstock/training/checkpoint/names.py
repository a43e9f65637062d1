"""Names of arrays in a checkpoint: the same in every process, and unique within the checkpoint.

A name is a path with "/" between its steps: "state/params/w", "model/tower_1/kernel". Names that Keras gives to layers
contain numbers that differ between processes and between copies of a model; they are replaced by the position among
the neighbours of that kind. Names that the user gave are not changed.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import jax

_AUTOMATIC = re.compile(r"(?P<base>.+?)(?:_(?P<number>[0-9]+))?")
_NUMBERS = re.compile(r"_[0-9]+(?=/|_|$)")
_WRAPPED = ("forward_", "backward_")  # what keras.layers.Bidirectional puts before the name of its layer


def keras() -> Any:
    """Keras, if it is imported; otherwise no object can be of its classes."""
    return sys.modules.get("keras")


def of_keys(name: str, keys: Iterable[Any]) -> str:
    """The name of a leaf, from its path in a tree: keys, indices or attributes.

    A "/" within a key is written "~1", and "~" is written "~0", as in JSON pointers (RFC 6901).
    """
    return "/".join([name, *(_of_key(key).replace("~", "~0").replace("/", "~1") for key in keys)])


def _of_key(key: Any) -> str:
    if isinstance(key, (jax.tree_util.DictKey, jax.tree_util.FlattenedIndexKey)):
        return str(key.key)
    if isinstance(key, jax.tree_util.SequenceKey):
        return str(key.idx)
    return str(key.name) if isinstance(key, jax.tree_util.GetAttrKey) else str(key)


class Naming:
    """The names of the variables of a tree of Keras layers, or of metrics.

    Attributes:
        names: for each variable, by its id, its name.
        orders: for each kind of layer whose numbers do not grow from one neighbour to the next, their order. Whether
            Keras numbered those, or the user named them, cannot be told; two models agree only if it is the same.

    Args:
        name: of the object itself.
        roots: what the object is made of: itself, or its metrics.
        owned: the variables that belong to it.
    """

    def __init__(self, name: str, roots: Sequence[Any], owned: Sequence[Any]) -> None:
        self.names: dict[int, str] = {}
        self.orders: dict[str, list[int]] = {}
        paths = [(root, name) for root in roots]
        if len(roots) != 1 or not isinstance(roots[0], keras().Layer):
            paths = list(zip(roots, self._steps(name, roots), strict=True))
        seen = {id(root) for root in roots}
        for owner, path in paths:  # the list grows meanwhile: the shortest path to a layer names it
            children = _children(owner)
            new = [child for child in children if id(child) not in seen]
            seen |= set(map(id, new))
            paths += zip(new, self._steps(path, new), strict=True)
        wanted, taken = set(map(id, owned)), Counter[str]()
        for owner, path in paths:
            inner = {id(variable) for child in _children(owner) for variable in child.variables}
            for variable in owner.variables:
                if id(variable) in wanted - inner - self.names.keys():
                    own = "variable" if re.fullmatch(r"variable(_[0-9]+)?", variable.name) else variable.name
                    self.names[id(variable)] = unique(f"{path}/{own}", taken)
        for variable in owned:
            if id(variable) not in self.names:
                self.names[id(variable)] = unique(f"{name}/{without_numbers(variable.path)}", taken)

    def _steps(self, path: str, neighbours: Sequence[Any]) -> list[str]:
        """The paths of neighbours below one path."""
        kinds: dict[str, list[int]] = {}
        steps = []
        for one in neighbours:
            base, number = _automatic(one)
            if base is None:
                steps.append(f"{path}/{one.name}")
                continue
            earlier = kinds.setdefault(base, [])
            steps.append(f"{path}/{base}_{len(earlier)}" if earlier else f"{path}/{base}")
            earlier.append(number)
        for base, numbers in kinds.items():
            if numbers != sorted(numbers):
                self.orders[f"{path}/{base}"] = [sorted(numbers).index(number) for number in numbers]
        return steps


def unique(name: str, taken: "Counter[str]") -> str:
    """A unique name: the second of the same name gets "#2"."""
    taken[name] += 1
    return name if taken[name] == 1 else unique(f"{name}#{taken[name]}", taken)


def without_numbers(name: str) -> str:
    """A Keras name without numbers, where it is unknown which of them the user gave."""
    return _NUMBERS.sub("", name)


def flat(variable: Any) -> str:
    """The prefix of the names of an optimizer's variables that belong to a variable."""
    return str(variable.path).replace("/", "_")


def _automatic(one: Any) -> tuple[str | None, int]:
    """A name as Keras makes it of the class, and its number; None for a name that the user gave."""
    match = _AUTOMATIC.fullmatch(one.name)
    if match is None:
        return None, 0
    base = match["base"]
    bare = next((base.removeprefix(before) for before in _WRAPPED if base.startswith(before)), base)
    if bare.replace("_", "") != type(one).__name__.lower().replace("_", ""):
        return None, 0
    return base, int(match["number"] or 0)


def _children(owner: Any) -> list[Any]:
    """The layers that a layer is made of, and the metrics that a metric is made of."""
    if isinstance(owner, keras().Model):
        return list(owner.layers)
    kind = keras().Metric if isinstance(owner, keras().Metric) else keras().Layer
    found = {id(one): one for value in vars(owner).values() for one in _objects(value, kind) if one is not owner}
    return list(found.values())


def _objects(value: Any, kind: Any) -> list[Any]:
    if isinstance(value, kind):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [one for inner in value for one in _objects(inner, kind)] if isinstance(value, (list, tuple)) else []
