"""Variables of frameworks, such as Keras's, on parameter servers: the interface that a framework implements."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any


class ServedFramework(ABC):
    """A kind of variables that can be made in the scope of a `ps.ParameterServerStrategy`."""

    @abstractmethod
    def place(self, strategy: Any) -> None:
        """Move new variables of the strategy's scope to the servers."""

    @abstractmethod
    def take_back(self, strategy: Any) -> None:
        """Fetch the newest values of the variables of the strategy's scope into this process, where they stay."""

    @abstractmethod
    def reduced(self, strategy: Any, value: Any) -> Any:
        """Reduce an object for pickle on its way to a worker; NotImplemented for objects of others.

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
    """Variant of `ServedFramework.reduced`, of the framework to which the object belongs."""
    for load in _loaders:
        if (reduced := load().reduced(strategy, value)) is not NotImplemented:
            return reduced
    return NotImplemented
