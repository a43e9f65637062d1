"""A transform and its learned values in lines for people."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.spec import TensorSpec
from penstock.transform.graph import Graph, GraphNode
from penstock.transform.saved import Learned
from penstock.transform.vocabularies import Vocabulary

_SHOWN = 6


def summary_of(
    graph: Graph,
    learned: Learned,
    rows: int | None,
    columns: Mapping[str, TensorSpec],
    results: Mapping[str, TensorSpec],
) -> str:
    """The columns, what each analyzer has learned, and the results, line by line."""
    source = "nothing had to be learned" if rows is None else f"learned from {rows:,} rows"
    lines = [f"transform: {len(columns)} columns, {len(results)} results, {source}", "columns:"]
    lines += [f"  {name}: {spec.dtype} {spec.shape}" for name, spec in columns.items()]
    lines.append("learned:")
    for number in sorted(learned):
        node = graph.nodes[number]
        shown = "; ".join(_shown(value) for value in learned[number])
        lines.append(f"  {_name(node)} of {described(graph, node)}: {shown}")
    lines.append("results:")
    for name, spec in results.items():
        lines.append(f"  {name}: {spec.dtype} {spec.shape}, by {graph.nodes[graph.outputs[name]].operation}")
    return "\n".join(lines)


def described(graph: Graph, node: GraphNode) -> str:
    """Return what an analyzer learns from."""
    return ", ".join(_source(graph.nodes, given) for given in node.inputs)


def _name(node: GraphNode) -> str:
    name = node.operation.removeprefix("analyze.")
    return f"{node.arguments['name']} ({name})" if "name" in node.arguments else name


def _source(nodes: tuple[GraphNode, ...], number: int) -> str:
    node = nodes[number]
    if node.operation == "input":
        return str(node.arguments["name"])
    columns = sorted({_source(nodes, given) for given in node.inputs} - {""})
    return f"{node.operation}({', '.join(columns)})" if columns else ""


def _shown(value: Any) -> str:
    if isinstance(value, Vocabulary):
        return f"{len(value):,} tokens in {value.path}"
    if isinstance(value, pa.Array):
        first = [text.decode("utf-8", "replace") for text in value[:_SHOWN].to_pylist()]
        return f"{len(value):,} keys: {', '.join(first)}{', ...' * (len(value) > _SHOWN)}"
    array = np.asarray(value)
    entries = [f"{entry:.6g}" if array.dtype.kind == "f" else str(entry) for entry in array.reshape(-1)[:_SHOWN]]
    more = ", ..." * (array.size > _SHOWN)
    return entries[0] if array.ndim == 0 else f"{array.shape} {', '.join(entries)}{more}"
