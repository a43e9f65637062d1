"""`ps.transform.analyze`: the passes over the data in which analyzers learn."""

import os
import uuid
from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from penstock.accumulators.passes import ROWS, one_pass
from penstock.accumulators.sums import Sum
from penstock.data.arguments import check_function, user_site
from penstock.data.dataset import Dataset
from penstock.data.fingerprint import fingerprint_of
from penstock.data.operators.sources import Slices
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.formats.plain_data import spec_to_data
from penstock.preprocessing.layer import check_finite
from penstock.service.security.resolving import Service
from penstock.spec import TensorSpec
from penstock.transform import vocabulary_learners  # noqa: F401  # which LEARNERS takes in
from penstock.transform.columns import Ragged, is_text, missing_rows, to_array
from penstock.transform.evaluate import Evaluator
from penstock.transform.graph import Graph, GraphNode
from penstock.transform.learners import LEARNERS, Learner
from penstock.transform.missing import Unfilled, complete
from penstock.transform.output import TransformOutput
from penstock.transform.saved import Learned, WorkingDirectory, learned_of
from penstock.transform.symbols import trace

_MISSING = "missing of "
"""Before the name of a column, where its missing values are counted."""

_IN_MEMORY = "rows in memory"
"""Instead of a fingerprint of arrays, which takes about as long as learning from them. Whether a finished analysis is
one of the same rows is told by learning again."""

_LEARNED = ("rows", "missing", "learned", "element_spec", "transformed_element_spec")
"""Return a digest that is the same in two analyses of the same rows."""

_SAMPLE = 64
"""Number of rows that show whether those of a column differ in shape, where the dataset does not declare it."""


def analyze(
    dataset: Dataset,
    preprocessing_fn: Callable[[Any], Any],
    working_dir: str | os.PathLike[str],
    service: Service | None = None,
) -> TransformOutput:
    """Learn from all rows of a dataset what a preprocessing function needs, and save the transform.

    The function is traced once, with symbolic columns. Analyzers that need what others have learned take another pass
    over the data. Each pass reads every row exactly once; a pass that is done is not repeated by a later call with the
    same directory, function and dataset, unless its rows are arrays in memory (`from_tensor_slices` and nothing more),
    from which learning again is as quick as recognising them.

    Args:
        dataset: of rows: dictionaries of numbers, strings, or arrays of them. Not batched, and finite.
        preprocessing_fn: from columns by name to columns by name, with NumPy's functions and those of `ps.transform`.
        working_dir: a directory of this machine, which is made if there is none.
        service: the data service whose workers read the data and learn; None for this process.

    Returns:
        What was learned, as `TransformOutput(working_dir)` reads it later.

    Raises:
        InvalidArgumentError: a dataset without rows or without an end, or a column that it does not have.
        InvalidTypeError: a function that uses the values of columns, or what cannot be saved.
        StateMismatchError: the directory belongs to another function or dataset.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> rows = ps.Dataset.from_tensor_slices({"size": [1.0, 2.0, 3.0], "word": ["b", "a", "b"]})
        >>> def preprocess(columns):
        ...     return {
        ...         "size": ps.transform.scale_to_0_1(columns["size"]),
        ...         "word": ps.transform.compute_and_apply_vocabulary(columns["word"]),
        ...     }
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     layer = ps.transform.analyze(rows, preprocess, directory).transform_features_layer()
        ...     layer({"size": [1.5, 3.0], "word": ["a", "c"]})
        {'size': array([0.25, 1.  ], dtype=float32), 'word': array([ 1, -1])}
    """
    _check_rows(dataset)
    sample = _sample(dataset)
    specs = {name: _row_spec(spec, sample[name]) for name, spec in dataset.element_spec.items()}
    shapes = {name: spec.shape for name, spec in specs.items()}
    graph = trace(shapes, check_function("analyze", "preprocessing_fn", preprocessing_fn))
    directory = WorkingDirectory(working_dir)
    data = _identity(dataset)
    directory.prepare()
    kept = directory.earlier(graph, data)
    if data == _IN_MEMORY and kept:
        if kept.get("finished"):
            _check_learned_again(directory, dataset, preprocessing_fn, service)
        else:
            kept = {}
    if kept.get("finished"):
        return TransformOutput(working_dir)
    learned = learned_of(kept.get("learned", {}), directory.assets)
    directory.copy_vocabularies(graph)
    levels = graph.passes()
    rows, missing = kept.get("rows"), kept.get("missing", {})
    for number, analyzers in enumerate(levels):
        if all(analyzer in learned for analyzer in analyzers):
            continue
        what = f"ps.transform.analyze, pass {number + 1} of {len(levels)}"
        learners, rows = one_pass(dataset, LearnFromBatch(graph, learned, analyzers), service, what, ROWS)
        missing |= _missing(learners)
        with np.errstate(all="ignore"):  # as where they were learned from
            learned |= {int(key): found.result(directory.assets) for key, found in learners.items() if key.isdigit()}
        directory.write(graph, data, learned, rows=rows, missing=missing)
    directory.write(
        graph,
        data,
        learned,
        rows=rows,
        missing=missing,
        finished=True,
        element_spec=_plain(specs),
        transformed_element_spec=_plain(_specs(graph, learned, sample)),
    )
    return TransformOutput(working_dir)


def _check_rows(dataset: Any) -> None:
    """Refuse anything but a finite dataset of rows."""
    if not isinstance(dataset, Dataset):
        raise InvalidTypeError(f"{user_site()}: analyze takes a ps.Dataset, got {dataset!r:.100}")
    check_finite("analyze", dataset)
    spec = dataset.element_spec
    if not isinstance(spec, Mapping) or any(not isinstance(entry, TensorSpec) for entry in spec.values()):
        raise InvalidTypeError(
            f"analyze takes a dataset of rows, {{'name': value, ...}}, got elements {spec}: map it to dictionaries"
        )


def _sample(dataset: Dataset) -> dict[str, Any]:
    """The first rows, which also tell whether there are any."""
    with iter(dataset.take(_SAMPLE).ragged_batch(_SAMPLE)) as iterator:
        for batch in iterator:
            return batch  # type: ignore[no-any-return]
    raise InvalidArgumentError("analyze: the dataset has no rows: there is nothing to learn from")


def _row_spec(spec: TensorSpec, rows: Any) -> TensorSpec:
    """The specification of a column: with None for lengths that differ, also where the dataset has assumed one."""
    if rows.dtype.kind != "O" or len(spec.shape) == 0:
        return TensorSpec(spec.shape, spec.dtype)
    shapes = {np.shape(row) for row in rows}
    # Rows that are all empty agree by chance.
    agree = len(shapes) == 1 and None not in spec.shape and 0 not in spec.shape and next(iter(shapes)) == spec.shape
    return TensorSpec(spec.shape if agree else (None,) * len(spec.shape), spec.dtype)


def _identity(dataset: Dataset) -> str:
    """By which the same data is known again; data that exists in this process only is never the same."""
    if type(dataset.node) is Slices:
        return _IN_MEMORY
    try:
        return fingerprint_of(dataset.node, dataset.options())
    except InvalidTypeError:
        return uuid.uuid4().hex


def _check_learned_again(
    directory: WorkingDirectory, dataset: Dataset, preprocessing_fn: Callable[[Any], Any], service: Service | None
) -> None:
    """Refuse data from which something else is learned than the directory holds."""
    with TemporaryDirectory(prefix="penstock-transform-") as elsewhere:
        analyze(dataset, preprocessing_fn, elsewhere, service)
        found, kept = WorkingDirectory(elsewhere).read(), directory.read()
    if any(found[name] != kept[name] for name in _LEARNED):
        raise directory.another("dataset")


def _plain(specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    return {name: spec_to_data(spec) for name, spec in specs.items()}


def _specs(graph: Graph, learned: Learned, sample: Mapping[str, Any]) -> dict[str, TensorSpec]:
    values = Evaluator(graph, learned, list(graph.outputs.values()))(sample)
    return {name: _spec(complete(value)) for name, value in zip(graph.outputs, values, strict=True)}


def _spec(value: Any) -> TensorSpec:
    if isinstance(value, Ragged):
        return TensorSpec(value.shape or (None,), _spec(value.values).dtype)
    if is_text(value):
        return TensorSpec((), object)
    array = to_array(value)
    return TensorSpec(array.shape[1:], array.dtype)


class LearnFromBatch:
    """From a batch of rows to what analyzers learn from it; also on the workers of a data service."""

    def __init__(self, graph: Graph, learned: Learned, analyzers: list[int]) -> None:
        self._graph, self._learned, self._analyzers = graph, learned, analyzers
        taken = sorted({given for number in analyzers for given in graph.nodes[number].inputs})
        self._columns = {_MISSING + name: number for name, number in graph.inputs(taken).items()}
        wanted = sorted({*taken, *self._columns.values()})
        self._places = {number: place for place, number in enumerate(wanted)}
        self._evaluate = Evaluator(graph, learned, wanted)

    def empty(self) -> dict[str, Any]:
        """Return what analyzers learn from no rows, and how many values of each column are missing."""
        learners: dict[str, Any] = {str(number): learner_of(self._graph.nodes[number]) for number in self._analyzers}
        return learners | {name: Sum(elementwise=False) for name in self._columns}

    def batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return what each analyzer learns from these rows."""
        values = self._evaluate(batch)
        learners: dict[str, Any] = {}
        for name, number in self._columns.items():
            learners[name] = Sum(elementwise=False)
            column = values[self._places[number]]
            absent = column.missing_rows() if isinstance(column, Unfilled) else missing_rows(column)
            learners[name].add(np.array([absent]))
        for number in self._analyzers:
            node = self._graph.nodes[number]
            learner = learner_of(node)
            try:
                learner.add(*(values[self._places[given]] for given in node.inputs))
            except Exception as error:
                error.add_note(
                    f"in {node.operation.removeprefix('analyze.')} of the preprocessing function, {node.site}"
                )
                raise
            learners[str(number)] = learner
        return learners

    def __reduce__(self) -> tuple[Any, ...]:
        return LearnFromBatch, (self._graph, self._learned, self._analyzers)


def _missing(learners: Mapping[str, Any]) -> dict[str, int]:
    """Return how many values of each column are missing."""
    return {name[len(_MISSING) :]: int(found.result()) for name, found in learners.items() if name.startswith(_MISSING)}


def learner_of(node: GraphNode) -> Learner:
    """Return the learner of an analyzer."""
    arguments = {name: value for name, value in node.arguments.items() if name != "name"}
    return LEARNERS[node.operation.removeprefix("analyze.")](**arguments)
