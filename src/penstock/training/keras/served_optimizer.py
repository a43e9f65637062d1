"""Keras's optimizers on parameter servers: each server applies one to the shards that it holds."""

import copy
from collections.abc import Sequence
from typing import Any, Self

import jax.numpy as jnp
import keras
import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.parameter_server.variables import ServerVariables
from penstock.training.keras.interface import config_with_objects, exclude_from_decay, excluded_from_decay, set_path
from penstock.training.keras.served_variables import WorkerValues


class KerasRule:
    """A Keras optimizer as a server's rule.

    Args:
        optimizer: one that has been built.
        variables: those that it was built with.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        self._kind = type(optimizer)
        self._config = config_with_objects(optimizer)
        self._excluded = excluded_from_decay(optimizer)
        self._paths = [variable.path for variable in variables]
        self._constraints = [variable.constraint for variable in variables]
        self._leaves = list(range(len(self._paths)))
        self._optimizer: Any = None

    def for_shards(self, leaves: Sequence[int]) -> Self:
        """The rule of these variables, or of shards of them."""
        chosen = copy.copy(self)
        chosen._leaves = list(leaves)
        return chosen

    def init(self, values: Any) -> Any:
        """The optimizer's variables."""
        self._optimizer = self._built(values, [self._paths[leaf] for leaf in self._leaves])
        return [variable.value for variable in self._optimizer.variables]

    def _built(self, values: Any, paths: Sequence[str]) -> Any:
        optimizer = self._kind.from_config(dict(self._config))
        exclude_from_decay(optimizer, self._excluded)
        shards = [keras.Variable(value) for value in values]
        for shard, path, leaf in zip(shards, paths, self._leaves, strict=True):
            set_path(shard, path)
            shard.constraint = self._constraints[leaf]
        optimizer.build(shards)
        return optimizer

    def apply(self, gradients: Any, state: Any, values: Any) -> tuple[Any, Any]:
        """The values and the optimizer's variables after one step."""
        values, state = self._optimizer.stateless_apply(state, gradients, values)
        return list(values), list(state)

    def state_names(self, shapes: Sequence[tuple[int, ...]], shards: Sequence[str]) -> list[tuple[str, str]]:
        """For each variable of the optimizer, its shard and its name there; "" for a variable of all shards."""
        marks = [f"<{shard}>" for shard in shards]
        optimizer = self._built([jnp.zeros(shape) for shape in shapes], marks)
        names = []
        for variable in optimizer.variables:
            shard = next((shard for shard, mark in zip(shards, marks, strict=True) if mark in variable.name), "")
            names.append((shard, variable.name))
        return names


class OptimizerValues:
    """The variables of an optimizer as the program sees them, such as its learning rate and its iterations.

    Args:
        variables: those that the optimizer changes.
        rule: the optimizer on the servers.
    """

    def __init__(self, variables: ServerVariables, rule: KerasRule) -> None:
        self._variables = variables
        layout = variables.layout
        whole = [str(leaf) for leaf in range(len(layout.shapes))]
        self._names = [(leaf, name.replace(f"<{leaf}>", "")) for leaf, name in rule.state_names(layout.shapes, whole)]
        self._places: dict[tuple[int, int, str], int] = {}
        for server in layout.servers:
            shards = layout.on(server)
            of_shards = rule.for_shards([shard.leaf for shard in shards])
            names = of_shards.state_names(layout.shapes_on(server), [str(number) for number in range(len(shards))])
            for place, (number, name) in enumerate(names):
                shard = int(number) if number else -1
                self._places[server, shard, name.replace(f"<{number}>", "")] = place

    def value(self, place: int) -> Any:
        """The newest array, of its shards joined."""
        found = self._variables.read_state()
        parts = [found[server][at] for server, at, _ in self._parts(place)]
        return jnp.array(parts[0] if len(parts) == 1 else np.concatenate(parts))

    def assign(self, place: int, value: Any) -> None:
        """Replace it on all servers that have a part of it."""
        array = np.asarray(value)
        changed: dict[int, dict[int, Any]] = {}
        for server, at, rows in self._parts(place, everywhere=True):
            changed.setdefault(server, {})[at] = array if rows is None else array[rows]
        self._variables.assign_state(changed)

    def _parts(self, place: int, *, everywhere: bool = False) -> list[tuple[int, int, slice | None]]:
        """The server, the place there and the rows of every part; what all servers have is one part, or one of each."""
        leaf, name = self._names[place]
        layout = self._variables.layout
        found: list[tuple[int, int, slice | None]] = []
        if not leaf:
            found = [(server, self._places[server, -1, name], None) for server in layout.servers]
            return found if everywhere else found[:1]
        for shard in layout.shards:
            if shard.leaf == int(leaf):
                number = layout.on(shard.server).index(shard)
                at = self._places[shard.server, number, name]
                found.append((shard.server, at, slice(shard.begin, shard.end) if layout.shapes[shard.leaf] else None))
        return found


class ServedOptimizer:
    """A Keras optimizer as functions on workers see it: `apply` pushes the gradients to the servers."""

    variables: tuple[Any, ...] = ()

    def __init__(self, weights: ServerVariables) -> None:
        self._weights = weights

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Have the optimizer apply gradients on the servers, when the function that calls this has succeeded.

        Args:
            grads: one for each variable that the optimizer was built with.
            trainable_variables: these, if the gradients are in another order.

        Raises:
            InvalidArgumentError: gradients that are missing, or of other variables.
            ElementError: of other shapes.
        """
        count = len(self._weights.layout.shapes)
        places = range(count) if trainable_variables is None else list(map(self._place, trainable_variables))
        if sorted(places) != list(range(count)) or len(grads) != count or any(one is None for one in grads):
            raise InvalidArgumentError(
                f"optimizer.apply on a worker takes the gradients of all {count} variables that it was built with"
            )
        self._weights.push(
            [gradient for _, gradient in sorted(zip(places, grads, strict=True), key=lambda one: one[0])]
        )

    def _place(self, variable: Any) -> int:
        holder = getattr(variable, "holder", None)
        if isinstance(holder, WorkerValues) and holder.variables.layout.number == self._weights.layout.number:
            return int(variable.place)
        path = getattr(variable, "path", variable)
        raise InvalidArgumentError(f"optimizer.apply got a gradient of {path!r}, with which it was not built")

    def apply_gradients(self, grads_and_vars: Any) -> None:
        """Variant of `apply`, of pairs.

        Raises:
            InvalidArgumentError, ElementError: as `apply`.
        """
        pairs = list(grads_and_vars)
        self.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])

    def scale_loss(self, loss: Any) -> Any:
        """The loss itself."""
        return loss
