"""`ps.transform.analyze`: the passes over the data in which analyzers learn."""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from penstock.accumulators.encoding import from_bytes, to_bytes
from penstock.data.arguments import check_function, user_site
from penstock.data.dataset import Dataset
from penstock.data.fingerprint import fingerprint_of
from penstock.data.save_progress import SaveProgress
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import INFINITE_CARDINALITY
from penstock.service.distribute import distribute
from penstock.service.security.resolving import Service
from penstock.spec import TensorSpec
from penstock.transform.columns import Ragged, is_text, to_array
from penstock.transform.evaluate import Evaluator
from penstock.transform.graph import Graph, GraphNode
from penstock.transform.learners import Learner
from penstock.transform.output import TransformOutput
from penstock.transform.registry import LEARNERS
from penstock.transform.saved import Learned, WorkingDirectory, learned_of, plain_specs
from penstock.transform.symbols import trace

_SAMPLE = 64
"""So many rows tell whether those of a column differ in shape, where the dataset does not say so."""

ROWS = 1 << 16
"""How many rows are learned from at a time. The same on any number of workers, so that rounding is the same too."""


def analyze(
    dataset: Dataset,
    preprocessing_fn: Callable[[Any], Any],
    working_dir: str | os.PathLike[str],
    service: Service | None = None,
) -> TransformOutput:
    """Learn from all rows of a dataset what a preprocessing function needs, and save the transform.

    The function is traced once, with symbolic columns. Analyzers that need what others have learned take another pass
    over the data. Each pass reads every row exactly once; a pass that is done is not repeated by a later call with the
    same directory, function and dataset.

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
    earlier = directory.earlier(graph, data)
    learned = learned_of(earlier, directory.assets)
    levels = graph.passes()
    rows = None
    for number, analyzers in enumerate(levels):
        if all(analyzer in learned for analyzer in analyzers):
            continue
        what = f"ps.transform.analyze, pass {number + 1} of {len(levels)}"
        learners, rows = _learn(dataset, graph, learned, analyzers, service, what)
        learned |= {analyzer: learner.result(directory.assets) for analyzer, learner in learners.items()}
        directory.write(graph, data, learned)
    directory.write(
        graph,
        data,
        learned,
        rows=rows,
        element_spec=plain_specs(specs),
        transformed_element_spec=plain_specs(_specs(graph, learned, sample)),
    )
    return TransformOutput(working_dir)


def _check_rows(dataset: Any) -> None:
    """Refuse what is no finite dataset of rows."""
    if not isinstance(dataset, Dataset):
        raise InvalidTypeError(f"{user_site()}: analyze takes a ps.Dataset, got {dataset!r:.100}")
    if dataset.cardinality() == INFINITE_CARDINALITY:
        raise InvalidArgumentError("analyze: the dataset never ends: take(n) some of its rows")
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
    agree = len(shapes) == 1 and None not in spec.shape and next(iter(shapes)) == spec.shape
    return TensorSpec(spec.shape if agree else (None,) * len(spec.shape), spec.dtype)


def _identity(dataset: Dataset) -> str:
    """By which the same data is known again; data that exists in this process only is never the same."""
    try:
        return fingerprint_of(dataset.node, dataset.options())
    except InvalidTypeError:
        return uuid.uuid4().hex


def _specs(graph: Graph, learned: Learned, sample: Mapping[str, Any]) -> dict[str, TensorSpec]:
    values = Evaluator(graph, learned, list(graph.outputs.values()))(sample)
    return {name: _spec(value) for name, value in zip(graph.outputs, values, strict=True)}


def _spec(value: Any) -> TensorSpec:
    if isinstance(value, Ragged):
        return TensorSpec((value.width,), _spec(value.values).dtype)
    if is_text(value):
        return TensorSpec((), object)
    array = to_array(value)
    return TensorSpec(array.shape[1:], array.dtype)


class LearnFromBatch:
    """From a batch of rows to what analyzers learn from it, as bytes; also on the workers of a data service."""

    def __init__(self, graph: Graph, learned: Learned, analyzers: list[int]) -> None:
        self._graph, self._learned, self._analyzers = graph, learned, analyzers
        self._prepare()

    def _prepare(self) -> None:
        nodes = self._graph.nodes
        wanted = sorted({given for number in self._analyzers for given in nodes[number].inputs})
        self._places = {number: place for place, number in enumerate(wanted)}
        self._evaluate = Evaluator(self._graph, self._learned, wanted)

    def learn(self, batch: Mapping[str, Any]) -> dict[int, Learner]:
        """What each analyzer learns from these rows."""
        values = self._evaluate(batch)
        learners = {}
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
            learners[number] = learner
        return learners

    def __call__(self, batch: Mapping[str, Any]) -> bytes:
        states = {str(number): learner.state() for number, learner in self.learn(batch).items()}
        return to_bytes({"rows": len(next(iter(batch.values()))), "states": states})

    def __getstate__(self) -> tuple[Any, ...]:
        needed = {number: self._learned[number] for number in self._learned}
        return self._graph, needed, self._analyzers

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._graph, self._learned, self._analyzers = state
        self._prepare()


def learner_of(node: GraphNode) -> Learner:
    """What learns for an analyzer."""
    arguments = {name: value for name, value in node.arguments.items() if name != "name"}
    return LEARNERS[node.operation.removeprefix("analyze.")](**arguments)


def _learn(
    dataset: Dataset, graph: Graph, learned: Learned, analyzers: list[int], service: Service | None, what: str
) -> tuple[dict[int, Learner], int]:
    """One pass: what the analyzers have learned from all rows, and how many there were."""
    known = dataset.cardinality()
    progress = SaveProgress(what, known if known >= 0 else None, 0)
    learners = {number: learner_of(graph.nodes[number]) for number in analyzers}
    total = 0
    for rows, parts in _parts(dataset, LearnFromBatch(graph, learned, analyzers), service):
        for number, part in parts.items():
            learners[number].merge(part)
        total += rows
        progress.add(rows)
    progress.end()
    return learners, total


def _parts(
    dataset: Dataset, learn: LearnFromBatch, service: Service | None
) -> Iterator[tuple[int, dict[int, Learner]]]:
    """What is learned from each batch, in the order of the rows."""
    uneven = any(spec.shape for spec in dataset.element_spec.values())
    batches = dataset.ragged_batch(ROWS) if uneven else dataset.batch(ROWS)
    if service is None:
        with iter(batches) as iterator:
            for batch in iterator:
                yield len(next(iter(batch.values()))), learn.learn(batch)
        return
    made = batches.map(learn).apply(distribute("distributed_epoch", service))
    with iter(made) as iterator:
        for data in iterator:
            found = from_bytes(bytes(data))
            parts = {}
            for number, state in found["states"].items():
                parts[int(number)] = learner_of(learn._graph.nodes[int(number)])
                parts[int(number)].load(state)
            yield found["rows"], parts
