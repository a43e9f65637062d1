"""`Optional`: the next element of an iteration, or the word that there is none."""

from dataclasses import dataclass
from typing import Any, Self

from penstock.errors import InvalidArgumentError


@dataclass(frozen=True, eq=False)
class Optional:
    """A value that may be missing; from `iterator.get_next_as_optional()`.

    Example:
        >>> import penstock as ps
        >>> iterator = iter(ps.Dataset.range(2).batch(2))
        >>> first, second = iterator.get_next_as_optional(), iterator.get_next_as_optional()
        >>> first.has_value(), first.get_value().tolist(), second.has_value()
        (True, [0, 1], False)
    """

    _present: bool
    _value: Any

    @classmethod
    def of(cls, value: Any) -> Self:
        """An optional that holds `value`."""
        return cls(True, value)

    @classmethod
    def empty(cls) -> Self:
        """An optional that holds nothing."""
        return cls(False, None)

    def has_value(self) -> bool:
        """Return whether there is a value."""
        return self._present

    def get_value(self) -> Any:
        """The value.

        Raises:
            InvalidArgumentError: there is none; ask `has_value()` first.
        """
        if not self._present:
            raise InvalidArgumentError(
                "this ps.types.Optional holds no value: the data has ended; ask has_value() first"
            )
        return self._value
