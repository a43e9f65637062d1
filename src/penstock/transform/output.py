"""`ps.transform.TransformOutput`: a transform that was learned, for training and for serving."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.data.block import Column
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.formats.plain_data import spec_of_data
from penstock.spec import TensorSpec
from penstock.transform import keras
from penstock.transform.columns import to_array
from penstock.transform.evaluate import Evaluator
from penstock.transform.graph import Graph
from penstock.transform.missing import complete
from penstock.transform.numeric import layer_arguments
from penstock.transform.saved import Learned, WorkingDirectory, learned_of
from penstock.transform.summary import summary_of
from penstock.transform.vocabularies import NUMBERED, Vocabulary, number_of_values


class FeaturesLayer:
    """The transform as a function, on one row or on the rows of a batch; `TransformOutput` makes it.

    In `dataset.map(layer)` it transforms a block of rows at a time. For serving call it with arrays, lists or Arrow
    arrays by name. Results that need a column which is not given, such as the label, are omitted.
    """

    def __init__(self, graph: Graph, learned: Learned, specs: Mapping[str, TensorSpec]) -> None:
        self._state = graph, learned, specs
        self._specs = specs
        self._columns = graph.inputs(list(graph.outputs.values()))
        self._evaluators: dict[tuple[str, ...], tuple[list[str], Evaluator]] = {}
        self._evaluator(list(self._columns))  # damage and missing imports show before it is called

    def __call__(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The results for one row, or for the rows of a batch.

        Raises:
            InvalidArgumentError: a column is missing that all results need.
            InvalidTypeError: no dictionary of columns, or one of other columns than were analyzed.
        """
        if not isinstance(columns, Mapping):
            raise InvalidTypeError(
                f"the transform takes columns by name, {{'name': values, ...}}, got {columns!r:.100}"
            )
        if self._is_row(columns):
            found = self._rows({name: _in_batch(columns[name]) for name in self._columns if name in columns})
            return {name: value[0] for name, value in found.items()}
        return self._rows(columns)

    def _rows(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        outputs, evaluate = self._evaluator([name for name in self._columns if name in columns])
        return {name: to_array(complete(value)) for name, value in zip(outputs, evaluate(columns), strict=True)}

    def _evaluator(self, given: list[str]) -> tuple[list[str], Evaluator]:
        """The results that these columns are enough for, and what computes them; all of them if none is."""
        if (kept := self._evaluators.get(tuple(given))) is not None:
            return kept
        graph, learned, _ = self._state
        outputs = [name for name, number in graph.outputs.items() if set(graph.inputs([number])) <= {*given}]
        evaluate = Evaluator(graph, learned, [graph.outputs[name] for name in outputs or graph.outputs])
        return self._evaluators.setdefault(tuple(given), (outputs, evaluate))

    def _map_block(self, columns: Mapping[str, Column]) -> Any:
        """The results for all rows of a block, for `dataset.map`; blocks of batches are transformed one by one."""
        for name in self._columns.keys() & columns.keys():
            column, rank = columns[name], len(self._specs[name].shape)
            rows = column[0] if column.dtype.kind == "O" and len(column) else None
            if (column.ndim - 1 if rows is None else np.ndim(rows)) != rank:
                raise InvalidTypeError(f"column {name!r} holds batches")
        return self._rows(columns)

    def _is_row(self, columns: Mapping[str, Any]) -> bool:
        """Return whether these are the values of one row."""
        for name in self._columns:
            if name not in columns:
                continue
            value, rank = columns[name], len(self._specs[name].shape)
            if value is None:
                return True
            if rank == 0:
                return isinstance(value, (str, bytes)) or np.ndim(value) == 0
            if isinstance(value, np.ndarray) and value.dtype.kind != "O":
                return bool(value.ndim == rank)
            if not hasattr(value, "type"):  # Arrow's columns are batches
                entries = [entry for entry in value if entry is not None][:1]
                return len(value) == 0 or (len(entries) == 1 and np.ndim(entries[0]) == rank - 1)
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return FeaturesLayer, self._state  # prepared again, not copied


def _in_batch(value: Any) -> Any:
    """One row as a batch."""
    if isinstance(value, (str, bytes)) or np.ndim(value) == 0:
        return [value]
    row = np.asarray(value)
    batch = np.empty(1, object)
    batch[0] = row
    return row[None] if row.dtype.kind in "biuf" else batch


class TransformOutput:
    """A transform that `analyze` has saved.

    Args:
        working_dir: the directory that it was saved in.

    Raises:
        InvalidArgumentError: the directory holds no transform, or its analysis was not finished.
        StateMismatchError: it was written by another version of penstock.
        StorageError: a file of it is damaged, or a vocabulary has changed.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = ps.Dataset.from_tensor_slices({"word": ["a", "b", "a"]})
        >>> def preprocess(columns):
        ...     words = ps.transform.compute_and_apply_vocabulary(columns["word"], vocab_filename="words")
        ...     return {"word": words}
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = ps.transform.analyze(rows, preprocess, directory)
        ...     output = ps.transform.TransformOutput(directory)  # in another program
        ...     layer = output.transform_features_layer()
        ...     print(output.vocabulary_by_name("words"), layer({"word": ["b", "c"]})["word"].tolist())
        ['a', 'b'] [1, -1]
    """

    def __init__(self, working_dir: str | os.PathLike[str]) -> None:
        self._directory = WorkingDirectory(working_dir)
        found = self._directory.read()
        self.graph = Graph.of(found["graph"], str(self._directory.path))
        """What the transform does, as it was traced."""
        self._graph = self._directory.with_copies(self.graph)
        self.learned: Learned = learned_of(found["learned"], self._directory.assets)
        """Learned values of the analyzers, by the numbers of their nodes in the graph."""
        self.element_spec: dict[str, TensorSpec] = _specs(found["element_spec"])
        """The specification of each column of a row that was analyzed."""
        self.rows: int | None = found["rows"]
        """How many rows were analyzed; None if nothing had to be learned."""
        self.missing: dict[str, int] = found["missing"]
        """In how many rows a column that was learned from is NaN, an empty string or an empty row."""
        self.transformed_element_spec: dict[str, TensorSpec] = _specs(found["transformed_element_spec"])
        """The specification of each result of a row."""

    def __repr__(self) -> str:
        learned = "nothing had to be learned" if self.rows is None else f"learned from {self.rows:,} rows"
        columns, results = (", ".join(map(repr, specs)) for specs in (self.element_spec, self.transformed_element_spec))
        return f"TransformOutput({str(self._directory.path)!r}: {columns} -> {results}; {learned})"

    def transform_features_layer(self) -> FeaturesLayer:
        """A function from columns by name to results by name, for `dataset.map` and for serving."""
        return FeaturesLayer(self._graph, self.learned, self.element_spec)

    def summary(self) -> str:
        """Describe the columns, learned values and results, as `penstock inspect` does."""
        return summary_of(self._graph, self.learned, self.rows, self.element_spec, self.transformed_element_spec)

    def to_keras(self, outputs: Sequence[str] | None = None) -> Any:
        """A layer of Keras that computes results from numbers: it compiles into a model, and is saved with it.

        It takes a dictionary of columns and gives one of results, in float32 where NumPy computes in float64. Strings
        have to become integers before the model, by `transform_features_layer()`.

        Args:
            outputs: the names of the results; None for all that can be computed from numbers.

        Raises:
            InvalidTypeError: a result that was asked for needs strings, rows of unequal length, or an operation that
                Keras does not have; or all do.
        """
        return keras.TransformLayer(**layer_arguments(self._graph, self.learned, self.element_spec, outputs))

    def _vocabulary(self, name: str) -> Vocabulary:
        known = {}
        for number, node in enumerate(self._graph.nodes):
            if "vocab_filename" in node.arguments:
                known[node.arguments["vocab_filename"]] = self.learned[number][0]
        if name not in known:
            raise InvalidArgumentError(
                f"there is no vocabulary {name!r}, the transform has {', '.join(map(repr, sorted(known))) or 'none'}"
            )
        return known[name]  # type: ignore[no-any-return]

    def vocabulary_by_name(self, vocab_filename: str) -> list[str]:
        """The tokens of a vocabulary, in the order of their indices."""
        return self._vocabulary(vocab_filename).as_list()

    def vocabulary_file_by_name(self, vocab_filename: str) -> str:
        """The path of a vocabulary's file."""
        return self._vocabulary(vocab_filename).path

    def vocabulary_size_by_name(self, vocab_filename: str) -> int:
        """Return how many tokens a vocabulary has."""
        return len(self._vocabulary(vocab_filename))

    def num_buckets(self, name: str) -> int:
        """Return how many values a result of buckets or indices can have, as an embedding needs it.

        Raises:
            InvalidArgumentError: the result is no bucket and no index.
        """
        if name not in self._graph.outputs:
            known = ", ".join(map(repr, self._graph.outputs))
            raise InvalidArgumentError(f"there is no result {name!r}, the transform has {known}")
        node = self._graph.nodes[self._graph.outputs[name]]
        if node.operation in NUMBERED:
            learned = Evaluator(self._graph, self.learned, list(node.inputs[1:][-1:]))({})
            return int(number_of_values(*learned, operation=node.operation, arguments=node.arguments))
        raise InvalidArgumentError(f"result {name!r} is made by {node.operation}: it is neither a bucket nor an index")


def _specs(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {name: spec_of_data(entry) for name, entry in plain.items()}
