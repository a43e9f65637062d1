"""Variables of frameworks, such as Keras's, on parameter servers: what a framework must say of its objects."""

from abc import ABC, abstractmethod
from typing import Any


class ServedFramework(ABC):
    """A kind of variables that can be made in the scope of a `ps.ParameterServerStrategy`."""

    @abstractmethod
    def place(self, strategy: Any) -> None:
        """Put on the servers what was made in the strategy's scope and is not there yet."""

    @abstractmethod
    def reduced(self, strategy: Any, value: Any) -> Any:
        """What pickle writes of an object that goes to a worker; NotImplemented for all that is not the framework's.

        Raises:
            InvalidArgumentError: a variable that is on no server of the strategy's.
        """


_frameworks: list[ServedFramework] = []


def register(framework: ServedFramework) -> None:
    """Let the variables of a framework live on servers."""
    _frameworks.append(framework)


def place_all(strategy: Any) -> None:
    """Put on the servers what all frameworks have made in the strategy's scope."""
    for framework in _frameworks:
        framework.place(strategy)


def reduced_by_any(strategy: Any, value: Any) -> Any:
    """As `ServedFramework.reduced`, of the framework to which the object belongs."""
    for framework in _frameworks:
        if (reduced := framework.reduced(strategy, value)) is not NotImplemented:
            return reduced
    return NotImplemented
