"""Identifies the dataset of a state, by what decides the number and the order of its elements."""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from penstock.data.functions.code import SCALARS, Describing
from penstock.data.node import Node

_DIGEST_BYTES = 6
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Identity:
    """What a state says of one node that counts.

    Attributes:
        node: the node.
        digest: of its arguments, and of all that counts below it.
        code: a digest of its functions' code, with the version of Python that compiled it; "" if it has none.
        label: what the node is called in errors.
    """

    node: Node
    digest: str
    code: str
    label: str

    def entry(self) -> list[str]:
        """Plain data for a state, with the node's label for errors."""
        return [self.label, self.digest, self.code]

    def difference(self, entry: list[str]) -> str | None:
        """How a node of a state differs from this one, in words; None if it does not."""
        label, digest, code = entry
        if digest != self.digest and label == self.node.label:
            return f"was {label} with other data or arguments than here {self.node.where()}"
        if digest != self.digest:
            return f"was {label}, here it is {self.node.where()}"
        if code != self.code and code.partition(" ")[0] == self.code.partition(" ")[0]:
            return f"was {label} with other code or constants than here {self.node.where()}"
        return None


class Identities:
    """The identities of a dataset's nodes, of which what cannot change is computed once for all iterations.

    A program may bind a constant of a function anew between two iterations, or write to an array. So functions, and
    arguments that can be changed, are looked at in each iteration that needs its identity.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known: dict[int, _Known] = {}

    def now(self) -> list[Identity]:
        """The nodes that decide the elements' number or order, as they are now: inputs first."""
        return list(_Walk(self._known).of(self._node))


def identities_of(node: Node) -> list[Identity]:
    """The nodes of a dataset that decide its elements' number or order: inputs first."""
    return Identities(node).now()


@dataclass(frozen=True)
class _Known:
    """What will not change of a node: all but what its functions do.

    Attributes:
        digest: the node's, or if it decides nothing, that of the node below it.
        identity: without code; None if it decides nothing.
        functions: the arguments whose code counts.
    """

    digest: str
    identity: Identity | None
    functions: tuple[Callable[..., Any], ...] = ()


class _Walk:
    """A walk over the nodes of a dataset, which notes their digests.

    Args:
        known: what is known of nodes by their `id`, to which it adds.
    """

    def __init__(self, known: dict[int, _Known]) -> None:
        self._known = known
        self._digests: dict[int, str] = {}

    def of(self, root: Node) -> list[Identity]:
        found = []
        for node in root.walk_all(_inputs):
            identity = self.identity(node)
            if identity is not None:
                found.append(identity)
        return found

    def identity(self, node: Node) -> Identity | None:
        known = self._known.get(id(node))
        if known is None:
            return self._looked_at(node)
        self._digests[id(node)] = known.digest
        if known.identity is None or not known.functions:
            return known.identity
        describing = Describing(_dataset)
        return replace(known.identity, code=_code([describing.function(function) for function in known.functions]))

    def _looked_at(self, node: Node) -> Identity | None:
        below = (*_inputs(node), *([node.remote] if node.remote else ()))
        digests = tuple(self._digests[id(part)] for part in below)
        arguments = node.chain.identity
        if arguments is None:
            known = _Known(digests[0], None)
        else:
            functions: list[Any] = []
            describing = Describing(_dataset)
            told = {name: _plain(value, describing, functions) for name, value in sorted(arguments.items())}
            digest = _digest((node.name, told, digests))
            callables = tuple(value for _, value in sorted(arguments.items()) if _is_function(value))
            known = _Known(digest, Identity(node, digest, _code(functions), node.label), callables)
        self._digests[id(node)] = known.digest
        if all(id(part) in self._known for part in below) and all(map(_stays, (arguments or {}).values())):
            self._known[id(node)] = known
        return known.identity


def _inputs(node: Node) -> tuple[Node, ...]:
    """What a node reads, as states know it."""
    return node.chain.inputs


def _code(functions: list[Any]) -> str:
    return f"{_PYTHON} {_digest(functions)}" if functions else ""


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, np.generic)


def _stays(value: Any) -> bool:
    """Whether nothing can change an argument, unless it is a function."""
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    if is_dataclass(value) and not callable(value) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return all(_is_constant(getattr(value, item.name)) for item in fields(value))
    return isinstance(value, (*SCALARS, np.generic, Enum)) or _is_function(value)


def _is_constant(value: Any) -> bool:
    return not _is_function(value) and _stays(value)


def _plain(value: Any, describing: Describing, functions: list[Any]) -> Any:
    """An argument of a node as plain data, without its functions, whose code is added to `functions`."""
    if isinstance(value, np.ndarray):
        rows = [_plain(entry, describing, functions) for entry in value.flat] if value.dtype == object else None
        return str(value.dtype), value.shape, _digest(value.tobytes()) if rows is None else rows
    if isinstance(value, (list, tuple)):
        return tuple(_plain(entry, describing, functions) for entry in value)
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_plain(entry, describing, functions)) for entry in value)
    if isinstance(value, dict):
        return [(repr(name), _plain(entry, describing, functions)) for name, entry in value.items()]
    if _is_function(value):
        functions.append(describing.function(value))
        return "function"
    return describing.constant(value)


def _dataset(value: Any) -> Any:
    """A dataset that a function uses is identified by its nodes."""
    node = getattr(value, "node", None)
    if not isinstance(node, Node):
        return None
    return "dataset", tuple((found.digest, found.code) for found in identities_of(node))


def _digest(value: Any) -> str:
    data = value if isinstance(value, bytes) else repr(value).encode()
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
