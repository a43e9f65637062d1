"""Requests that are sent again after faults that pass, as a server that is too busy and a connection that breaks."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

BUSY: Final = frozenset((408, 429, 500, 502, 503, 504))
"""The answers of servers that refuse a request for the moment."""
BUSY_DELAYS: Final = (1.0, 2.0, 4.0, 8.0, *[15.0] * 11)
"""How many seconds lie between requests to a server that is too busy: two to three minutes in all."""
BROKEN_DELAYS: Final = (0.1, 0.2, 0.4, 0.8, 1.5)
"""The same where a connection breaks or cannot be made: a wrong address should not take minutes to be an error."""

MOST_SECONDS: Final = 600.0
"""All delays of a request together, also where its server asks for longer ones."""

Result = TypeVar("Result")


def patiently(
    request: Callable[[], Result],
    delays_after: Callable[[Exception], Sequence[float]],
    asked: Callable[[Exception], float] = lambda error: 0.0,
) -> Result:
    """What a request gives, which is sent again after faults that pass.

    Args:
        request: sends it.
        delays_after: how many seconds lie between requests that fail in this way: at most so many, at least half. It
            gives none if sending it again would not help.
        asked: how many seconds the server wants to be left alone after it has failed in this way.
    """
    sent, waited = 0, 0.0
    while True:
        try:
            return request()
        except Exception as error:
            delays = delays_after(error)
            if sent >= len(delays):
                raise
            # Later than asked by a random part, too: all readers were told the same.
            delay = max(delays[sent] * random.uniform(0.5, 1), asked(error) * random.uniform(1, 1.1))
            waited += delay
            if waited > MOST_SECONDS:
                raise
        time.sleep(delay)
        sent += 1


def seconds_asked(headers: Mapping[str, str]) -> float:
    """How long a server wants to be left alone, by the header `Retry-After` of its answer; 0 if it does not say."""
    value = next((value for name, value in headers.items() if name.lower() == "retry-after"), "").strip()
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:  # there is none, or no date
        return 0.0
