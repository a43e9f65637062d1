"""A preprocessing function as plain data: a graph of operations, each with a name and arguments."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Self

from penstock.errors import StateMismatchError

VERSION = 2
"""Of the files in a working directory; raised when the meaning of an operation changes."""


@dataclass(frozen=True)
class GraphNode:
    """One operation.

    Attributes:
        operation: its name: of an input, a constant, an operation on columns, or an analyzer.
        inputs: the numbers of the nodes whose values it takes.
        arguments: plain data for JSON.
        site: the line of the user's that asked for it.
    """

    operation: str
    inputs: tuple[int, ...]
    arguments: dict[str, Any]
    site: str = field(default="", compare=False)

    @property
    def is_analyzer(self) -> bool:
        """Return whether its values are learned from all rows."""
        return self.operation.startswith("analyze.")


@dataclass(frozen=True)
class Graph:
    """Nodes in the order in which they can be computed, and the names of those that are results."""

    nodes: tuple[GraphNode, ...]
    outputs: dict[str, int]

    def needed(self, wanted: list[int]) -> list[int]:
        """The nodes that these need, in order; what analyzers take is not needed once they have learned."""
        found: set[int] = set()
        waiting = list(wanted)
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                if not self.nodes[number].is_analyzer:
                    waiting += self.nodes[number].inputs
        return sorted(found)

    def inputs(self, wanted: list[int]) -> dict[str, int]:
        """The columns that these nodes need, by name, and the nodes that stand for them."""
        nodes = ((number, self.nodes[number]) for number in self.needed(wanted))
        return {node.arguments["name"]: number for number, node in nodes if node.operation == "input"}

    def consumed_only_by(self, operation: str) -> set[int]:
        """The nodes whose values nothing but this operation takes, neither another one nor an analyzer."""
        taken: dict[int, set[str]] = {}
        for node in self.nodes:
            for given in node.inputs:
                taken.setdefault(given, set()).add(node.operation)
        return {number for number, operations in taken.items() if operations == {operation}}

    def passes(self) -> list[list[int]]:
        """The analyzers of each pass over the data: those of a pass need only what earlier passes have learned."""
        depths: list[int] = []
        levels: list[list[int]] = []
        for number, node in enumerate(self.nodes):
            depth = max((depths[given] for given in node.inputs), default=0)
            if node.is_analyzer:
                if depth == len(levels):
                    levels.append([])
                levels[depth].append(number)
                depth += 1
            depths.append(depth)
        return levels

    def fingerprint(self) -> str:
        """The same for every function that does the same, wherever it is written."""
        return hashlib.blake2b(json.dumps(self.plain(sites=False), sort_keys=True).encode(), digest_size=16).hexdigest()

    def plain(self, *, sites: bool = True) -> dict[str, Any]:
        """The graph as plain data for JSON."""
        nodes = []
        for node in self.nodes:
            entry = {"operation": node.operation, "inputs": list(node.inputs), "arguments": node.arguments}
            nodes.append(entry | {"site": node.site} if sites else entry)
        return {"version": VERSION, "nodes": nodes, "outputs": self.outputs}

    @classmethod
    def of(cls, plain: dict[str, Any], where: str) -> Self:
        """The graph that `plain` described.

        Raises:
            StateMismatchError: it was written by another version of penstock.
        """
        if plain.get("version") != VERSION:
            raise StateMismatchError(
                f"{where} was written by version {plain.get('version')} of ps.transform, this penstock reads version "
                f"{VERSION}: analyze the data again"
            )
        nodes = (
            GraphNode(entry["operation"], tuple(entry["inputs"]), entry["arguments"], entry.get("site", ""))
            for entry in plain["nodes"]
        )
        return cls(tuple(nodes), dict(plain["outputs"]))
