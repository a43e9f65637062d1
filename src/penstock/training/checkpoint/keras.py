"""Keras objects in a checkpoint: a model with its optimizer and metrics; variables are restored on their devices."""

import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from penstock.errors import InvalidArgumentError
from penstock.training.checkpoint.arrays import host_copy, is_spread, placed
from penstock.training.checkpoint.index import Entry, Item
from penstock.training.checkpoint.names import Naming, flat, keras, unique, without_numbers
from penstock.training.checkpoint.saveables import Saveable

_logger = logging.getLogger(__name__)


def is_keras(value: Any) -> bool:
    """Return whether an object is one of Keras's that has variables."""
    known = keras()
    return known is not None and isinstance(
        value, (known.Variable, known.Layer, known.Optimizer, known.Metric, known.random.SeedGenerator)
    )


class SaveableKeras(Saveable):
    """A Keras object, as its variables by their names: those of a model, of its optimizer and of its metrics.

    Args:
        path: where it is.
        target: the object.
        others: all Keras objects of the checkpoint, this one included. A model's optimizer or metric that is one of
            them is not saved with the model again. Variables of an optimizer are named after those that it optimizes.
    """

    def __init__(self, path: str, target: Any, others: "list[SaveableKeras]") -> None:
        self.path = path
        self.target = target
        self._others = others
        self._named: dict[str, tuple[list[int], Naming]] = {}

    def items(self) -> list[Item]:
        return [item for item, _ in self._sections()]

    def snapshot(self, value: Any) -> tuple[list[Item], dict[str, Any]]:
        if self._is_layer() and self._own_optimizer() is not None and self.target.built:
            self._build(self._own_optimizer(), self.target.trainable_variables)
        if not _has_variables(self.target) or isinstance(self.target, keras().Optimizer) and not self.target.built:
            raise self._not_built("no variables to save")
        sections = self._sections()
        for variable in [variable for _, variables in sections for variable in variables]:
            if isinstance(variable.value, jax.Array) and not variable.value.is_deleted():
                variable.value.copy_to_host_async()  # all at once, before the first is waited for
        arrays = {
            entry.name: host_copy(
                entry.name, variable.value if isinstance(variable.value, jax.Array) else variable.numpy()
            )
            for item, variables in sections
            for entry, variable in zip(item.entries, variables, strict=True)
        }
        return [item for item, _ in sections], arrays

    def restored(self, stored: Mapping[str, Item], arrays: Mapping[str, Any]) -> Any:
        for item, variables in self._sections():
            if item.kind == "metrics":
                self._begin_metrics_anew(item, stored.get(item.path, item))
            for entry, variable in zip(item.entries, variables, strict=True):
                if entry.name in arrays:
                    _assign(variable, arrays[entry.name])
        return self.target

    def _begin_metrics_anew(self, here: Item, stored: Item) -> None:
        names, got = ({entry.name for entry in item.entries} for item in (here, stored))
        if names - got or here is stored:
            others = [variable for metric in self._other_metrics() for variable in metric.variables]
            before = [variable.value for variable in others]
            for metric in self.target.metrics:
                metric.reset_state()
            for variable, value in zip(others, before, strict=True):  # one of them may be a part of the model's
                variable.assign(value)
        if got - names:
            _logger.warning(
                "%s: %s has no such metrics yet, or Keras makes them with the first batch: they start from zero",
                ", ".join(sorted(got - names)),
                self.path,
            )

    def prepare(self, stored: Mapping[str, Item]) -> None:
        """Build the object as the stored one was built, if it is not built yet.

        Raises:
            InvalidArgumentError: the checkpoint does not say how.
        """
        item = stored.get(self.path)
        if item is None:
            return
        if self._is_layer():
            if not self.target.built:
                self._build_layer(item)
            optimizer = self._own_optimizer()
            if optimizer is not None and f"{self.path}/optimizer" in stored:
                self._build(optimizer, self.target.trainable_variables)
        elif isinstance(self.target, keras().Optimizer) and not self.target.built:
            known = {name: variable for _, name, variable in self._references()}
            names = item.build or []
            if not all(name in known for name in names) or not names and len(item.entries) > len(self.target.variables):
                raise self._not_built("no variables to restore")
            if names:
                self.target.build([known[name] for name in names])

    def shardings(self) -> dict[str, Any]:
        return {
            entry.name: variable.value.sharding
            for item, variables in self._sections()
            for entry, variable in zip(item.entries, variables, strict=True)
            if isinstance(variable.value, jax.Array) and is_spread(variable.value.sharding)
        }

    def _build_layer(self, item: Item) -> None:
        if item.build is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Keras warns if it cannot; the error below covers it
                self.target.build_from_config(item.build)
        if not _has_variables(self.target) and item.entries:
            raise self._not_built("no variables to restore")

    def _build(self, optimizer: Any, variables: Sequence[Any]) -> None:
        if not optimizer.built:
            optimizer.build(variables)

    def _not_built(self, lacks: str) -> InvalidArgumentError:
        how = "optimizer.build(model.trainable_variables)"
        if self._is_layer():
            how = "it once on a batch, or model.build(input_shape),"
        return InvalidArgumentError(
            f"{self.path} is a {type(self.target).__name__} that is not built yet, so it has {lacks}: call {how} before"
        )

    def _is_layer(self) -> bool:
        return isinstance(self.target, keras().Layer)

    def _own_optimizer(self) -> Any:
        """The optimizer that the model was compiled with, unless it is an object of the checkpoint itself."""
        if not getattr(self.target, "compiled", False):
            return None
        optimizer = self.target.optimizer
        return None if any(other.target is optimizer for other in self._others) else optimizer

    def _sections(self) -> list[tuple[Item, list[Any]]]:
        """The sections of the object: itself, its optimizer, its metrics; each with its variables."""
        target = self.target
        if isinstance(target, keras().Variable):
            return [self._section(self.path, "Keras object", {id(target): self.path}, [target])]
        if isinstance(target, keras().random.SeedGenerator):
            return [self._section(self.path, "Keras object", {id(target.state): self.path}, [target.state])]
        if isinstance(target, keras().Optimizer):
            return [self._optimizer_section(self.path, target)]
        naming = self._naming(self.path, [target], list(target.variables))
        first = self._section(self.path, "Keras object", naming.names, target.variables, orders=naming.orders)
        if not self._is_layer():
            return [first]
        build = _plain_config(target)
        sections = [(Item(self.path, "Keras object", first[0].entries, build=build, orders=naming.orders), first[1])]
        optimizer = self._own_optimizer()
        if optimizer is not None:
            sections.append(self._optimizer_section(f"{self.path}/optimizer", optimizer))
        metrics = self._metrics_section()
        return [*sections, metrics] if metrics is not None else sections

    def _section(
        self, path: str, kind: str, names: Mapping[int, str], variables: Iterable[Any], **more: Any
    ) -> tuple[Item, list[Any]]:
        variables = list(variables)
        entries = [Entry(names[id(variable)], tuple(variable.shape), str(variable.dtype)) for variable in variables]
        return Item(path, kind, entries, **more), variables

    def _naming(self, path: str, roots: Sequence[Any], variables: list[Any]) -> Naming:
        """The names of variables, cached until the variables change."""
        key = list(map(id, variables))
        if path not in self._named or self._named[path][0] != key:
            self._named[path] = key, Naming(path, roots, variables)
        return self._named[path][1]

    def _optimizer_section(self, path: str, optimizer: Any) -> tuple[Item, list[Any]]:
        known: dict[str, list[str]] = {}
        for start, name, _ in self._references():
            known.setdefault(start, []).append(name)
        names, taken, used, build = {}, Counter[str](), Counter[tuple[str, str]](), []
        for variable in optimizer.variables:
            start, slot = _split(variable.name, known)
            if not start:
                names[id(variable)] = unique(f"{path}/{without_numbers(variable.name)}", taken)
                continue
            candidates = known[start]
            reference = candidates[used[start, slot] % len(candidates)]
            used[start, slot] += 1
            names[id(variable)] = unique(f"{path}/{slot}/{reference}", taken)
            if reference not in build:
                build.append(reference)
        return self._section(path, "optimizer", names, optimizer.variables, build=build)

    def _references(self) -> list[tuple[str, str, Any]]:
        """The variables that an optimizer may have: the prefix of its own variables' names, the name, the variable."""
        layers = [other for other in self._others if other._is_layer()]
        return [
            (
                flat(variable),
                layer._naming(layer.path, [layer.target], list(layer.target.variables)).names[id(variable)],
                variable,
            )
            for layer in layers
            for variable in layer.target.variables
        ]

    def _metrics_section(self) -> tuple[Item, list[Any]] | None:
        others = self._other_metrics()
        metrics = [metric for metric in self.target.metrics if all(metric is not other for other in others)]
        owned = {id(variable) for other in others for variable in other.variables}
        variables = [v for metric in metrics for v in metric.variables if id(v) not in owned]
        if not variables:
            return None
        path = f"{self.path}/metrics"
        names = self._naming(path, metrics, variables).names
        return self._section(path, "metrics", names, variables)

    def _other_metrics(self) -> list[Any]:
        return [other.target for other in self._others if isinstance(other.target, keras().Metric)]


def _has_variables(target: Any) -> bool:
    return getattr(target, "built", True) or bool(getattr(target, "variables", ()))


def _split(name: str, known: Mapping[str, Any]) -> tuple[str, str]:
    """An optimizer's variable's name, as the beginning that says whose it is, and the rest."""
    cut = name.rfind("_")
    while cut > 0:
        if name[:cut] in known:
            return name[:cut], name[cut + 1 :]
        cut = name.rfind("_", 0, cut)
    return "", name


def _plain_config(layer: Any) -> Any:
    """Return what a layer that is not built can be built from, as lists of numbers; None if it has not said."""
    config = layer.get_build_config() if layer.built else None
    return _lists(config) if config else None


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _lists(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_lists(inner) for inner in value]
    return value if value is None or type(value) in (str, int, float, bool) else str(value)


def _assign(variable: Any, array: Any) -> None:
    current = variable.value
    on_jax = isinstance(current, jax.Array)
    variable.assign(placed(array, current.sharding, current.committed) if on_jax else array)
