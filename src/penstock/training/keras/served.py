"""Keras variables made in the scope of a `ps.ParameterServerStrategy`: kept on its servers, and used by workers."""

from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.parameter_server.closures import FilledLater
from penstock.parameter_server.frameworks import ServedFramework
from penstock.parameter_server.rules import Addition
from penstock.parameter_server.variables import lines_of_worker
from penstock.runtime.memory import LARGE
from penstock.training.keras.interface import (
    attributes_for_worker,
    built_with,
    has_value,
    is_plain_object,
    set_values,
    tracked_collection,
    values_of,
)
from penstock.training.keras.objects import owner_kinds
from penstock.training.keras.scoped import compiled_in_scope, made_in_scope
from penstock.training.keras.served_optimizer import KerasRule, OptimizerValues, ServedOptimizer
from penstock.training.keras.served_variables import ProgramValues, ServedVariable, give_back, of_optimizer, serve

_weights: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The variables on the servers of each optimizer that is there."""


class ServedKeras(ServedFramework):
    """Keras's variables on servers.

    Weights of an optimizer that is built are one group with it. Variables that are not trainable, such as those of
    metrics and moving averages, are groups to which workers add; those of metrics are in no checkpoint. Other weights
    are moved to the servers when a function uses them, and do not change.
    """

    def place(self, strategy: Any) -> None:
        living = made_in_scope(strategy)
        optimizers = [one for one in living if isinstance(one, keras.optimizers.Optimizer)]
        for model in compiled_in_scope(strategy):
            if model.optimizer is not None and model.trainable_variables and not model.optimizer.built:
                with strategy.scope():
                    model.optimizer.build(model.trainable_variables)
        for optimizer in optimizers:
            if optimizer.built and optimizer not in _weights:
                _place_optimizer(strategy, optimizer)
        elsewhere = {id(variable) for optimizer in optimizers for variable in optimizer.variables}
        elsewhere |= {id(one.state) for one in living if isinstance(one, keras.random.SeedGenerator)}
        waiting = [
            one
            for one in living
            if isinstance(one, keras.Variable)
            and not isinstance(one, ServedVariable)
            and id(one) not in elsewhere
            and not one.trainable
            and has_value(one)
        ]
        owners = owner_kinds()
        counts = [one for one in waiting if owners.get(id(one)) is keras.Metric]
        others = [one for one in waiting if owners.get(id(one)) is not keras.Metric]
        _place_added(strategy, [one for one in others if np.asarray(one.value).nbytes < LARGE])
        for one in others:
            if not isinstance(one, ServedVariable):
                _place_added(strategy, [one])
        _place_added(strategy, counts, saved=False)

    def take_back(self, strategy: Any) -> None:
        give_back([one for one in made_in_scope(strategy) if isinstance(one, ServedVariable)])

    def reduced(self, strategy: Any, value: Any) -> Any:
        if isinstance(value, keras.Variable):
            return _variable(self, strategy, value)
        if isinstance(value, keras.optimizers.Optimizer):
            return _optimizer(self, strategy, value)
        if (collection := tracked_collection(value)) is not None:
            return collection
        if is_plain_object(value):
            if isinstance(value, keras.Model) and not value.built:
                raise InvalidArgumentError(
                    f"the model {value.name!r} is not built, so that it has no variables on the servers yet: build it "
                    "in the scope, by its input's shape, by model.build(shape) or by calling it once"
                )
            return FilledLater(type(value), attributes_for_worker(value))
        return NotImplemented


def _place_optimizer(strategy: Any, optimizer: Any) -> None:
    variables = built_with(optimizer)
    for variable in variables:
        if isinstance(variable, ServedVariable) or not _is_of(strategy, variable):
            raise InvalidArgumentError(
                f"the optimizer {optimizer.name!r} was built with {variable.path}, which was made outside of the "
                "strategy's scope, or which a function or another optimizer uses already: make the model in the scope, "
                "and build its one optimizer before functions use it"
            )
    rule = KerasRule(optimizer, variables)
    weights = strategy.create_by_rule([np.asarray(value) for value in values_of(variables)], rule)
    state = list(optimizer.variables)
    values = OptimizerValues(weights, rule)
    serve(variables, ProgramValues(weights, weights=True))
    before = values_of(state)
    serve(state, values)
    set_values(state, before)  # those of an optimizer that has been used
    _weights[optimizer] = weights


def _place_added(strategy: Any, variables: list[Any], *, saved: bool = True) -> None:
    if variables:
        values = [np.asarray(value) for value in values_of(variables)]
        held = strategy.create_by_rule(values, Addition(), saved=saved)
        serve(variables, ProgramValues(held, weights=False))


def _is_of(strategy: Any, made: Any) -> bool:
    return any(one is made for one in made_in_scope(strategy))


def _variable(framework: ServedKeras, strategy: Any, variable: Any) -> Any:
    if not isinstance(variable, ServedVariable):
        if not _is_of(strategy, variable):
            raise InvalidArgumentError(
                f"a function for workers uses the Keras variable {variable.path}, which was made outside of its "
                "strategy's scope: make models, optimizers and metrics inside `with strategy.scope():`"
            )
        framework.place(strategy)
    if isinstance(variable, ServedVariable):
        return variable.__reduce__()
    attributes = {name: value for name, value in vars(variable).items() if name != "_value"}
    if _is_seed(strategy, variable):
        return _seed_on_worker, (attributes, np.asarray(variable.value))
    if variable.trainable:
        _place_added(strategy, [variable])
        return variable.__reduce__()
    raise of_optimizer(variable)


def _is_seed(strategy: Any, variable: Any) -> bool:
    generators = (one for one in made_in_scope(strategy) if isinstance(one, keras.random.SeedGenerator))
    return any(one.state is variable for one in generators)


def _seed_on_worker(attributes: dict[str, Any], seed: Any) -> Any:
    """The state of a generator of seeds, which is each worker's own."""
    lines = lines_of_worker()
    mixed = seed.copy()
    if lines is not None:
        mixed[0] ^= np.uint32(lines.worker * 0x9E3779B9 & 0xFFFFFFFF)
    variable = object.__new__(keras.Variable)
    vars(variable).update(attributes)
    set_values([variable], [keras.ops.convert_to_tensor(mixed)])
    return variable


def _optimizer(framework: ServedKeras, strategy: Any, optimizer: Any) -> Any:
    if not _is_of(strategy, optimizer):
        raise InvalidArgumentError(
            f"a function for workers uses the optimizer {optimizer.name!r}, which was made outside of its strategy's "
            "scope: make it inside `with strategy.scope():`"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise InvalidArgumentError("a LossScaleOptimizer cannot be on parameter servers: train in bfloat16 or float32")
    framework.place(strategy)  # which builds those of compiled models
    if not optimizer.built:
        raise InvalidArgumentError(
            f"a function for workers uses the optimizer {optimizer.name!r}, which is not built, so that its servers do "
            "not know its variables: optimizer.build(model.trainable_variables) inside `with strategy.scope():`"
        )
    return ServedOptimizer, (_weights[optimizer],)
