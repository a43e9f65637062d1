"""`ps.preprocessing.adapt_all`: several layers learn in one pass over a dataset."""

from collections.abc import Mapping
from typing import Any

from penstock.accumulators.passes import one_pass
from penstock.data.block import is_ragged
from penstock.data.dataset import Dataset
from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.preprocessing.layer import LearningLayer, check_finite
from penstock.service.security.resolving import Service


class _SummarizeColumns:
    """Accumulators of what each layer learns from its column."""

    def __init__(self, layers: Mapping[str, LearningLayer], where: str, vectors: bool) -> None:
        self._layers, self._where, self._vectors = dict(layers), where, vectors

    def empty(self) -> dict[str, Any]:
        """Return accumulators of no rows."""
        return {name: layer.summary() for name, layer in self._layers.items()}

    def batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return accumulators of these rows."""
        summaries = self.empty()
        for name, layer in self._layers.items():
            column = batch[name]
            if self._vectors and column.ndim == 1 and not is_ragged(column):
                column = column[:, None]
            try:
                layer.summarize(summaries[name], column)
            except Exception as error:
                error.add_note(f"penstock: in {self._where} {name!r}")
                raise
        return summaries


def adapt_all(layers: Mapping[str, LearningLayer], dataset: Any, service: Service | None = None) -> None:
    """Let several layers learn in one pass over a dataset, on the workers of a data service if one is given.

    Every row counts exactly once, though workers are killed.

    Args:
        layers: by the names of the columns that they learn from.
        dataset: of rows: dictionaries, not batched, and finite.
        service: whose workers read and learn, as `ps.service.distribute` takes it; None for this process.

    Raises:
        InvalidTypeError: a layer that does not learn, or no dataset of dictionaries.
        InvalidArgumentError: a column that the dataset does not have, no rows, or what `adapt` of a layer raises.

    Example:
        >>> import penstock as ps
        >>> rows = ps.Dataset.from_tensor_slices({"size": [1.0, 3.0], "word": ["a", "b"]})
        >>> size, word = ps.preprocessing.Normalization(axis=None), ps.preprocessing.StringLookup()
        >>> ps.preprocessing.adapt_all({"size": size, "word": word}, rows)
        >>> float(size.mean), word.get_vocabulary()
        (2.0, ['[UNK]', 'b', 'a'])
    """
    if not isinstance(dataset, Dataset) or not isinstance(dataset.element_spec, Mapping):
        raise InvalidTypeError(f"adapt_all takes a dataset of dictionaries, got {dataset!r:.100}: map it to them")
    check_finite("adapt_all(layers, dataset)", dataset)
    for name, layer in layers.items():
        if not isinstance(layer, LearningLayer):
            raise InvalidTypeError(f"adapt_all: {name!r} has {layer!r:.100}, which is no layer that learns")
        if name not in dataset.element_spec:
            known = ", ".join(map(repr, dataset.element_spec))
            raise InvalidArgumentError(f"adapt_all: there is no column {name!r}, the dataset has {known}")
    adapt_columns(layers, dataset, service, "ps.preprocessing.adapt_all", "adapt_all, column")


def adapt_columns(
    layers: Mapping[str, LearningLayer],
    rows: Dataset,
    service: Service | None,
    what: str,
    where: str,
    *,
    vectors: bool = False,
) -> None:
    """Learn from a checked dataset.

    Args:
        layers: by the names of the columns that they learn from.
        rows: dictionaries with these columns.
        service: whose workers read and learn; None for this process.
        what: is done, for a progress bar.
        where: it went wrong, for errors, before the name of the column.
        vectors: whether a single value is a vector of length 1.
    """
    found, _ = one_pass(rows, _SummarizeColumns(layers, where, vectors), service, what)
    for name, layer in layers.items():
        try:
            layer.learn(found[name])
        except Exception as error:
            error.add_note(f"penstock: in {where} {name!r}")
            raise
