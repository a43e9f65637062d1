"""Nested structures: tuples, named tuples, dictionaries and dataclasses of leaves.

`flatten` takes a value apart into its leaves and a `Structure`; `Structure.unflatten` puts it together again.
The leaves of a dictionary come in the sorted order of its keys, as in JAX, so two dictionaries with the same keys have
the same structure and leaves that correspond. A structure also knows in which order it was given the keys, and puts
dictionaries together in that order. Any other mapping becomes a dictionary; an OrderedDict stays one.
None is a structure without leaves. A list is a leaf: it stands for an array. Instances of classes are taken
apart and put together by their fields; no constructor is called.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Any, Final, Literal

import numpy as np

from penstock.errors import ElementError, InvalidTypeError

Kind = Literal["leaf", "none", "tuple", "dict", "class"]
PartsOf = Callable[[Any], tuple[Any, ...]]

_DEEPEST: Final = 100
"""So deep may values be nested: Python limits the calls that take them apart."""


@dataclass(frozen=True)
class Structure:
    """The shape of a nested value without its leaves.

    Attributes:
        kind: "leaf", "none", "tuple", "dict", or "class" for named tuples and dataclasses.
        children: the structures below this one, in the order of `names`.
        names: the keys of a "dict", sorted; the field names of a "class", the positions of a "tuple".
        python_class: the class itself, of a "class".
        leaf_count: the number of leaves in all.
        order: the places in `names` of the keys of a "dict" in the order in which they were given.
        ordered: whether the "dict" is an OrderedDict.
    """

    kind: Kind
    children: tuple["Structure", ...] = ()
    names: tuple[Any, ...] = ()
    python_class: type | None = None
    leaf_count: int = dataclasses.field(default=1, compare=False)
    order: tuple[int, ...] = dataclasses.field(default=(), compare=False)
    ordered: bool = dataclasses.field(default=False, compare=False)

    def __reduce__(self) -> Any:
        """Return the fields without derived values."""
        return type(self), tuple([getattr(self, field.name) for field in dataclasses.fields(self)])

    @cached_property
    def is_flat_tuple(self) -> bool:
        """Return whether this is a plain tuple of leaves."""
        return self.kind == "tuple" and self.is_flat

    @cached_property
    def is_flat(self) -> bool:
        """Return whether every child is a leaf."""
        return all(child.kind == "leaf" for child in self.children)

    @cached_property
    def quick_leaves(self) -> Callable[[Any], tuple[Any, ...] | None]:
        """Gives the leaves of a value that is of this structure at first sight, and None for another.

        The caller checks for containers in the place of leaves.
        """
        if self.kind == "leaf":
            return lambda value: (value,)
        (_, container, count, parts_of), *nested = self._containers

        def leaves(value: Any) -> tuple[Any, ...] | None:
            # A container with a count is a tuple or a dictionary.
            if type(value) is not container or (count is not None and len(value) != count):  # type: ignore[arg-type]
                return None
            try:
                found: tuple[Any, ...] = parts_of(value)
                for at, kind, length, parts_within in nested:
                    part = found[at]
                    if type(part) is not kind or (length is not None and len(part) != length):  # type: ignore[arg-type]
                        return None
                    found = (*found[:at], *parts_within(part), *found[at + 1 :])
            except (KeyError, AttributeError):
                return None
            return found

        return leaves

    @cached_property
    def _containers(self) -> list[tuple[int, type | None, int | None, PartsOf]]:
        """The containers in a value, each before those in it, and the last of these first, whose parts move no others.

        Of each its place among the parts that are found by then, its type, its length where that tells, and what gives
        its parts: it raises a KeyError or an AttributeError where one is missing.
        """
        count = len(self.names) if self.kind in ("tuple", "dict") else None  # of a class its type tells
        found = [(0, self._container, count, self._parts_of)]
        for number, child in reversed([*enumerate(self.children)]):
            if child.kind != "leaf":
                found += [(number + at, kind, length, parts) for at, kind, length, parts in child._containers]
        return found

    @property
    def _container(self) -> type | None:
        """The type of values of this structure, which is not a leaf."""
        kinds: dict[str, type] = {"tuple": tuple, "dict": OrderedDict if self.ordered else dict, "none": type(None)}
        return kinds.get(self.kind, self.python_class)

    @property
    def _parts_of(self) -> Callable[[Any], tuple[Any, ...]]:
        """Gives what belongs to the children, in their order, of a value that has these names."""
        if self.kind == "tuple":
            return tuple
        if not self.names:
            return lambda value: ()
        get = itemgetter if self.kind == "dict" else attrgetter
        if len(self.names) > 1:
            return get(*self.names)
        only: Callable[[Any], Any] = get(self.names[0])
        return lambda value: (only(value),)

    @cached_property
    def in_order(self) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """Puts what belongs to the children into the order in which they are shown: in a dictionary, that of its keys.

        The leaves of a flat dictionary are its children.
        """
        moved = self.order != tuple(range(len(self.order)))
        return itemgetter(*self.order) if moved else lambda values: values

    @cached_property
    def shown_names(self) -> tuple[Any, ...]:
        """The names in the order in which they are shown."""
        return tuple(self.in_order(self.names))

    def _dictionary(self, values: Sequence[Any]) -> dict[Any, Any]:
        pairs = zip(self.shown_names, self.in_order(values), strict=True)
        return OrderedDict(pairs) if self.ordered else dict(pairs)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The value of this structure with these leaves."""
        if self.kind == "leaf":
            return leaves[0]
        if self.is_flat_tuple:
            return tuple(leaves)
        if self.kind == "dict" and self.is_flat:
            return self._dictionary(leaves)
        return self._take(iter(leaves))

    def _take(self, leaves: Iterator[Any]) -> Any:
        if self.kind == "leaf":
            return next(leaves)
        if self.kind == "none":
            return None
        values = [child._take(leaves) for child in self.children]
        if self.kind == "tuple":
            return tuple(values)
        if self.kind == "dict":
            return self._dictionary(values)
        assert self.python_class is not None
        return instance_of(self.python_class, self.names, values)

    def flatten_like(self, value: Any) -> list[Any]:
        """The leaves of a value that must have this very structure.

        Raises:
            ElementError: the value is of another structure; the message shows both.
        """
        found = self.quick_leaves(value)
        if found is not None and not any(map(_is_container, found)):
            return list(found)
        leaves, structure = flatten(value)
        if structure != self:
            raise ElementError(f"expected an element of structure {self}, got {structure}; * is one array or value")
        return leaves

    def paths(self, prefix: str = "") -> list[str]:
        """The name of each leaf: "[0]", "['image']", ".label"; "" where the value is a leaf itself."""
        if self.kind == "leaf":
            return [prefix]
        steps = [f".{name}" if self.kind == "class" else f"[{name!r}]" for name in self.names]
        return [path for step, child in zip(steps, self.children, strict=True) for path in child.paths(prefix + step)]

    def nested(self, parts: Sequence["Structure"]) -> "Structure":
        """Return this structure with a structure instead of each leaf."""
        return self._nested(iter(parts))

    def _nested(self, parts: Iterator["Structure"]) -> "Structure":
        if self.kind == "leaf":
            return next(parts)
        children = tuple(child._nested(parts) for child in self.children)
        count = sum(child.leaf_count for child in children)
        return dataclasses.replace(self, children=children, leaf_count=count)

    def __str__(self) -> str:
        return self.shown(["*"] * self.leaf_count)

    def shown(self, leaves: Iterable[str]) -> str:
        """Return the structure as text, with these words instead of its leaves."""
        return self._shown(iter(leaves))

    def _shown(self, leaves: Iterator[str]) -> str:
        if self.kind == "leaf":
            return next(leaves)
        if self.kind == "none":
            return "None"
        children = [child._shown(leaves) for child in self.children]
        if self.kind == "tuple":
            return f"({', '.join(children)}{',' if len(children) == 1 else ''})"
        pairs = zip(self.shown_names, self.in_order(children), strict=True)
        if self.kind == "dict":
            return "{" + ", ".join(f"{name!r}: {child}" for name, child in pairs) + "}"
        assert self.python_class is not None
        return f"{self.python_class.__name__}({', '.join(f'{name}={child}' for name, child in pairs)})"


LEAF: Final = Structure("leaf")
PAIR: Final = Structure("tuple", (LEAF, LEAF), (0, 1), leaf_count=2)
_COMMON_LEAVES: Final = (np.ndarray, np.generic, int, float, str, bytes, list)
_NONE: Final = Structure("none", leaf_count=0)


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """The leaves of a value in order, and the structure that puts them together again.

    Example:
        >>> leaves, structure = flatten({"b": 1, "a": (2, 3)})
        >>> leaves, str(structure)
        ([2, 3, 1], "{'b': *, 'a': (*, *)}")

    Raises:
        ElementError: it is nested too deeply.
    """
    leaves: list[Any] = []
    return leaves, _visit(value, leaves, 0)


def dictionary_of(keys: Sequence[Any], children: Sequence[Structure], *, ordered: bool = False) -> Structure:
    """The structure of dictionaries with these keys, in this order, and the children of each.

    Raises:
        InvalidTypeError: the keys cannot be sorted.
    """
    names, order = _sorted(keys)
    found = dict(zip(keys, children, strict=True))
    count = sum(child.leaf_count for child in children)
    return Structure("dict", tuple([found[name] for name in names]), names, None, count, order, ordered)


def map_structure(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """`function` applied to corresponding leaves; the result has the structure of `first`."""
    leaves, structure = flatten(first)
    rest = [structure.flatten_like(other) for other in others]
    return structure.unflatten([function(*group) for group in zip(leaves, *rest, strict=True)])


def leaf_of(call: str, element: Any, name: str | None) -> Any:
    """The leaf of an element that is called so.

    Raises:
        ElementError: there is none. It names `call`, which was given the name.
    """
    if isinstance(element, Mapping) and name in element:
        return element[name]
    found = f"the leaves {sorted(element)}" if isinstance(element, Mapping) else "no named leaves"
    raise ElementError(f"{call} takes the name of a leaf, and there are {found}")


def instance_of(python_class: type, names: Sequence[str], values: Sequence[Any]) -> Any:
    """An instance with these fields, made as pickle makes it: by no call of the class.

    A constructor that converts or computes has done so already, and need not take columns or specifications.
    """
    if issubclass(python_class, tuple):
        return tuple.__new__(python_class, values)
    made = python_class.__new__(python_class)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)  # also of a frozen class
    return made


def _is_container(value: Any) -> bool:
    if isinstance(value, _COMMON_LEAVES):
        return False
    return value is None or isinstance(value, (tuple, dict, Mapping)) or _is_dataclass_value(value)


def _is_dataclass_value(value: Any) -> bool:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    return not hasattr(value, "__penstock_leaf__") and not hasattr(value, "__array__")  # as arrays of zarr are


def _visit(value: Any, leaves: list[Any], depth: int) -> Structure:
    if isinstance(value, _COMMON_LEAVES):
        leaves.append(value)
        return LEAF
    if value is None:
        return _NONE
    if depth == _DEEPEST:
        raise ElementError(
            f"an element is nested more than {_DEEPEST} deep, got {type(value).__name__} there: its tuples and "
            "dictionaries become columns, so make fewer of them, or put the nested values into an array"
        )
    if isinstance(value, tuple):
        if hasattr(value, "_fields"):
            return _node("class", value._fields, value, leaves, depth, python_class=type(value))
        return _node("tuple", range(len(value)), value, leaves, depth)
    if isinstance(value, dict):
        return _visit_mapping(value, leaves, depth)
    if _is_dataclass_value(value):
        names = [field.name for field in dataclasses.fields(value)]
        return _node("class", names, [getattr(value, name) for name in names], leaves, depth, python_class=type(value))
    if isinstance(value, Mapping):
        return _visit_mapping(value, leaves, depth)
    leaves.append(value)
    return LEAF


def _visit_mapping(value: Mapping[Any, Any], leaves: list[Any], depth: int) -> Structure:
    names, order = _sorted(list(value))
    values = [value[name] for name in names]
    return _node("dict", names, values, leaves, depth, order=order, ordered=isinstance(value, OrderedDict))


def _sorted(keys: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The keys of a dictionary sorted, and the places of the given ones among them."""
    try:
        names = sorted(keys)
    except TypeError as error:
        raise InvalidTypeError(
            f"the keys of a dictionary element must be sortable, got {list(keys)!r}: use strings"
        ) from error
    places = range(len(names)) if names == keys else map({name: at for at, name in enumerate(names)}.get, keys)
    return tuple(names), tuple(places)  # type: ignore[arg-type]  # each is there


def _node(
    kind: Kind, names: Iterable[Any], values: Iterable[Any], leaves: list[Any], depth: int, **more: Any
) -> Structure:
    before = len(leaves)
    children = []
    for value in values:
        if type(value) is np.ndarray:  # as most leaves of blocks
            leaves.append(value)
            children.append(LEAF)
        else:
            children.append(_visit(value, leaves, depth + 1))
    return Structure(kind, tuple(children), tuple(names), leaf_count=len(leaves) - before, **more)
