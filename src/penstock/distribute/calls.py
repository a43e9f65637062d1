"""Checks of the arguments of `run` and `run_steps`, and of what the user's function returns, for all strategies."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.distribute.contexts import refuse_in_replica
from penstock.errors import InvalidArgumentError, InvalidTypeError, OutOfRangeError


class RowsVaryError(InvalidArgumentError):
    """Steps that cannot run in one program, because later ones may have other numbers of rows.

    Attributes:
        begun: how many steps began before the error; the batches of the others were not used.
    """

    begun = 0


@dataclass(frozen=True)
class StepLoop:
    """Loop of `run_steps` over batches.

    Attributes:
        fn: the function of a step.
        steps: the most batches that there can be, which is the number that a program is compiled for.
        donate_state: whether the state's arrays are given away.
        rows_vary: whether later batches may have other numbers of rows.
    """

    fn: Callable[..., Any]
    steps: int
    donate_state: bool
    rows_vary: Callable[[], bool]


def check_call(fn: Any, args: Any, kwargs: Any) -> None:
    """Refuse arguments of `run` that can never work."""
    if not callable(fn):
        raise InvalidTypeError(f"strategy.run(fn) takes a function, got {fn!r}")
    if not isinstance(args, (tuple, list)):
        raise InvalidTypeError(f"strategy.run(args=...) takes a tuple, got {type(args).__name__}: write args=(value,)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidTypeError(f"strategy.run(kwargs=...) takes a dictionary, got {type(kwargs).__name__}")
    refuse_in_replica("strategy.run")


def take_batches(iterator: Iterator[Any], steps: int, *, at_once: bool) -> tuple[list[Any], Exception | None]:
    """The next `steps` batches of an iterator, and the exception that ended them early, if any.

    Args:
        iterator: gives the batches.
        steps: the largest number of them.
        at_once: whether an exception is raised at once, though batches came before it.

    Raises:
        OutOfRangeError: there is none.
    """
    batches: list[Any] = []
    try:
        while len(batches) < steps:
            batches.append(next(iterator))
    except StopIteration:
        if not batches:
            raise OutOfRangeError("strategy.run_steps got an iterator that has no further step") from None
    except Exception as error:
        if at_once or not batches:
            raise
        return batches, error
    return batches, None


def checked_argument_numbers(numbers: Any, arguments: int) -> tuple[int, ...]:
    """The numbers of arguments as `donate_argnums` gives them, counted from the first.

    Raises:
        InvalidTypeError: something that is no integer.
        InvalidArgumentError: there is no argument of a number.
    """
    given = numbers if isinstance(numbers, (tuple, list)) else (numbers,)
    for number in given:
        if isinstance(number, bool) or not isinstance(number, int):
            raise InvalidTypeError(
                f"strategy.run(donate_argnums=...) takes the numbers of arguments, integers, got {numbers!r}"
            )
        if not -arguments <= number < arguments:
            raise InvalidArgumentError(
                f"strategy.run(donate_argnums={numbers!r}) names argument {number}, but args has "
                f"{arguments}, counted from 0; keyword arguments cannot be given away"
            )
    return tuple(sorted({number % arguments for number in given}))


def checked_pair(result: Any) -> tuple[Any, Any]:
    """Return what a step with a state gave, if that is a pair of a state and a result.

    Raises:
        InvalidTypeError: it is not.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise InvalidTypeError(
            "with a state, the function of strategy.run_steps must return a pair (new state, result), got "
            f"{type(result).__name__}"
        )
    return result
