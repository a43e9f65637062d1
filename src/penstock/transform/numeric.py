"""The part of a transform that computes numbers from numbers, as plain data for a layer of Keras."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.spec import TensorSpec
from penstock.transform import keras
from penstock.transform.evaluate import Evaluator
from penstock.transform.graph import Graph
from penstock.transform.saved import Learned
from penstock.transform.symbols import constant


def layer_arguments(
    graph: Graph, learned: Learned, specs: dict[str, TensorSpec], outputs: Sequence[str] | None
) -> dict[str, Any]:
    """Return the arguments of `TransformLayer`.

    Raises:
        InvalidTypeError: an output that was asked for cannot be computed in a model, or none can.
        InvalidArgumentError: an unknown output.
    """
    wanted = list(graph.outputs) if outputs is None else list(outputs)
    for name in wanted:
        if name not in graph.outputs:
            raise InvalidArgumentError(f"to_keras: there is no result {name!r}, there are {sorted(graph.outputs)}")
    obstacles = {name: _obstacle(graph, learned, specs, graph.outputs[name]) for name in wanted}
    if outputs is None:
        wanted = [name for name in wanted if not obstacles[name]]
    for name, obstacle in obstacles.items():
        if obstacle and (outputs is not None or not wanted):
            raise InvalidTypeError(
                f"to_keras: {name!r} cannot be computed in a model, because of {obstacle}: use "
                "transform_features_layer() before the model"
            )
    numbers = graph.needed([graph.outputs[name] for name in wanted])
    values = {number: _fixed(graph, learned, number) for number in numbers}
    steps: list[list[Any]] = []
    columns = {}
    for number in numbers:
        node = graph.nodes[number]
        if node.operation == "input":
            columns[node.arguments["name"]] = number
        elif values[number] is None and not node.is_analyzer:
            steps.append([number, node.operation, list(node.inputs), node.arguments])
    taken = {given for _, _, inputs, _ in steps for given in inputs}
    fixed = {str(number): constant(values[number]) for number in sorted(taken) if values[number] is not None}
    return {"steps": steps, "fixed": fixed, "columns": columns, "outputs": {n: graph.outputs[n] for n in wanted}}


def _fixed(graph: Graph, learned: Learned, number: int) -> Any:
    """The value of a node that has no rows; None if it has, and for what analyzers give together."""
    below = graph.needed([number])
    if graph.nodes[number].is_analyzer or any(graph.nodes[entry].operation == "input" for entry in below):
        return None
    return Evaluator(graph, learned, [number])({})[0]


def _obstacle(graph: Graph, learned: Learned, specs: dict[str, TensorSpec], output: int) -> str:
    """Why a layer cannot compute this; empty if it can."""
    for number in graph.needed([output]):
        node = graph.nodes[number]
        if node.operation == "input":
            name = node.arguments["name"]
            if np.dtype(specs[name].dtype).kind not in "biuf":
                return f"column {name!r}, which is not of numbers"
            if None in node.arguments["shape"]:
                return f"column {name!r}, whose rows differ in length"
        elif node.is_analyzer or _fixed(graph, learned, number) is not None:
            continue
        elif not keras.computable(node.operation):
            return f"{node.operation} ({node.site})"
    return ""
