"""Arguments of `Checkpoint` and of its `save`, checked."""

import difflib
import logging
import operator
import sys
from typing import Any

from penstock.errors import InvalidArgumentError, InvalidTypeError
from penstock.options import check_flag

_logger = logging.getLogger(__name__)

_OPTIONS = ("max_to_keep", "keep_every_n", "best", "asynchronous")


def writes_in_background(asynchronous: bool) -> bool:
    """Return whether to write in the background: as asked, unless the end of the program would lose a checkpoint.

    Python 3.12.0 to 3.12.2 cannot start threads after the main program has ended, which Orbax needs to finish writing.

    Raises:
        InvalidTypeError: no flag.
    """
    if not check_flag("Checkpoint", "asynchronous", asynchronous):
        return False
    if not (3, 12, 0) <= sys.version_info[:3] < (3, 12, 3):
        return True
    _logger.info(
        "ps.Checkpoint(asynchronous=True): save waits until all is written, because Python %s would lose a checkpoint "
        "that is being written when the program ends; Python 3.12.3 or newer, and 3.11, write in the background",
        ".".join(map(str, sys.version_info[:3])),
    )
    return False


def check_no_options(objects: dict[str, Any]) -> None:
    """Refuse misspelt options, which would be taken for objects.

    Raises:
        InvalidArgumentError: a number, a string or None whose name is almost that of an option.
    """
    for name, value in objects.items():
        if not isinstance(value, (int, float, str, type(None))):
            continue
        close = difflib.get_close_matches(name, _OPTIONS, 1, cutoff=0.8)
        close += [option for option in _OPTIONS if len(name) > 3 and name in option or name[:5] == option[:5]]
        if close:
            raise InvalidArgumentError(
                f"ps.Checkpoint({name}={value!r}) looks like the option {close[0]!r}: write that, or save the value "
                f"under another name; the options are {', '.join(_OPTIONS)}"
            )


def step_of(step: Any, is_value: bool) -> int | None:
    """The number of a checkpoint from `step`; None if there is none.

    Args:
        step: what `save` was given.
        is_value: whether it is saved as well, and so may be something else than a number.

    Raises:
        InvalidTypeError: no whole number.
        InvalidArgumentError: a negative one.
    """
    if step is None:
        return None
    try:
        number = operator.index(step)
    except TypeError:
        number = None
    if number is None or isinstance(step, bool):
        if is_value:
            return None
        raise InvalidTypeError(f"checkpoint.save(step=...) takes a whole number, got {step!r}")
    if number < 0 and not is_value:
        raise InvalidArgumentError(f"checkpoint.save(step=...) must be at least 0, got {number}")
    return number if number >= 0 else None


def metric_of(metric: Any, is_value: bool) -> float | None:
    """The metric of a checkpoint as a number; None if there is none.

    Args:
        metric: what `save` was given.
        is_value: whether it is saved as well, and so may be something else than a number.

    Raises:
        InvalidTypeError: no number.
    """
    if metric is None:
        return None
    try:
        return float(metric)
    except (TypeError, ValueError):
        if is_value:
            return None
        raise InvalidTypeError(f"checkpoint.save(metric=...) takes a number, got {metric!r}") from None
