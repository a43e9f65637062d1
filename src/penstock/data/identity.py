"""Identifies the dataset of a state, by what decides the number and the order of its elements."""

import hashlib
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.data.functions.code import Describing
from penstock.data.node import Node

_DIGEST_BYTES = 6
_CHAINED = "concatenate"
"""Nodes of this name in a row are one for a state."""
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Identity:
    """The identity of one node that counts for a state.

    Attributes:
        node: the node.
        digest: of its arguments, and of all nodes below it that count.
        code: a digest of its functions' code, with the version of Python that compiled it; "" if it has none.
        label: the name of the node in errors.
    """

    node: Node
    digest: str
    code: str
    label: str

    def entry(self) -> list[str]:
        """Plain data for a state, with the node's label for errors."""
        return [self.label, self.digest, self.code]

    def difference(self, entry: list[str]) -> str | None:
        """Return how a node of a state differs from this one, in words; None if it does not."""
        label, digest, code = entry
        if digest != self.digest and label == self.node.label:
            return f"was {label} with other data or arguments than here {self.node.where()}"
        if digest != self.digest:
            return f"was {label}, here it is {self.node.where()}{self.node.changed_since(label)}"
        if code != self.code and code.partition(" ")[0] == self.code.partition(" ")[0]:
            return f"was {label} with other code or constants than here {self.node.where()}"
        return None


def identities_of(root: Node) -> list[Identity]:
    """The nodes of a dataset that decide its elements' number or order, as they are now: inputs first.

    A program may rebind a constant of a function between two iterations, or write to an array.
    """
    found = []
    digests: dict[int, str] = {}
    for node in root.walk(_below):
        below = _below(node)
        arguments = node.identity
        if arguments is None:
            digests[id(node)] = digests[id(below[0])]
            continue
        functions: list[Any] = []
        describing = Describing(_dataset)
        told = {name: _plain(value, describing, functions) for name, value in sorted(arguments.items())}
        digests[id(node)] = _digest((node.name, told, tuple(digests[id(part)] for part in below)))
        code = f"{_PYTHON} {_digest(functions)}" if functions else ""
        found.append(Identity(node, digests[id(node)], code, node.label))
    return found


def _below(node: Node) -> tuple[Node, ...]:
    """Return the nodes that decide a node's elements: for a chain of `concatenate`, all members."""
    first, *others = node.inputs or (None,)
    if node.name == _CHAINED:
        while first is not None and first.identity is None:
            first = first.inputs[0]
        if first is not None and first.name == _CHAINED:
            return (*_below(first), *others)
    return (*node.inputs, *([node.remote] if node.remote else ()))


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
    if callable(value) and not isinstance(value, np.generic):
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
