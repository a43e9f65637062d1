"""Nested values as JAX flattens them, without JAX: unlike `penstock.structure`, lists and ordered dictionaries too."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


@dataclass(frozen=True)
class Nest:
    """The structure of a nested value.

    Attributes:
        kind: the class of a container; None for a leaf.
        names: of its children: places, keys or attributes.
        children: in the order of their leaves.
        keys: those of a dictionary, in the order in which they were given.
    """

    kind: type | None = None
    names: tuple[Any, ...] = ()
    children: tuple["Nest", ...] = ()
    keys: tuple[Any, ...] = field(default=(), compare=False)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The value with these leaves."""
        remaining = iter(leaves)
        return self._made(lambda: next(remaining))

    def _made(self, leaf: Callable[[], Any]) -> Any:
        if self.kind is None:
            return leaf()
        if self.kind is type(None):
            return None
        make: Any = self.kind
        children = [child._made(leaf) for child in self.children]
        if issubclass(self.kind, dict):
            found = dict(zip(self.names, children, strict=True))
            return make((key, found[key]) for key in self.keys)
        if is_dataclass(self.kind):
            return make(**dict(zip(self.names, children, strict=True)))
        if hasattr(self.kind, "_fields"):
            return make(*children)
        return make(children)

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        if self.kind is type(None):
            return "None"
        if issubclass(self.kind, (tuple, list)) and not hasattr(self.kind, "_fields"):
            inside = ", ".join(map(str, self.children))
            return f"[{inside}]" if self.kind is list else f"({inside}{',' if len(self.children) == 1 else ''})"
        pairs = ", ".join(f"{name!r}: {child}" for name, child in zip(self.names, self.children, strict=True))
        return f"{{{pairs}}}" if self.kind is dict else f"{self.kind.__name__}({pairs})"


def flatten_nested(value: Any) -> tuple[list[Any], Nest]:
    """The leaves of a nested value and its structure; everything except containers and None is a leaf."""
    children = _children(value)
    if children is None:
        return [value], Nest()
    leaves: list[Any] = []
    nests = []
    for child in children.values():
        own, nest = flatten_nested(child)
        leaves += own
        nests.append(nest)
    return leaves, Nest(type(value), tuple(children), tuple(nests), tuple(value) if isinstance(value, dict) else ())


def _children(value: Any) -> dict[Any, Any] | None:
    """Return what a container holds, by name; None for a leaf."""
    if value is None:
        return {}
    if isinstance(value, OrderedDict):
        return dict(value)
    if type(value) is dict:
        try:
            keys = sorted(value)
        except TypeError:  # keys of several kinds have no order but their own
            keys = list(value)
        return {key: value[key] for key in keys}
    if type(value) is list or isinstance(value, tuple):
        return dict(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return None
