"""Keras variables whose values are on parameter servers, in the program that made them and on workers.

Such a variable is an ordinary Keras variable of another class, whose array is fetched at every access: in the program
it is the newest, on a worker that of the version that the function read first.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol
from weakref import WeakValueDictionary

import jax.numpy as jnp
import keras
import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.parameter_server.variables import ServerVariables, lines_of_worker
from penstock.training.keras.interface import set_values


class Holder(Protocol):
    """Gives and takes the arrays of several variables, by their places in a list."""

    def value(self, place: int) -> Any:
        """The array of a variable."""

    def assign(self, place: int, value: Any) -> None:
        """Replace it."""


class ServedVariable(keras.Variable):  # type: ignore[misc]  # Keras has no types
    """A Keras variable whose array a `Holder` has."""

    holder: Holder
    place: int

    @property
    def _value(self) -> Any:
        copies = _copies.get()
        return self.holder.value(self.place) if copies is None else copies.value(self)

    @_value.setter
    def _value(self, value: Any) -> None:
        copies = _copies.get()
        if copies is None:
            self.holder.assign(self.place, value)
        else:
            copies.assign(self, value)

    def __reduce__(self) -> Any:
        holder = self.holder
        if not isinstance(holder, (ProgramValues, WorkerValues)):
            raise of_optimizer(self)
        attributes = {name: value for name, value in vars(self).items() if name != "holder"}
        return _on_worker, (holder.variables, holder.weights, attributes)


def of_optimizer(variable: Any) -> InvalidArgumentError:
    """The error of a function that uses a variable of an optimizer, such as its iterations."""
    return InvalidArgumentError(
        f"{variable.path} belongs to an optimizer, of which functions on workers have apply(...) only"
    )


def serve(variables: Sequence[Any], holder: Holder) -> None:
    """Make variables ask a holder for their arrays from now on."""
    for place, variable in enumerate(variables):
        del vars(variable)["_value"]
        variable.__class__ = ServedVariable
        variable.holder, variable.place = holder, place


def give_back(variables: Sequence[Any]) -> None:
    """Let variables hold their arrays themselves again."""
    values = [variable.value for variable in variables]
    for variable in variables:
        variable.__class__ = keras.Variable
    set_values(variables, values)


class ProgramValues:
    """Variables as seen by the program that made the strategy: always the newest.

    Args:
        variables: on the servers.
        weights: whether an optimizer changes them; what functions assign to others is added up.
    """

    def __init__(self, variables: ServerVariables, weights: bool) -> None:
        self.variables = variables
        self.weights = weights

    def value(self, place: int) -> Any:
        """A copy of the newest array."""
        return jnp.array(self.variables.read()[place])

    def assign(self, place: int, value: Any) -> None:
        """Replace the array on the servers."""
        self.variables.assign_leaf(place, np.asarray(value))


class WorkerValues:
    """Variables as a function on a worker sees them: one version, and what the function itself assigns.

    When it returns, its additions to them are pushed.
    """

    def __init__(self, variables: ServerVariables, weights: bool) -> None:
        lines = lines_of_worker()
        assert lines is not None
        self.variables = variables
        self.weights = weights
        self._lines = lines
        self._closure = -1
        self._read: list[Any] = []
        self._own: dict[int, Any] = {}

    def value(self, place: int) -> Any:
        """The array of the version that this function reads, or the one it has assigned."""
        self._enter()
        return self._own.get(place, self._read[place])

    def assign(self, place: int, value: Any) -> None:
        """Note what the function has assigned."""
        if self.weights:
            raise InvalidArgumentError(
                "a function on a worker assigned to weights, which only their optimizer changes: optimizer.apply(...)"
            )
        self._enter()
        if not self._own:
            self._lines.before_end.append(self._push)
        self._own[place] = value

    def _enter(self) -> None:
        if self._closure != self._lines.closures:
            self._closure = self._lines.closures
            self._read = [jnp.asarray(array) for array in self.variables.read()]
            self._own = {}

    def _push(self) -> None:
        added = [
            np.asarray(self._own[place]) - np.asarray(read) if place in self._own else np.zeros(read.shape, read.dtype)
            for place, read in enumerate(self._read)
        ]
        self.variables.push(added)


_holders: WeakValueDictionary[int, WorkerValues] = WeakValueDictionary()
_made: WeakValueDictionary[tuple[int, int], ServedVariable] = WeakValueDictionary()
"""Of a worker: what functions share that use the same variables. It ends with the last of these functions."""


def _on_worker(variables: ServerVariables, weights: bool, attributes: dict[str, Any]) -> ServedVariable:
    number = variables.layout.number
    key = (number, attributes["place"])
    made = _made.get(key)
    if made is None:
        made = _made[key] = object.__new__(ServedVariable)
        made.__dict__.update(attributes)
        holder = _holders.get(number)
        if holder is None:
            holder = _holders[number] = WorkerValues(variables, weights)
        made.holder = holder
    return made


class _OneMoment:
    """Arrays of one moment, which can be changed without the servers."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, int], Any] = {}
        self._read: dict[int, list[Any]] = {}

    def value(self, variable: ServedVariable) -> Any:
        key = (id(variable.holder), variable.place)
        if key not in self._values:
            holder = variable.holder
            if isinstance(holder, ProgramValues):
                if id(holder) not in self._read:
                    self._read[id(holder)] = holder.variables.read()
                self._values[key] = jnp.array(self._read[id(holder)][variable.place])
            else:
                self._values[key] = holder.value(variable.place)
        return self._values[key]

    def assign(self, variable: ServedVariable, value: Any) -> None:
        self._values[id(variable.holder), variable.place] = value


_copies: ContextVar[_OneMoment | None] = ContextVar("penstock_copies_of_served_variables", default=None)


@contextmanager
def copies_of_served() -> Iterator[None]:
    """A context in which variables on servers keep the values that they are first read with.

    Assignments to them stay in the context, so that a model can be evaluated while workers train it.
    """
    token = _copies.set(_OneMoment())
    try:
        yield
    finally:
        _copies.reset(token)
