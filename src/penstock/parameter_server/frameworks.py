"""Variables of frameworks, such as Keras's, on parameter servers: the interface that a framework implements."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any


class ServedFramework(ABC):
    """A kind of variables that can be made in the scope of a `ps.ParameterServerStrategy`."""

    @abstractmethod
    def place(self, strategy: Any) -> None:
        """Put on the servers what was made in the strategy's scope and is not there yet."""

    @abstractmethod
    def take_back(self, strategy: Any) -> None:
        """Let what was made in the strategy's scope have its newest values in this process, where it stays."""

    @abstractmethod
    def reduced(self, strategy: Any, value: Any) -> Any:
        """What pickle writes of an object that goes to a worker; NotImplemented for all that is not the framework's.

        Raises:
            InvalidArgumentError: a variable that is on no server of the strategy's.
        """


_loaders: list[Callable[[], ServedFramework]] = []


def register(load: Callable[[], ServedFramework]) -> None:
    """Let the variables of a framework live on servers. `load` gives it, when something is sent to a worker."""
    _loaders.append(cache(load))


def place_all(strategy: Any) -> None:
    """Put on the servers what all frameworks have made in the strategy's scope."""
    for load in _loaders:
        load().place(strategy)


def take_all_back(strategy: Any) -> None:
    """Let what all frameworks have made in the strategy's scope outlive its servers."""
    for load in _loaders:
        load().take_back(strategy)


def reduced_by_any(strategy: Any, value: Any) -> Any:
    """As `ServedFramework.reduced`, of the framework to which the object belongs."""
    for load in _loaders:
        if (reduced := load().reduced(strategy, value)) is not NotImplemented:
            return reduced
    return NotImplemented
