"""Computes a graph for a block of rows."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.transform import (
    buckets,
    constants,
    missing,
    scaling_operations,
    term_frequencies,
    text_operations,
    vocabularies,
)
from penstock.transform.columns import to_array, to_column
from penstock.transform.functions import imported
from penstock.transform.graph import Graph, GraphNode
from penstock.transform.missing import Unfilled, complete
from penstock.transform.operations import numpy_operation


def _item(values: tuple[Any, ...], *, number: int) -> Any:
    return values[number]


OPERATIONS: dict[str, Callable[..., Any]] = {
    "apply_buckets": buckets.apply_buckets,
    "apply_buckets_per_key": buckets.apply_buckets_per_key,
    "apply_buckets_with_interpolation": buckets.apply_buckets_with_interpolation,
    "by_key": scaling_operations.by_key,
    "cast": constants.cast,
    "constant": constants.constant_value,
    "change_text": text_operations.change_text,
    "density": scaling_operations.density,
    "fill_missing": missing.fill_missing,
    "document_frequency": term_frequencies.document_frequency,
    "distinct_per_row": text_operations.distinct_per_row,
    "gaussian": scaling_operations.gaussian,
    "given_vocabulary": vocabularies.given_vocabulary,
    "hash_strings": text_operations.hash_strings,
    "idf": term_frequencies.idf,
    "index": constants.index,
    "item": _item,
    "join": text_operations.join,
    "lookup": vocabularies.lookup,
    "lookup_by": vocabularies.lookup_by,
    "min_max": scaling_operations.min_max,
    "ngrams": text_operations.ngrams,
    "number_of_values": vocabularies.number_of_values,
    "row_lengths": text_operations.row_lengths,
    "split": text_operations.split,
    "tfidf_terms": term_frequencies.tfidf_terms,
    "tfidf_weights": term_frequencies.tfidf_weights,
    "to_dense": text_operations.to_dense,
    "z_score": scaling_operations.z_score,
}
"""Everything that a saved transform can do, besides NumPy's functions in `operations.py`."""


class Evaluator:
    """Computes nodes of a graph.

    Args:
        graph: the graph.
        learned: what analyzers have learned, by the numbers of their nodes.
        wanted: the nodes to compute.
    """

    @np.errstate(all="ignore")
    def __init__(self, graph: Graph, learned: Mapping[int, tuple[Any, ...]], wanted: list[int]) -> None:
        self._graph = graph
        self._wanted = wanted
        self._order = graph.needed(wanted)
        self._fixed: dict[int, Any] = {
            number: learned[number] for number in self._order if graph.nodes[number].is_analyzer
        }
        self._steps: list[tuple[int, Callable[..., Any]]] = []
        for number in self._order:
            node = graph.nodes[number]
            if node.is_analyzer or node.operation == "input":
                continue
            fixed = [given in self._fixed for given in node.inputs]
            step = operation_of(node, fixed)
            if all(fixed):
                self._fixed[number] = step(*(self._fixed[given] for given in node.inputs))
            else:
                self._steps.append((number, step))
        self._unfilled = graph.consumed_only_by("fill_missing")
        self.inputs = graph.inputs(wanted)

    @np.errstate(all="ignore")
    def __call__(self, columns: Mapping[str, Any]) -> list[Any]:
        """The values of the wanted nodes for the rows of these columns; of NaN and infinite numbers without warnings.

        Raises:
            InvalidArgumentError: a column is missing.
        """
        values = dict(self._fixed)
        for name, number in self.inputs.items():
            if name not in columns:
                raise InvalidArgumentError(
                    f"column {name!r} is missing: the transform takes {', '.join(map(repr, self.inputs))}, got "
                    f"{', '.join(map(repr, columns))}"
                )
            column = Unfilled(name, columns[name], tuple(self._graph.nodes[number].arguments["shape"]))
            values[number] = column if number in self._unfilled else complete(column)
        for number, step in self._steps:
            node = self._graph.nodes[number]
            try:
                values[number] = step(*(values[given] for given in node.inputs))
            except Exception as error:
                error.add_note(f"in {node.operation} of the preprocessing function, {node.site}")
                raise
        return [values[number] for number in self._wanted]


def operation_of(node: GraphNode, fixed: Sequence[bool]) -> Callable[..., Any]:
    """Return a function that computes a node from the values of its inputs, some of which are the same for all rows.

    Raises:
        InvalidArgumentError: an operation that this penstock does not know, or a function that cannot be imported.
    """
    name = node.operation
    if name == "call":
        return partial(_called, imported(node.arguments["function"]), node.arguments["function"])
    if name.startswith("numpy."):
        return partial(numpy_operation(name.removeprefix("numpy."), fixed), **node.arguments)
    if name not in OPERATIONS:
        raise InvalidArgumentError(f"operation {name!r} is unknown to this penstock: use the one that has saved it")
    return partial(OPERATIONS[name], **node.arguments)


def _called(function: Callable[..., Any], name: str, *values: Any) -> Any:
    arrays = [to_array(value) for value in values]
    result = to_column(f"the result of {name}", function(*arrays))
    if len(to_array(result)) != len(arrays[0]):
        raise InvalidTypeError(f"{name} got {len(arrays[0])} rows and returned {len(to_array(result))}")
    return result
