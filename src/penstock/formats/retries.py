"""Requests that are sent again after faults that pass, as a server that is too busy and a connection that breaks."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

BUSY: Final = frozenset((408, 429, 500, 502, 503, 504))
"""The answers of servers that refuse a request for the moment."""
BUSY_DELAYS: Final = (1.0, 2.0, 4.0, 8.0, *[15.0] * 11)
"""How many seconds lie between requests to a server that is too busy: two to three minutes in all."""
BROKEN_DELAYS: Final = (0.1, 0.2, 0.4, 0.8, 1.5)
"""The same where a connection breaks or cannot be made: a wrong address should not take minutes to be an error."""

Result = TypeVar("Result")


def patiently(request: Callable[[], Result], delays_after: Callable[[Exception], Sequence[float]]) -> Result:
    """What a request gives, which is sent again after faults that pass.

    Args:
        request: sends it.
        delays_after: how many seconds lie between requests that fail in this way: at most so many, at least half. It
            gives none if sending it again would not help.
    """
    sent = 0
    while True:
        try:
            return request()
        except Exception as error:
            delays = delays_after(error)
            if sent >= len(delays):
                raise
        time.sleep(delays[sent] * random.uniform(0.5, 1))
        sent += 1
